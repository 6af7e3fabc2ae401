// Where boxes and edges are: each open group is laid out by itself, the innermost first.
import { Graph, layout } from "@dagrejs/dagre";
import { above } from "./hierarchy.js";

const ROW = 34;
const TITLE = 26;
const PADDING = 14;
const CHARACTER = 7.2;

function sizeOf(box) {
  if (box.node < 0) return { width: Math.max(130, CHARACTER * box.label.length + 60), height: ROW };
  return { width: Math.max(96, CHARACTER * Math.min(box.label.length, 34) + 44), height: ROW };
}

/** For each pair of nodes that a value joins: the two boxes below the group that holds both. */
function meeting(a, b) {
  const inside = new Map();
  let child = a;
  for (let group = a.parent; group; group = group.parent) {
    inside.set(group, child);
    child = group;
  }
  child = b;
  for (let group = b.parent; group; group = group.parent) {
    if (inside.has(group)) return { group, from: inside.get(group), to: child };
    child = group;
  }
  return null;
}

/** Lays out a graph's boxes; layouts of groups are kept until what they hold is opened or closed. */
export class Layout {
  /**
   * @param {import("./hierarchy.js").Box} root
   * @param {import("./hierarchy.js").Box[]} leaves by node
   * @param {{from: number, to: number, value: number}[]} edges
   */
  constructor(root, leaves, edges) {
    this.root = root;
    this.kept = new Map();
    this.joins = new Map();
    for (const edge of edges) {
      const met = meeting(leaves[edge.from], leaves[edge.to]);
      if (!met || met.from === met.to) continue;
      const key = `${met.from.id}\n${met.to.id}`;
      if (!this.joins.has(met.group)) this.joins.set(met.group, new Map());
      const known = this.joins.get(met.group);
      if (!known.has(key)) known.set(key, { from: met.from, to: met.to, edges: [] });
      known.get(key).edges.push(edge);
    }
    this.leaves = leaves;
  }

  /** Forgets the layouts that a group's opening or closing changes. */
  changed(box) {
    this.kept.delete(box);
    for (const group of above(box)) this.kept.delete(group);
    this.kept.delete(this.root);
  }

  /** Returns `{width, height, boxes, edges}`: absolute places of what is seen. */
  scene() {
    const whole = this.group(this.root);
    const scene = { width: whole.width, height: whole.height, boxes: [], edges: [], at: new Map() };
    this.place(this.root, whole, 0, 0, scene);
    for (const { join, points } of scene.edges.splice(0)) {
      for (const edge of distinct(join.edges, (node) => this.seen(node))) {
        const from = scene.at.get(this.seen(edge.from));
        const to = scene.at.get(this.seen(edge.to));
        scene.edges.push({ edge, points: [bottom(from), ...points, top(to)] });
      }
    }
    return scene;
  }

  /** Returns the box in which a node is seen: itself, or the outermost closed group around it. */
  seen(node) {
    let found = this.leaves[node];
    for (const group of above(found)) if (!group.open) found = group;
    return found;
  }

  group(box) {
    const known = this.kept.get(box);
    if (known) return known;
    const graph = new Graph({ multigraph: false });
    graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30, marginx: 0, marginy: 0 });
    graph.setDefaultEdgeLabel(() => ({}));
    const inner = new Map();
    for (const child of box.children) {
      const size = child.open ? this.group(child) : sizeOf(child);
      inner.set(child, size);
      graph.setNode(child.id, { width: size.width, height: size.height });
    }
    const joins = [...(this.joins.get(box)?.values() ?? [])];
    for (const { from, to } of joins) graph.setEdge(from.id, to.id, {});
    layout(graph);
    const { width, height } = box.children.length ? graph.graph() : { width: 0, height: 0 };
    const head = box === this.root ? 0 : TITLE;
    const made = {
      width: Math.max(width + 2 * PADDING, CHARACTER * box.label.length + 80),
      height: height + 2 * PADDING + head,
      children: box.children.map((child) => {
        const { x, y } = graph.node(child.id);
        const { width: w, height: h } = inner.get(child);
        return { box: child, x: x - w / 2 + PADDING, y: y - h / 2 + PADDING + head, width: w, height: h };
      }),
      joins: joins.map((join) => ({
        join,
        points: graph.edge(join.from.id, join.to.id).points.slice(1, -1)
          .map(({ x, y }) => [x + PADDING, y + PADDING + head]),
      })),
    };
    this.kept.set(box, made);
    return made;
  }

  place(box, made, x, y, scene) {
    for (const child of made.children) {
      const at = { ...child, x: x + child.x, y: y + child.y };
      scene.boxes.push(at);
      scene.at.set(child.box, at);
      if (child.box.open) this.place(child.box, this.group(child.box), at.x, at.y, scene);
    }
    for (const { join, points } of made.joins) {
      scene.edges.push({ join, points: points.map(([px, py]) => [x + px, y + py]) });
    }
  }
}

function* distinct(edges, seen) {
  const done = new Set();
  for (const edge of edges) {
    const key = `${seen(edge.from).id}\n${seen(edge.to).id}`;
    if (done.has(key)) continue;
    done.add(key);
    yield edge;
  }
}

function bottom({ x, y, width, height }) {
  return [x + width / 2, y + height];
}

function top({ x, y, width }) {
  return [x + width / 2, y];
}
