// One graph as SVG: what is in sight is drawn, and no more detail than can be seen.
import { select } from "d3-selection";
import { curveMonotoneY, line } from "d3-shape";
import { zoom, zoomIdentity, ZoomTransform } from "d3-zoom";
import { groups, hierarchy, openUpTo, visible } from "./hierarchy.js";
import { Layout } from "./layout.js";
import { short, svg } from "./dom.js";

/** Boxes that are opened at first. */
const FIRST_LOOK = 140;
/** Boxes that are drawn one by one; more of them are one shape, as their labels cannot be read. */
const ONE_BY_ONE = 900;
const LEGIBLE = 0.3;

const path = line().curve(curveMonotoneY);

export class Picture {
  /**
   * @param {Element} host
   * @param {object} graph one of the document's graphs
   * @param {{choose: (node: number | null) => void, moved: (transform: object) => void}} events
   */
  constructor(host, graph, events) {
    this.graph = graph;
    this.events = events;
    this.chosen = null;
    this.found = new Set();
    this.painter = null;
    this.root = hierarchy(graph.nodes);
    this.leaves = [];
    this.keepLeaves(this.root);
    this.edges = [];
    graph.nodes.forEach((node, to) => {
      for (const value of node.ins) {
        const from = value < 0 ? -1 : graph.values[value].by;
        if (from >= 0) this.edges.push({ from, to, value });
      }
    });
    openUpTo(this.root, FIRST_LOOK);
    this.layout = new Layout(this.root, this.leaves, this.edges);
    this.root.label = "";
    this.edgeLayer = svg("g", { class: "edges", "aria-hidden": "true" });
    this.far = svg("g", { class: "far", "aria-hidden": "true" });
    this.boxLayer = svg("g", { class: "boxes" });
    this.world = svg("g", {}, this.far, this.edgeLayer, this.boxLayer);
    this.element = svg("svg", {
      class: "picture", role: "group", tabindex: "0",
      "aria-label": `Graph ${graph.name} of ${graph.nodes.length} nodes. Arrow keys follow edges, ` +
        "Enter opens a group or shows a node.",
    }, this.world);
    host.append(this.element);
    this.drawn = new Map();
    this.transform = zoomIdentity;
    this.zoom = zoom().scaleExtent([0.002, 4]).on("zoom", ({ transform, sourceEvent }) => {
      this.transform = transform;
      this.later();
      if (sourceEvent) this.events.moved(transform);
    });
    select(this.element).call(this.zoom).on("dblclick.zoom", null);
    this.element.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.later()).observe(this.element);
    this.arrange();
    this.fit();
  }

  keepLeaves(root) {
    const pending = [root];
    while (pending.length) {
      const box = pending.pop();
      if (box.node >= 0) this.leaves[box.node] = box;
      pending.push(...box.children);
    }
  }

  /** Lays out anew and draws. */
  arrange() {
    this.scene = this.layout.scene();
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
    this.later();
  }

  /** Shows the whole graph, or its beginning where it is very long. */
  fit() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const { width: w, height: h } = this.scene;
    const whole = Math.min((width - 40) / w, (height - 40) / h, 1);
    const scale = Math.max(whole, Math.min(0.55, (width - 40) / w));
    this.go(zoomIdentity.translate((width - w * scale) / 2, 20).scale(scale));
  }

  /** Shows all of it, however small. */
  fitWhole() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const { width: w, height: h } = this.scene;
    const scale = Math.min((width - 40) / w, (height - 40) / h, 1);
    this.go(zoomIdentity.translate((width - w * scale) / 2, (height - h * scale) / 2).scale(scale));
  }

  go(transform) {
    select(this.element).call(this.zoom.transform, transform);
  }

  /** Moves to a scale and an offset. */
  move(k, x, y) {
    this.go(new ZoomTransform(k, x, y));
  }

  scaleBy(factor) {
    select(this.element).call(this.zoom.scaleBy, factor);
  }

  /** Opens what is around a node and brings it into the middle. */
  show(node) {
    let opened = false;
    for (let group = this.leaves[node].parent; group && group.parent; group = group.parent) {
      if (group.open) continue;
      group.open = true;
      this.layout.changed(group);
      opened = true;
    }
    if (opened) this.arrange();
    const { x, y, width, height } = this.scene.at.get(this.leaves[node]);
    const scale = Math.max(this.transform.k, 0.8);
    const { clientWidth, clientHeight } = this.element;
    this.go(zoomIdentity.translate(
      clientWidth / 2 - (x + width / 2) * scale, clientHeight / 2 - (y + height / 2) * scale,
    ).scale(scale));
  }

  /** Marks a node as the chosen one. */
  choose(node) {
    this.chosen = node;
    this.refresh();
  }

  /** Marks nodes as found. */
  mark(nodes) {
    this.found = new Set(nodes);
    this.refresh();
  }

  /** Colours the boxes. */
  paint(painter) {
    this.painter = painter;
    this.refresh();
  }

  refresh() {
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
    this.later();
  }

  toggle(box) {
    box.open = !box.open;
    this.layout.changed(box);
    const before = this.scene.at.get(box);
    this.arrange();
    const after = this.scene.at.get(box);
    const { x, y, k } = this.transform; // the group's title stays where it was on the screen
    this.go(zoomIdentity.translate(x + (before.x - after.x) * k, y + (before.y - after.y) * k).scale(k));
  }

  /** Opens or closes every group. */
  setAll(open) {
    for (const group of groups(this.root)) group.open = open;
    if (!open) for (const child of this.root.children) child.open = false;
    this.layout.kept.clear();
    this.arrange();
    this.fit();
  }

  later() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      this.draw();
    });
  }

  /** Draws what is in sight. */
  draw() {
    const { x, y, k } = this.transform;
    this.world.setAttribute("transform", `translate(${x},${y}) scale(${k})`);
    const margin = 60 / k;
    const [left, upper] = [-x / k - margin, -y / k - margin];
    const right = left + this.element.clientWidth / k + 2 * margin;
    const lower = upper + this.element.clientHeight / k + 2 * margin;
    const inSight = this.scene.boxes.filter((at) =>
      at.x < right && at.x + at.width > left && at.y < lower && at.y + at.height > upper);
    const simple = inSight.length > ONE_BY_ONE;
    this.element.classList.toggle("small", k < LEGIBLE);
    this.drawEdges(left, right, upper, lower);
    this.drawFar(simple ? inSight : []);
    const wanted = new Set(simple ? [] : inSight);
    for (const [at, element] of this.drawn) {
      if (wanted.has(at)) continue;
      if (element === document.activeElement) continue; // the keyboard's place is kept
      element.remove();
      this.drawn.delete(at);
    }
    for (const at of wanted) {
      if (this.drawn.has(at)) continue;
      const element = this.boxElement(at);
      this.drawn.set(at, element);
      this.boxLayer.append(element);
    }
  }

  drawEdges(left, right, upper, lower) {
    const near = { any: [], chosen: [] };
    for (const { edge, points } of this.scene.edges) {
      const ys = points.map((point) => point[1]);
      const xs = points.map((point) => point[0]);
      if (Math.max(...ys) < upper || Math.min(...ys) > lower) continue;
      if (Math.max(...xs) < left || Math.min(...xs) > right) continue;
      const chosen = this.chosen !== null && (edge.from === this.chosen || edge.to === this.chosen);
      near[chosen ? "chosen" : "any"].push(path(points));
    }
    this.edgeLayer.replaceChildren(
      svg("path", { d: near.any.join("") }),
      svg("path", { d: near.chosen.join(""), class: "chosen" }),
    );
  }

  drawFar(boxes) {
    const byClass = new Map();
    for (const at of boxes) {
      const name = this.colour(at.box);
      const shape = `M${at.x},${at.y}h${at.width}v${at.height}h${-at.width}z`;
      byClass.set(name, (byClass.get(name) ?? "") + shape);
    }
    this.far.replaceChildren(...[...byClass].map(([name, d]) => svg("path", { class: name, d })));
  }

  colour(box) {
    if (!this.painter) return "paint-none";
    if (box.node >= 0) return this.painter.node(box.node);
    return box.open ? "group-open" : this.painter.group(within(box));
  }

  boxElement(at) {
    const { box } = at;
    const classes = ["box", this.colour(box), box.node < 0 ? "group" : "node"];
    if (box.node >= 0 && box.node === this.chosen) classes.push("chosen");
    if (box.node >= 0 && this.found.has(box.node)) classes.push("found");
    if (box.node < 0 && !box.open && [...within(box)].some((node) => this.found.has(node))) {
      classes.push("found");
    }
    const element = svg("g", {
      class: classes.join(" "), transform: `translate(${at.x},${at.y})`, role: "button",
      tabindex: "-1", "aria-label": this.spoken(box), "data-id": box.id,
      "aria-expanded": box.node < 0 ? String(box.open) : null,
      onclick: (event) => { event.stopPropagation(); this.act(box); },
    },
    svg("title", {}, this.spoken(box)),
    svg("rect", { width: at.width, height: at.height, rx: box.node < 0 ? 8 : 5 }),
    svg("text", box.open ? { x: 12, y: 18 } : { x: at.width / 2, y: 21, class: "middle" },
      box.node < 0 ? `${box.open ? "−" : "+"} ${short(box.label, 44)} (${box.count})`
        : short(box.label, 34)));
    element.box = box;
    return element;
  }

  spoken(box) {
    if (box.node < 0) return `Group ${box.label}, ${box.count} nodes`;
    const node = this.graph.nodes[box.node];
    const said = this.painter?.words(box.node);
    return [`${node.op} ${node.name}`, said].filter(Boolean).join(", ");
  }

  act(box) {
    if (box.node < 0) this.toggle(box);
    else this.events.choose(box.node);
    this.focus(box);
  }

  focus(box) {
    this.draw();
    const at = this.scene.at.get(box);
    if (!at) return;
    if (!this.drawn.has(at)) {
      const element = this.boxElement(at);
      this.drawn.set(at, element);
      this.boxLayer.append(element);
    }
    this.drawn.get(at).focus({ preventScroll: true });
  }

  key(event) {
    const box = event.target.box ?? this.scene.boxes[0]?.box;
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      Enter: () => this.act(box), " ": () => this.act(box),
      ArrowDown: () => this.step(box, this.after(box)), ArrowUp: () => this.step(box, this.before(box)),
      ArrowRight: () => this.step(box, this.beside(box, 1)),
      ArrowLeft: () => this.step(box, this.beside(box, -1)),
      "+": () => this.scaleBy(1.25), "-": () => this.scaleBy(0.8), 0: () => this.fitWhole(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  step(from, to) {
    if (!to) return;
    const at = this.scene.at.get(to);
    const { x, y, k } = this.transform;
    const [px, py] = [at.x * k + x, at.y * k + y];
    const { clientWidth, clientHeight } = this.element;
    if (px < 0 || py < 0 || px > clientWidth - 80 || py > clientHeight - 40) {
      this.go(this.transform.translate((clientWidth / 2 - px) / k, (clientHeight / 2 - py) / k));
    }
    this.focus(to);
  }

  after(box) {
    if (box.open) return box.children[0];
    return this.neighbours(box, "from", "to")[0] ?? this.inOrder(box, 1);
  }

  before(box) {
    return this.neighbours(box, "to", "from")[0] ?? this.inOrder(box, -1);
  }

  neighbours(box, mine, other) {
    const own = new Set(within(box));
    const found = this.edges.filter((edge) => own.has(edge[mine]) && !own.has(edge[other]));
    return found.map((edge) => this.layout.seen(edge[other]));
  }

  inOrder(box, step) {
    const all = [...visible(this.root)];
    return all[all.indexOf(box) + step];
  }

  beside(box, step) {
    const row = this.scene.boxes.filter((at) => at.box.parent === box.parent)
      .sort((a, b) => a.y - b.y || a.x - b.x).map((at) => at.box);
    return row[row.indexOf(box) + step];
  }
}

/** Yields the nodes in a box. */
export function* within(box) {
  if (box.node >= 0) yield box.node;
  for (const child of box.children) yield* within(child);
}
