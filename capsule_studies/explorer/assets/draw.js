// The drawing pad, and pictures: drawing, centring as MNIST, changing, showing.
const Pictures = (() => {
  const SIZE = 28, BOX = 20, PAD = 280, RADIUS = 11; // MNIST: pixels of an image, and of the box around its digit

  function stroke(ink, x0, y0, x1, y1) {
    const steps = Math.max(1, Math.ceil(Math.hypot(x1 - x0, y1 - y0) / 3));
    for (let s = 0; s <= steps; s++) {
      const cx = x0 + (x1 - x0) * s / steps, cy = y0 + (y1 - y0) * s / steps;
      const top = Math.max(0, Math.floor(cy - RADIUS)), left = Math.max(0, Math.floor(cx - RADIUS));
      for (let y = top; y <= Math.min(PAD - 1, cy + RADIUS); y++) for (let x = left; x <= Math.min(PAD - 1, cx + RADIUS); x++) {
        const dark = Math.min(1, Math.max(0, RADIUS - Math.hypot(x - cx, y - cy)) / 3);
        if (dark > ink[y * PAD + x]) ink[y * PAD + x] = dark;
      }
    }
  }

  // As in MNIST: the longest side has 20 pixels, and the centre of mass is the middle of 28x28; null if nothing is drawn.
  function centred(ink) {
    let top = PAD, bottom = -1, left = PAD, right = -1;
    for (let y = 0; y < PAD; y++) for (let x = 0; x < PAD; x++) if (ink[y * PAD + x] > 0.3) {
      top = Math.min(top, y); bottom = Math.max(bottom, y); left = Math.min(left, x); right = Math.max(right, x);
    }
    if (bottom < 0) return null;
    const scale = (Math.max(bottom - top, right - left) + 1) / BOX, small = [];
    const h = Math.max(1, Math.round((bottom - top + 1) / scale)), w = Math.max(1, Math.round((right - left + 1) / scale));
    let mass = 0, my = 0, mx = 0, largest = 0;
    for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) { // the mean over the area of a pixel
      let sum = 0, count = 0;
      for (let v = Math.floor(top + y * scale); v < Math.min(PAD, top + (y + 1) * scale); v++)
        for (let u = Math.floor(left + x * scale); u < Math.min(PAD, left + (x + 1) * scale); u++) { sum += ink[v * PAD + u]; count++; }
      const value = count ? sum / count : 0;
      small.push(value); mass += value; my += value * y; mx += value * x; largest = Math.max(largest, value);
    }
    const middle = (SIZE - 1) / 2, dy = Math.round(middle - my / mass), dx = Math.round(middle - mx / mass);
    const start = (shift, side) => Math.min(Math.max(shift, 0), SIZE - side), y0 = start(dy, h), x0 = start(dx, w);
    const out = new Float32Array(SIZE * SIZE);
    for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) out[(y + y0) * SIZE + x + x0] = small[y * w + x] / largest;
    return out;
  }

  // The picture turned (degrees), moved to the right (pixels) or sheared, with bilinear interpolation.
  function changed(image, { turn = 0, move = 0, shear = 0 }) {
    const middle = (SIZE - 1) / 2, cos = Math.cos(turn * Math.PI / 180), sin = Math.sin(turn * Math.PI / 180);
    const at = (x, y) => x < 0 || y < 0 || x >= SIZE || y >= SIZE ? 0 : image[y * SIZE + x], out = new Float32Array(SIZE * SIZE);
    for (let y = 0; y < SIZE; y++) for (let x = 0; x < SIZE; x++) {
      const v = y - middle, u = x - middle - move + shear * v;
      const from = cos * u + sin * v + middle, row = cos * v - sin * u + middle, x0 = Math.floor(from), y0 = Math.floor(row);
      const fx = from - x0, fy = row - y0;
      out[y * SIZE + x] = (1 - fy) * ((1 - fx) * at(x0, y0) + fx * at(x0 + 1, y0)) + fy * ((1 - fx) * at(x0, y0 + 1) + fx * at(x0 + 1, y0 + 1));
    }
    return out;
  }

  // Draw values in [0, 1], dark on the light paper and light on dark, on a part of a canvas.
  function show(canvas, values, side, x = 0, y = 0, size = canvas.width) {
    const context = canvas.getContext("2d"), small = document.createElement("canvas"), dark = Colours.dark();
    small.width = small.height = side;
    const pixels = small.getContext("2d").createImageData(side, side);
    for (let i = 0; i < side * side; i++) {
      const grey = dark ? 22 + 211 * values[i] : 253 - 226 * values[i];
      pixels.data.set([grey, grey, grey, 255], 4 * i);
    }
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = side > SIZE;
    context.drawImage(small, x, y, size, size);
  }

  // 784 values as text for the address, in steps of 1/15, and back
  function asText(image) {
    let text = "";
    for (let i = 0; i < image.length; i += 2) text += String.fromCharCode(16 * Math.round(15 * image[i]) + Math.round(15 * image[i + 1]));
    return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  }

  function fromText(text) {
    const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/")), image = new Float32Array(SIZE * SIZE);
    for (let i = 0; i < image.length / 2; i++) { image[2 * i] = (plain.charCodeAt(i) >> 4) / 15; image[2 * i + 1] = (plain.charCodeAt(i) & 15) / 15; }
    return image;
  }

  return { SIZE, PAD, stroke, centred, changed, show, asText, fromText };
})();

const Colours = {
  dark: () => matchMedia("(prefers-color-scheme: dark)").matches,
  get: (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(),
};
