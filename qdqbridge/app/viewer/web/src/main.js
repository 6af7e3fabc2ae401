// The page of `qdqbridge view`: pictures of one graph, or of two that are compared.
import { html } from "./dom.js";
import { Painter } from "./paint.js";
import { Panel } from "./panel.js";
import { Picture } from "./picture.js";

const shown = JSON.parse(document.getElementById("model").textContent);
const { graphs } = shown;
const partners = graphs.map(() => new Map());
for (const [a, b] of shown.pairs) {
  partners[0].set(a, b);
  partners[1].set(b, a);
}
const differences = graphs.map((_, side) => {
  const found = new Map();
  for (const each of shown.differences) {
    const node = side === 0 ? each.a : each.b;
    if (node >= 0) found.set(node, [...(found.get(node) ?? []), each.text]);
  }
  return found;
});

document.body.classList.add("scripted");
const panel = new Panel(document.getElementById("panel"), (side, node) => choose(side, node, true));
let painters = [];
let moving = false;
const hosts = graphs.map((graph) => html("section", { class: "side", "aria-label": graph.name },
  graphs.length > 1 ? html("h2", { class: "side-name" }, graph.name) : null));
document.getElementById("pictures").append(...hosts);
overview(); // the pictures are as wide as what is beside them leaves
const pictures = graphs.map((graph, side) => new Picture(hosts[side], graph, {
  choose: (node) => choose(side, node), moved: () => follow(side),
}));

/** Two pictures keep the same size, and what corresponds stays at the same height. */
function follow(side) {
  if (moving || pictures.length < 2) return;
  const [own, other] = [pictures[side], pictures[1 - side]];
  const middle = (own.element.clientHeight / 2 - own.transform.y) / own.transform.k;
  let best = null;
  for (const at of own.scene.boxes) {
    const partner = at.box.node < 0 ? undefined : partners[side].get(at.box.node);
    if (partner === undefined) continue;
    const there = other.scene.at.get(other.layout.seen(partner));
    const far = Math.abs(at.y - middle);
    if (there && (!best || far < best.far)) best = { far, at, there };
  }
  if (!best) return;
  const { k, y } = own.transform;
  moving = true;
  other.move(k, other.element.clientWidth / 2 - (best.there.x + best.there.width / 2) * k,
    (best.at.y - best.there.y) * k + y);
  moving = false;
}

function choose(side, node, travel = false) {
  tell(false);
  const graph = graphs[side];
  pictures[side].choose(node);
  if (travel) pictures[side].show(node);
  const said = painters[side].map((painter) => [painter.paint.title, painter.words(node)]);
  said.push(...(differences[side].get(node) ?? []).map((text) => ["Difference", text]));
  const partner = partners[side].get(node);
  if (graphs.length > 1) {
    const other = pictures[1 - side];
    other.choose(partner ?? null);
    if (partner !== undefined) other.show(partner);
    said.push(["In the other", partner === undefined ? "nothing corresponds"
      : `${graphs[1 - side].nodes[partner].op} ${graphs[1 - side].nodes[partner].name}`]);
  }
  panel.show(side, graph, node, said);
  document.body.classList.add("with-panel");
}

// ---- report -------------------------------------------------------------------------------------

const report = document.getElementById("report");
const told = document.getElementById("told");

/** Shows the report over the pictures, or the pictures. */
function tell(on) {
  if (!report) return;
  document.body.classList.toggle("with-report", on);
  told.setAttribute("aria-pressed", String(on));
  for (const id of ["pictures", "panel"]) document.getElementById(id).inert = on;
}

/** Names of nodes and tensors in the report lead to the graph: the last one, as far as it has them. */
function link() {
  const places = new Map();
  graphs.forEach((graph, side) => graph.nodes.forEach((node, index) => {
    const names = node.outs.map((value) => graph.values[value].name.replace(/_quantized$/, ""));
    for (const name of [node.name, ...names]) if (name) places.set(name, [side, index]);
  }));
  for (const code of report.querySelectorAll("th code, figcaption code")) {
    const place = places.get(code.textContent);
    if (!place) continue;
    const button = html("button", { class: "link", title: "Show in the graph",
      onclick: () => choose(...place, true) });
    code.replaceWith(button);
    button.append(code);
  }
}
if (report) {
  link();
  told.hidden = false;
  told.addEventListener("click", () => tell(!document.body.classList.contains("with-report")));
  tell(true);
}

// ---- colours ------------------------------------------------------------------------------------

const everyPaint = graphs.flatMap((graph) => graph.paints);
painters = graphs.map((graph) => graph.paints.map((paint) =>
  new Painter(paint, everyPaint.filter((each) => each.name === paint.name))));
const colours = document.getElementById("colours");
for (const name of new Set(everyPaint.map((paint) => paint.name))) {
  const { title } = everyPaint.find((paint) => paint.name === name);
  colours.append(html("option", { value: name }, title));
}
function recolour() {
  const chosen = painters.map((own) => own.find((painter) => painter.paint.name === colours.value));
  pictures.forEach((picture, side) => picture.paint(chosen[side] ?? null));
  const counts = new Map();
  for (const painter of chosen) {
    for (const [style, label, count] of painter?.legend() ?? []) {
      const key = `${style}\n${label}`;
      counts.set(key, (counts.get(key) ?? 0) + count);
    }
  }
  document.getElementById("legend").replaceChildren(...[...counts].map(([key, count]) => {
    const [style, label] = key.split("\n");
    return html("li", {}, html("span", { class: `swatch ${style}`, "aria-hidden": "true" }),
      `${label} (${count})`);
  }));
}
colours.addEventListener("change", recolour);
if (shown.paint) colours.value = shown.paint;
recolour();

// ---- search -------------------------------------------------------------------------------------

const search = document.getElementById("search");
const results = document.getElementById("results");
const haystacks = graphs.map((graph) => graph.nodes.map((node) =>
  [node.op, node.name, node.attributes, ...own(graph, node).flatMap((v) => [v.name, v.type])]
    .join("\n").toLowerCase()));

/** Returns the values that belong to a node: its results, and the constants it reads. */
function own(graph, node) {
  const constants = node.ins.filter((v) => v >= 0 && graph.values[v].constant);
  return [...node.outs, ...constants].map((v) => graph.values[v]);
}

let matches = [];
let position = -1;

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  matches = [];
  pictures.forEach((picture, side) => {
    const found = words.length ? haystacks[side].flatMap((text, node) =>
      words.every((word) => text.includes(word)) ? [node] : []) : [];
    picture.mark(found);
    matches.push(...found.map((node) => [side, node]));
  });
  position = -1;
  results.textContent = words.length ? `${matches.length} found` : "";
}
function next(step) {
  if (!matches.length) return;
  position = (position + step + matches.length) % matches.length;
  results.textContent = `${position + 1} of ${matches.length}`;
  choose(...matches[position], true);
}
search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
});

// ---- buttons and keys ---------------------------------------------------------------------------

function overview() {
  panel.overview(graphs, shown.differences);
  document.body.classList.add("with-panel");
}
const buttons = {
  fit: () => pictures.forEach((picture) => picture.fitWhole()),
  open: () => pictures.forEach((picture) => picture.setAll(true)),
  close: () => pictures.forEach((picture) => picture.setAll(false)),
  larger: () => pictures.forEach((picture) => picture.scaleBy(1.25)),
  smaller: () => pictures.forEach((picture) => picture.scaleBy(0.8)),
  about: () => { tell(false); overview(); },
};
for (const [id, action] of Object.entries(buttons)) {
  document.getElementById(id).addEventListener("click", action);
}
document.addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    search.focus();
  } else if (event.key === "n") next(1);
  else if (event.key === "N") next(-1);
  else if (event.key === "Escape") document.body.classList.toggle("with-panel");
});
window.addEventListener("beforeprint", () => {
  for (const picture of pictures) {
    picture.fitWhole();
    picture.draw();
  }
});
document.documentElement.dataset.ready = String(Math.round(performance.now()));
