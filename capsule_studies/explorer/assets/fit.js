// Pictures of any size as the data module makes them: Pillow's bilinear filter (a triangle, as wide as the pixels that one
// pixel of the result replaces), crop, pad or stretch. It has no access to the page, so that node can test it.
const Fit = (() => {
  const ONE = 2 ** 22; // Pillow computes with whole numbers, in units of 1 / ONE

  // The pixels of the source, and their weights, for each pixel of one side of the result.
  function filterOf(side, from, to, out) {
    const scale = (to - from) / out;
    const width = Math.max(scale, 1);
    return Array.from({ length: out }, (_, pixel) => {
      const centre = from + (pixel + 0.5) * scale;
      const start = Math.max(0, Math.trunc(centre - width + 0.5));
      const end = Math.min(side, Math.trunc(centre + width + 0.5));
      const weights = [];
      for (let at = start; at < end; at++) weights.push(Math.max(0, 1 - Math.abs(at - centre + 0.5) / width));
      const total = weights.reduce((a, b) => a + b);
      return { start, weights: weights.map((weight) => Math.floor(0.5 + ONE * weight / total)) };
    });
  }

  // Picture {pixels, width, height} of three bytes a pixel; box [left, top, right, bottom] in pixels, not always whole.
  function resized(picture, width, height, box) {
    const [left, top, right, bottom] = box ?? [0, 0, picture.width, picture.height];
    const columns = filterOf(picture.width, left, right, width);
    const rows = filterOf(picture.height, top, bottom, height);
    const across = new Uint8ClampedArray(picture.height * width * 3);
    for (let y = 0; y < picture.height; y++) columns.forEach(({ start, weights }, x) => {
      for (let c = 0; c < 3; c++) {
        let sum = 0;
        for (let i = 0; i < weights.length; i++) sum += weights[i] * picture.pixels[(y * picture.width + start + i) * 3 + c];
        across[(y * width + x) * 3 + c] = Math.floor(sum / ONE + 0.5);
      }
    });
    const pixels = new Uint8ClampedArray(height * width * 3);
    rows.forEach(({ start, weights }, y) => {
      for (let at = 0; at < 3 * width; at++) {
        let sum = 0;
        for (let i = 0; i < weights.length; i++) sum += weights[i] * across[(start + i) * width * 3 + at];
        pixels[y * width * 3 + at] = Math.floor(sum / ONE + 0.5);
      }
    });
    return { pixels, width, height };
  }

  function roundHalfToEven(value) { // as Python
    const rounded = Math.round(value);
    return Math.abs(value % 1) === 0.5 && rounded % 2 ? rounded - 1 : rounded;
  }

  function cropped(picture, width, height) {
    const ratio = width / height;
    const wide = Math.min(picture.width, ratio * picture.height);
    const tall = Math.min(picture.height, picture.width / ratio);
    const left = (picture.width - wide) / 2;
    const top = (picture.height - tall) / 2;
    return resized(picture, width, height, [left, top, left + wide, top + tall]);
  }

  function padded(picture, width, height, background) {
    const ratio = picture.width / picture.height;
    const wide = ratio < width / height ? Math.max(1, roundHalfToEven(ratio * height)) : width;
    const tall = ratio > width / height ? Math.max(1, roundHalfToEven(width / ratio)) : height;
    const inner = resized(picture, wide, tall);
    const left = roundHalfToEven((width - wide) / 2);
    const top = roundHalfToEven((height - tall) / 2);
    const pixels = Uint8ClampedArray.from({ length: width * height * 3 }, (_, at) => background[at % 3]);
    for (let y = 0; y < tall; y++)
      pixels.set(inner.pixels.subarray(y * wide * 3, (y + 1) * wide * 3), ((y + top) * width + left) * 3);
    return { pixels, width, height };
  }

  // The network's input, ordered (channel, row, column) in [0, 1].
  function input(picture, [channels, height, width], { fit, background }) {
    const fitted = fit === "crop" ? cropped(picture, width, height)
      : fit === "pad" ? padded(picture, width, height, background) : resized(picture, width, height);
    const area = height * width;
    const values = new Float32Array(channels * area);
    for (let at = 0; at < area; at++) {
      const [red, green, blue] = fitted.pixels.subarray(3 * at, 3 * at + 3);
      if (channels === 1) values[at] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000 >> 16) / 255; // as Pillow
      else [red, green, blue].forEach((level, c) => { values[c * area + at] = level / 255; });
    }
    return values;
  }

  return { input };
})();
if (typeof module !== "undefined") module.exports = Fit;
