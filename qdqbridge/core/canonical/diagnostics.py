"""What a canonical graph still shows of how its file was made, as notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.bias import chain_behind
from qdqbridge.core.canonical.decomposed import is_fake_quantize
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.unary import ABS, EXP, HARD_SIGMOID, SIGMOID, SOFTPLUS, SQRT
from qdqbridge.core.rewrite import stored_behind

_ROUNDING = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)
_STEPS = np.arange(1, 256, dtype=np.float64)
_ON_GRID = 1e-4
"""So close to whole steps is a weight ``float32(q * scale)``: at most 255 * 2**-23 away."""
_SAMPLE, _FEWEST = 64, 4


def diagnose(graph: Graph) -> list[Note]:
    """Returns notes about clamps in ranges, folded weights, fake-quantization, affine maps."""
    nodes = graph.nodes
    notes = [_clamps(nodes), _folded(nodes), _fake_quantization(nodes)]
    return [
        *(note for note in notes if note is not None),
        *_note_unfolded_affine(nodes, set(graph.outputs)),
    ]


def _note_unfolded_affine(nodes: Sequence[Node], outputs: Set[Value]) -> Iterator[Note]:
    for node in nodes:
        chain = chain_behind(node, outputs.__contains__)
        if chain is None:
            continue
        reason = (
            f"{chain.listed()} scale and shift its float result per channel; the option "
            "'fold_affine' (--fold-affine) folds them into its weight's scales and its bias, which "
            "moves float32 roundings"
        )
        names = tuple(n.name for n in chain.nodes)
        yield Note("affine-behind-product", chain.product.name, reason, names)


def _clamps(nodes: Sequence[Node]) -> Note | None:
    names = [node.name for node in nodes if _carries_clamp(node)]
    if not names:
        return None
    reason = (
        f"{_count_phrase(names, 'operator')} saturates at real 0: if the model had a Relu there, "
        "the range of the quantized type is what remains of it, and a tool that drops Q and "
        "DQ drops the Relu too"
    )
    return Note("clamp-in-range", names[0], reason, tuple(names))


def _carries_clamp(node: Node) -> bool:
    if node.op.flow not in _ROUNDING or len(node.outputs) != 1 or node.op in _NEVER_NEGATIVE:
        return False
    quant = node.output.quant
    if quant is None or not quant.params.per_tensor or not quant.params.storage_dtype.is_integer:
        return False
    return quant.params.full_range and int(quant.params.zero_point) == quant.params.qmin


_NEVER_NEGATIVE = frozenset((SOFTMAX, SIGMOID, HARD_SIGMOID, EXP, ABS, SQRT, SOFTPLUS))


def _folded(nodes: Sequence[Node]) -> Note | None:
    found = [(node, w) for node in nodes for w in _float_weights(node)]
    names = [w.name for node, w in found if _on_grid(_sample_channel_rows(node, w))]
    if not names:
        return None
    reason = (
        f"weights folded to float on an integer grid: {_count_phrase(names, 'constant')} was "
        "quantized before a tool (onnxsim, a constant folder) dequantized it; "
        "export again without that"
    )
    node = next(node for node, w in found if w.name == names[0])
    return Note("folded-weights", node.name, reason, tuple(dict.fromkeys(names)))


def _float_weights(node: Node) -> Iterator[Value]:
    if node.op.flow is not Flow.ACCUMULATE:
        return
    x, w = node.operand(0), node.operand(1)
    quantized = x.quant is not None or stored_behind(x) is not None
    data = w.constant
    if quantized and data is not None and data.size and w.quant is None and (w.rank or 0) >= 2:
        yield w


def _sample_channel_rows(node: Node, w: Value) -> NDArray[Any]:
    """Returns a float weight as one row per output channel, a sample of each."""
    assert w.constant is not None
    data = w.constant.numpy()
    geometry = geometry_of(node)
    if geometry is not None:
        data = np.moveaxis(data, geometry.axis, 0)
    rows = data.reshape(len(data), -1)[:_SAMPLE]
    # The largest ones: a step is looked for as a fraction of the largest weight, and small weights
    # lie near any fine grid.
    order = np.argsort(-np.abs(rows.astype(np.float64)), axis=1, kind="stable")[:, :_SAMPLE]
    return np.take_along_axis(rows.astype(np.float64), order, axis=1)


def _on_grid(rows: NDArray[Any]) -> bool:
    """True where every row is a multiple of a step of its own, at most 255 steps high."""
    if rows.size == 0 or not np.isfinite(rows).all():
        return False
    largest = np.abs(rows[:, :1])
    live = rows[largest[:, 0] > 0]
    if not len(live):
        return False
    largest = np.abs(live[:, :1])
    # Rows of a few different values are on some grid by chance: of ones and zeros, of a blur.
    varied = [len(np.unique(np.abs(row))) >= _FEWEST for row in live]
    steps = live[:, None, :] / largest[:, None, :] * _STEPS[None, :, None]
    # Every number of steps from 1 to 255 is tried at once as the height of the largest weight.
    near = np.abs(steps - np.rint(steps)).max(axis=2) <= _ON_GRID
    return bool(near.any(axis=1).all() and np.mean(varied) > 0.5)


def _fake_quantization(nodes: Sequence[Node]) -> Note | None:
    names = [node.name for node in nodes if is_fake_quantize(node)]
    if not names:
        return None
    reason = (
        "float arithmetic (Div, Round, Clip, Mul) fake-quantizes "
        f"{_count_phrase(names, 'tensor')}; the option "
        "'decomposed' reads it as QuantizeLinear and DequantizeLinear"
    )
    return Note("decomposed-quantization", names[0], reason, tuple(names))


def _count_phrase(names: list[str], what: str) -> str:
    return f"1 {what}" if len(names) == 1 else f"each of {len(names)} {what}s"


# ---- What stays float between quantized neighbours, and why

_TAUTOLOGY = "absorb-accumulator-operands"
"""Refuses float operands, as all are in a file without quantization."""
_CONVERSIONS = (Flow.CONVERT, Flow.REINTERPRET)


def explanation(graph: Graph, bodies: Iterable[tuple[str, Graph]] = ()) -> list[Note]:
    """Returns the notes and float regions of a graph; one sentence where nothing is quantized.

    Args:
        bodies: What the bodies of its nodes are, by their places.
    """
    inside = [(place, body) for place, body in bodies if _is_quantized_graph(body)]
    own = [*graph.notes, *float_region_notes(graph)]
    if not _is_quantized_graph(graph):
        own = [note for note in graph.notes if note.rule != _TAUTOLOGY]
        if not inside:
            return [Note("no-quantization", "", "the file has no quantization"), *own]
    return [*own, *(note for place, body in inside for note in _placed(place, body))]


def _placed(place: str, body: Graph) -> list[Note]:
    """Returns the notes and float regions of a body, its nodes named with their place."""
    return [
        replace(note, node=note.node if note.node.startswith(place) else place + note.node)
        for note in (*body.notes, *float_region_notes(body))
    ]


def _is_quantized_graph(graph: Graph) -> bool:
    names = (node.op.name for node in graph.nodes)
    # Operators without a row say by their names that they quantize.
    return any(value.quant for value in graph.values()) or any(
        "Quantize" in name or "Integer" in name for name in names
    )


def float_region_notes(graph: Graph) -> list[Note]:
    """Returns one note per float operator that reads a dequantized value or feeds a quantize."""
    outputs = set(graph.outputs)
    notes: list[Note] = []
    reasons = {note.node: note for note in graph.notes}
    for node in graph.nodes:
        if node.op.flow in _CONVERSIONS or not _is_float(node):
            continue
        reads = [v.name for v in node.inputs if v is not None and _dequantized(v)]
        feeds = [v.name for v in node.outputs if any(n.op is QUANTIZE for n, _ in v.users)]
        if not reads and not feeds:
            continue
        known = reasons.get(node.name)
        reason = _reason(node, outputs) if known is None else known.reason
        notes.append(Note("float-region", node.name, f"{node.op.name}: {reason}", (*reads, *feeds)))
    return notes


def _is_float(node: Node) -> bool:
    """True where a result is float: TopK, for one, has an index as well."""
    return any(isinstance(v.type, TensorType) and v.type.dtype.is_float for v in node.outputs)


def _dequantized(value: Value) -> bool:
    return value.producer is not None and value.producer.op is DEQUANTIZE


def _reason(node: Node, outputs: set[Value]) -> str:
    if node.op.flow is Flow.FLOAT:
        return "the operator has no quantized form"
    if all(v.quant for i, v in node.data_operands() if i < 2):
        return "operands are quantized and the result is float (integer sums, then dequantize)"
    for index, value in node.data_operands():
        if value.constant is None and not _dequantized(value) and not value.quant:
            maker = "a graph input" if value.producer is None else value.producer.op.name
            return f"operand {index} is float: the result of {maker}"
    if node.output in outputs:
        return "its float result is a graph output"
    readers = sorted({n.op.name for n, _ in node.output.users})
    if readers != ["quantize"]:
        return f"its float result is read by {', '.join(readers)}"
    return "the file does not quantize it"
