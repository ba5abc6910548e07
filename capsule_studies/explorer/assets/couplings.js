// Section 4: what each place of the small capsules sees, and how it divides itself among the classes.
const Couplings = (() => {
  const isShown = first.network.capsules.length > 0;
  const SMALLEST = 1e-6; // of a share, so that its logarithm is finite
  const FULL = Math.log(10); // ours: full colour at most for ten times an equal share, or a tenth of it
  let place = null, type = null; // of the capsules that one looks at; null: all
  let entered = null; // the class whose bar the pointer is on

  const layer = () => result.layers.at(-1);
  const children = () => layer().children;
  const stepNumber = () => Math.min(state.step ?? layer().steps.length - 1, layer().steps.length - 1);
  const current = () => layer().steps[stepNumber()];
  const shownClass = () => entered ?? chosen();

  function childAt(place, type) {
    const { grid: [h, w], types, byType } = children();
    return byType ? type * h * w + place : place * types + type;
  }

  // The share that capsules send to a class, weighted by how active they are.
  function share(k, places, kinds) {
    let sent = 0, all = 0;
    for (const at of places) for (const kind of kinds) {
      const child = childAt(at, kind), presence = children().presence[child] + 1e-12;
      sent += presence * layer().share(current(), child, k);
      all += presence;
    }
    return sent / all;
  }

  const range = (length) => [...Array(length).keys()];
  const allPlaces = () => range(children().grid[0] * children().grid[1]);
  const allTypes = () => range(children().types);
  const logRatio = (value) => Math.log(Math.max(value / layer().equalShare, SMALLEST));

  const bounded = (value) => Math.max(-1, Math.min(1, value));

  // --- on the picture ---

  // Rectangle of the picture, in its pixels: [left, top, width, height] of what a place sees, and its middle.
  function field(at) {
    const seen = Engine.receptiveField(first, result.layers, result.layers.length - 1);
    const columns = children().grid[1], row = Math.floor(at / columns), column = at % columns;
    if (!seen) return { box: [0, 0, WIDTH, HEIGHT], middle: [WIDTH / 2, HEIGHT / 2], step: [WIDTH, HEIGHT] };
    const left = seen.columns.start + column * seen.columns.step, top = seen.rows.start + row * seen.rows.step;
    const { size: wide } = seen.columns, { size: tall } = seen.rows;
    return {
      box: [left, top, wide, tall],
      middle: [left + wide / 2, top + tall / 2],
      step: [seen.columns.step, seen.rows.step],
    };
  }

  function drawPicture() {
    const k = shownClass(), values = allPlaces().map((at) => logRatio(share(k, [at], allTypes())));
    const largest = Math.min(FULL, Math.max(...values.map(Math.abs), 1e-9));
    const scale = Math.min($("look").parentElement.clientWidth, 300) / Math.max(WIDTH, HEIGHT);
    const { context, width, height } = plot($("look"), HEIGHT * scale, WIDTH * scale);
    context.globalAlpha = 0.45;
    Pictures.show(context, image, shape, [0, 0, width, height], look);
    values.forEach((value, at) => drawMark(context, at, bounded(value / largest), scale));
    if (place !== null) drawField(context, scale, width, height);
    context.globalAlpha = 1;
    return largest;
  }

  function drawMark(context, at, value, scale) { // colour: share; size: how active the place is
    const { middle: [x, y], step: [wide, tall] } = field(at);
    const active = allTypes().reduce((sum, kind) => sum + children().presence[childAt(at, kind)], 0) / children().types;
    const size = scale * Math.min(wide, tall, 12) * (0.25 + 0.6 * Math.min(1, active));
    context.globalAlpha = 0.15 + 0.85 * Math.abs(value);
    context.fillStyle = Colours.get(value >= 0 ? "more" : "less");
    context.fillRect(x * scale - size / 2, y * scale - size / 2, size, size);
  }

  function drawField(context, scale, width, height) {
    const [left, top, wide, tall] = field(place).box.map((value) => value * scale);
    const x0 = Math.max(left, 1), y0 = Math.max(top, 1);
    const x1 = Math.min(left + wide, width - 1), y1 = Math.min(top + tall, height - 1);
    context.globalAlpha = 1;
    context.lineWidth = 2.5;
    context.strokeStyle = Colours.get("third");
    context.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }

  function drawSent() {
    const places = place === null ? allPlaces() : [place], kinds = type === null ? allTypes() : [type];
    const shares = names.map((_, k) => share(k, places, kinds));
    bars($("look-bars"), names, shares, {
      scale: Math.max(...shares, SMALLEST),
      text: (value) => value.toFixed(3),
      pressed: chosen(),
      pick: (k) => {
        state.chosen = k;
        Pose.forget();
        draw();
      },
      enter,
    });
    const equal = `An equal share is ${layer().equalShare.toFixed(3)}; the longest bar is the largest share.`;
    $("look-note").textContent = `${whatIsLookedAt()} ${equal}`;
  }

  function whatIsLookedAt() {
    if (place === null) return "Shares of all small capsules together.";
    const columns = children().grid[1], [left, top, wide, tall] = field(place).box;
    const pixels = (from, size, side) => `${Math.max(1, Math.round(from) + 1)} to ${Math.min(side, Math.round(from + size))}`;
    const who = type === null ? `The ${children().types} capsules` : `Capsule ${type + 1} of ${children().types}`;
    return `${who} at row ${Math.floor(place / columns) + 1}, column ${place % columns + 1} of the grid: `
      + `the frame has rows ${pixels(top, tall, HEIGHT)} and columns ${pixels(left, wide, WIDTH)} of the picture.`;
  }

  function lookAt(newPlace, newType = null) {
    if (newPlace === place && newType === type) return;
    place = newPlace;
    type = newType;
    drawPicture();
    drawSent();
  }

  function enter(k) { // a class
    entered = k;
    if (image && isShown) drawAll();
  }

  function nearestPlace(x, y) { // to a point of the picture, in its pixels
    const { middle, step } = field(0), [rows, columns] = children().grid;
    const along = (value, which, count) => Math.max(0, Math.min(count - 1, Math.round((value - middle[which]) / step[which])));
    return along(y, 1, rows) * columns + along(x, 0, columns);
  }

  function moved(key) { // by an arrow key
    const [rows, columns] = children().grid, row = Math.floor((place ?? 0) / columns), column = (place ?? 0) % columns;
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
    if (place === null) return 0;
    return Math.max(0, Math.min(rows - 1, row + down)) * columns + Math.max(0, Math.min(columns - 1, column + right));
  }

  // --- each kind of capsule by itself ---

  function layout() {
    const { grid: [h, w], types } = children(), gap = 10, cell = Math.max(9, Math.min(14, 60 / w));
    const across = Math.max(1, Math.floor(($("maps").parentElement.clientWidth - gap) / (w * cell + gap)));
    return { h, w, gap, cell, across, down: Math.ceil(types / across) };
  }

  function drawMaps() {
    const { h, w, gap, cell, across, down } = layout(), k = shownClass();
    const ratio = (child) => logRatio(layer().share(current(), child, k));
    let largest = 1e-9;
    for (let child = 0; child < children().count; child++) largest = Math.max(largest, Math.abs(ratio(child)));
    largest = Math.min(largest, FULL);
    const { context } = plot($("maps"), down * (h * cell + gap) + gap);
    for (const kind of allTypes()) for (const at of allPlaces()) {
      const child = childAt(at, kind), value = bounded(ratio(child) / largest);
      const size = 2 + (cell - 3) * Math.min(1, 1.2 * children().presence[child]);
      const x = gap + kind % across * (w * cell + gap) + at % w * cell;
      const y = gap + Math.floor(kind / across) * (h * cell + gap) + Math.floor(at / w) * cell;
      context.globalAlpha = 0.1 + 0.9 * Math.abs(value);
      context.fillStyle = Colours.get(value >= 0 ? "more" : "less");
      context.fillRect(x + (cell - size) / 2, y + (cell - size) / 2, size, size);
    }
    context.globalAlpha = 1;
    return largest;
  }

  function capsuleAt(x, y) { // of the maps; null between them
    const { h, w, gap, cell, across } = layout();
    const column = Math.floor((x - gap) / (w * cell + gap)), row = Math.floor((y - gap) / (h * cell + gap));
    const inX = Math.floor((x - gap - column * (w * cell + gap)) / cell), inY = Math.floor((y - gap - row * (h * cell + gap)) / cell);
    const kind = row * across + column;
    const isInside = column >= 0 && column < across && inX >= 0 && inX < w && inY >= 0 && inY < h && kind >= 0 && kind < children().types;
    return isInside ? [inY * w + inX, kind] : null;
  }

  // --- all ---

  function evenness() { // entropy of the shares of a capsule, relative to that of equal shares
    let evenness = 0, total = 0;
    for (let child = 0; child < children().count; child++) {
      let entropy = 0;
      for (let k = 0; k < names.length; k++) {
        const c = Math.max(layer().share(current(), child, k), 1e-12);
        entropy -= c * Math.log(c) / Math.log(names.length);
      }
      evenness += entropy * children().presence[child];
      total += children().presence[child];
    }
    return evenness / total;
  }

  function drawAll() {
    const onPicture = Math.exp(drawPicture()), inMaps = Math.exp(drawMaps());
    drawSent();
    const even = layer().equalShare * names.length === 1 ? ` Evenness of all shares: ${evenness().toFixed(4)} (1: equal).` : "";
    $("chosen").textContent = names[shownClass()];
    $("range").textContent = `Full colour on the picture is ${onPicture.toFixed(2)} times an equal share, or 1/${onPicture.toFixed(2)} of it, `
      + `and in the maps of single capsules ${inMaps.toFixed(2)} times.${even}`;
  }

  function drawCouplings() {
    if (!isShown) return;
    if (place !== null && !(place in allPlaces())) place = type = null;
    const steps = layer().steps.length, number = stepNumber();
    $("children").textContent = children().count;
    $("equal").checked = state.equal;
    $("step").textContent = `iteration ${number + 1} of ${steps}`;
    $("back").disabled = number === 0;
    $("next").disabled = number === steps - 1;
    drawAll();
    later(effect, "effect");
  }

  function effect() { // of routing on the answer
    if (!result) return;
    const other = Engine.forward(first, image, { equal: !state.equal });
    const [equal, routed] = state.equal ? [result, other] : [other, result];
    const steps = routed.layers.at(-1).steps;
    const head = ["class", ...steps.map((_, i) => `iteration ${i + 1}`), "equal shares"];
    table($("effect"), head, order(routed.logits ?? routed.scores).slice(0, 3).map((k) =>
      [names[k], ...steps.map((each) => each.activations[k].toFixed(3)), equal.scores[k].toFixed(3)]));
  }

  function step(by) {
    if (!result) return;
    state.step = Math.max(0, Math.min(layer().steps.length - 1, stepNumber() + by));
    draw();
  }

  function start() {
    $("couplings").hidden = !isShown;
    $("classes").textContent = names.length;
    const picture = $("look"), maps = $("maps");
    const byPointer = (event) => {
      if (!result) return;
      const scale = WIDTH / picture.clientWidth;
      lookAt(nearestPlace(...pointerOn(picture, event).map((value) => value * scale)));
    };
    for (const name of ["pointermove", "pointerdown"]) {
      picture.addEventListener(name, byPointer);
      maps.addEventListener(name, (event) => {
        if (result) lookAt(...capsuleAt(...pointerOn(maps, event)) ?? [null]);
      });
    }
    for (const canvas of [picture, maps])
      canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && result) lookAt(null); });
    picture.addEventListener("keydown", (event) => {
      if (!result || !(event.key.startsWith("Arrow") || event.key === "Escape")) return;
      event.preventDefault();
      event.stopPropagation(); // the arrows of the page step through iterations
      lookAt(event.key === "Escape" ? null : moved(event.key));
    });
    $("back").onclick = () => step(-1);
    $("next").onclick = () => step(1);
    $("equal").onchange = (event) => {
      state.equal = event.target.checked;
      answer();
    };
  }

  return { start, draw: drawCouplings, enter, step };
})();
