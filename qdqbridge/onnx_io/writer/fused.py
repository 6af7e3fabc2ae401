"""Operators of com.microsoft that the file had: steps as one, blocks as MatMulNBits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.patterns import Part, PatternMatch
from qdqbridge.core.graph.types import QuantParams, TensorType
from qdqbridge.core.ops.attributes import AxisAttrs, NormAttrs
from qdqbridge.core.ops.build import constant, permuted_constant
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.core.ops.matmul import (
    DENSE,
    EIGHT_BITS,
    MATMUL,
    OWN_ORDER,
    PERMUTED,
    PackedGather,
    PackedProduct,
    packed_gather,
    packed_product,
)
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.ops.selection import GATHER
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, pattern_rule, run
from qdqbridge.onnx_io.lowering.context import MICROSOFT, UNSIGNED, packed
from qdqbridge.onnx_io.lowering.elementwise import BIAS_GELU, DATA, SKIP, WITH_BIAS
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import opaque_operator
from qdqbridge.onnx_io.tensors import raw_bytes
from qdqbridge.onnx_io.writer.spec import RowWriter, real_dtype, stem

# ---- Steps as the one operator of com.microsoft that their file had: rules of the writer ---------
# Each node's variant says what the file had. What the rules make has no row: it is written as it
# is.


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
        node: Where it comes from.
        results: What it stands for, by place.
    """
    given = list(operands)
    # ONNX leaves operands at the end out, and names those between with an empty string.
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


def _of_blocks(array: NDArray[Any], params: QuantParams, grid: Sequence[int]) -> NDArray[Any]:
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


# ---- A product with a weight in blocks as the MatMulNBits of com.microsoft that its file had -----


_NO_ORDER = np.zeros(0, np.int64)
_SWAPPED = (1, 0)


@dataclass(frozen=True, slots=True)
class _PackedWeight:
    """What a node multiplies by, as a MatMulNBits has it.

    Attributes:
        said: How the file wrote it.
        codes: The stored weight.
        params: Its parameters.
        block: Columns of a block.
        points: Zero points as unsigned codes, ``[N, blocks]``.
    """

    said: PackedProduct
    codes: Constant
    params: QuantParams
    block: int
    points: NDArray[np.generic]


def unread_orders(nodes: Sequence[Node], outputs: Collection[Value]) -> set[Node]:
    """Returns the Gathers that put activations in order for packed products alone."""
    here = set(nodes)
    ordered = {
        node for node in nodes
        if (said := _said(node)) is not None and said.order == PERMUTED
        and _in_file(node, here)[1].size and _packed_weight(node) is not None
    }  # fmt: skip
    makers = {maker for node in ordered if (maker := node.operand(0).producer) is not None}
    return {
        maker for maker in makers
        if maker.output not in outputs and all(user in ordered for user, _ in maker.output.users)
    }  # fmt: skip


def packed_weights(values: Iterable[Value]) -> set[Value]:
    """Returns the weights that only MatMulNBits hold, in bytes: any opset has these."""
    return {
        value for value in values
        if value.is_constant and value.quant is not None and value.users
        and all(index == 1 and _packed_weight(user) is not None for user, index in value.users)
    }  # fmt: skip


def is_packed_matmul(node: Node) -> bool:
    """True for a MatMul that a MatMulNBits can say: of a vector, or of nobody knows what rank.

    The others are Dense.
    """
    return node.op is MATMUL and _packed_weight(node) is not None


def packed_row(writer: RowWriter, node: Node, target: str, type_: TensorType) -> bool:
    """Adds the rows of a node that was a MatMulNBits; returns whether it can be one still.

    Args:
        writer: Where they go.
        node: ``Dense(x, w[N, K], bias[N])``, ``DynamicBlockDense``, or what ``is_packed_matmul``.
        target: The float tensor to write.
    """
    found, dtype = _packed_weight(node), real_dtype(node)
    if found is None:
        return False
    said, params, block, points = found.said, found.params, found.block, found.points
    data, order = _in_file(node, writer.here)
    rows, columns = found.codes.shape
    bits, name = params.storage_dtype.bits, stem(writer.tensors.of(node.operand(1)))

    def entered(array: NDArray[np.generic], what: str) -> str:
        return writer.array(array, f"{name}_{what}")

    codes = found.codes
    if order.size:
        # Reading sorted the columns by group. The file gets its own order back, and g_idx says
        # which group each column is of.
        sorted_codes = codes.numpy()
        in_file = np.empty_like(sorted_codes)
        in_file[:, order] = sorted_codes
        codes = Constant.of(in_file)
    inputs = [writer.real(data, dtype)]
    inputs.append(writer.constant(_pack_weight_blocks(codes, params, block), f"{name}_packed"))
    inputs.append(entered(_of_blocks(params.scale, params, points.shape), "scales"))
    inputs += ["", "", ""]
    if said.zero_points == "packed":
        each = (packed(row, bits) for row in points)
        stored = np.frombuffer(b"".join(each), np.uint8).reshape(rows, -1)
        inputs[3] = entered(stored, "zero_points")
    elif said.zero_points:
        inputs[3] = entered(points.astype(dtype.numpy), "zero_points")
    if said.order == OWN_ORDER or order.size:
        groups = np.arange(columns, dtype=np.int32) // block
        if order.size:
            groups[order] = groups.copy()
        inputs[4] = entered(groups, "g_idx")
    bias = node.optional(2)
    behind = bias is not None and not said.bias
    if bias is not None and not behind:
        inputs[5] = writer.bias(bias, dtype)
    # ONNX has no name for an operand that is left out at the end: the list is shorter.
    while not inputs[-1]:
        inputs.pop()
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    if said.accuracy_level is not None:
        attributes["accuracy_level"] = said.accuracy_level
    # The operator had no bias in its file: an Add that the reader took in stands behind it again.
    product = writer.free.take(f"{target}_product") if behind else target
    writer.row("MatMulNBits", inputs, product, type_, attributes, node, MICROSOFT)
    writer.spec.imports.setdefault(MICROSOFT, 1)
    if bias is not None and behind:
        writer.row("Add", [product, writer.bias(bias, dtype)], target, type_)
    return True


def _packed_weight(node: Node) -> _PackedWeight | None:
    """Returns what a node multiplies by; None where no MatMulNBits can say it."""
    said = _said(node)
    if said is None:
        return None
    w = _by_results(node)
    if w is None or w.constant is None or w.quant is None:
        return None
    params = w.quant.params
    block, bits = params.block_size or said.block_size, params.storage_dtype.bits
    along = params.axis == 1 if params.blocked else params.axis in (None, 0)
    plain = params.scale_dtype is real_dtype(node)
    if not block or not along or bits not in UNSIGNED or not plain:
        return None
    if said.rounds(bits) != (node.op is DYNAMIC_BLOCK_DENSE):
        return None
    rows, columns = w.constant.shape
    shape = (rows, -(-columns // block))
    points = _unsigned_codes_int16(_of_blocks(params.zero_point, params, shape), params)
    if said.zero_points == "" and (points != 1 << (bits - 1)).any():
        return None
    return _PackedWeight(said, w.constant, params, block, points)


def _by_results(node: Node) -> Value | None:
    """Returns the weight of a node as ``[N, K]``, a row for each result; None where it has none."""
    w = node.operand(1)
    if node.op in (DENSE, DYNAMIC_BLOCK_DENSE):
        return w
    stored = node.op is MATMUL and w.is_constant and w.rank == len(_SWAPPED)
    return permuted_constant(w, _SWAPPED) if stored else None


def _in_file(node: Node, here: Collection[Node]) -> tuple[Value, NDArray[np.int64]]:
    """Returns a product's activations as its file has them, and the order of their columns.

    A Gather that puts them in the order of the blocks is the product's own only if it is among the
    nodes that are written: part of a graph may begin behind it.
    """
    x, said = node.operand(0), _said(node)
    made = x.producer
    if said is None or said.order != PERMUTED or made is None or made not in here:
        return x, _NO_ORDER
    gather, indices = GATHER.of(made), made.optional(1)
    if gather is None or indices is None or indices.constant is None:
        return x, _NO_ORDER
    if gather.axis != (x.rank or 0) - 1 or x.quant is not None:
        return x, _NO_ORDER
    order = indices.constant.numpy().astype(np.int64)
    data = made.operand(0)
    if data.type.shape is None or data.type.shape[-1] != order.size:
        return x, _NO_ORDER
    if not np.array_equal(np.sort(order), np.arange(order.size)):
        return x, _NO_ORDER
    return data, order


def _said(node: Node) -> PackedProduct | None:
    """Returns how the file wrote a node, or how it has to be where no file did."""
    said, rounded = packed_product(node.origin.variant), DYNAMIC_BLOCK_DENSE.of(node)
    if said is not None or rounded is None:
        return said
    return PackedProduct(EIGHT_BITS, "packed", block_size=rounded.block_size)


def _unsigned_codes_int16(stored: NDArray[np.generic], params: QuantParams) -> NDArray[np.generic]:
    """Returns stored integers as unsigned codes."""
    return stored.astype(np.int16) - params.storage_dtype.qmin


def _pack_weight_blocks(constant: Constant, params: QuantParams, block: int) -> Constant:
    """Returns the bytes ``[N, blocks, bytes of a block]``; a last short block is padded by 0."""
    rows, columns = constant.shape
    bits, blocks = params.storage_dtype.bits, -(-columns // block)
    shape = (rows, blocks, block * bits // 8)
    if columns == blocks * block:  # neighbours in a file already: only the sign bits differ
        flip = sum(1 << (i + bits - 1) for i in range(0, 8, bits))
        flip = flip if params.storage_dtype.qmin < 0 else 0
        data = np.frombuffer(raw_bytes(constant), np.uint8) ^ np.uint8(flip)
        return Constant.of(data.reshape(shape))
    codes = np.pad(
        _unsigned_codes_int16(constant.numpy(), params), ((0, 0), (0, blocks * block - columns))
    )
    return Constant.of(np.frombuffer(packed(codes, bits), np.uint8).reshape(shape))
