// The sections of the page. What one sees is in `state`, and in the address.
(() => {
  const facts = JSON.parse($("facts").textContent);
  const load = (role) => $(`${role}-index`) && Engine.unpack(JSON.parse($(`${role}-index`).textContent), Engine.base64($(`${role}-block`).textContent.trim()));
  const first = load("first"), em = load("em") ?? (first.network.primary.op === "matrices" ? first : null), cnn = load("cnn");
  const names = facts.names, classes = names.length;
  const CHANGES = { turn: [90, "°"], move: [10, " pixels"], shear: [0.8, ""] }, POINTS = 25; // largest change of each kind
  const state = { sample: 0, image: null, chosen: null, step: null, equal: false, layer: null, window: null, iterations: null, temperature: 0, whole: null, change: "turn", amount: 0 };
  let ink = new Float32Array(Pictures.PAD ** 2), image = null, result = null, pose = null, emResult = null;
  const order = (scores) => [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
  const best = (scores) => order(scores)[0];
  const chosen = () => state.chosen ?? best(result.scores);

  // --- address ---

  const KEYS = { chosen: Number, step: Number, equal: (text) => text === "true", layer: Number, window: Number, iterations: Number, temperature: Number, whole: Number, change: String, amount: Number };
  function toAddress() {
    const parts = [state.image ? `image=${Pictures.asText(state.image)}` : `sample=${state.sample}`];
    for (const key of Object.keys(KEYS)) if (state[key] !== null && state[key] !== false && !(key === "amount" || key === "temperature" ? state[key] === 0 : state[key] === "turn")) parts.push(`${key}=${state[key]}`);
    history.replaceState(null, "", `#${parts.join("&")}`);
  }
  function fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const [key, read] of Object.entries(KEYS)) if (given.has(key)) {
      const value = read(given.get(key));
      if (!Number.isNaN(value) && (key !== "change" || value in CHANGES) && !(["chosen", "whole"].includes(key) && !(value in names))) state[key] = value;
    }
    if (given.has("image")) try { show(Pictures.fromText(given.get("image")), null); return; } catch { /* an address that was cut off */ }
    const sample = Number(given.get("sample") ?? 0);
    showSample(sample in facts.samples ? sample : 0);
  }

  // --- 1: the pad ---

  function bars(root, scores, pressed, pick) {
    if (!root.children.length) names.forEach((name, k) => {
      const button = document.createElement("button"), label = document.createElement("span"), track = document.createElement("i"), value = document.createElement("span");
      button.className = "bar"; label.textContent = name;
      track.append(document.createElement("b"));
      button.append(label, track, value);
      button.onclick = () => pick(k);
      root.append(button);
    });
    [...root.children].forEach((button, k) => {
      button.children[1].firstChild.style.width = `${Math.min(100, 100 * scores[k])}%`;
      button.lastChild.textContent = scores[k].toFixed(2);
      button.setAttribute("aria-pressed", k === pressed);
      button.setAttribute("aria-label", `${names[k]}: ${scores[k].toFixed(2)}`);
    });
  }

  function answer() {
    const blank = image === null, started = performance.now();
    result = Engine.forward(first, image ?? new Float32Array(Pictures.SIZE ** 2), { equal: state.equal });
    explorer.milliseconds = performance.now() - started;
    $("timing").textContent = blank ? "" : `computed in ${explorer.milliseconds.toFixed(0)} ms`;
    $("bars").classList.toggle("faint", blank);
    const [one, two] = order(result.scores), say = (k) => `${names[k]} (${result.scores[k].toFixed(2)})`;
    const text = blank ? "Nothing is drawn." : `${result.scores[one] < 0.5 ? "It is not sure" : "It sees"}: ${say(one)}. Its second guess: ${say(two)}.`;
    Pictures.show($("seen"), image ?? new Float32Array(Pictures.SIZE ** 2), Pictures.SIZE);
    $("pad").setAttribute("aria-label", `Drawing pad. ${text}`);
    $("verdict").textContent = text;
    clearTimeout(answer.spoken);
    answer.spoken = setTimeout(() => { $("spoken").textContent = text; }, 500); // a screen reader does not read every stroke
    pose = null;
    cache.clear();
    draw();
  }

  function draw() {
    bars($("bars"), result.scores, chosen(), (k) => { state.chosen = k; pose = null; draw(); });
    if (first.network.decoder && facts.ranges) sliders();
    if (result.layers.length && first.network.primary.op === "squashed") couplings();
    later(em ? gaussians : null, "em");
    later(changes, "changes");
    clearTimeout(draw.address);
    draw.address = setTimeout(toAddress, 300);
  }

  const waiting = {};
  function later(work, name) { // after the strokes and the pictures that cost less
    clearTimeout(waiting[name]);
    if (work) waiting[name] = setTimeout(work, 30);
  }

  function show(values, sample) {
    image = values; state.sample = sample; state.image = sample === null ? values : null;
    const size = Pictures.PAD / Pictures.SIZE;
    for (let y = 0; y < Pictures.PAD; y++) for (let x = 0; x < Pictures.PAD; x++) ink[y * Pictures.PAD + x] = values[Math.floor(y / size) * Pictures.SIZE + Math.floor(x / size)];
    Pictures.show($("pad"), image, Pictures.SIZE);
    answer();
  }
  const showSample = (number) => show(Float32Array.from(facts.samples[number], (value) => value / 255), number);

  function startPad() {
    const pad = $("pad");
    let last = null, queued = false;
    const at = (event) => { const box = pad.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top].map((value) => value * Pictures.PAD / box.width); };
    const changed = () => {
      if (queued) return; // at most one answer for each frame
      queued = true;
      requestAnimationFrame(() => {
        queued = false;
        image = state.image = Pictures.centred(ink);
        state.sample = null;
        Pictures.show(pad, ink, Pictures.PAD);
        answer();
      });
    };
    pad.addEventListener("pointerdown", (event) => { pad.setPointerCapture(event.pointerId); last = at(event); state.chosen = null; Pictures.stroke(ink, ...last, ...last); changed(); });
    pad.addEventListener("pointermove", (event) => {
      if (!last) return;
      const events = event.getCoalescedEvents?.() ?? [];
      for (const each of events.length ? events : [event]) { const now = at(each); Pictures.stroke(ink, ...last, ...now); last = now; }
      changed();
    });
    for (const name of ["pointerup", "pointercancel"]) pad.addEventListener(name, () => { last = null; });
    $("clear").onclick = () => { ink.fill(0); state.chosen = null; changed(); };
    facts.samples.forEach((values, number) => {
      const canvas = document.createElement("canvas"), choose = () => { state.chosen = null; showSample(number); };
      canvas.width = canvas.height = 56; canvas.tabIndex = 0;
      canvas.setAttribute("role", "button"); canvas.setAttribute("aria-label", `example ${number + 1}`);
      canvas.onclick = choose;
      canvas.onkeydown = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } };
      $("samples").append(canvas);
    });
  }

  function examples() {
    [...$("samples").children].forEach((canvas, number) => Pictures.show(canvas, facts.samples[number].map((value) => value / 255), Pictures.SIZE));
  }

  // --- 2: the pose ---

  const orders = {}; // of the sliders, for each class
  function range(k, d) { const mean = facts.ranges.mean[k][d], width = 2 * facts.ranges.std[k][d]; return [mean - width, mean + width]; }

  function effects(k) {
    if (orders[k]) return orders[k];
    const found = facts.ranges.mean[k].map((_, d) => {
      const [low, high] = range(k, d).map((value) => { const moved = Float32Array.from(facts.ranges.mean[k]); moved[d] = value; return Engine.decode(first, moved, k); });
      return { d, effect: low.reduce((sum, value, i) => sum + Math.abs(value - high[i]), 0) / low.length };
    });
    return orders[k] = found.sort((a, b) => b.effect - a.effect);
  }

  function bounded(values) { // a pose is shorter than 1
    const length = Math.hypot(...values);
    return length < 0.999 ? values : values.map((value) => value * 0.999 / length);
  }

  function sliders() {
    const k = chosen(), dim = facts.ranges.mean[k].length;
    if (!pose) {
      pose = Array.from(result.poses.slice(k * dim, (k + 1) * dim));
      const sorted = effects(k);
      $("sliders").replaceChildren(...sorted.map(({ d, effect }) => {
        const label = document.createElement("label"), input = document.createElement("input"), [low, high] = range(k, d);
        const none = effect < 0.002; // ours: of the range of grey values, on average over the picture
        label.className = none ? "none" : "";
        label.textContent = `number ${d + 1}${none ? ", no visible effect" : ""}`;
        Object.assign(input, { type: "range", min: Math.min(low, pose[d]), max: Math.max(high, pose[d]), step: "any", value: pose[d] });
        input.oninput = () => { pose[d] = Number(input.value); decoded(d); };
        input.onfocus = () => strip(d);
        label.append(input);
        return label;
      }));
      strip(sorted[0].d);
    }
    decoded();
  }

  function decoded(moved = null) {
    const drawn = bounded(pose);
    Pictures.show($("decoded"), Engine.decode(first, drawn, chosen()), Pictures.SIZE);
    $("length").textContent = `length ${Math.hypot(...drawn).toFixed(2)}`;
    if (moved !== null) strip(moved);
  }

  function strip(d) {
    const [low, high] = range(chosen(), d), canvas = $("strip"), size = canvas.width / 7;
    for (let i = 0; i < 7; i++) {
      const moved = [...pose]; moved[d] = low + (high - low) * i / 6;
      Pictures.show(canvas, Engine.decode(first, bounded(moved), chosen()), Pictures.SIZE, i * size, 0, size);
    }
    $("stripnote").textContent = `number ${d + 1} from ${low.toFixed(2)} to ${high.toFixed(2)}`;
  }

  // --- 4: couplings ---

  function couplings() {
    const layer = result.layers[0], k = chosen(), steps = layer.steps.length, number = Math.min(state.step ?? steps - 1, steps - 1), step = layer.steps[number];
    const { grid: [h, w], types, byType } = layer.children, { parents } = layer, share = (i) => step.couplings[i * parents + k] * parents;
    let largest = 0, evenness = 0, total = 0;
    for (let i = 0; i < layer.children.count; i++) {
      let entropy = 0;
      for (let j = 0; j < parents; j++) { const c = Math.max(step.couplings[i * parents + j], 1e-12); entropy -= c * Math.log(c) / Math.log(parents); }
      evenness += entropy * layer.children.presence[i]; total += layer.children.presence[i];
      largest = Math.max(largest, Math.abs(Math.log(Math.max(share(i), 1e-6))));
    }
    largest = Math.max(largest, 1e-9);
    const gap = 10, cell = Math.max(9, Math.min(14, 60 / w)), across = Math.max(1, Math.floor((Math.min(888, $("maps").parentElement.clientWidth) - gap) / (w * cell + gap)));
    const down = Math.ceil(types / across), { context } = plot($("maps"), down * (h * cell + gap) + gap);
    for (let i = 0; i < layer.children.count; i++) {
      const type = byType ? Math.floor(i / (h * w)) : i % types, place = byType ? i % (h * w) : Math.floor(i / types), value = Math.log(Math.max(share(i), 1e-6)) / largest;
      const x = gap + type % across * (w * cell + gap) + place % w * cell, y = gap + Math.floor(type / across) * (h * cell + gap) + Math.floor(place / w) * cell;
      const size = 2 + (cell - 3) * Math.min(1, 1.2 * layer.children.presence[i]);
      context.globalAlpha = 0.1 + 0.9 * Math.abs(value);
      context.fillStyle = Colours.get(value >= 0 ? "more" : "less");
      context.fillRect(x + (cell - size) / 2, y + (cell - size) / 2, size, size);
    }
    context.globalAlpha = 1;
    $("children").textContent = layer.children.count; $("chosen").textContent = names[k]; $("equal").checked = state.equal;
    $("step").textContent = `iteration ${number + 1} of ${steps}`;
    $("back").disabled = number === 0; $("next").disabled = number === steps - 1;
    $("range").textContent = `Full colour is ${Math.exp(largest).toFixed(2)} times an equal share, or 1/${Math.exp(largest).toFixed(2)} of it. Evenness of all shares: ${(evenness / total).toFixed(4)} (1: equal).`;
    later(effect, "effect");
  }

  function effect() { // of routing on the answer
    const other = Engine.forward(first, image ?? new Float32Array(Pictures.SIZE ** 2), { equal: !state.equal });
    const [equal, routed] = state.equal ? [result, other] : [other, result], steps = routed.layers[0].steps;
    table($("effect"), ["digit", ...steps.map((_, i) => `iteration ${i + 1}`), "equal shares"], order(routed.scores).slice(0, 3).map((j) =>
      [names[j], ...steps.map((each) => each.activations[j].toFixed(3)), equal.scores[j].toFixed(3)]));
  }

  // --- 5: EM ---

  function gaussians() {
    const own = em.network.capsules[em.network.capsules.length - 1], iterations = state.iterations ?? own.iterations, temperature = own.temperature * 10 ** state.temperature;
    const started = performance.now();
    emResult = Engine.forward(em, image ?? new Float32Array(Pictures.SIZE ** 2), { iterations, temperature });
    explorer.emMilliseconds = performance.now() - started;
    const layers = emResult.layers, number = Math.min(state.layer ?? layers.length - 1, layers.length - 1), layer = layers[number], last = number === layers.length - 1;
    const n = Math.min(state.window ?? Math.floor(layer.windows / 2), layer.windows - 1), step = layer.steps[layer.steps.length - 1], { parents, places, dim } = layer;
    const whole = Math.min(last ? state.whole ?? best(emResult.scores) : state.whole ?? 0, parents - 1);
    if ($("em-layer").children.length !== layers.length) $("em-layer").replaceChildren(...layers.map((each, i) => new Option(each.name.replaceAll("_", " "), i)));
    $("em-layer").value = number;
    Object.assign($("em-window"), { max: layer.windows - 1, value: n, disabled: layer.windows === 1 });
    $("em-step").value = iterations; $("em-temperature").value = state.temperature;
    $("em-window-out").textContent = `${n + 1} of ${layer.windows}`; $("em-step-out").textContent = iterations; $("em-temperature-out").textContent = temperature.toFixed(2);
    bars($("em-bars"), emResult.scores, last ? whole : -1, (k) => { state.whole = k; state.layer = layers.length - 1; draw(); });

    const vote = (i, j) => ((n * places + i) * parents + j) * dim, presence = (i) => layer.children.presence[layer.child[n * places + i]];
    const means = (d) => Array.from({ length: parents }, (_, j) => step.poses[(n * parents + j) * dim + d]);
    const apart = Array.from({ length: dim }, (_, d) => { // of the wholes: variance of their means, over their own variances
      const found = means(d), middle = found.reduce((a, b) => a + b) / parents;
      let own = 0;
      for (let j = 0; j < parents; j++) own += step.variances[(n * parents + j) * dim + d] - layer.minVariance;
      return found.reduce((sum, mean) => sum + (mean - middle) ** 2, 0) / (own + 1e-9);
    });
    const [x, y] = order(apart), { context, width, height } = plot($("votes"), Math.min(420, $("votes").parentElement.clientWidth));
    const deviation = (j, d) => Math.sqrt(Math.max(step.variances[(n * parents + j) * dim + d] - layer.minVariance, 0));
    const bounds = (d) => { // of the votes for this whole and of all Gaussians
      const values = [...means(d).flatMap((mean, j) => [mean - deviation(j, d), mean + deviation(j, d)]), ...Array.from({ length: places }, (_, i) => layer.votes[vote(i, whole) + d])];
      const low = Math.min(...values), high = Math.max(...values), margin = 0.05 * (high - low) + 1e-6;
      return [low - margin, high + margin];
    };
    const [xs, ys] = [bounds(x), bounds(y)], X = (v) => width * (v - xs[0]) / (xs[1] - xs[0]), Y = (v) => height * (1 - (v - ys[0]) / (ys[1] - ys[0]));
    const competing = parents * layer.windows; // parents that may see a child; full strength: 2.4 times an equal share
    context.fillStyle = Colours.get("more");
    for (let i = 0; i < places; i++) {
      context.globalAlpha = Math.min(1, 0.15 + 0.35 * step.couplings[(n * parents + whole) * places + i] * competing);
      context.beginPath(); context.arc(X(layer.votes[vote(i, whole) + x]), Y(layer.votes[vote(i, whole) + y]), 1.5 + 4 * presence(i), 0, 7); context.fill();
    }
    context.font = "12px Georgia, serif";
    for (let j = 0; j < parents; j++) {
      const at = n * parents + j, mean = [X(step.poses[at * dim + x]), Y(step.poses[at * dim + y])], one = j === whole;
      context.globalAlpha = one ? 1 : 0.2 + 0.7 * step.activations[at];
      context.strokeStyle = context.fillStyle = Colours.get(one ? "less" : "soft"); context.lineWidth = one ? 2.5 : 1;
      context.beginPath(); context.ellipse(...mean, width * deviation(j, x) / (xs[1] - xs[0]), height * deviation(j, y) / (ys[1] - ys[0]), 0, 0, 7); context.stroke();
      context.fillText(last ? names[j] : j + 1, mean[0] - 3, mean[1] + 4);
    }
    context.globalAlpha = 1;
    let evenness = 0, mass = 0;
    for (let i = 0; i < places; i++) {
      let sum = 0, entropy = 0;
      for (let j = 0; j < parents; j++) sum += step.couplings[(n * parents + j) * places + i];
      for (let j = 0; j < parents; j++) { const c = Math.max(step.couplings[(n * parents + j) * places + i] / Math.max(sum, 1e-12), 1e-12); entropy -= c * Math.log(c) / Math.log(parents); }
      evenness += presence(i) * entropy; mass += presence(i);
    }
    const floor = layer.minVariance >= 0.05 ? ` The network adds ${layer.minVariance} to every variance; the ellipses are drawn without it.` : "";
    $("em-note").textContent = `Whole ${last ? names[whole] : whole + 1}: activation ${step.activations[n * parents + whole].toFixed(2)} after iteration ${iterations}. Components ${x + 1} and ${y + 1} of ${dim}, in which the wholes differ most. Evenness of the shares: ${(evenness / mass).toFixed(3)} (1: equal).${floor}`;
  }

  // --- 6: changes ---

  const cache = new Map();
  const level = (i) => [8, 4, 2, 1].findIndex((step) => i % step === 0); // a coarse curve first
  const COARSE_FIRST = [...Array(POINTS).keys()].sort((a, b) => level(a) - level(b));
  function changes() {
    const picture = image ?? new Float32Array(Pictures.SIZE ** 2), [largest, unit] = CHANGES[state.change], k = best(result.scores);
    const changedBy = (amount) => Pictures.changed(picture, { [state.change]: amount * largest });
    document.querySelector(`input[name=change][value=${state.change}]`).checked = true;
    $("amount").value = state.amount; $("amount-out").textContent = `${(state.amount * largest).toFixed(state.change === "shear" ? 2 : 0)}${unit}`;
    Pictures.show($("changed"), changedBy(state.amount), Pictures.SIZE);
    const series = cache.get(state.change) ?? Array(POINTS).fill(null), missing = COARSE_FIRST.find((i) => series[i] === null);
    cache.set(state.change, series);
    if (missing !== undefined) { // one point at a time, so that strokes are not delayed
      const values = changedBy(2 * missing / (POINTS - 1) - 1), own = Engine.forward(first, values), dim = own.poses.length / classes;
      series[missing] = { own: own.scores[k], pose: own.poses.slice(k * dim, (k + 1) * dim), cnn: cnn ? Engine.forward(cnn, values).scores[k] : null };
      later(changes, "changes");
    }
    const known = series.filter((point) => point !== null), dim = known[0].pose.length;
    const moving = order(Array.from({ length: dim }, (_, d) => { const values = known.map((point) => point.pose[d]); return Math.max(...values) - Math.min(...values); })).slice(0, 3);
    curves($("curves"), 200, [{ name: `capsule of ${names[k]}`, colour: "more", values: series.map((point) => point?.own) },
      ...cnn ? [{ name: "CNN", colour: "less", values: series.map((point) => point?.cnn) }] : []], 0, 1);
    const all = known.flatMap((point) => moving.map((d) => point.pose[d]));
    curves($("components"), 140, moving.map((d, i) => ({ name: `number ${d + 1}`, colour: NAMES[i], values: series.map((point) => point?.pose[d]) })), Math.min(...all), Math.max(...all));
    const now = Engine.forward(first, changedBy(state.amount)), top = best(now.scores);
    $("changes-note").textContent = `Now the capsules see ${names[top]} (${now.scores[top].toFixed(2)})${cnn ? `, the CNN ${(() => { const s = Engine.forward(cnn, changedBy(state.amount)).scores; return `${names[best(s)]} (${s[best(s)].toFixed(2)})`; })()}` : ""}.`;
  }

  function curves(canvas, tall, lines, low, high) {
    const { context, width, height } = plot(canvas, tall), X = (i) => 8 + (width - 16) * i / (POINTS - 1), Y = (v) => height - 8 - (height - 30) * (v - low) / (high - low || 1);
    context.font = "12px Georgia, serif"; context.strokeStyle = Colours.get("line"); context.lineWidth = 1;
    const now = X((state.amount + 1) / 2 * (POINTS - 1));
    context.beginPath(); context.moveTo(now, 18); context.lineTo(now, height); context.moveTo(8, Y(low)); context.lineTo(width - 8, Y(low)); context.stroke();
    let from = 8;
    lines.forEach(({ name, colour, values }) => {
      context.strokeStyle = context.fillStyle = Colours.get(colour); context.lineWidth = 2;
      context.beginPath();
      values.forEach((value, i) => { if (value !== undefined) context.lineTo(X(i), Y(value)); });
      context.stroke();
      context.fillText(name, from, 13);
      from += context.measureText(name).width + 16;
    });
  }

  // --- start ---

  function start() {
    $("pose").hidden = !(first.network.decoder && facts.ranges);
    $("digits").textContent = facts.digits;
    $("couplings").hidden = first.network.primary.op !== "squashed";
    $("em").hidden = !em;
    $("changes").hidden = false;
    if (em && em !== first) $("em-title").textContent = `5. Votes and Gaussians in a second network`;
    if (cnn) $("beside-text").textContent = `, beside a CNN of ${facts.networks.find((each) => each.role === "cnn").parameters.toLocaleString("en")} parameters`;
    table($("records"), ["network", "parameters", "trained on", "error", "largest difference that rounding makes", "command"], facts.networks.map((each) =>
      [each.name, each.parameters.toLocaleString("en"), each.data, each.error === null ? "" : `${each.error.toFixed(2)} % of ${each.error_of}`, each.rounding.toExponential(0), each.command ?? ""]));
    const set = (key, read) => (event) => { state[key] = read(event.target); draw(); };
    $("back").onclick = () => step(-1); $("next").onclick = () => step(1);
    $("equal").onchange = (event) => { state.equal = event.target.checked; answer(); };
    $("reset").onclick = () => { pose = null; draw(); };
    $("em-layer").onchange = (event) => { state.layer = Number(event.target.value); state.window = state.whole = null; draw(); };
    $("em-window").oninput = set("window", (input) => Number(input.value));
    $("em-step").oninput = set("iterations", (input) => Number(input.value));
    $("em-temperature").oninput = set("temperature", (input) => Number(input.value));
    $("amount").oninput = (event) => { state.amount = Number(event.target.value); draw(); };
    for (const radio of document.querySelectorAll("input[name=change]")) radio.onchange = set("change", (input) => input.value);
    addEventListener("keydown", (event) => {
      if (["INPUT", "SELECT"].includes(event.target.tagName) || event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "ArrowRight") step(1); else if (event.key === "ArrowLeft") step(-1);
    });
    const everything = () => { // in other colours or sizes; nothing is computed again
      examples(); Sandbox.draw(); Mixture.draw();
      Pictures.show($("pad"), state.sample === null ? ink : image, state.sample === null ? Pictures.PAD : Pictures.SIZE);
      Pictures.show($("seen"), image ?? new Float32Array(Pictures.SIZE ** 2), Pictures.SIZE);
      draw();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; everything(); } });
    startPad(); examples(); Sandbox.start(); Mixture.start();
    requestAnimationFrame(() => setTimeout(() => { // the page is there before the first answer
      fromAddress();
      addEventListener("hashchange", fromAddress);
      explorer.ready = true;
    }));
  }

  function step(by) {
    const steps = result.layers[0]?.steps.length ?? 1;
    state.step = Math.max(0, Math.min(steps - 1, (state.step ?? steps - 1) + by));
    draw();
  }

  const explorer = window.explorer = { Engine, first, em, cnn, state, ready: false, show: (values) => show(Float32Array.from(values), null), result: () => result, emResult: () => emResult };
  start();
})();
