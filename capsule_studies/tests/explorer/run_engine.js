// node run_engine.js ENGINE < {"index", "block", "images", "options"}: what the engine computes for each image, as JSON
const Engine = require(process.argv[2]), given = JSON.parse(require("fs").readFileSync(0));
const model = Engine.unpack(given.index, Engine.base64(given.block)), list = (values) => values && Array.from(values);
const NAMES = ["couplings", "poses", "variances", "activations"];
console.log(JSON.stringify(given.images.map((image) => {
  const out = Engine.forward(model, Float32Array.from(image), given.options), dim = out.poses && out.poses.length / out.scores.length;
  const best = out.scores.indexOf(Math.max(...out.scores));
  const decoded = model.network.decoder && Engine.decode(model, out.poses.slice(best * dim, (best + 1) * dim), best);
  const fields = out.layers.map((_, number) => Engine.receptiveField(model, out.layers, number));
  const steps = out.layers.map(({ steps }) => steps.map((step) => NAMES.map((name) => list(step[name]))));
  return { scores: list(out.scores), decoded: list(decoded), steps, fields };
})));
