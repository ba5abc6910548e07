// Section 1: a picture is drawn, chosen, dropped or pasted, and the network answers.
const waiting = {};
function later(work, name) { // after the strokes and the pictures that cost less
  clearTimeout(waiting[name]);
  waiting[name] = setTimeout(work, 30);
}

const ink = new Float32Array(Pictures.PAD ** 2);
const examples = facts.examples.pictures.map(({ label, pixels }) => {
  const { low, high } = facts.examples, bytes = Engine.base64(pixels);
  return { label, values: Float32Array.from(bytes, (byte) => low + (high - low) * byte / 255) };
});

// Draw a picture of the network on all of a canvas.
function showOn(canvas, values, smooth = false) {
  const options = { ...look, smooth };
  Pictures.show(canvas.getContext("2d"), values, shape, [0, 0, canvas.width, canvas.height], options);
}

function answer() {
  const started = performance.now();
  result = image && Engine.forward(first, image, { equal: state.equal });
  explorer.milliseconds = performance.now() - started;
  document.body.classList.toggle("blank", !image);
  $("timing").textContent = image ? `computed in ${explorer.milliseconds.toFixed(0)} ms` : "";
  const text = image ? verdict(first, result) : drawing ? "Nothing is drawn." : "No picture is chosen.";
  showOn($("seen"), image ?? new Float32Array(CHANNELS * HEIGHT * WIDTH));
  $("pad").setAttribute("aria-label", `${drawing ? "Drawing pad" : "Picture"}. ${text}`);
  $("verdict").textContent = text;
  clearTimeout(answer.spoken);
  answer.spoken = setTimeout(() => { $("spoken").textContent = text; }, 500); // a screen reader does not read every stroke
  Pose.forget();
  Changes.forget();
  draw();
}

function draw() {
  bars($("bars"), names, result?.scores, {
    pressed: result ? chosen() : null,
    pick: (k) => {
      if (!image) return;
      state.chosen = k;
      Pose.forget();
      draw();
    },
    enter: Couplings.enter,
  });
  clearTimeout(draw.address);
  draw.address = setTimeout(toAddress, 300);
  if (!image) return;
  Pose.draw();
  Couplings.draw();
  if (em) later(Gaussians.draw, "em");
  later(Changes.draw, "changes");
}

function show(values, sample) {
  image = values;
  state.sample = sample;
  state.image = sample === null ? values : null;
  if (drawing && values) inkFrom(values);
  showOn($("pad"), values ?? new Float32Array(CHANNELS * HEIGHT * WIDTH));
  answer();
}

const showSample = (number) => show(examples[number].values, number);

function inkFrom(values) { // so that strokes can be added to a digit
  const size = Pictures.PAD / WIDTH;
  for (let y = 0; y < Pictures.PAD; y++) for (let x = 0; x < Pictures.PAD; x++)
    ink[y * Pictures.PAD + x] = values[Math.floor(y / size) * WIDTH + Math.floor(x / size)];
}

function showInk() {
  const context = $("pad").getContext("2d"), { PAD } = Pictures;
  Pictures.show(context, ink, [1, PAD, PAD], [0, 0, PAD, PAD], { drawing });
}

// --- drawing ---

function startPad() {
  const pad = $("pad");
  let last = null, queued = false;
  const at = (event) => pointerOn(pad, event).map((value) => value * Pictures.PAD / pad.clientWidth);
  const changed = () => {
    if (queued) return; // at most one answer for each frame
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      const digit = Pictures.centred(ink);
      image = state.image = digit && Pictures.placed(digit, shape);
      state.sample = null;
      showInk();
      answer();
    });
  };
  const stroke = (now) => {
    Pictures.stroke(ink, ...(last ?? now), ...now);
    last = now;
  };
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    state.chosen = null;
    stroke(at(event));
    changed();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!last) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const each of events.length ? events : [event]) stroke(at(each));
    changed();
  });
  for (const name of ["pointerup", "pointercancel"]) pad.addEventListener(name, () => { last = null; });
  $("clear").onclick = () => {
    ink.fill(0);
    state.chosen = null;
    changed();
  };
}

// --- files ---

const MOST_PIXELS = 50e6; // as capsule_lab.data.formats.pictures

async function take(file) {
  let picture;
  try {
    picture = await Pictures.read(file, entry.background);
  } catch {
    $("verdict").textContent = `${file.name} cannot be read as a picture; expected PNG, JPEG, WebP, GIF or BMP.`;
    return;
  }
  if (picture.width * picture.height > MOST_PIXELS) {
    $("verdict").textContent = `${file.name} has more than 50 million pixels; make it smaller.`;
    return;
  }
  state.chosen = null;
  show(Fit.input(picture, shape, entry), null);
}

function startFiles() {
  const takeFirst = (files) => { if (files.length) take(files[0]); };
  $("file").onchange = (event) => takeFirst(event.target.files);
  addEventListener("paste", (event) => takeFirst(event.clipboardData.files));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    $("draw").classList.add("target");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("draw").classList.remove("target"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("draw").classList.remove("target");
    takeFirst(event.dataTransfer.files);
  });
}

// --- start ---

const FITS = {
  crop: "cropped to the shape of the network's input",
  pad: "padded to the shape of the network's input",
  stretch: "stretched to the shape of the network's input",
};

function startInput() {
  const kind = KINDS[kindOf(first)];
  const titles = { drawing: "Draw a digit", file: "Choose a picture", examples: "Choose an example" };
  const size = `${WIDTH} by ${HEIGHT} pixels${CHANNELS === 3 ? " in colour" : ""}`;
  const texts = {
    drawing: `The network sees the drawing as ${size}, moved to the middle as the digits that it was trained on.`,
    file: `Choose a file, drop one anywhere on this page, or paste one. As the pictures of the training, it is ${FITS[entry.fit]}: the network sees ${size}.`,
    examples: `The network sees ${size}, which its data module changes in a way that this page does not have; so there are only examples.`,
  };
  const longest = Math.max(...names.map((name) => name.length));
  document.body.style.setProperty("--label", `${Math.min(longest, 14) + 1}ch`);
  $("lead").textContent = `${names.length} capsules answer every picture, one for each class. ${kind.lead}`;
  $("draw-title").textContent = titles[entry.source];
  $("draw-text").textContent = texts[entry.source];
  $("score-note").textContent = kind.note;
  $("bars").setAttribute("aria-label", `${kind.bars}; press one to look at it`);
  $("examples-what").textContent = examples.length ? `Examples: ${facts.examples.what}` : "";
  $("file-label").hidden = entry.source !== "file";
  $("clear").hidden = !drawing;
  $("seen-figure").hidden = !drawing;
  for (const [id, side] of [["pad", Pictures.PAD], ["seen", 112]]) sizedLike($(id), side);
  examples.forEach(({ label }, number) => $("samples").append(exampleButton(label, number)));
  if (drawing) startPad();
  else $("pad").classList.add("shown");
  if (entry.source === "file") startFiles();
}

function sizedLike(canvas, side) { // as the network's input
  const scale = side / Math.max(WIDTH, HEIGHT);
  canvas.width = Math.round(WIDTH * scale);
  canvas.height = Math.round(HEIGHT * scale);
}

function exampleButton(label, number) {
  const canvas = document.createElement("canvas");
  const choose = () => {
    state.chosen = null;
    showSample(number);
  };
  sizedLike(canvas, 64);
  canvas.tabIndex = 0;
  canvas.title = names[label];
  canvas.setAttribute("role", "button");
  canvas.setAttribute("aria-label", `example ${number + 1}: ${names[label]}`);
  canvas.onclick = choose;
  canvas.onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  };
  return canvas;
}

function redrawInput() { // in other colours
  [...$("samples").children].forEach((canvas, number) => showOn(canvas, examples[number].values));
  if (drawing && state.sample === null) showInk();
  else showOn($("pad"), image ?? new Float32Array(CHANNELS * HEIGHT * WIDTH));
  showOn($("seen"), image ?? new Float32Array(CHANNELS * HEIGHT * WIDTH));
}
