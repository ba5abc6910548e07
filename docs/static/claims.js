// Filters of the page of claims by verdict, paper and data. Without JavaScript, everything is visible.
const bar = document.querySelector(".claim-filters");
const labels = [...document.querySelectorAll(".verdict[data-paper]")];
const valueOf = {
  verdict: (label) => label.textContent,
  paper: (label) => label.dataset.paper,
  data: (label) => label.dataset.data,
};
const chosen = {};

function matches(label) {
  return Object.entries(chosen).every(([name, value]) => !value || valueOf[name](label) === value);
}

// a row, a proof or a topic is shown if one of its tests matches
function show() {
  const page = bar.parentElement;
  page.classList.toggle("filtered", Object.values(chosen).some(Boolean));
  for (const part of page.querySelectorAll("section, tr")) {
    const own = labels.filter((label) => part.contains(label));
    part.classList.toggle("claim-hidden", own.length > 0 && !own.some(matches));
  }
}

function select(name) {
  const choice = document.createElement("select");
  choice.ariaLabel = name;
  choice.add(new Option(`every ${name}`, ""));
  const values = new Set(labels.map(valueOf[name]));
  [...values].sort().forEach((value) => choice.add(new Option(value)));
  choice.onchange = () => {
    chosen[name] = choice.value;
    show();
  };
  return choice;
}

function button(text, open) {
  const made = document.createElement("button");
  made.textContent = text;
  made.onclick = () => bar.parentElement.querySelectorAll("details").forEach((each) => (each.open = open));
  return made;
}

function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const proof = target && target.querySelector(":scope > details");
  if (proof) proof.open = true;
}

if (bar) {
  bar.append(...Object.keys(valueOf).map(select), button("open all", true), button("close all", false));
  addEventListener("hashchange", openTarget);
  openTarget();
}
