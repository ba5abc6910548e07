// The networks of the page, what one sees (`state`, kept in the address), and what was computed for it.
const facts = JSON.parse($("facts").textContent);
const { names, entry } = facts;

function load(role) {
  if (!$(`${role}-index`)) return null;
  const block = Engine.base64($(`${role}-block`).textContent.trim());
  return Engine.unpack(JSON.parse($(`${role}-index`).textContent), block);
}

const first = load("first");
const hasGaussians = (model) => model.network.capsules.every((layer) => layer.op === "em");
const em = load("em") ?? (hasGaussians(first) ? first : null);
const cnn = load("cnn");
const shape = first.network.image;
const [CHANNELS, HEIGHT, WIDTH] = shape;
const drawing = entry.source === "drawing";
const look = { drawing, range: drawing || entry.source === "file" ? [0, 1] : [facts.examples.low, facts.examples.high] };

const state = {
  sample: 0, image: null, chosen: null, step: null, equal: false, layer: null, window: null, iterations: null,
  temperature: 0, whole: null, change: "turn", amount: 0,
  labels: {}, // names that the user gave to sliders, by `<class>.<number of the pose>`
};
let image = null; // the network's input; null if nothing is drawn or chosen
let result = null; // of the first network; null without an image
let emResult = null; // of the network with Gaussians

const order = (scores) => [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
const best = (scores) => order(scores)[0];
const chosen = () => state.chosen ?? best(result.scores);

// --- what a score means, by kind of network ---

function kindOf(model) {
  const top = model.network.capsules.at(-1);
  if (top.op === "em") return "matrix";
  return { self_routing: "share", inverted_attention: "evidence" }[top.routing.kind] ?? "length";
}

const KINDS = {
  length: {
    lead: "A capsule is a vector: its length is how sure the network is that the class is there, and its direction is how the object is shown.",
    bars: "Lengths of the class capsules",
    note: "",
  },
  matrix: {
    lead: "A capsule has a pose, which is a 4x4 matrix, and an activation, a number of its own: how well the votes for this class agree.",
    bars: "Activations of the class capsules",
    note: "Activations are not compared like lengths. Each is a logistic function of its own evidence, and several may be close to 1: the answer is the class with the most evidence, and the lead is how much more it has.",
  },
  evidence: {
    lead: "A capsule has a pose, which is a vector, and an activation, which is the logistic function of the evidence for the class.",
    bars: "Activations of the class capsules",
    note: "Several activations may be close to 1: the answer is the class with the most evidence, and the lead is how much more it has.",
  },
  share: {
    lead: "The activation of a class capsule is its share of everything that the small capsules send; all shares sum to one.",
    bars: "Shares of the class capsules",
    note: "",
  },
};

const evidence = (result) => result.logits ?? result.scores.map((score) => Math.log(score) - Math.log1p(-score));

function verdict(model, result) {
  const [one, two] = order(result.logits ?? result.scores);
  const kind = kindOf(model);
  const say = (k) => `${names[k]} (${result.scores[k].toFixed(2)})`;
  if (kind === "length" || kind === "share") {
    const sure = kind === "length" ? 0.5 : 2 / names.length;
    return `${result.scores[one] < sure ? "It is not sure" : "It sees"}: ${say(one)}. Its second guess: ${say(two)}.`;
  }
  const lead = evidence(result)[one] - evidence(result)[two];
  const opening = lead < 1 ? "It is not sure" : "It sees"; // ours: odds of less than 2.7 to 1
  return `${opening}: ${names[one]}, then ${order(evidence(result)).slice(1, 3).map((k) => names[k]).join(", then ")}. Lead: ${lead.toFixed(1)}.`;
}

// --- address ---

const CHANGES = { // the largest change of each kind, and its unit
  turn: { largest: 90, unit: "°", name: "turned by (degrees)", digits: 0 },
  move: { largest: Math.round(WIDTH / 2.8), unit: " pixels", name: "moved to the right by (pixels)", digits: 0 },
  shear: { largest: 0.8, unit: "", name: "sheared by", digits: 2 },
};
const LONGEST = 4096; // values of an image in the address, two characters for three of them
const LONGEST_LABEL = 24; // ours: characters that fit above a slider
const LABEL = /^label\.(\d+\.\d+)$/;
const labelOf = (k, d) => state.labels[`${k}.${d}`] || `number ${d + 1}`;
const KEYS = {
  chosen: Number, step: Number, equal: (text) => text === "true", layer: Number, window: Number, iterations: Number,
  temperature: Number, whole: Number, change: String, amount: Number,
};
const USUAL = { equal: false, temperature: 0, change: "turn", amount: 0 };

function toAddress() {
  const parts = [];
  if (state.sample !== null) parts.push(`sample=${state.sample}`);
  else if (state.image && state.image.length <= LONGEST) parts.push(`image=${Pictures.asText(state.image)}`);
  for (const key of Object.keys(KEYS))
    if (state[key] !== null && state[key] !== USUAL[key]) parts.push(`${key}=${state[key]}`);
  for (const [place, label] of Object.entries(state.labels))
    if (label) parts.push(`label.${place}=${encodeURIComponent(label)}`);
  history.replaceState(null, "", `#${parts.join("&")}`);
}

function isKnown(key, value) {
  if (key === "change") return value in CHANGES;
  if (["chosen", "whole"].includes(key) && !(value in names)) return false;
  return !Number.isNaN(value);
}

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [key, read] of Object.entries(KEYS)) if (given.has(key)) {
    const value = read(given.get(key));
    if (isKnown(key, value)) state[key] = value;
  }
  for (const [key, label] of given) {
    const place = LABEL.exec(key)?.[1];
    if (place) state.labels[place] = label.slice(0, LONGEST_LABEL);
  }
  const text = given.get("image");
  try {
    if (text) {
      show(Pictures.fromText(text, CHANNELS * HEIGHT * WIDTH), null);
      return;
    }
  } catch { /* an address that was cut off */ }
  const sample = Number(given.get("sample") ?? 0);
  if (facts.examples.pictures.length) showSample(sample in facts.examples.pictures ? sample : 0);
  else show(null, null);
}
