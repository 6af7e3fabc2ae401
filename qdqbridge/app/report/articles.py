"""Articles of pages: the report on a quantization, from top to bottom, and on a blamed model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from qdqbridge.app.report.plots import (
    Content,
    Markup,
    concat_markup,
    decibels,
    details,
    error_plot,
    exact_decibels,
    histogram,
    name_of,
    number,
    optional,
    percent,
    table,
    tag,
)

if TYPE_CHECKING:
    from qdqbridge.autoquant.attribution import Attribution, SuspectTensor
    from qdqbridge.autoquant.record import (
        AccumulatorRow,
        LayerError,
        QuantizationRecord,
        TensorReport,
    )

_SHOWN_GAIN = 0.05
"""Decibels below which nothing is gained."""

# ---- The parts of a report on a quantization, from top to bottom ---------------------------------


# The report on a quantization as a part of a page: no script, no picture or style of its own.


def quantization_article(
    record: QuantizationRecord, verdict: Sequence[tuple[str, str]] = ()
) -> Markup:
    """Returns a report as one element of HTML, styled by the page that it is put into.

    The same record gives the same text: no time, no host, no path that is not in the record.

    Args:
        record: What to show.
        verdict: What is said first, as rows of a name and a sentence.
    """
    links = [concat_markup(tag("a", heading, href=f"#{id_}"), " ") for id_, heading, _ in SECTIONS]
    parts = [_section(id_, heading, make(record)) for id_, heading, make in SECTIONS]
    heading = tag("h1", name_of(record.model), f" quantized for {record.target}")
    nav = tag("nav", links, aria_label="Sections")
    first = tag("dl", [concat_markup(tag("dt", k), tag("dd", v)) for k, v in verdict], id="verdict")
    opening = [first] if verdict else []
    return tag(
        "article", heading, opening, nav, summary(record), parts, id="report", aria_label="Report"
    )


def _section(id_: str, heading: str, content: Markup) -> Markup:
    return concat_markup(
        "\n", tag("section", tag("h2", heading, id=f"{id_}-h"), content, id=id_,
        aria_labelledby=f"{id_}-h"),
    )  # fmt: skip


Section: TypeAlias = "Callable[[QuantizationRecord], Markup]"
_SHOWN = 40
"""Rows of a table that is not folded away."""

_WORST = 10
_LAYERS = ("layer#", "tensor", "operator", "accumulated#", "alone#")


def summary(record: QuantizationRecord) -> Markup:
    """The header: what was quantized, for what, with what, and how well that went."""
    tiles: list[Markup] = []
    if record.sqnr_db is not None:
        tiles.append(_tile(f"outputs: {record.judged}", exact_decibels(record.sqnr_db)))
    if record.top1 is not None:
        tiles.append(_tile("same top-1 class", percent(record.top1)))
    tiles.append(_tile("layers compared", str(len(record.layers))))
    tiles.append(_tile("nodes left float", str(len(record.floats))))
    facts: list[tuple[str, Content]] = [
        ("model", name_of(record.model)),
        ("target", name_of(record.target)),
        ("data", concat_markup(name_of(record.data), f", {_counted(record.samples, 'sample')}")),
        ("errors of layers measured on", _counted(record.measured, "sample")),
        *((f"parameters of {what}", name_of(who)) for what, who in record.choosers.items()),
        ("digest of the float graph", name_of(record.float_digest)),
        ("digest of the quantized graph", name_of(record.digest)),
        *((f"{name} version", version) for name, version in record.versions.items()),
    ]
    listed = [concat_markup(tag("dt", key), tag("dd", value)) for key, value in facts]
    notes = [tag("p", note, class_="note") for note in record.notes]
    more = [_outputs(record)] if len(record.outputs) > 1 or _output_sqnr_rows(record)[1:] else []
    return concat_markup(tag("div", tiles, class_="tiles"), notes, more, tag("dl", listed))


def _tile(label: str, value: str) -> Markup:
    return tag("div", tag("strong", value), tag("span", label), class_="tile")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _outputs(record: QuantizationRecord) -> Markup:
    made = table(
        "Outputs, and parts that a Concat joins", ("output", "SQNR#"), _output_sqnr_rows(record)
    )
    return made if len(record.outputs) <= 4 else details(f"all {len(record.outputs)} outputs", made)


def _output_sqnr_rows(record: QuantizationRecord) -> list[tuple[Content, ...]]:
    rows: list[tuple[Content, ...]] = []
    for output in record.outputs:
        rows.append((name_of(output.name), decibels(output.sqnr_db)))
        for part in output.parts:
            ends = f" of {output.name}, {number(part.low)} to {number(part.high)}"
            rows.append((concat_markup(name_of(part.name), ends), decibels(part.sqnr_db)))
    return rows


def errors(record: QuantizationRecord) -> Markup:
    """Error per layer, as a plot and as numbers."""
    if not record.layers:
        return tag("p", "No layer was compared: there was no data to run.")
    keys = tag(
        "p",
        tag("span", "●", class_="key accumulated"),
        " solid: behind all quantized layers before it. ",
        tag("span", "■", class_="key local"),
        " dashed: the layer alone, fed with float tensors rounded once. "
        "Higher is better; 6 dB are one bit.",
    )
    numbered = list(enumerate(record.layers, 1))
    parts = [keys, error_plot(record.layers)]
    if len(numbered) > _SHOWN:
        # By what a layer adds itself: behind a bad one all look bad.
        worst = sorted(numbered, key=lambda each: _rank(each[1].local_db))[:_WORST]
        rows = [_layer(index, layer) for index, layer in worst]
        parts.append(table("Layers that add most error themselves", _LAYERS, rows))
    rows = [_layer(index, layer) for index, layer in numbered]
    return concat_markup(parts, _folded("Signal to quantization noise", _LAYERS, rows))


def _layer(index: int, layer: LayerError) -> tuple[Content, ...]:
    own = decibels(layer.local_db)
    return index, name_of(layer.name), layer.operator, decibels(layer.accumulated_db), own


def _rank(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _folded(caption: str, headings: tuple[str, ...], rows: list[tuple[Content, ...]]) -> Markup:
    """Returns a table, folded away where it is long."""
    made = table(caption, headings, rows)
    return made if len(rows) <= _SHOWN else details(f"{caption}: {len(rows)} rows", made)


def culprits(record: QuantizationRecord) -> Markup:
    """Layers by what they do to the outputs."""
    if not record.culprits:
        return tag("p", "No layer was tried alone.")
    rows: list[tuple[Content, ...]] = [
        (name_of(c.layer), c.kind, decibels(c.alone_db)) for c in record.culprits
    ]
    headings = ("layer", "kind", "outputs with only this layer quantized#")
    caption = "What layers cost, the worst first"
    if len(rows) <= _SHOWN:
        return table(caption, headings, rows)
    return concat_markup(table("Layers that cost most", headings, rows[:_WORST]),
                  _folded(caption, headings, rows))  # fmt: skip


def weights(record: QuantizationRecord) -> Markup:
    """Rounding errors of constants."""
    if not record.weights:
        return tag("p", "No constant was quantized.")
    rows: list[tuple[Content, ...]] = [
        (
            name_of(w.node),
            w.operator,
            name_of(w.name),
            w.storage,
            w.scales,
            decibels(w.sqnr_db),
            number(w.largest),
        )
        for w in record.weights
    ]
    headings = (
        "node", "operator", "constant", "stored as", "scales#", "SQNR#", "largest error, steps#",
    )  # fmt: skip
    return _folded("Weights against their float values", headings, rows)


def accumulators(record: QuantizationRecord) -> Markup:
    """Bits that sums of products need, and 16-bit sums that can saturate."""
    if not record.accumulators:
        return tag("p", "No product runs on integers.")
    text = tag(
        "p",
        "Bits of a two's complement accumulator, for the worst channel: by the types alone, for "
        "any input of these weights, for inputs within the observed range, and of the sums that "
        "the data gave. Headroom is what int32 has to spare.",
    )
    headings = (
        "node", "operator", "channels#", "dead#", "terms#", "types#", "any input#", "in range#",
        "observed#", "headroom#", "smallest sum#", "largest sum#",
    )  # fmt: skip
    bits = _folded("Accumulator bits", headings, [_bits(row) for row in record.accumulators])
    return concat_markup(text, bits, _pairs(record))


def _bits(row: AccumulatorRow) -> tuple[Content, ...]:
    low, high = row.observed or (None, None)
    return (
        name_of(row.node), row.operator, row.channels, row.dead_channels, row.terms,
        row.naive_bits, row.bits, optional(row.calibrated_bits), optional(row.observed_bits),
        row.headroom, optional(low), optional(high),
    )  # fmt: skip


def _pairs(record: QuantizationRecord) -> Markup:
    text = tag(
        "p",
        "CPUs without VNNI add neighbouring products in 16 bits (vpmaddubsw). These are the pairs "
        "of a kernel whose terms run over input channels fastest; where one can saturate, the "
        "weight scale of its channel has to grow by the factor in the last column.",
    )
    rows: list[tuple[Content, ...]] = [
        (
            name_of(row.node),
            row.operator,
            row.pairs,
            row.saturating_pairs,
            optional(row.calibrated_pairs),
            row.saturating_channels,
            f"{row.remedy:.4f}" if row.remedy > 1 else "–",
        )
        for row in record.accumulators
        if row.pairs
    ]
    if not rows:
        return tag("p", "No product is one that CPUs without VNNI add in pairs of 16 bits.")
    headings = (
        "node", "operator", "pairs#", "can saturate#", "can, in range#", "channels concerned#",
        "largest factor#",
    )  # fmt: skip
    return concat_markup(text, _folded("Sums of two products in 16 bits", headings, rows))


def floats(record: QuantizationRecord) -> Markup:
    """What stays float, and which layers were taken back."""
    parts: list[Markup] = []
    if record.goal:
        count = _counted(len(record.fallback), "layer")
        parts.append(
            tag("p", f"Asked for {record.goal}; {count} taken back to more bits or float.")
        )
    if record.fallback:
        rows: list[tuple[Content, ...]] = [
            (name_of(f.layer), f.to, f.rank, decibels(f.alone_db), f.reason)
            for f in record.fallback
        ]
        headings = ("layer", "now", "rank#", "outputs with only this layer quantized#", "why")
        parts.append(_folded("Layers taken back", headings, rows))
    if record.pareto:
        points: list[tuple[Content, ...]] = [
            (
                p.name,
                f"{p.size:,}",
                decibels(p.sqnr_db),
                "" if p.top1 is None else f"{100 * p.top1:.2f} %",
                f"{p.milliseconds:.3f}",
                *([] if p.slowest_milliseconds is None else [f"{p.slowest_milliseconds:.3f}"]),
            )
            for p in record.pareto
        ]
        headings = ("bits per layer", "bytes#", "outputs#", "same class#", "ms per sample#")
        if record.pareto[0].slowest_milliseconds is not None:
            headings = (*headings, "ms of the slowest node#")
        parts.append(_folded("Size and time against quality", headings, points))
    if record.floats:
        kept: list[tuple[Content, ...]] = [
            (name_of(f.node), f.operator, f.reason) for f in record.floats
        ]
        parts.append(_folded("Nodes that compute in float", ("node", "operator", "why"), kept))
    if not parts:
        parts.append(tag("p", "Every node runs on integers, and no layer was taken back."))
    return concat_markup(parts)


def repairs(record: QuantizationRecord) -> Markup:
    """Which repair steps were tried, and whether they helped."""
    if not record.repairs:
        return tag("p", "No repair step was tried.")
    rows: list[tuple[Content, ...]] = [
        (r.step, "kept" if r.applied else "not kept", *_gain(r.before_db, r.after_db), r.outcome)
        for r in record.repairs
    ]
    headings = ("step", "outcome", "outputs before#", "after#", "gain#", "what it did")
    return _folded("Repair steps", headings, rows)


def _gain(before: float | None, after: float | None) -> tuple[str, str, str]:
    gain = "–"
    # From exact to exact is infinity less infinity, which is no gain.
    if before is not None and after is not None and math.isfinite(after - before):
        gain = f"{after - before:+.2f} dB"
    return decibels(before), decibels(after), gain


def tensors(record: QuantizationRecord) -> Markup:
    """What was seen of every tensor, and the range that was chosen for it."""
    if not record.tensors:
        return tag("p", "No statistics were taken.")
    keys = tag(
        "p",
        "Counts are on a logarithmic scale, zeros are not counted. The shaded range with its two "
        "lines is what the codes stand for; values outside of it are clipped. A tensor without it "
        "is not stored: it stays float, or is rounded only behind the operators that follow.",
    )
    made = [_tensor(tensor, index) for index, tensor in enumerate(record.tensors)]
    if len(made) <= 8:
        return concat_markup(keys, tag("div", made, class_="histograms"))
    summary_ = f"histograms of all {len(made)} tensors"
    return concat_markup(keys, details(summary_, tag("div", made, class_="histograms")))


def _tensor(tensor: TensorReport, index: int) -> Markup:
    facts = f"{tensor.operator or 'input'}; {number(tensor.minimum)} to {number(tensor.maximum)}"
    if tensor.count:
        facts += f", {percent(tensor.zeros / tensor.count)} zeros"
    if tensor.scale is None:
        stored = "not stored"
    else:
        stored = (
            f"{tensor.storage}, scale {tensor.scale:.6g}, zero point {tensor.zero_point}; "
            f"{number(tensor.low)} to {number(tensor.high)}, {percent(tensor.clipped)} clipped; "
            f"{tensor.decided}"
        )
    caption = tag("figcaption", name_of(tensor.name), tag("span", facts), tag("span", stored))
    picture = histogram(tensor, index) if tensor.bins else None
    return tag("figure", caption, picture)


SECTIONS: tuple[tuple[str, str, Section], ...] = (
    ("layers", "Error per layer", errors),
    ("culprits", "Culprits", culprits),
    ("repairs", "Repair steps", repairs),
    ("floats", "What stays float", floats),
    ("weights", "Weights", weights),
    ("accumulators", "Accumulators", accumulators),
    ("tensors", "Tensors and their ranges", tensors),
)
"""Identifier, heading and contents of each section."""


# ---- What a page says of a blamed model: causes and repairs, as the command line does ------------


def blame_article(
    found: Attribution, model: str, lines: Sequence[str], *, kernels: bool = False
) -> Markup:
    """Returns the causes and what helps as one element of HTML.

    Args:
        found: What was found.
        model: What the model is called.
        lines: What is said of the outputs.
        kernels: Whether one model's kernels are blamed: nothing is repaired then.
    """
    said = [tag("p", line) for line in lines]
    headings = ("tensor", "node", "cause", "own#", "outputs#")
    more = () if kernels else ("gain#", "tried, and helps")
    rows = [(*_row(each), *(() if kernels else _repair(each))) for each in found.tensors]
    tables = [table("Tensors, the worst first", (*headings, *more), rows)] if rows else []
    if found.nodes and not kernels:
        worst = sorted(found.nodes, key=lambda node: node.outputs_added_db)
        nodes: list[tuple[Content, ...]] = [
            (name_of(f"{n.operator} {n.name}".strip()), _parts(n.parts), decibels(n.added_db),
             decibels(n.inherited_db), decibels(n.outputs_added_db))
            for n in worst
        ]  # fmt: skip
        heads = ("node", "what it adds", "adds#", "inherits#", "outputs: adds#")
        tables.append(table("Nodes, by what they add to the outputs' error", heads, nodes))
    heading = tag("h1", "What loses the accuracy of ", name_of(model))
    return tag("article", heading, said, tables, id="report", aria_label="Report")


def cause_of(each: SuspectTensor) -> str:
    """Returns a tensor's cause, with its share."""
    share = each.causes.get(each.cause)
    return each.cause if share is None else f"{each.cause} ({share:.0%})"


def _row(each: SuspectTensor) -> tuple[Content, ...]:
    node = name_of(each.node) if each.node else ""
    place = name_of(each.name), node, cause_of(each)
    return (*place, decibels(each.added_db), decibels(each.alone_db))


def _repair(each: SuspectTensor) -> tuple[Content, ...]:
    return gain_of(each), repair_of(each)


def gain_of(each: SuspectTensor) -> str:
    """Returns what the outputs gain where a tensor stays float; nothing where they lose."""
    return f"{each.gain_db:+.1f}" if each.gain_db >= _SHOWN_GAIN else ""


def repair_of(each: SuspectTensor) -> str:
    """Returns what is proposed for a tensor, and what it gains."""
    return f"{each.repair} ({each.repair_db:+.1f} dB)" if each.repair else ""


def _parts(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {db:.1f} dB" for name, db in parts.items())
