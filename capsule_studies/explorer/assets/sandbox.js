// Dynamic routing and EM routing on points in two dimensions that can be dragged.
const nearest = (points, x, y, within) => {
  let best = -1, distance = within;
  points.forEach((point, i) => { const d = Math.hypot(point.x - x, point.y - y); if (d < distance) { best = i; distance = d; } });
  return best;
};

const Sandbox = (() => {
  const WHOLES = 2, HEIGHT = 230, UNIT = 75; // pixels of a vote of length 1
  let votes, logits, iteration, held = -1; // votes[part][whole] = [x, y]

  const START = [[[0.8, 0.5], [0.8, 0.4]], [[0.95, 0.3], [-0.75, 0.5]], [[0.75, 0.65], [0.1, -0.9]]];

  function restart() {
    logits = votes.map(() => [0, 0]);
    iteration = 0;
    draw();
  }

  function routed() { // procedure 1 of Sabour 2017
    const couplings = logits.map((row) => { const e = row.map(Math.exp), sum = e[0] + e[1]; return e.map((value) => value / sum); });
    const sums = [0, 1].map((whole) => [0, 1].map((axis) => votes.reduce((sum, vote, part) => sum + couplings[part][whole] * vote[whole][axis], 0)));
    const poses = sums.map(([x, y]) => { const squared = x * x + y * y, f = squared / (1 + squared) / Math.sqrt(squared + 1e-8); return [x * f, y * f]; });
    return { couplings, poses };
  }

  function next() {
    const { poses } = routed();
    logits = logits.map((row, part) => row.map((logit, whole) => logit + poses[whole][0] * votes[part][whole][0] + poses[whole][1] * votes[part][whole][1]));
    iteration += 1;
    draw();
  }

  const middle = (whole, width) => [width * (whole + 0.5) / WHOLES, 95];

  function draw() {
    const { context, width } = plot($("agree"), HEIGHT), { couplings, poses } = routed();
    const arrow = (x, y, dx, dy, colour, line) => {
      const angle = Math.atan2(dy, dx), tip = [x + dx, y + dy];
      context.strokeStyle = context.fillStyle = colour; context.lineWidth = line;
      context.beginPath(); context.moveTo(x, y); context.lineTo(...tip); context.stroke();
      context.beginPath(); context.moveTo(...tip);
      for (const turn of [2.6, -2.6]) context.lineTo(tip[0] + 9 * Math.cos(angle + turn), tip[1] + 9 * Math.sin(angle + turn));
      context.fill();
    };
    for (let whole = 0; whole < WHOLES; whole++) {
      const [x, y] = middle(whole, width);
      context.strokeStyle = Colours.get("line"); context.lineWidth = 1;
      context.beginPath(); context.arc(x, y, UNIT, 0, 7); context.stroke();
      votes.forEach((vote, part) => {
        context.globalAlpha = 0.25 + 0.75 * couplings[part][whole];
        arrow(x, y, UNIT * vote[whole][0], -UNIT * vote[whole][1], Colours.get(NAMES[part]), 1 + 4 * couplings[part][whole]);
      });
      context.globalAlpha = 1;
      arrow(x, y, UNIT * poses[whole][0], -UNIT * poses[whole][1], Colours.get("ink"), 3);
      votes.forEach((_, part) => { // shares, as bars
        const w = width / WHOLES - 40, top = 185 + 13 * part;
        context.fillStyle = Colours.get("line"); context.fillRect(x - w / 2, top, w, 9);
        context.fillStyle = Colours.get(NAMES[part]); context.fillRect(x - w / 2, top, w * couplings[part][whole], 9);
      });
    }
    const lengths = poses.map(([x, y]) => Math.hypot(x, y).toFixed(2));
    $("agree-note").textContent = `iteration ${iteration + 1}: lengths ${lengths[0]} and ${lengths[1]}`;
    table($("agree-table"), ["part", "share for the left whole", "share for the right whole"],
      couplings.map((row, part) => [["blue", "orange", "green"][part], row[0].toFixed(3), row[1].toFixed(3)]));
  }

  function start() {
    votes = structuredClone(START);
    restart();
    $("agree-next").onclick = next;
    $("agree-restart").onclick = () => { votes = structuredClone(START); restart(); };
    draggable($("agree"), (x, y, begin) => {
      const width = $("agree").clientWidth;
      const tips = votes.flatMap((vote) => vote.map(([dx, dy], whole) => { const [cx, cy] = middle(whole, width); return { x: cx + UNIT * dx, y: cy - UNIT * dy }; }));
      if (begin) held = nearest(tips, x, y, 25);
      if (held < 0) return false;
      const [cx, cy] = middle(held % WHOLES, width);
      votes[Math.floor(held / WHOLES)][held % WHOLES] = [(x - cx) / UNIT, (cy - y) / UNIT];
      restart();
      return true;
    });
  }

  return { start, draw, state: () => ({ iteration, ...routed() }) };
})();

const Mixture = (() => {
  const HEIGHT = 230, WHOLES = 3, WIDEST = 0.08, NARROWEST = 0.0004; // variances, of a width of 1
  const CENTRES = [[0.2, 0.3], [0.55, 0.42], [0.8, 0.2]], STARTS = [[0.42, 0.2], [0.5, 0.3], [0.58, 0.4]];
  let points, gaussians, shares, iteration, held = -1;

  function random(seed) { // mulberry32
    return () => { seed = seed + 0x6d2b79f5 | 0; let t = Math.imul(seed ^ seed >>> 15, 1 | seed); t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t; return ((t ^ t >>> 14) >>> 0) / 4294967296; };
  }

  function scattered() {
    const uniform = random(7), normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
    return Array.from({ length: 30 }, (_, i) => CENTRES[i % WHOLES].map((value) => value + 0.055 * normal()));
  }

  function restart() {
    gaussians = STARTS.map((mean) => ({ mean: [...mean], variance: [0.006, 0.006], mass: points.length / WHOLES }));
    shares = points.map(() => [1 / 3, 1 / 3, 1 / 3]);
    iteration = 0;
    draw();
  }

  function next() { // E-step and M-step of procedure 1 of Hinton 2018, with the mass of a parent as its activation
    shares = points.map((point) => {
      const logs = gaussians.map(({ mean, variance, mass }) => Math.log(mass + 1e-9) - 0.5 * [0, 1].reduce((sum, axis) =>
        sum + Math.log(variance[axis]) + (point[axis] - mean[axis]) ** 2 / variance[axis], 0));
      const largest = Math.max(...logs), parts = logs.map((log) => Math.exp(log - largest)), total = parts.reduce((a, b) => a + b);
      return parts.map((part) => part / total);
    });
    gaussians = gaussians.map((old, whole) => {
      const mass = shares.reduce((sum, row) => sum + row[whole], 0);
      if (mass < 1e-6) return { ...old, mass };
      const mean = [0, 1].map((axis) => points.reduce((sum, point, i) => sum + shares[i][whole] * point[axis], 0) / mass);
      const variance = [0, 1].map((axis) => NARROWEST + points.reduce((sum, point, i) => sum + shares[i][whole] * (point[axis] - mean[axis]) ** 2, 0) / mass);
      return { mean, variance: variance.map((value) => Math.min(value, WIDEST)), mass };
    });
    iteration += 1;
    draw();
  }

  function draw() {
    const { context, width } = plot($("mixture"), HEIGHT);
    points.forEach(([x, y], i) => {
      let from = 0;
      shares[i].forEach((share, whole) => { // a pie of the shares
        context.fillStyle = Colours.get(NAMES[whole]);
        context.beginPath(); context.moveTo(x * width, y * width); context.arc(x * width, y * width, 5, from, from + 2 * Math.PI * share); context.fill();
        from += 2 * Math.PI * share;
      });
    });
    context.lineWidth = 2;
    gaussians.forEach(({ mean, variance }, whole) => {
      context.strokeStyle = Colours.get(NAMES[whole]);
      context.beginPath();
      context.ellipse(mean[0] * width, mean[1] * width, Math.sqrt(variance[0]) * width, Math.sqrt(variance[1]) * width, 0, 0, 7);
      context.stroke();
    });
    $("mixture-note").textContent = iteration ? `after ${iteration} iteration${iteration > 1 ? "s" : ""}` : "at first all shares are equal";
    table($("mixture-table"), ["whole", "votes that it has", "standard deviation"], gaussians.map(({ mass, variance }, whole) =>
      [["blue", "orange", "green"][whole], mass.toFixed(1), Math.sqrt((variance[0] + variance[1]) / 2).toFixed(3)]));
  }

  function start() {
    points = scattered();
    restart();
    $("mixture-next").onclick = next;
    $("mixture-restart").onclick = () => { points = scattered(); restart(); };
    draggable($("mixture"), (x, y, begin) => {
      const width = $("mixture").clientWidth;
      if (begin) held = nearest(points.map(([u, v]) => ({ x: u * width, y: v * width })), x, y, 20);
      if (held < 0) return false;
      points[held] = [x / width, y / width];
      draw();
      return true;
    });
  }

  return { start, draw, state: () => ({ iteration, gaussians }) };
})();
