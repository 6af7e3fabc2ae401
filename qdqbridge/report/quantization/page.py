"""One page on a quantization: no script, no picture or style from elsewhere."""

from __future__ import annotations

from qdqbridge.report.quantization.markup import Markup, joined, name_of, tag
from qdqbridge.report.quantization.record import QuantizationRecord
from qdqbridge.report.quantization.sections import SECTIONS, summary

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2128; --dim: #59636e; --line: #d1d9e0;
  --tile: #f3f5f7; --one: #0757ba; --two: #a84300; --bars: #6e7781; --range: #0757ba26; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e6edf3;
  --dim: #9aa6b2; --line: #3a424c; --tile: #1f252c; --one: #6cb2ff; --two: #ff9f5a;
  --bars: #8d96a0; --range: #6cb2ff33; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
code { font: .875em ui-monospace, monospace; unicode-bidi: isolate; overflow-wrap: anywhere; }
a { color: var(--one); } nav a { margin-right: 1rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.tile { background: var(--tile); border: 1px solid var(--line); border-radius: .4rem;
  padding: .5rem .9rem; } .tile strong { display: block; font-size: 1.3rem; }
.tile span, caption, figcaption span, .note { color: var(--dim); font-size: .875rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .875rem; }
caption { text-align: left; padding: .25rem 0; }
th, td { padding: .2rem .6rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); } tbody th { font-weight: normal; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead .n { white-space: normal; } th code { display: inline-block; min-width: 8rem; }
details { margin: .75rem 0; } summary { cursor: pointer; color: var(--one); }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--dim);
  font: 11px system-ui, sans-serif; } .end { text-anchor: end; } .middle { text-anchor: middle; }
.histogram text { font-size: 15px; } .plot .end { dominant-baseline: middle; }
.grid { stroke: var(--line); }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.line.accumulated { stroke: var(--one); } .line.local { stroke: var(--two);
  stroke-dasharray: 5 3; } .mark { stroke: var(--paper); }
.mark.accumulated { fill: var(--one); } .mark.local { fill: var(--two); }
.key.accumulated { color: var(--one); } .key.local { color: var(--two); }
.histograms { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr));
  gap: 1rem; } figure { margin: 0; break-inside: avoid; contain-intrinsic-size: auto 10rem;
  content-visibility: auto; } figcaption span { display: block; }
.bars { fill: var(--bars); } .range { fill: var(--range); } .zero { stroke: var(--line); }
.ends { stroke: var(--one); stroke-width: 1.5; }
@media print { html { font-size: 9pt; } body { max-width: none; padding: 0; } nav { display: none; }
  h2 { break-after: avoid; } tr, svg, .tile { break-inside: avoid; } .wide { overflow: visible; }
  table { font-size: 7pt; } th, td { padding: .1rem .3rem; } th code { min-width: 0; }
  figure { content-visibility: visible; } thead { display: table-header-group; } }
"""


def quantization_html(record: QuantizationRecord) -> str:
    """Returns a report as one HTML document that needs nothing else.

    The same record gives the same text: no time, no host, no path that is not in the record.

    Args:
        record: What to show.
    """
    title = f"{record.model} quantized for {record.target}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        _meta("viewport", "width=device-width, initial-scale=1"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        tag("title", title),
        tag("style", Markup(_STYLE)),
    )
    links = [joined(tag("a", heading, href=f"#{id_}"), " ") for id_, heading, _ in SECTIONS]
    parts = [_section(id_, heading, make(record)) for id_, heading, make in SECTIONS]
    heading = tag("h1", name_of(record.model), f" quantized for {record.target}")
    nav = tag("nav", links, aria_label="Sections")
    body = tag("body", tag("main", heading, nav, summary(record), parts))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _meta(name: str, content: str) -> Markup:
    return Markup(f'<meta name="{name}" content="{content}">')


def _section(id_: str, heading: str, content: Markup) -> Markup:
    return joined(
        "\n", tag("section", tag("h2", heading, id=f"{id_}-h"), content, id=id_,
        aria_labelledby=f"{id_}-h"),
    )  # fmt: skip
