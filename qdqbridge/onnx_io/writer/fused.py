"""Steps as the one operator of com.microsoft that their file had: rules of the writer.

Each node's variant says what the file had. What the rules make has no row: it is written as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.ops.attributes import AxisAttrs, NormAttrs
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.ops.packed_products import PackedGather, packed_gather
from qdqbridge.core.rewrite.driver import run
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, pattern_rule
from qdqbridge.onnx_io.lowering.context import MICROSOFT, packed
from qdqbridge.onnx_io.lowering.normalization import BIAS_GELU, DATA, SKIP, WITH_BIAS
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import opaque_operator
from qdqbridge.onnx_io.writer.names import stem

_GELUS = {BIAS_GELU: "BiasGelu", f"FastGelu{WITH_BIAS}": "FastGelu"}
"""By variant: the operator that adds a bias first."""
_NORM = ("LayerNormalization", "RMSNormalization")
_WIDTHS = (4, 8)


def as_the_file_had(graph: Graph) -> Graph:
    """Returns a graph whose steps are one operator again where its file had one."""
    if not any(map(_was_one, graph.nodes)):
        return graph
    own = copied(graph).graph
    run(own, FUSED)
    return own


def _was_one(node: Node) -> bool:
    variant = node.origin.variant
    first = variant.partition(DATA)[0]
    skips = first.removesuffix(WITH_BIAS) in SKIP.values()
    said = skips or first in _GELUS or packed_gather(variant) is not None
    return said and not isinstance(node.attributes, OpaqueAttrs)


def _contrib(
    op_type: str, operands: Sequence[Value | None], attributes: Mapping[str, Any], node: Node,
    results: Mapping[int, Value],
) -> dict[Value, Value]:  # fmt: skip
    """Returns what a node of com.microsoft gives, by what it stands for.

    Args:
        op_type: Its name.
        operands: Its operands; those at the end may be left out.
        attributes: Its attributes.
        node: Where it comes from.
        results: What it stands for, by place.
    """
    given = list(operands)
    while given[-1] is None:
        given.pop()
    names = [f"in_{i}" if value is not None else "" for i, value in enumerate(given)]
    places = [f"out_{i}" if i in results else "" for i in range(max(results) + 1)]
    proto = helper.make_node(op_type, names, places, domain=MICROSOFT, **attributes)
    record = opaque_attributes(proto, 1)
    made = {old: Value(old.type, old.name) for old in results.values()}
    operator = opaque_operator(record.domain, record.op_type)
    Node(operator, record, given, list(made.values()), node.origin)
    return made


def _is_plain(node: Node) -> bool:
    """True where a node has no quantized operand or result."""
    values = (*(value for value in node.inputs if value is not None), *node.outputs)
    return all(value.quant is None for value in values)


@pattern_rule("skip-norm", (_NORM, Part("total", ("Add", "x", "skip")), "gain?", "offset?"))
def skip_norm(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``LayerNormalization(x + skip) -> SkipLayerNormalization(x, skip)``; the same without a mean.

    The sum is its fourth result where others read it, too.
    """
    return _skip_norm(node, match, context, bias=False)


_BIASED = ("Add", Part("sum", ("Add", "x", "skip"), sole=True), "bias")


@pattern_rule("skip-norm-of-biased", (_NORM, Part("total", _BIASED), "gain?", "offset?"))
def skip_norm_of_biased(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``LayerNormalization(x + skip + bias) -> SkipLayerNormalization(x, skip, bias)``."""
    return _skip_norm(node, match, context, bias=match["bias"].rank == 1)


def _skip_norm(
    node: Node, match: PatternMatch, context: RuleContext, *, bias: bool
) -> Replace | None:
    centred, total = node.op is LAYER_NORMALIZATION, match["total"]
    said, _, name = node.origin.variant.partition(DATA)
    shape, rank = total.type.shape, total.rank
    if said != SKIP[centred] + (WITH_BIAS if bias else "") or shape is None:
        return None
    if rank not in (2, 3) or node.record(NormAttrs).axis != rank - 1:
        return None
    x, skip = match["x"], match["skip"]
    if x.type.shape != shape and (skip.type.shape == shape or not _is_data(x, name, rank)):
        return None  # what is added the other way round
    if (skip.rank or 0) not in (rank, 2) or not all(map(_is_plain, match.nodes)):
        return None
    vector = match["bias"] if bias else None
    asked = len(total.users) > 1 or context.is_output(total)
    own = (*node.inputs[1:], vector)
    if asked and any(value is not None and value.producer is not None for value in own):
        return None  # these may be computed from the sum
    gain, offset = (node.optional(1), node.optional(2))
    operands = [x, skip, gain, *([offset] if centred else []), vector]
    attributes = {"epsilon": node.record(NormAttrs).epsilon}
    results = {0: node.output, 3: total} if asked else {0: node.output}
    return Replace(_contrib(SKIP[centred], operands, attributes, node, results))


def _is_data(value: Value, name: str, rank: int) -> bool:
    """True where only the file says that a value is not repeated: extents have other names."""
    return value.name == name and value.rank == rank and 1 not in (value.type.shape or ())


@pattern_rule("bias-gelu", ("Gelu", Part("sum", ("Add", "x", "bias"), sole=True)))
def bias_gelu(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Gelu(x + bias) -> BiasGelu(x, bias)``, the same by tanh.

    Of half floats onnxruntime rounds the sum where an Add makes it, and not where it is inside.
    """
    del context
    variant, _, name = node.origin.variant.partition(DATA)
    x, bias, total = match["x"], match["bias"], match["sum"]
    shape = total.type.shape
    if variant not in _GELUS or not all(map(_is_plain, match.nodes)) or not shape:
        return None
    if bias.type.shape != shape[-1:] or x.type.shape != shape:
        return None
    if x.type.shape == shape[-1:] and x.name == name and x is not bias:
        return None  # both are vectors: the file says which one is the bias
    return Replace(_contrib(_GELUS[variant], [x, bias], {}, node, {0: node.output}))


@pattern_rule("packed-gather", ("Gather", ("dequantize", Part("table", constant=True)), "indices"))
def packed_table(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Gather(dequantize(table), i) -> GatherBlockQuantized(packed table, i, scales)``."""
    del context
    said, table = packed_gather(node.origin.variant), match["table"]
    if said is None or table.constant is None or table.quant is None:
        return None
    if node.output.quant is not None:
        return None
    params, grid = table.quant.params, list(table.constant.shape)
    bits = params.storage_dtype.bits
    fits = params.block_size in (None, said.block_size) and said.axis < len(grid)
    if bits not in _WIDTHS or not fits or params.scale_dtype is not node.output.type.dtype:
        return None
    if params.blocked and params.axis != said.axis:
        return None
    whole = grid[-1]
    grid[said.axis] = -(-grid[said.axis] // said.block_size)
    points = _of_blocks(_unsigned_codes(params.zero_point, params), params, grid)
    centre = 1 << (bits - 1) if said.storage != DType.UINT4.label else 0
    packs = said.storage == DType.UINT8.label
    if packs and (said.axis != len(grid) - 1 or grid[-1] * said.block_size != whole):
        return None
    if not packs and bits != _WIDTHS[0]:
        return None
    if not said.zero_points and (points != centre).any():
        return None
    codes, name = _unsigned_codes(table.constant.numpy(), params), stem(table.name)
    operands = [
        constant(_as_stored(codes, said, bits), None, f"{name}_packed"),
        match["indices"],
        constant(_of_blocks(params.scale, params, grid), None, f"{name}_scales"),
    ]
    if said.zero_points:
        operands.append(constant(_as_stored(points, said, bits), None, f"{name}_zero_points"))
    attributes = {
        "bits": bits, "block_size": said.block_size, "gather_axis": node.record(AxisAttrs).axis,
        "quantize_axis": said.axis,
    }  # fmt: skip
    results = {0: node.output}
    return Replace(_contrib("GatherBlockQuantized", operands, attributes, node, results))


def _of_blocks(array: NDArray[Any], params: QuantParams, grid: list[int]) -> NDArray[Any]:
    """Returns scales or zero points with one of every block."""
    whole = array if params.blocked else params.aligned(array, tuple(grid))
    return np.broadcast_to(whole, grid)


def _unsigned_codes(stored: NDArray[Any], params: QuantParams) -> NDArray[np.uint8]:
    return (stored.astype(np.int16) - params.storage_dtype.qmin).astype(np.uint8)


def _as_stored(codes: NDArray[np.uint8], said: PackedGather, bits: int) -> Constant:
    """Returns unsigned codes as the file holds them."""
    if said.storage == DType.UINT8.label:
        rows = codes.reshape(-1, codes.shape[-1])
        each = b"".join(packed(row, bits) for row in rows)
        return Constant.of(np.frombuffer(each, np.uint8).reshape(*codes.shape[:-1], -1))
    kind = next(each for each in (DType.INT4, DType.UINT4) if each.label == said.storage)
    return Constant.of((codes.astype(np.int16) + kind.qmin).astype(kind.numpy))


FUSED = (skip_norm, skip_norm_of_biased, bias_gelu, packed_table)
"""Rules for runtimes that have these operators."""
