// Section 6: the answer while the picture is turned, moved or sheared.
const Changes = (() => {
  const POINTS = 25;
  const coarseness = (i) => [8, 4, 2, 1].findIndex((step) => i % step === 0);
  const COARSE_FIRST = [...Array(POINTS).keys()].sort((a, b) => coarseness(a) - coarseness(b));
  const cache = new Map(); // for each kind of change, what was computed at each point
  const forget = () => cache.clear();

  const amountAt = (i) => 2 * i / (POINTS - 1) - 1;
  const changedBy = (amount) => Pictures.changed(image, shape, { [state.change]: amount * CHANGES[state.change].largest }, drawing);

  function drawChanges() {
    if (!image) return;
    const { largest, unit, digits } = CHANGES[state.change], k = best(result.scores);
    document.querySelector(`input[name=change][value=${state.change}]`).checked = true;
    $("amount").value = state.amount;
    $("amount-out").textContent = `${(state.amount * largest).toFixed(digits)}${unit}`;
    showOn($("changed"), changedBy(state.amount));
    const series = cache.get(state.change) ?? Array(POINTS).fill(null);
    const missing = COARSE_FIRST.find((i) => series[i] === null);
    cache.set(state.change, series);
    if (missing !== undefined) { // one point at a time, so that strokes are not delayed
      series[missing] = point(changedBy(amountAt(missing)), k);
      later(drawChanges, "changes");
    }
    drawCurves(series, k);
    $("changes-note").textContent = note();
  }

  function point(values, k) {
    const own = Engine.forward(first, values), dim = own.poses.length / names.length;
    return {
      own: own.scores[k],
      pose: own.poses.slice(k * dim, (k + 1) * dim),
      cnn: cnn ? Engine.forward(cnn, values).scores[k] : null,
    };
  }

  function drawCurves(series, k) {
    const answers = [{ name: `capsule of ${names[k]}`, colour: "more", values: series.map((at) => at?.own) }];
    if (cnn) answers.push({ name: "CNN", colour: "less", values: series.map((at) => at?.cnn) });
    curves($("curves"), 230, answers, [0, 0.5, 1], 1);
    const known = series.filter((at) => at !== null), { length } = known[0].pose;
    $("components").hidden = length === 0;
    if (length === 0) return; // capsules without poses
    const spread = Array.from({ length }, (_, d) => {
      const values = known.map((at) => at.pose[d]);
      return Math.max(...values) - Math.min(...values);
    });
    const moving = order(spread).slice(0, 3);
    const all = known.flatMap((at) => moving.map((d) => at.pose[d]));
    const low = Math.min(...all), high = Math.max(...all, low + 1e-6);
    const lines = moving.map((d, i) => ({ name: labelOf(k, d), colour: NAMES[i], values: series.map((at) => at?.pose[d]) }));
    curves($("components"), 190, lines, [low, (low + high) / 2, high], 2);
  }

  function note() {
    const answerOf = (model) => {
      const { scores } = Engine.forward(model, changedBy(state.amount)), top = best(scores);
      return `${names[top]} (${scores[top].toFixed(2)})`;
    };
    return `Now the capsules see ${answerOf(first)}${cnn ? `, the CNN ${answerOf(cnn)}` : ""}.`;
  }

  function curves(canvas, tall, lines, levels, places) {
    const plotted = plot(canvas, tall), { context } = plotted, { largest, unit, name, digits } = CHANGES[state.change];
    const degrees = unit === "°" ? unit : "";
    const across = [-1, -0.5, 0, 0.5, 1].map((value) => ({ value, text: `${(value * largest).toFixed(digits)}${degrees}` }));
    const up = levels.map((value) => ({ value, text: value.toFixed(places) }));
    const { X, Y, left } = axes(plotted, { ticks: across, name }, { ticks: up });
    line(context, [X(state.amount), Y(levels[0])], [X(state.amount), Y(levels.at(-1))]);
    let from = left;
    for (const { name: title, colour, values } of lines) {
      context.strokeStyle = context.fillStyle = Colours.get(colour);
      context.lineWidth = 2;
      const known = values.map((value, i) => [i, value]).filter(([, value]) => value !== undefined && value !== null);
      line(context, ...known.map(([i, value]) => [X(amountAt(i)), Y(value)]));
      context.fillText(title, from, 14);
      from += context.measureText(title).width + 16;
    }
  }

  function start() {
    sizedLike($("changed"), 224);
    $("answer-name").textContent = { length: "length", share: "share" }[kindOf(first)] ?? "activation";
    const parameters = facts.networks.find((each) => each.role === "cnn")?.parameters.toLocaleString("en");
    if (cnn) $("beside-text").textContent = `, beside the probability of a CNN of ${parameters} parameters`;
    $("amount").oninput = (event) => {
      state.amount = Number(event.target.value);
      draw();
    };
    for (const radio of document.querySelectorAll("input[name=change]")) radio.onchange = () => {
      state.change = radio.value;
      draw();
    };
  }

  return { start, draw: drawChanges, forget };
})();
