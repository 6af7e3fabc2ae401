"""What a canonical graph still shows of how its file was made, told as notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.affine import chain_behind
from qdqbridge.core.canonical.decomposed import is_fake_quantize
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.ops.softmax import SOFTMAX
from qdqbridge.core.ops.unary import ABS, EXP, HARD_SIGMOID, SIGMOID, SOFTPLUS, SQRT
from qdqbridge.core.rewrite.rule import stored_behind

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
    varied = [len(np.unique(np.abs(row))) >= _FEWEST for row in live]
    steps = live[:, None, :] / largest[:, None, :] * _STEPS[None, :, None]
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
