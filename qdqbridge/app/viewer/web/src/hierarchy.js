// The tree of a graph's name scopes, in which long rows of nodes are runs of a readable length.

/** Children of one group beyond which they are folded into runs: a layout stays quick and legible. */
const LONGEST = 80;

/**
 * A box of the page: a node of the graph, or a group of boxes.
 * @typedef {{id: string, label: string, parent: Box | null, children: Box[], node: number,
 *   count: number, first: number, open: boolean}} Box
 */

function box(id, label, parent, node = -1) {
  return { id, label, parent, children: [], node, count: node < 0 ? 0 : 1, first: node, open: false };
}

/** Returns the root box of a graph's nodes (`{scope: string[]}`, in topological order). */
export function hierarchy(nodes) {
  const root = box("", "", null);
  const groups = new Map([["", root]]);
  nodes.forEach((node, index) => {
    let parent = root;
    let path = "";
    for (const part of node.scope) {
      path += `/${part}`;
      if (!groups.has(path)) {
        const group = box(`g${path}`, part, parent);
        parent.children.push(group);
        groups.set(path, group);
      }
      parent = groups.get(path);
    }
    parent.children.push(box(`n${index}`, node.op, parent, index));
  });
  settle(root);
  return root;
}

/** Removes groups of one child, folds long rows, and counts, from the leaves up. */
function settle(root) {
  const order = [];
  const pending = [root];
  while (pending.length) {
    const each = pending.pop();
    order.push(each);
    pending.push(...each.children);
  }
  for (const each of order.reverse()) {
    if (each.node >= 0) continue;
    each.children = each.children.map((child) => lone(child, each));
    while (each.children.length > LONGEST) each.children = folded(each);
    each.count = each.children.reduce((sum, child) => sum + child.count, 0);
    each.first = Math.min(...each.children.map((child) => child.first));
  }
}

function lone(child, parent) {
  if (child.node >= 0 || child.children.length !== 1) return child;
  const [only] = child.children;
  if (only.node < 0) only.label = `${child.label}/${only.label}`;
  only.parent = parent;
  return only;
}

function folded(group) {
  const size = Math.max(2, Math.min(LONGEST, Math.ceil(Math.sqrt(group.children.length))));
  const rows = [];
  for (let start = 0; start < group.children.length; start += size) {
    const part = group.children.slice(start, start + size);
    if (part.length === 1) {
      rows.push(part[0]);
      continue;
    }
    const run = box(`${group.id}:${part[0].id}+${part.length}`, "", group);
    run.children = part;
    for (const child of part) child.parent = run;
    run.count = part.reduce((sum, child) => sum + child.count, 0);
    run.first = Math.min(...part.map((child) => child.first));
    run.label = `nodes from ${run.first}`;
    rows.push(run);
  }
  return rows;
}

/** Yields the boxes above one, the nearest first, without the root. */
export function* above(box) {
  for (let each = box.parent; each && each.parent; each = each.parent) yield each;
}

/** Opens groups, the outermost first, while no more than `limit` boxes are seen. */
export function openUpTo(root, limit) {
  let seen = root.children.length;
  let level = [root];
  while (level.length) {
    const next = [];
    for (const group of level) {
      for (const child of group.children) {
        if (child.node >= 0) continue;
        if (seen + child.children.length > limit) continue;
        child.open = true;
        seen += child.children.length;
        next.push(child);
      }
    }
    level = next;
  }
}

/** Yields every box below one that is seen: inside of groups that are open. */
export function* visible(group) {
  for (const child of group.children) {
    yield child;
    if (child.open) yield* visible(child);
  }
}

/** Yields every group below one. */
export function* groups(box) {
  for (const child of box.children) {
    if (child.node >= 0) continue;
    yield child;
    yield* groups(child);
  }
}
