// What is known of one node: its operands and results with types, parameters and histograms.
import { html, svg } from "./dom.js";

const WIDTH = 280;
const HEIGHT = 70;

/** Returns a histogram as a picture; the range that can be stored is shaded. */
function histogram({ low, high, counts, clip, what }) {
  const most = Math.max(...counts, 1);
  const place = (value) => ((value - low) / (high - low || 1)) * WIDTH;
  const bar = WIDTH / counts.length;
  const bars = counts.map((count, i) => {
    const tall = count ? Math.max(1, (Math.log1p(count) / Math.log1p(most)) * HEIGHT) : 0;
    return `M${(i * bar).toFixed(2)},${HEIGHT}v${-tall.toFixed(2)}h${bar.toFixed(2)}V${HEIGHT}z`;
  }).join("");
  const number = (value) => String(Number(value.toPrecision(4)));
  const [from, to] = clip ? clip.map((value) => Math.min(WIDTH, Math.max(0, place(value)))) : [];
  const said = `${what}, from ${number(low)} to ${number(high)}` +
    (clip ? `; stored are ${number(clip[0])} to ${number(clip[1])}` : "");
  return html("figure", {},
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 16}`, role: "img", "aria-label": `Histogram: ${said}` },
      clip ? svg("rect", { class: "range", x: from, width: Math.max(0, to - from), height: HEIGHT }) : null,
      svg("path", { class: "bars", d: bars }),
      svg("text", { x: 0, y: HEIGHT + 13 }, number(low)),
      svg("text", { x: WIDTH, y: HEIGHT + 13, "text-anchor": "end" }, number(high))),
    html("figcaption", {}, `${said}; heights are logarithmic`));
}

export class Panel {
  /**
   * @param {Element} element
   * @param {(side: number, node: number) => void} go
   */
  constructor(element, go) {
    this.element = element;
    this.go = go;
  }

  /** Says what is known of a node; `said` are more rows of `[heading, text]`. */
  show(side, graph, index, said) {
    const node = graph.nodes[index];
    const rows = [["Name", node.name], ["Attributes", node.attributes], ...said,
      ...node.notes.map((note) => ["Note", note])].filter(([, text]) => text);
    this.element.replaceChildren(
      html("h2", { tabindex: "-1" }, node.op),
      html("dl", {}, ...rows.map(([key, text]) => [html("dt", {}, key), html("dd", {}, text)])),
      html("h3", {}, "Operands"),
      ...node.ins.map((value, i) => this.value(side, graph, value, `operand ${i}`, "by")),
      html("h3", {}, "Results"),
      ...node.outs.map((value, i) => this.value(side, graph, value, `result ${i}`, "users")),
    );
  }

  /** Says what a whole page shows. */
  overview(graphs, differences) {
    const rows = graphs.flatMap((graph) => [["Model", graph.name], ...graph.facts,
      ["Digest", graph.digest]]);
    this.element.replaceChildren(
      html("h2", {}, "Overview"),
      html("dl", {}, ...rows.map(([key, text]) => [html("dt", {}, key), html("dd", {}, text)])),
      ...(differences.length ? [html("h3", {}, `${differences.length} differences`),
        html("ol", { class: "differences" }, ...differences.map((each) => this.difference(each)))] : []),
    );
  }

  difference({ where, text, a, b }) {
    const [side, node] = a >= 0 ? [0, a] : [1, b];
    const words = `${where}: ${text}`;
    return html("li", {}, node < 0 ? words
      : html("button", { class: "link", onclick: () => this.go(side, node) }, words));
  }

  value(side, graph, index, place, towards) {
    if (index < 0) return html("section", { class: "value" }, html("h4", {}, `${place}: none`));
    const value = graph.values[index];
    const others = towards === "by" ? [value.by].filter((node) => node >= 0) : value.users;
    const rows = [["Type", value.type], ["Shape", value.shape], ["Scale", value.scale],
      ["Zero point", value.zero], ["Range", value.range]].filter(([, text]) => text);
    return html("section", { class: "value" },
      html("h4", {}, place, " ", html("code", {}, value.name || "(no name)"),
        value.constant ? " constant" : ""),
      html("dl", {}, ...rows.map(([key, text]) => [html("dt", {}, key), html("dd", {}, text)])),
      value.histogram ? histogram(value.histogram) : null,
      others.length ? html("p", {}, towards === "by" ? "from " : "to ", ...others.map((node) =>
        html("button", { class: "link", onclick: () => this.go(side, node) },
          `${graph.nodes[node].op} ${graph.nodes[node].name}`))) : null);
  }
}
