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

  function pool(maps, { size, stride }) { // the largest value of each window
    const { channels, height, width } = maps;
    const h = Math.floor((height - size) / stride) + 1;
    const w = Math.floor((width - size) / stride) + 1;
    const data = new Float32Array(channels * h * w).fill(-Infinity);
    for (let c = 0, at = 0; c < channels; c++) for (let y = 0; y < h; y++) for (let x = 0; x < w; x++, at++) {
      for (let dy = 0; dy < size; dy++) for (let dx = 0; dx < size; dx++) {
        const value = maps.data[(c * height + y * stride + dy) * width + x * stride + dx];
        if (value > data[at]) data[at] = value;
      }
    }
    return { data, channels, height: h, width: w };
  }

  function residual(maps, op, tensors) {
    const main = features(op.main, maps, tensors);
    const shortcut = features(op.shortcut, maps, tensors);
    const data = main.data.map((value, at) => Math.max(value + shortcut.data[at], 0));
    return { ...main, data };
  }

  function paddedShortcut(maps, { added, stride }) { // every stride-th pixel, between channels of zeros
    const { channels, height, width } = maps;
    const h = Math.ceil(height / stride);
    const w = Math.ceil(width / stride);
    const data = new Float32Array((channels + added) * h * w);
    let at = Math.floor(added / 2) * h * w;
    for (let c = 0; c < channels; c++) for (let y = 0; y < h; y++) for (let x = 0; x < w; x++, at++)
      data[at] = maps.data[(c * height + y * stride) * width + x * stride];
    return { data, channels: channels + added, height: h, width: w };
  }

  const flat = (data) => ({ data, channels: data.length, height: 1, width: 1 });
  const FEATURES = {
    conv,
    pool,
    residual,
    padded_shortcut: paddedShortcut,
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
      const dim = maps.data.length / op.out;
      return flat(Float32Array.from({ length: op.out }, (_, k) => {
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
    half: (squared) => squared / (0.5 + squared) / Math.sqrt(squared + EPS),
    exponential: (squared) => {
      const size = Math.sqrt(squared + EPS);
      return -Math.expm1(-size) / size;
    },
    none: () => 1,
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
        if (op.relu) total[d] = Math.max(total[d], 0);
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

  function softmaxOverParents(logits, count, parents, equal, leaky = false) {
    const couplings = new Float32Array(count * parents);
    for (let i = 0; i < count; i++) {
      let largest = leaky ? 0 : -Infinity, norm = 0; // leaky: another parent of logit 0, whose share is dropped
      for (let k = 0; k < parents; k++) largest = Math.max(largest, logits[i * parents + k]);
      for (let k = 0; k < parents; k++) norm += couplings[i * parents + k] = equal ? 1 : Math.exp(logits[i * parents + k] - largest);
      if (leaky) norm += equal ? 1 : Math.exp(-largest);
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

  // Each routing returns its steps, with couplings, poses and activations. `layer` has the votes and their shape.
  const ROUTINGS = {
    dynamic: dynamicRouting,
    self_attention: selfAttention,
    self_routing: selfRouting,
    scaled_distance: scaledDistance,
    attention_over_children: attentionOverChildren,
    inverted_attention: invertedAttention,
  };

  function dynamicRouting({ votes, count, parents, dim, routing, t, equal }) {
    const bias = routing.bias === null ? null : t[routing.bias];
    const gain = routing.gain === null ? 1 : t[routing.gain][0];
    const start = new Float64Array(count * parents);
    if (routing.prior !== null) {
      for (let i = 0; i < count; i++) for (let k = 0; k < parents; k++) start[i * parents + k] = t[routing.prior][k * count + i];
    }
    const steps = [];
    let logits = start.slice();
    for (let iteration = 0; iteration < routing.iterations; iteration++) {
      const couplings = softmaxOverParents(logits, count, parents, equal, routing.leaky);
      const total = weightedSum(votes, couplings, count, parents, dim);
      for (let at = 0; at < total.length; at++) total[at] = gain * total[at] + (bias ? bias[at] : 0);
      const step = { couplings, ...squashed(routing.squash, total, parents, dim) };
      steps.push(step);
      if (iteration === routing.iterations - 1) break;
      if (routing.replace) logits = start.slice();
      addAgreement(logits, votes, step.poses, count, parents, dim, 1);
    }
    return steps;
  }

  function selfAttention({ votes, count, parents, dim, routing, t, equal }) {
    const logits = new Float64Array(count * parents);
    addAgreement(logits, votes, weightedSum(votes, null, count, parents, dim), count, parents, dim, 1 / Math.sqrt(dim));
    const couplings = softmaxOverParents(logits, count, parents, equal);
    if (routing.prior !== null && !equal) { // one number for each parent and kind of child, ordered (position, kind)
      const kinds = t[routing.prior].length / parents;
      for (let i = 0; i < count; i++) for (let k = 0; k < parents; k++)
        couplings[i * parents + k] += t[routing.prior][k * kinds + i % kinds];
    }
    const total = weightedSum(votes, couplings, count, parents, dim);
    return [{ couplings, ...squashed("exponential", total, parents, dim) }];
  }

  function selfRouting({ votes, count, parents, dim, routing, t, equal, capsules }) {
    const weight = t[routing.weight]; // (type, parent, component)
    const types = t[routing.bias].length / parents;
    const logits = new Float64Array(count * parents);
    let mass = 0;
    for (let i = 0; i < count; i++) {
      mass += capsules.presence[i];
      for (let k = 0; k < parents; k++) {
        const row = i % types * parents + k;
        let logit = t[routing.bias][row];
        for (let c = 0; c < capsules.dim; c++) logit += weight[row * capsules.dim + c] * capsules.poses[i * capsules.dim + c];
        logits[i * parents + k] = logit;
      }
    }
    const couplings = softmaxOverParents(logits, count, parents, equal);
    const activations = new Float32Array(parents);
    const assigned = new Float64Array(count * parents);
    for (let i = 0; i < count; i++) for (let k = 0; k < parents; k++) {
      const share = mass > SMALLEST ? capsules.presence[i] / mass : 1 / count;
      assigned[i * parents + k] = couplings[i * parents + k] * share;
      activations[k] += assigned[i * parents + k];
    }
    const sums = weightedSum(votes, assigned, count, parents, dim);
    const poses = Float32Array.from(sums, (sum, at) => sum / Math.max(activations[Math.floor(at / dim)], SMALLEST));
    return [{ couplings, poses, activations }];
  }
  const SMALLEST = 1e-12; // as in capsule_lab.routing.self_routing

  function scaledDistance({ votes, count, parents, dim, routing, t, equal, capsules }) {
    const logRatio = parents > 1 ? Math.log(routing.share * (parents - 1) / (1 - routing.share)) : 0;
    const shortened = new Float32Array(votes.length); // to the length of the child
    for (let at = 0; at < count * parents; at++) {
      let squared = 0;
      for (let d = 0; d < dim; d++) squared += votes[at * dim + d] ** 2;
      const factor = Math.min(capsules.presence[Math.floor(at / parents)] / Math.sqrt(squared + EPS), 1);
      for (let d = 0; d < dim; d++) shortened[at * dim + d] = factor * votes[at * dim + d];
    }
    const steps = [];
    let logits = new Float64Array(count * parents);
    for (let iteration = 0; iteration < routing.iterations; iteration++) {
      const couplings = softmaxOverParents(logits, count, parents, equal);
      const bias = routing.bias === null ? null : t[routing.bias];
      const step = { couplings, ...squashed("squash", weightedSum(shortened, couplings, count, parents, dim, bias), parents, dim) };
      const distances = new Float64Array(count * parents);
      let mean = 0;
      for (let at = 0; at < distances.length; at++) {
        let squared = 0;
        for (let d = 0; d < dim; d++) squared += (step.poses[at % parents * dim + d] - shortened[at * dim + d]) ** 2;
        distances[at] = Math.sqrt(squared + EPS);
        mean += distances[at] / distances.length;
      }
      logits = distances.map((distance) => -2 * logRatio * distance / mean);
      steps.push(step);
    }
    return steps;
  }

  function attentionOverChildren({ votes, count, parents, dim, routing, t, equal }) { // children compete for a parent
    const attention = t[routing.attention]; // (parent, component, from, to)
    const couplings = new Float32Array(count * parents);
    for (let k = 0; k < parents; k++) {
      const logits = new Float64Array(count);
      for (let from = 0; from < count; from++) for (let d = 0; d < dim; d++) {
        const vote = votes[(from * parents + k) * dim + d];
        const row = ((k * dim + d) * count + from) * count;
        for (let to = 0; to < count; to++) logits[to] += attention[row + to] * vote;
      }
      const shares = softmaxOverParents(logits, 1, count, equal);
      for (let i = 0; i < count; i++) couplings[i * parents + k] = shares[i];
    }
    const total = weightedSum(votes, couplings, count, parents, dim);
    const poses = new Float32Array(parents * dim);
    const activations = new Float32Array(parents);
    for (let k = 0; k < parents; k++) {
      let squared = 0;
      for (let e = 0; e < dim; e++) {
        let sum = t[routing.bias][k * dim + e];
        for (let d = 0; d < dim; d++) sum += total[k * dim + d] * t[routing.weight][(k * dim + d) * dim + e];
        poses[k * dim + e] = Math.tanh(sum);
        squared += poses[k * dim + e] ** 2;
      }
      activations[k] = Math.sqrt(squared + EPS) / Math.sqrt(dim);
    }
    return [{ couplings, poses, activations }];
  }

  function layerNorm(values, start, dim, scale, shift, to) {
    let mean = 0, variance = 0;
    for (let d = 0; d < dim; d++) mean += values[start + d] / dim;
    for (let d = 0; d < dim; d++) variance += (values[start + d] - mean) ** 2 / dim;
    for (let d = 0; d < dim; d++) to[start + d] = (values[start + d] - mean) / Math.sqrt(variance + 1e-5) * scale[d] + shift[d];
  }

  function invertedAttention({ votes, count, parents, dim, routing, t, equal }) {
    const root = Math.sqrt(dim);
    const steps = [];
    let logits = new Float64Array(count * parents);
    for (let iteration = 0; iteration < routing.iterations; iteration++) {
      const couplings = softmaxOverParents(logits, count, parents, equal);
      const total = weightedSum(votes, couplings, count, parents, dim);
      const poses = new Float32Array(parents * dim);
      const activations = new Float32Array(parents);
      const last = iteration === routing.iterations - 1;
      for (let k = 0; k < parents; k++) {
        layerNorm(total, k * dim, dim, t[routing.scale], t[routing.shift], poses);
        let evidence = 0, head = routing.headBias === null ? 0 : t[routing.headBias][0];
        for (let d = 0; d < dim; d++) {
          evidence += total[k * dim + d] * poses[k * dim + d] / root;
          if (routing.headWeight !== null) head += poses[k * dim + d] * t[routing.headWeight][d];
        }
        activations[k] = logistic(last && routing.headWeight !== null ? head : evidence);
      }
      logits = new Float64Array(count * parents);
      addAgreement(logits, votes, poses, count, parents, dim, 1 / root);
      steps.push({ couplings, poses, activations });
    }
    return steps;
  }

  function dense(capsules, op, t, options) {
    const { parents, dim, routing } = op, { count } = capsules;
    const votes = op.weight === null ? new Float32Array(0) : denseVotes(capsules, t[op.weight], parents, dim);
    const steps = ROUTINGS[routing.kind]({ capsules, votes, count, parents, dim, routing, t, equal: options.equal });
    const last = steps[steps.length - 1];
    const above = { poses: last.poses, presence: last.activations, count: parents, dim, grid: [1, 1], types: parents, byType: false };
    const equalShare = routing.kind === "attention_over_children" ? 1 / count : 1 / parents;
    const share = (step, child, parent) => step.couplings[child * parents + parent];
    return { above, layer: { name: op.name, children: capsules, parents, dim, votes, steps, share, equalShare, window: null } };
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

  // Posterior of each parent given each vote: (window, parent, place). `rivals` says which entries share a sum of one:
  // all parents that see a child or, with competition in each window, the parents of one window.
  function eStep(gaussians, votes, shape, temperature) {
    const { windows, places, parents, dim, rivals } = shape, couplings = new Float32Array(windows * parents * places);
    const sums = 1 + rivals.reduce((a, b) => Math.max(a, b), 0);
    const logs = new Float64Array(couplings.length), largest = new Float64Array(sums).fill(-Infinity), total = new Float64Array(sums);
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
    const entries = (visit) => { // each coupling, and the sum that it belongs to
      for (let of = 0, at = 0; of < windows * parents; of++) {
        const row = Math.floor(of / parents) * places;
        for (let i = 0; i < places; i++, at++) visit(at, rivals[row + i]);
      }
    };
    entries((at, sum) => { if (logs[at] > largest[sum]) largest[sum] = logs[at]; });
    entries((at, sum) => { total[sum] += couplings[at] = Math.exp(logs[at] - largest[sum]); });
    entries((at, sum) => { couplings[at] /= total[sum]; });
    return couplings;
  }

  const LOG_2PI = Math.log(2 * Math.PI);

  // The logit of a parent's activation, from its mass and the sum of its log-variances.
  function evidence(op, t, mass, logVariance, j, dim, iteration) {
    if (op.kind === "normalised") return -0.5 * logVariance * t[op.evidenceFactor][j] + t[op.evidenceTerm][j];
    const betaU = t[op.betaU][j % t[op.betaU].length], betaA = t[op.betaA][j % t[op.betaA].length];
    return op.inverseTemperatures[iteration] * COSTS[op.cost](mass, logVariance, betaU, betaA, dim, op.minVariance);
  }

  const COSTS = { // as in capsule_lab.routing.em_costs.activation_logit
    paper: (mass, logVariance, betaU, betaA, dim) => betaA - mass * (dim * betaU + logVariance / 2),
    official_legacy: (mass, logVariance, betaU, betaA, dim) => -mass * (logVariance + dim * betaU * (LOG_2PI + 1)) - 5000 * betaA,
    official_fast: (mass, logVariance, betaU, betaA, dim, minVariance) =>
      -mass * (logVariance + dim * (Math.log(betaU ** 2 + minVariance) + LOG_2PI + 1)) - 50 * dim * betaA,
  };

  function mStep(couplings, votes, presence, shape, op, t, iteration) {
    const { windows, places, parents, dim, child } = shape, size = windows * parents;
    const poses = new Float32Array(size * dim), variances = new Float32Array(size * dim), heights = new Float64Array(size);
    const activations = new Float32Array(size), logits = new Float64Array(size), weight = new Float64Array(places), sum = new Float64Array(dim), spread = new Float64Array(dim);
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
      const logit = logits[of] = evidence(op, t, mass, logVariance, j, dim, iteration);
      activations[of] = logistic(logit);
      const size = op.kind === "normalised" ? Math.log(mass) : -Math.max(-logit, 0) - Math.log1p(Math.exp(-Math.abs(logit)));
      heights[of] = size - 0.5 * (logVariance + dim * LOG_2PI);
    }
    return { couplings, poses, variances, activations, logits, heights };
  }

  function em(capsules, op, t, options) {
    const { parents } = op, { dim, types } = capsules, seen = windowsOf(capsules, op);
    const rivals = op.competition === "window" ? seen.child.map((_, at) => at) : seen.child;
    const shape = { ...seen, rivals, parents, dim, count: capsules.count };
    const added = op.coordinates === null ? null : t[op.coordinates];
    const votes = matrixVotes(capsules.poses, t[op.weight], seen, op.size === null ? types : seen.places, parents, added, types);
    const steps = [], temperature = op.kind === "normalised" ? options.temperature ?? op.temperature : 1;
    const iterations = options.iterations ?? op.iterations;
    for (let iteration = 0; iteration < iterations; iteration++) {
      const couplings = iteration === 0 && op.equalOverTypes
        ? new Float32Array(seen.windows * parents * seen.places).fill(1 / parents)
        : eStep(options.equal ? null : steps[iteration - 1], votes, shape, temperature);
      steps.push(mStep(couplings, votes, capsules.presence, shape, op, t, iteration));
    }
    const last = steps[steps.length - 1];
    let poses = last.poses;
    if (op.kind === "normalised" && op.poseFactor !== null)
      poses = poses.map((value, at) => value * t[op.poseFactor][at % (parents * dim)] + t[op.poseTerm][at % (parents * dim)]);
    const above = { poses, presence: last.activations, logits: last.logits, count: seen.windows * parents, dim, grid: seen.grid, types: parents, byType: false };
    const share = (step, child, parent) => step.couplings[parent * seen.places + child]; // of a layer with one window
    const window = op.size === null ? null : { size: op.size, stride: op.stride };
    return { above, layer: { name: op.name, children: capsules, minVariance: op.minVariance, ...shape, votes, steps, share, equalShare: 1 / parents, window } };
  }

  // --- networks ---

  // Returns scores, poses of the classes, and every capsule layer with its votes and its steps. Options: equal couplings;
  // iterations and temperature of EM routing.
  function forward(model, image, options = {}) {
    const { network, tensors } = model, [channels, height, width] = network.image, layers = [];
    const maps = features(network.features, { data: image, channels, height, width }, tensors);
    if (!network.primary) return { scores: SCORES[network.scores](maps.data), poses: null, logits: null, layers };
    let capsules = (network.primary.op === "matrices" ? matrixPrimary : squashedPrimary)(maps, network.primary, tensors);
    for (const op of network.capsules) {
      const { above, layer } = (op.op === "em" ? em : dense)(capsules, op, tensors, options);
      layers.push(layer);
      capsules = above;
    }
    return { scores: capsules.presence, poses: capsules.poses, logits: capsules.logits ?? null, layers };
  }

  // The pixels that a position of the children of a layer sees: along each axis, position p sees those from
  // start + p * step on, `size` of them; pixels outside of the image are zeros.
  function receptiveField(model, layers, number) {
    const { network } = model;
    const primary = network.primary.op === "matrices" ? network.primary.pose : [];
    const windows = layers.slice(0, number).map(({ window }) => window && { op: "window", ...window });
    if (windows.includes(null)) return null; // all of the image
    const field = [0, 1].map(() => ({ start: 0, step: 1, size: 1 }));
    for (const op of [...network.features, ...primary, ...windows]) grow(field, op);
    return { rows: field[0], columns: field[1] };
  }

  function grow(field, op) {
    if (op.op === "residual") for (const part of op.main) grow(field, part);
    if (!op.size) return;
    field.forEach((axis, which) => {
      const at = (value, without) => value === undefined ? without : Array.isArray(value) ? value[which] : value;
      axis.start -= at(op.pad, 0) * axis.step;
      axis.size += (at(op.size, 1) - 1) * axis.step;
      axis.step *= at(op.stride, 1);
    });
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

  return { forward, decode, receptiveField, unpack, base64 };
})();
if (typeof module !== "undefined") module.exports = Engine;
