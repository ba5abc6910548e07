// node run_fit.js FIT < [{"picture", "shape", "options"}]: the network's input for each picture, as JSON
const Fit = require(process.argv[2]), given = JSON.parse(require("fs").readFileSync(0));
console.log(JSON.stringify(given.map(({ picture, shape, options }) => Array.from(Fit.input(picture, shape, options)))));
