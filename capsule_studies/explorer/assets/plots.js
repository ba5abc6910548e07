// Small tools of all sections: colours, canvases, axes, bars and tables.
const $ = (id) => document.getElementById(id);
const NAMES = ["more", "less", "third"]; // colours
const FONT = '12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif';

const Colours = {
  dark: () => matchMedia("(prefers-color-scheme: dark)").matches,
  get: (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(),
};

// A canvas in pixels of the page, sharp on every screen: the context, the width and the height.
function plot(canvas, height, widest = Infinity) {
  const ratio = devicePixelRatio || 1;
  const width = Math.min(canvas.parentElement.clientWidth, widest);
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = FONT;
  return { context, width, height };
}

function line(context, ...points) {
  context.beginPath();
  for (const point of points) context.lineTo(...point);
  context.stroke();
}

function table(element, head, rows) {
  const row = (cells, kind) => {
    const made = document.createElement("tr");
    made.append(...cells.map((text) => {
      const cell = document.createElement(kind);
      cell.textContent = text;
      return cell;
    }));
    return made;
  };
  element.replaceChildren(row(head, "th"), ...rows.map((cells) => row(cells, "td")));
}

// A bar for each name. Options: text(value) beside a bar, the number of the pressed bar, and what to do when a bar is
// pressed, or entered by mouse or keyboard (with null when it is left). Without values all bars are empty.
function bars(root, names, values, { text = (value) => value.toFixed(2), scale = 1, pressed, pick, enter }) {
  if (!root.children.length) names.forEach((name, k) => root.append(bar(name, k, pick, enter)));
  [...root.children].forEach((button, k) => {
    const shown = values ? text(values[k]) : "";
    button.children[1].firstChild.style.width = values ? `${Math.max(0, Math.min(100, 100 * values[k] / scale))}%` : "0";
    button.lastChild.textContent = shown;
    button.setAttribute("aria-pressed", Boolean(values) && k === pressed);
    button.setAttribute("aria-label", values ? `${names[k]}: ${shown}` : names[k]);
  });
}

function bar(name, k, pick, enter) {
  const button = document.createElement("button");
  const label = document.createElement("span");
  const track = document.createElement("i");
  button.className = "bar";
  button.title = label.textContent = name;
  track.append(document.createElement("b"));
  button.append(label, track, document.createElement("span"));
  button.onclick = () => pick(k);
  if (enter) {
    button.onpointerenter = button.onfocus = () => enter(k);
    button.onpointerleave = button.onblur = () => enter(null);
  }
  return button;
}

// The position of the pointer on a canvas, in pixels of the page.
function pointerOn(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// Calls drag(x, y, start) with positions in the page's pixels.
function draggable(canvas, drag) {
  let held = false;
  canvas.addEventListener("pointerdown", (event) => {
    held = drag(...pointerOn(canvas, event), true);
    if (held) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => { if (held) drag(...pointerOn(canvas, event), false); });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = false; });
}

// Axes with ticks. Each axis has ticks [{value, text}] and a name; returns functions from values to pixels.
function axes({ context, width, height }, horizontal, vertical) {
  const left = 46, right = 14, top = 26, bottom = 36;
  const span = (ticks) => [ticks[0].value, ticks[ticks.length - 1].value];
  const [x0, x1] = span(horizontal.ticks);
  const [y0, y1] = span(vertical.ticks);
  const X = (value) => left + (width - left - right) * (value - x0) / (x1 - x0 || 1);
  const Y = (value) => height - bottom - (height - top - bottom) * (value - y0) / (y1 - y0 || 1);
  context.strokeStyle = Colours.get("line");
  context.fillStyle = Colours.get("soft");
  context.lineWidth = 1;
  line(context, [left, top], [left, height - bottom], [width - right, height - bottom]);
  context.textAlign = "center";
  for (const { value, text } of horizontal.ticks) {
    line(context, [X(value), height - bottom], [X(value), height - bottom + 5]);
    context.fillText(text, X(value), height - bottom + 17);
  }
  context.fillText(horizontal.name, (left + width - right) / 2, height - 5);
  context.textAlign = "right";
  for (const { value, text } of vertical.ticks) {
    line(context, [left - 5, Y(value)], [left, Y(value)]);
    context.fillText(text, left - 8, Y(value) + 4);
  }
  context.textAlign = "left";
  return { X, Y, left };
}
