"use strict";
// The forward pass of a network and all of its routing iterations. It has no access to the page, so that node can test it.
// Arrays are stored in single precision and sums are computed in double precision. Operations are those of network.py.
const Engine = (() => {
  const EPS = 1e-8; // as in capsule_lab.functional: under the root of a length

  // out[m][n] = bias[m] + sum_k weight[m][k] x[k][n], for four rows and four columns at a time
  function matmul(weight, x, rows, inner, columns, bias) {
    const out = new Float32Array(rows * columns), sums = new Float64Array(16);
    for (let m = 0; m < rows; m += 4) {
      const last = rows - 1 - m, w0 = m * inner;
      const w1 = w0 + inner * Math.min(1, last), w2 = w0 + inner * Math.min(2, last), w3 = w0 + inner * Math.min(3, last);
      for (let n = 0; n < columns; n += 4) {
        const across = Math.min(4, columns - n);
        const n1 = Math.min(1, across - 1), n2 = Math.min(2, across - 1), n3 = Math.min(3, across - 1);
        let a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0, i = 0, j = 0, k = 0, l = 0, o = 0, p = 0, q = 0, r = 0;
        for (let t = 0, at = n; t < inner; t++, at += columns) {
          const x0 = x[at], x1 = x[at + n1], x2 = x[at + n2], x3 = x[at + n3];
          const y0 = weight[w0 + t], y1 = weight[w1 + t], y2 = weight[w2 + t], y3 = weight[w3 + t];
          a += y0 * x0; b += y0 * x1; c += y0 * x2; d += y0 * x3;
          e += y1 * x0; f += y1 * x1; g += y1 * x2; h += y1 * x3;
          i += y2 * x0; j += y2 * x1; k += y2 * x2; l += y2 * x3;
          o += y3 * x0; p += y3 * x1; q += y3 * x2; r += y3 * x3;
        }
        sums[0] = a; sums[1] = b; sums[2] = c; sums[3] = d; sums[4] = e; sums[5] = f; sums[6] = g; sums[7] = h;
        sums[8] = i; sums[9] = j; sums[10] = k; sums[11] = l; sums[12] = o; sums[13] = p; sums[14] = q; sums[15] = r;
        for (let y = 0; y <= Math.min(3, last); y++) {
          const plus = bias ? bias[m + y] : 0, to = (m + y) * columns + n;
          for (let z = 0; z < across; z++) out[to + z] = sums[4 * y + z] + plus;
        }
      }
    }
    return out;
  }

  // --- operations on feature maps {data, channels, height, width} ---

  function conv(maps, op, tensors) {
    const { out, groups, size: [kh, kw], stride: [sy, sx], pad: [top, left, bottom, right] } = op;
    const { channels, height, width } = maps, inner = channels / groups, outer = out / groups;
    const h = Math.floor((height + top + bottom - kh) / sy) + 1, w = Math.floor((width + left + right - kw) / sx) + 1;
    const weight = tensors[op.weight], bias = op.bias === null ? null : tensors[op.bias], data = new Float32Array(out * h * w);
    const taps = inner * kh * kw, patches = new Float32Array(taps * h * w);
    for (let group = 0; group < groups; group++) {
      let at = 0;
      for (let c = group * inner; c < (group + 1) * inner; c++) for (let dy = 0; dy < kh; dy++) for (let dx = 0; dx < kw; dx++)
        for (let y = 0; y < h; y++) {
          const row = y * sy + dy - top, from = (c * height + row) * width;
          for (let x = 0, column = dx - left; x < w; x++, column += sx)
            patches[at++] = row >= 0 && row < height && column >= 0 && column < width ? maps.data[from + column] : 0;
        }
      const part = weight.subarray(group * outer * taps, (group + 1) * outer * taps);
      data.set(matmul(part, patches, outer, taps, h * w, bias && bias.subarray(group * outer, (group + 1) * outer)), group * outer * h * w);
    }
    return { data, channels: out, height: h, width: w };
  }

  function perChannel(maps, change) {
    const area = maps.height * maps.width, data = new Float32Array(maps.data.length);
    for (let c = 0, at = 0; c < maps.channels; c++) for (let p = 0; p < area; p++, at++) data[at] = change(maps.data[at], c);
    return { ...maps, data };
  }

  const flat = (data) => ({ data, channels: data.length, height: 1, width: 1 });
  const FEATURES = {
    conv,
    scale: (maps, op, t) => perChannel(maps, (value, c) => value * t[op.factor][c] + t[op.term][c]),
    relu: (maps, op) => perChannel(maps, (value) => value < 0 ? value * op.slope : value),
    flatten: (maps) => flat(maps.data),
    linear: (maps, op, t) => flat(matmul(t[op.weight], maps.data, op.out, maps.data.length, 1, t[op.bias])),
    mean: (maps) => {
      const area = maps.height * maps.width, means = new Float32Array(maps.channels);
      for (let c = 0; c < maps.channels; c++) {
        let sum = 0;
        for (let p = 0; p < area; p++) sum += maps.data[c * area + p];
        means[c] = sum / area;
      }
      return flat(means);
    },
    units: (maps, op, t) => { // of a MatchedCNN: a linear function of the units of each class
      const dim = maps.data.length / op.classes;
      return flat(Float32Array.from({ length: op.classes }, (_, k) => {
        let sum = t[op.bias][k];
        for (let d = 0; d < dim; d++) sum += maps.data[k * dim + d] * t[op.weight][k * dim + d];
        return sum;
      }));
    },
  };

  const features = (ops, maps, tensors) => ops.reduce((found, op) => FEATURES[op.op](found, op, tensors), maps);

  // --- capsules {poses, presence, count, dim, grid, types, byType} ---

  const SQUASH = { // factor of a vector of squared length
    squash: (squared) => squared / (1 + squared) / Math.sqrt(squared + EPS),
    exponential: (squared) => { const size = Math.sqrt(squared + EPS); return -Math.expm1(-size) / size; },
  };

  function squash(kind, from, start, dim, to, at) { // returns the length
    let squared = 0, sum = 0;
    for (let d = 0; d < dim; d++) squared += from[start + d] * from[start + d];
    const factor = SQUASH[kind](squared);
    for (let d = 0; d < dim; d++) { const value = from[start + d] * factor; to[at + d] = value; sum += value * value; }
    return Math.sqrt(sum + EPS);
  }

  function squashedPrimary(maps, op, t) { // ordered (type, y, x)
    const { dim } = op, area = maps.height * maps.width, types = maps.channels / dim, count = types * area;
    const poses = new Float32Array(count * dim), presence = new Float32Array(count), total = new Float64Array(dim);
    for (let i = 0; i < count; i++) {
      const type = Math.floor(i / area), place = i % area;
      for (let d = 0; d < dim; d++) {
        const channel = type * dim + d, value = maps.data[channel * area + place] * op.factor;
        total[d] = op.bias === null ? value : value + t[op.bias][channel];
      }
      presence[i] = squash(op.squash, total, 0, dim, poses, i * dim);
    }
    return { poses, presence, count, dim, grid: [maps.height, maps.width], types, byType: true };
  }

  const logistic = (x) => 1 / (1 + Math.exp(-x));

  function matrixPrimary(maps, op, t) { // ordered (y, x, type)
    const pose = features(op.pose, maps, t), logit = features(op.activation, maps, t), area = maps.height * maps.width;
    const types = logit.channels, dim = pose.channels / types, count = area * types;
    const poses = new Float32Array(count * dim), presence = new Float32Array(count);
    for (let i = 0; i < count; i++) {
      const type = i % types, place = Math.floor(i / types);
      presence[i] = logistic(logit.data[type * area + place] - op.offset);
      for (let d = 0; d < dim; d++) poses[i * dim + d] = pose.data[(type * dim + d) * area + place];
    }
    return { poses, presence, count, dim, grid: [maps.height, maps.width], types, byType: false };
  }

  function denseVotes(capsules, weight, parents, dim) { // ordered (child, parent, component)
    const width = parents * dim, votes = new Float32Array(capsules.count * width);
    for (let i = 0; i < capsules.count; i++) for (let c = 0; c < capsules.dim; c++) {
      const value = capsules.poses[i * capsules.dim + c], from = (i * capsules.dim + c) * width, to = i * width;
      for (let at = 0; at < width; at++) votes[to + at] += value * weight[from + at];
    }
    return votes;
  }

  function softmaxOverParents(logits, count, parents, equal) {
    const couplings = new Float32Array(count * parents);
    for (let i = 0; i < count; i++) {
      let largest = -Infinity, norm = 0;
      for (let k = 0; k < parents; k++) largest = Math.max(largest, logits[i * parents + k]);
      for (let k = 0; k < parents; k++) norm += couplings[i * parents + k] = equal ? 1 : Math.exp(logits[i * parents + k] - largest);
      for (let k = 0; k < parents; k++) couplings[i * parents + k] /= norm;
    }
    return couplings;
  }

  function weightedSum(votes, couplings, count, parents, dim, bias) {
    const sums = new Float64Array(parents * dim);
    if (bias) sums.set(bias);
    for (let i = 0; i < count; i++) for (let k = 0; k < parents; k++) {
      const share = couplings ? couplings[i * parents + k] : 1, from = (i * parents + k) * dim;
      for (let d = 0; d < dim; d++) sums[k * dim + d] += share * votes[from + d];
    }
    return sums;
  }

  function addAgreement(logits, votes, poses, count, parents, dim, factor) {
    for (let i = 0; i < count; i++) for (let k = 0; k < parents; k++) {
      let agreement = 0;
      for (let d = 0; d < dim; d++) agreement += votes[(i * parents + k) * dim + d] * poses[k * dim + d];
      logits[i * parents + k] += agreement * factor;
    }
  }

  function squashed(kind, sums, parents, dim) {
    const poses = new Float32Array(parents * dim), activations = new Float32Array(parents);
    for (let k = 0; k < parents; k++) activations[k] = squash(kind, sums, k * dim, dim, poses, k * dim);
    return { poses, activations };
  }

  function dense(capsules, op, t, options) {
    const { parents, dim, routing } = op, { count } = capsules, votes = denseVotes(capsules, t[op.weight], parents, dim);
    const logits = new Float64Array(count * parents), steps = [], bias = routing.bias === null ? null : t[routing.bias];
    if (routing.kind === "self_attention") {
      addAgreement(logits, votes, weightedSum(votes, null, count, parents, dim), count, parents, dim, 1 / Math.sqrt(dim));
      const couplings = softmaxOverParents(logits, count, parents, options.equal);
      if (routing.prior !== null) { // one number for each parent and kind of child, ordered (position, kind)
        const kinds = t[routing.prior].length / parents;
        for (let i = 0; i < count; i++) for (let k = 0; k < parents; k++)
          couplings[i * parents + k] += options.equal ? 0 : t[routing.prior][k * kinds + i % kinds];
      }
      steps.push({ couplings, ...squashed("exponential", weightedSum(votes, couplings, count, parents, dim), parents, dim) });
    } else for (let iteration = 0; iteration < routing.iterations; iteration++) {
      const couplings = softmaxOverParents(logits, count, parents, options.equal);
      const step = { couplings, ...squashed("squash", weightedSum(votes, couplings, count, parents, dim, bias), parents, dim) };
      if (iteration < routing.iterations - 1) addAgreement(logits, votes, step.poses, count, parents, dim, 1);
      steps.push(step);
    }
    const last = steps[steps.length - 1];
    const above = { poses: last.poses, presence: last.activations, count: parents, dim, grid: [1, 1], types: parents, byType: false };
    return { above, layer: { name: op.name, children: capsules, parents, dim, votes, steps } };
  }

  // --- EM routing: windows of children, and parents that are Gaussians; all parents that see a child compete for it ---

  function windowsOf(capsules, op) { // the child at each place of each window
    const [height, width] = capsules.grid, { types } = capsules;
    if (op.size === null) return { grid: [1, 1], windows: 1, places: capsules.count, child: Int32Array.from({ length: capsules.count }, (_, i) => i) };
    const grid = [height, width].map((side) => Math.floor((side - op.size) / op.stride) + 1);
    const windows = grid[0] * grid[1], places = op.size * op.size * types, child = new Int32Array(windows * places);
    for (let n = 0; n < windows; n++) for (let i = 0; i < places; i++) {
      const place = Math.floor(i / types), y = Math.floor(n / grid[1]) * op.stride + Math.floor(place / op.size);
      child[n * places + i] = (y * width + n % grid[1] * op.stride + place % op.size) * types + i % types;
    }
    return { grid, windows, places, child };
  }

  function matrixVotes(poses, weight, { child, windows, places }, kinds, parents, added, types) { // 4x4 times 4x4
    const votes = new Float32Array(windows * places * parents * 16), next = parents * 4;
    for (let n = 0; n < windows; n++) for (let i = 0; i < places; i++) {
      const from = child[n * places + i] * 16, plus = Math.floor(i / types) * 16;
      for (let j = 0; j < parents; j++) {
        const w = (i % kinds * next + j) * 4, to = ((n * places + i) * parents + j) * 16;
        for (let r = 0; r < 16; r += 4) {
          const a = poses[from + r], b = poses[from + r + 1], c = poses[from + r + 2], d = poses[from + r + 3];
          for (let q = 0; q < 4; q++) {
            const vote = a * weight[w + q] + b * weight[w + next + q] + c * weight[w + 2 * next + q] + d * weight[w + 3 * next + q];
            votes[to + r + q] = added ? vote + added[plus + r + q] : vote;
          }
        }
      }
    }
    return votes;
  }

  // posterior of each parent given each vote, normalised over all parents that see the child: (window, parent, place)
  function eStep(gaussians, votes, shape, temperature) {
    const { windows, places, parents, dim, child, count } = shape, couplings = new Float32Array(windows * parents * places);
    const logs = new Float64Array(couplings.length), largest = new Float64Array(count).fill(-Infinity), total = new Float64Array(count);
    const half = new Float64Array(dim), mean = new Float64Array(dim);
    if (gaussians) for (let of = 0; of < windows * parents; of++) {
      const n = Math.floor(of / parents), j = of % parents, { poses, variances, heights } = gaussians;
      for (let d = 0; d < dim; d++) { half[d] = 0.5 / variances[of * dim + d]; mean[d] = poses[of * dim + d]; }
      for (let i = 0; i < places; i++) {
        const vote = ((n * places + i) * parents + j) * dim;
        let distance = 0;
        for (let d = 0; d < dim; d++) { const away = votes[vote + d] - mean[d]; distance += away * away * half[d]; }
        logs[of * places + i] = (heights[of] - distance) / temperature;
      }
    }
    for (let of = 0, at = 0; of < windows * parents; of++) for (let i = 0, c = Math.floor(of / parents) * places; i < places; i++, at++, c++)
      if (logs[at] > largest[child[c]]) largest[child[c]] = logs[at];
    for (let of = 0, at = 0; of < windows * parents; of++) for (let i = 0, c = Math.floor(of / parents) * places; i < places; i++, at++, c++)
      total[child[c]] += couplings[at] = Math.exp(logs[at] - largest[child[c]]);
    for (let of = 0, at = 0; of < windows * parents; of++) for (let i = 0, c = Math.floor(of / parents) * places; i < places; i++, at++, c++)
      couplings[at] /= total[child[c]];
    return couplings;
  }

  function mStep(couplings, votes, presence, shape, op, t) {
    const { windows, places, parents, dim, child } = shape, size = windows * parents;
    const poses = new Float32Array(size * dim), variances = new Float32Array(size * dim), heights = new Float64Array(size);
    const activations = new Float32Array(size), weight = new Float64Array(places), sum = new Float64Array(dim), spread = new Float64Array(dim);
    for (let of = 0; of < size; of++) {
      const n = Math.floor(of / parents), j = of % parents;
      let mass = op.massEps, logVariance = 0;
      sum.fill(0); spread.fill(0);
      for (let i = 0; i < places; i++) mass += weight[i] = couplings[of * places + i] * presence[child[n * places + i]];
      for (let i = 0; i < places; i++) {
        const vote = ((n * places + i) * parents + j) * dim;
        for (let d = 0; d < dim; d++) sum[d] += weight[i] * votes[vote + d];
      }
      for (let d = 0; d < dim; d++) sum[d] /= mass;
      for (let i = 0; i < places; i++) {
        const vote = ((n * places + i) * parents + j) * dim;
        for (let d = 0; d < dim; d++) { const away = votes[vote + d] - sum[d]; spread[d] += weight[i] * away * away; }
      }
      for (let d = 0; d < dim; d++) {
        poses[of * dim + d] = sum[d];
        logVariance += Math.log(variances[of * dim + d] = spread[d] / mass + op.minVariance);
      }
      activations[of] = logistic(-0.5 * logVariance * t[op.evidenceFactor][j] + t[op.evidenceTerm][j]);
      heights[of] = Math.log(mass) - 0.5 * (logVariance + dim * Math.log(2 * Math.PI));
    }
    return { couplings, poses, variances, activations, heights };
  }

  function em(capsules, op, t, options) {
    const { parents } = op, { dim, types } = capsules, seen = windowsOf(capsules, op);
    const shape = { ...seen, parents, dim, count: capsules.count }, added = op.coordinates === null ? null : t[op.coordinates];
    const votes = matrixVotes(capsules.poses, t[op.weight], seen, op.size === null ? types : seen.places, parents, added, types);
    const steps = [], temperature = options.temperature ?? op.temperature;
    for (let iteration = 0; iteration < (options.iterations ?? op.iterations); iteration++) {
      const couplings = eStep(options.equal ? null : steps[iteration - 1], votes, shape, temperature);
      steps.push(mStep(couplings, votes, capsules.presence, shape, op, t));
    }
    const last = steps[steps.length - 1];
    let poses = last.poses;
    if (op.poseFactor !== null) poses = poses.map((value, at) => value * t[op.poseFactor][at % (parents * dim)] + t[op.poseTerm][at % (parents * dim)]);
    const above = { poses, presence: last.activations, count: seen.windows * parents, dim, grid: seen.grid, types: parents, byType: false };
    return { above, layer: { name: op.name, children: capsules, minVariance: op.minVariance, ...shape, votes, steps } };
  }

  // --- networks ---

  // Returns scores, poses of the classes, and every capsule layer with its votes and its steps. Options: equal couplings;
  // iterations and temperature of EM routing.
  function forward(model, image, options = {}) {
    const { network, tensors } = model, [channels, height, width] = network.image, layers = [];
    const maps = features(network.features, { data: image, channels, height, width }, tensors);
    if (!network.primary) return { scores: SCORES[network.scores](maps.data), poses: null, layers };
    let capsules = (network.primary.op === "matrices" ? matrixPrimary : squashedPrimary)(maps, network.primary, tensors);
    for (const op of network.capsules) {
      const { above, layer } = (op.op === "em" ? em : dense)(capsules, op, tensors, options);
      layers.push(layer);
      capsules = above;
    }
    return { scores: capsules.presence, poses: capsules.poses, layers };
  }

  const SCORES = {
    softmax: (logits) => softmaxOverParents(logits, 1, logits.length, false),
    logistic: (logits) => logits.map(logistic),
  };

  // The image that the decoder draws from the pose of one class; all others are zero.
  function decode(model, pose, classNumber) {
    const { network, tensors: t } = model;
    let x = Float32Array.from(pose);
    network.decoder.forEach((layer, number) => {
      const weight = t[layer.weight], out = new Float32Array(layer.out), first = number === 0 ? classNumber * pose.length : 0;
      const inputs = number === 0 ? network.classes * pose.length : x.length, last = number === network.decoder.length - 1;
      for (let o = 0; o < layer.out; o++) {
        let sum = t[layer.bias][o];
        for (let i = 0; i < x.length; i++) sum += weight[o * inputs + first + i] * x[i];
        out[o] = last ? logistic(sum) : Math.max(sum, 0);
      }
      x = out;
    });
    return x;
  }

  // --- weights: little-endian numbers, and the type, number and place of each tensor ---

  function half(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }

  function unpack(index, bytes) {
    const halves = Float32Array.from({ length: 65536 }, (_, bits) => half(bits));
    const tensors = index.tensors.map(({ dtype, offset, count }) => {
      const size = dtype === "f32" ? 4 : 2, part = bytes.slice(offset, offset + size * count).buffer;
      return dtype === "f32" ? new Float32Array(part) : Float32Array.from(new Uint16Array(part), (bits) => halves[bits]);
    });
    return { network: index.network, record: index.record, tensors };
  }

  function base64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const plain = atob(text), bytes = new Uint8Array(plain.length);
    for (let i = 0; i < plain.length; i++) bytes[i] = plain.charCodeAt(i);
    return bytes;
  }

  return { forward, decode, unpack, base64 };
})();
if (typeof module !== "undefined") module.exports = Engine;
