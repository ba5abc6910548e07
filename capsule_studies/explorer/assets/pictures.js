// The drawing pad, and pictures: drawing, centring as MNIST, changing, showing. Values are ordered (channel, row, column).
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
      top = Math.min(top, y);
      bottom = Math.max(bottom, y);
      left = Math.min(left, x);
      right = Math.max(right, x);
    }
    if (bottom < 0) return null;
    const scale = (Math.max(bottom - top, right - left) + 1) / BOX, small = [];
    const h = Math.max(1, Math.round((bottom - top + 1) / scale)), w = Math.max(1, Math.round((right - left + 1) / scale));
    let mass = 0, my = 0, mx = 0, largest = 0;
    for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) { // the mean over the area of a pixel
      let sum = 0, count = 0;
      for (let v = Math.floor(top + y * scale); v < Math.min(PAD, top + (y + 1) * scale); v++)
        for (let u = Math.floor(left + x * scale); u < Math.min(PAD, left + (x + 1) * scale); u++) {
          sum += ink[v * PAD + u];
          count++;
        }
      const value = count ? sum / count : 0;
      small.push(value);
      mass += value;
      my += value * y;
      mx += value * x;
      largest = Math.max(largest, value);
    }
    const middle = (SIZE - 1) / 2, dy = Math.round(middle - my / mass), dx = Math.round(middle - mx / mass);
    const start = (shift, side) => Math.min(Math.max(shift, 0), SIZE - side), y0 = start(dy, h), x0 = start(dx, w);
    const out = new Float32Array(SIZE * SIZE);
    for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) out[(y + y0) * SIZE + x + x0] = small[y * w + x] / largest;
    return out;
  }

  // A digit of 28x28 in the middle of a larger image, as the data module mnist_expanded places it.
  function placed(digit, [, height, width]) {
    const top = (height - SIZE) / 2, left = (width - SIZE) / 2;
    const out = new Float32Array(height * width);
    for (let y = 0; y < SIZE; y++) out.set(digit.subarray(y * SIZE, (y + 1) * SIZE), (y + top) * width + left);
    return out;
  }

  // The picture turned (degrees), moved to the right (pixels) or sheared, with bilinear interpolation. Beyond its edges,
  // a drawing is empty, and the outermost pixels of other pictures are repeated.
  function changed(image, [channels, height, width], { turn = 0, move = 0, shear = 0 }, drawing) {
    const my = (height - 1) / 2, mx = (width - 1) / 2;
    const cos = Math.cos(turn * Math.PI / 180), sin = Math.sin(turn * Math.PI / 180);
    const inside = (value, side) => Math.min(Math.max(value, 0), side - 1);
    const out = new Float32Array(image.length);
    for (let c = 0; c < channels; c++) {
      const start = c * height * width;
      const at = (x, y) => {
        if (drawing && (x < 0 || y < 0 || x >= width || y >= height)) return 0;
        return image[start + inside(y, height) * width + inside(x, width)];
      };
      for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
        const v = y - my, u = x - mx - move + shear * v;
        const from = cos * u + sin * v + mx, row = cos * v - sin * u + my;
        const x0 = Math.floor(from), y0 = Math.floor(row), fx = from - x0, fy = row - y0;
        const upper = (1 - fx) * at(x0, y0) + fx * at(x0 + 1, y0);
        const lower = (1 - fx) * at(x0, y0 + 1) + fx * at(x0 + 1, y0 + 1);
        out[start + y * width + x] = (1 - fy) * upper + fy * lower;
      }
    }
    return out;
  }

  // A level of grey: drawings are dark on the light paper and light on dark, other pictures as they are.
  function grey(value, drawing) {
    if (!drawing) return 255 * value;
    return Colours.dark() ? 22 + 211 * value : 253 - 226 * value;
  }

  // Draw values on a rectangle of a context. `range` has the values of black and white.
  function show(context, values, [channels, height, width], [x, y, w, h], { drawing = false, range = [0, 1], smooth = false } = {}) {
    const small = document.createElement("canvas"), area = height * width;
    small.width = width;
    small.height = height;
    const pixels = small.getContext("2d").createImageData(width, height);
    for (let i = 0; i < area; i++) {
      for (let c = 0; c < 3; c++) {
        const value = (values[(channels === 3 ? c * area : 0) + i] - range[0]) / (range[1] - range[0]);
        pixels.data[4 * i + c] = grey(value, drawing);
      }
      pixels.data[4 * i + 3] = 255;
    }
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = smooth;
    context.drawImage(small, x, y, w, h);
  }

  // Values in [0, 1] as text for the address, in steps of 1/15, and back.
  function asText(image) {
    const level = (i) => Math.round(15 * Math.min(Math.max(image[i] ?? 0, 0), 1));
    let text = "";
    for (let i = 0; i < image.length; i += 2) text += String.fromCharCode(16 * level(i) + level(i + 1));
    return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  }

  function fromText(text, length) {
    const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return Float32Array.from({ length }, (_, i) => {
      const byte = plain.charCodeAt(i >> 1) || 0;
      return (i % 2 ? byte & 15 : byte >> 4) / 15;
    });
  }

  // The pixels of a file, three bytes each, without its colour profile and upright, on a background if it is transparent.
  async function read(file, background) {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" });
    const { width, height } = bitmap, canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    context.fillStyle = `rgb(${background.join(",")})`;
    context.fillRect(0, 0, width, height);
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, width, height), pixels = new Uint8ClampedArray(3 * width * height);
    for (let at = 0; at < width * height; at++) for (let c = 0; c < 3; c++) pixels[3 * at + c] = data[4 * at + c];
    return { pixels, width, height };
  }

  return { SIZE, PAD, stroke, centred, placed, changed, show, asText, fromText, read };
})();
