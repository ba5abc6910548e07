// The page is put together, and follows its size, its colours and its address.
const explorer = window.explorer = {
  Engine, first, em, cnn, state, ready: false,
  show: (values) => show(Float32Array.from(values), null),
  image: () => image,
  result: () => result,
  emResult: () => emResult,
};

function records() { // a column for each network, of which there are at most three: narrow screens have no room for five
  const error = (each) => each.error === null ? "" : `${each.error.toFixed(2)} % of test images`;
  const row = (name, value) => [name, ...facts.networks.map(value)];
  table($("records"), row("network", (each) => each.name), [
    row("parameters", (each) => each.parameters.toLocaleString("en")),
    row("trained on", (each) => each.data),
    row("error", error),
    row("largest difference that rounding makes", (each) => each.rounding.toExponential(0)),
  ]);
  $("commands").replaceChildren(...facts.networks.map((each) => {
    const paragraph = document.createElement("p");
    paragraph.textContent = `${each.name}: ${each.command ?? "not recorded"}`;
    return paragraph;
  }));
}

function everything() { // in other colours or sizes; nothing is computed again
  Sandbox.draw();
  Mixture.draw();
  redrawInput();
  draw();
}

function start() {
  for (const section of [{ start: startInput }, Pose, Couplings, Gaussians, Changes, Sandbox, Mixture]) section.start();
  records();
  addEventListener("keydown", (event) => {
    if (["INPUT", "SELECT"].includes(event.target.tagName) || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowRight") Couplings.step(1);
    else if (event.key === "ArrowLeft") Couplings.step(-1);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    everything();
  });
  requestAnimationFrame(() => setTimeout(() => { // the page is there before the first answer
    redrawInput();
    fromAddress();
    addEventListener("hashchange", fromAddress);
    explorer.ready = true;
  }));
}
start();
