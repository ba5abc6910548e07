// Section 2: sliders for the numbers of a pose, and the pictures that the decoder draws from them.
const Pose = (() => {
  const PICTURES = 5; // beside each slider, from -2 to 2 standard deviations
  const VISIBLE = 0.002; // ours: of the range of grey values, on average over the picture
  const isShown = Boolean(first.network.decoder && facts.ranges);
  const orders = {}; // of the sliders, for each class
  let pose = null, strips = [];

  const forget = () => { pose = null; };

  function range(k, d) {
    const mean = facts.ranges.mean[k][d], width = 2 * facts.ranges.std[k][d];
    return [mean - width, mean + width];
  }

  function withValue(values, d, value) {
    const moved = Array.from(values);
    moved[d] = value;
    return moved;
  }

  function effects(k) { // of each number of the pose on the picture, the largest first
    if (orders[k]) return orders[k];
    const mean = facts.ranges.mean[k];
    const found = mean.map((_, d) => {
      const [low, high] = range(k, d).map((value) => Engine.decode(first, withValue(mean, d, value), k));
      return { d, effect: low.reduce((sum, value, i) => sum + Math.abs(value - high[i]), 0) / low.length };
    });
    return orders[k] = found.sort((a, b) => b.effect - a.effect);
  }

  function bounded(values) { // a pose that is a vector is shorter than 1 after a squash
    const { kind, squash } = first.network.capsules.at(-1).routing ?? {};
    const isSquashed = kindOf(first) === "length" && kind !== "attention_over_children" && squash !== "none";
    const length = Math.hypot(...values);
    return !isSquashed || length < 0.999 ? values : values.map((value) => value * 0.999 / length);
  }

  const decode = (values) => Engine.decode(first, bounded(values), chosen());

  function slider({ d, effect }) {
    const group = document.createElement("div");
    const name = document.createElement("input");
    const strip = document.createElement("canvas");
    const input = document.createElement("input");
    const [low, high] = range(chosen(), d);
    const visible = effect >= VISIBLE;
    const place = `${chosen()}.${d}`, number = `number ${d + 1}`;
    group.className = visible ? "" : "none";
    Object.assign(name, {
      type: "text", value: state.labels[place] ?? "", placeholder: `${number}${visible ? "" : ", no visible effect"}`,
      maxLength: LONGEST_LABEL, title: "click to name it", autocomplete: "off",
    });
    name.setAttribute("aria-label", `name of ${number}`);
    name.oninput = () => {
      state.labels[place] = name.value;
      toAddress();
    };
    name.onchange = draw; // the curves of the numbers have the names, too
    strip.width = 28 * PICTURES * 2;
    strip.height = Math.round(28 * HEIGHT / WIDTH) * 2;
    strip.setAttribute("aria-label", "pictures from −2 to 2 standard deviations");
    Object.assign(input, { type: "range", min: Math.min(low, pose[d]), max: Math.max(high, pose[d]), step: "any", value: pose[d] });
    input.setAttribute("aria-label", number);
    input.oninput = () => {
      pose[d] = Number(input.value);
      decoded();
    };
    group.append(name, strip, input);
    strips.push({ d, strip });
    return group;
  }

  function drawPose() {
    if (!isShown) return;
    const k = chosen(), dim = facts.ranges.mean[k].length;
    if (!pose) {
      pose = Array.from(result.poses.slice(k * dim, (k + 1) * dim));
      strips = [];
      $("sliders").replaceChildren(...effects(k).map(slider));
      $("pose-class").textContent = names[k];
    }
    decoded();
  }

  function decoded() {
    showOn($("decoded"), decode(pose));
    $("length").textContent = kindOf(first) === "length" ? `length ${Math.hypot(...bounded(pose)).toFixed(2)}` : "";
    drawStrips([...strips]);
  }

  function drawStrips(left) { // one at a time, so that strokes are not delayed
    later(() => {
      const next = left.shift();
      if (!next || !pose || !result) return;
      const [low, high] = range(chosen(), next.d), context = next.strip.getContext("2d");
      const width = next.strip.width / PICTURES;
      for (let i = 0; i < PICTURES; i++) {
        const values = decode(withValue(pose, next.d, low + (high - low) * i / (PICTURES - 1)));
        Pictures.show(context, values, shape, [i * width, 0, width, next.strip.height], look);
      }
      drawStrips(left);
    }, "strips");
  }

  function start() {
    $("pose").hidden = !isShown;
    sizedLike($("decoded"), 224);
    $("pose-numbers").textContent = facts.ranges?.mean[0].length ?? "";
    $("examples-ranges").textContent = facts.examples.what;
    $("reset").onclick = () => {
      forget();
      draw();
    };
  }

  return { start, draw: drawPose, forget };
})();
