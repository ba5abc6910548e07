// What tests ask of the page.
window.probe = {
  scores: () => [...explorer.result().scores],
  image: () => [...explorer.image()],
  verdict: () => document.getElementById("verdict").textContent,
  widths: () => [...document.querySelectorAll("#bars b")].map((bar) => bar.style.width),
  pixels: (id) => {
    const { data } = document.getElementById(id).getContext("2d").getImageData(0, 0, 200, 200);
    return data.reduce((a, b) => a + b);
  },
  move: ([selector, value]) => {
    const input = document.querySelector(selector);
    input.value = value === null ? input.max : value;
    input.oninput({ target: input });
  },
  texts: [], // drawn on canvases since keepTexts
  keepTexts: () => {
    const { prototype } = CanvasRenderingContext2D, { fillText } = prototype;
    prototype.fillText = function (text, ...rest) {
      probe.texts.push(text);
      fillText.call(this, text, ...rest);
    };
  },
  state: () => ({ ...explorer.state, image: null }),
  sections: () => [...document.querySelectorAll("section:not(#about):not([hidden])")].map(({ id }) => id),
  counter: () => getComputedStyle(document.querySelector("#em h2"), "::before").content,
  cut: (selector) => [...document.querySelectorAll(selector)]
    .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth).map((each) => each.textContent),
  fits: () => document.documentElement.scrollWidth <= innerWidth,
  heights: () => {
    const touched = [...document.querySelectorAll("button, select, summary, input[type=range], .check")];
    return touched.map((each) => each.getBoundingClientRect().height).filter((height) => height > 0);
  },
  unnamed: () => {
    const named = (each) => each.ariaLabel || each.labels?.length || each.textContent.trim() || each.hidden;
    return [...document.querySelectorAll("canvas, input, select, button")].filter((each) => !named(each)).map((each) => each.outerHTML);
  },
};
