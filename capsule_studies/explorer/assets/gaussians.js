// Section 5: votes and Gaussians of a network with EM routing.
const Gaussians = (() => {
  const HOTTEST = 0.5; // ours: powers of ten of the temperature, in both directions; beyond, all activations are 0 or 1

  function compute() {
    const own = em.network.capsules.at(-1);
    const iterations = Math.min(state.iterations ?? own.iterations, mostIterations());
    const temperature = own.kind === "normalised" ? own.temperature * 10 ** state.temperature : undefined;
    const started = performance.now();
    emResult = Engine.forward(em, image, { iterations, temperature });
    explorer.emMilliseconds = performance.now() - started;
    return { iterations, temperature };
  }

  // The published routing has an inverse temperature for each of its iterations.
  function mostIterations() {
    const lengths = em.network.capsules.map((layer) => layer.inverseTemperatures?.length ?? 4);
    return Math.min(...lengths);
  }

  function drawGaussians() {
    if (!image) return;
    const { iterations, temperature } = compute();
    const layers = emResult.layers, number = Math.min(state.layer ?? layers.length - 1, layers.length - 1);
    const layer = layers[number], isLast = number === layers.length - 1;
    const n = Math.min(state.window ?? Math.floor(layer.windows / 2), layer.windows - 1);
    const usual = isLast ? best(emResult.logits) : 0;
    const whole = Math.min(state.whole ?? usual, layer.parents - 1);
    const view = { layer, n, whole, isLast, step: layer.steps.at(-1) };
    drawControls({ layers, number, n, iterations, temperature });
    bars($("em-bars"), names, emResult.scores, {
      pressed: isLast ? whole : null,
      pick: (k) => {
        state.whole = k;
        state.layer = layers.length - 1;
        draw();
      },
    });
    const components = mostDifferent(view);
    drawVotes(view, components);
    $("em-verdict").textContent = verdict(em, emResult);
    $("em-note").textContent = note(view, components, iterations);
  }

  function drawControls({ layers, number, n, iterations, temperature }) {
    if ($("em-layer").children.length !== layers.length)
      $("em-layer").replaceChildren(...layers.map((each, i) => new Option(each.name.replaceAll("_", " "), i)));
    const { windows } = layers[number];
    $("em-layer").value = number;
    Object.assign($("em-window"), { max: windows - 1, value: n, disabled: windows === 1 });
    $("em-step").value = iterations;
    $("em-temperature").value = state.temperature;
    $("em-window-out").textContent = `${n + 1} of ${windows}`;
    $("em-step-out").textContent = iterations;
    $("em-temperature-out").textContent = temperature?.toFixed(2) ?? "";
  }

  const mean = ({ layer, n, step }, j, d) => step.poses[(n * layer.parents + j) * layer.dim + d];
  const variance = ({ layer, n, step }, j, d) => Math.max(step.variances[(n * layer.parents + j) * layer.dim + d] - layer.minVariance, 0);
  const vote = ({ layer, n }, i, j, d) => layer.votes[((n * layer.places + i) * layer.parents + j) * layer.dim + d];
  const presence = ({ layer, n }, i) => layer.children.presence[layer.child[n * layer.places + i]];
  const coupling = ({ layer, n, step }, i, j) => step.couplings[(n * layer.parents + j) * layer.places + i];
  const range = (length) => [...Array(length).keys()];

  function mostDifferent(view) { // two components: variance of the means of the wholes, over their own variances
    const { parents, dim } = view.layer;
    const apart = range(dim).map((d) => {
      const means = range(parents).map((j) => mean(view, j, d));
      const middle = means.reduce((a, b) => a + b) / parents;
      const own = range(parents).reduce((sum, j) => sum + variance(view, j, d), 0);
      return means.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (own + 1e-9);
    });
    return order(apart).slice(0, 2);
  }

  function bounds(view, d) { // of the votes for this whole and of all Gaussians
    const { parents, places } = view.layer;
    const values = range(places).map((i) => vote(view, i, view.whole, d));
    for (const j of range(parents)) {
      const deviation = Math.sqrt(variance(view, j, d));
      values.push(mean(view, j, d) - deviation, mean(view, j, d) + deviation);
    }
    const low = Math.min(...values), high = Math.max(...values), margin = 0.05 * (high - low) + 1e-6;
    return [low - margin, high + margin];
  }

  function ticksOf([low, high]) {
    return [low, (low + high) / 2, high].map((value) => ({ value, text: value.toFixed(2) }));
  }

  function drawVotes(view, [x, y]) {
    const { layer, whole, step, n, isLast } = view, { parents, places } = layer;
    const plotted = plot($("votes"), Math.min(420, $("votes").parentElement.clientWidth)), { context } = plotted;
    const xs = bounds(view, x), ys = bounds(view, y);
    const { X, Y } = axes(plotted, { ticks: ticksOf(xs), name: `component ${x + 1} of the pose` }, { ticks: ticksOf(ys) });
    context.fillText(`component ${y + 1}`, 8, 14);
    const competing = parents * layer.windows; // parents that may see a child; full strength: 2.4 times an equal share
    context.fillStyle = Colours.get("more");
    for (const i of range(places)) {
      context.globalAlpha = Math.min(1, 0.15 + 0.35 * coupling(view, i, whole) * competing);
      context.beginPath();
      context.arc(X(vote(view, i, whole, x)), Y(vote(view, i, whole, y)), 1.5 + 4 * presence(view, i), 0, 7);
      context.fill();
    }
    for (const j of range(parents)) {
      const isChosen = j === whole, middle = [X(mean(view, j, x)), Y(mean(view, j, y))];
      const wide = X(mean(view, j, x) + Math.sqrt(variance(view, j, x))) - middle[0];
      const tall = middle[1] - Y(mean(view, j, y) + Math.sqrt(variance(view, j, y)));
      context.globalAlpha = isChosen ? 1 : 0.2 + 0.7 * step.activations[n * parents + j];
      context.strokeStyle = context.fillStyle = Colours.get(isChosen ? "less" : "soft");
      context.lineWidth = isChosen ? 2.5 : 1;
      context.beginPath();
      context.ellipse(...middle, wide, tall, 0, 0, 7);
      context.stroke();
      context.fillText(isLast ? names[j] : j + 1, middle[0] - 3, middle[1] + 4);
    }
    context.globalAlpha = 1;
  }

  function evenness(view) { // of the shares of the votes at this place, weighted by how active their capsules are
    const { parents, places } = view.layer;
    let evenness = 0, mass = 0;
    for (const i of range(places)) {
      const shares = range(parents).map((j) => coupling(view, i, j)), sum = Math.max(shares.reduce((a, b) => a + b), 1e-12);
      const entropy = shares.reduce((all, share) => {
        const c = Math.max(share / sum, 1e-12);
        return all - c * Math.log(c) / Math.log(parents);
      }, 0);
      evenness += presence(view, i) * entropy;
      mass += presence(view, i);
    }
    return evenness / mass;
  }

  function note(view, [x, y], iterations) {
    const { layer, n, whole, isLast, step } = view;
    const floor = layer.minVariance >= 0.05 ? ` The network adds ${layer.minVariance} to every variance; the ellipses are drawn without it.` : "";
    return `Whole ${isLast ? names[whole] : whole + 1}: activation ${step.activations[n * layer.parents + whole].toFixed(2)} after iteration ${iterations}. `
      + `Components ${x + 1} and ${y + 1} of ${layer.dim}, in which the wholes differ most. `
      + `Evenness of the shares: ${evenness(view).toFixed(3)} (1: equal).${floor}`;
  }

  function start() {
    $("em").hidden = !em;
    if (!em) return;
    const own = em.network.capsules.at(-1);
    const set = (key) => (event) => {
      state[key] = Number(event.target.value);
      draw();
    };
    if (em !== first) $("em-title").textContent = "Votes and Gaussians in a second network";
    $("em-step").max = mostIterations();
    $("em-temperature").min = -HOTTEST;
    $("em-temperature").max = HOTTEST;
    $("em-temperature-label").hidden = $("em-temperature-note").hidden = own.kind !== "normalised";
    $("em-layer").onchange = (event) => {
      state.layer = Number(event.target.value);
      state.window = state.whole = null;
      draw();
    };
    $("em-window").oninput = set("window");
    $("em-step").oninput = set("iterations");
    $("em-temperature").oninput = set("temperature");
  }

  return { start, draw: drawGaussians };
})();
