"""Gemm, MatMul, and Dense: the product of an activation with a constant matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import (
    AnyAttributes,
    Array,
    Attributes,
    Contract,
    Flow,
    NoAttributes,
    OnnxOp,
    Operands,
    Operator,
    Row,
    Types,
    WeightGeometry,
)
from qdqbridge.core.graph.types import (
    QuantParams,
    QuantType,
    Shape,
    TensorType,
    ValueType,
    static_shape,
)
from qdqbridge.core.ops.accumulator import (
    accumulation_dtype,
    centered,
    exact_dtype,
    finished,
    integer_params,
    lost_of_bytes,
    with_bias,
)
from qdqbridge.core.ops.attributes import AxesAttrs, GemmAttrs, TransposeAttrs
from qdqbridge.core.ops.bodies import LETTERS, Body, computed, first_shape, folded, trimmed
from qdqbridge.core.ops.build import permuted_params
from qdqbridge.core.ops.shapes import (
    differ,
    known,
    laid_along,
    per_channel,
    per_tensor,
    result_shape,
    vector_fits,
)
from qdqbridge.core.ops.stored import broadcast_into, optional, present
from qdqbridge.errors import GraphError


def _matmul_accumulated(a: Array, b: Array) -> Array:
    dtype = accumulation_dtype(a)
    return np.matmul(a.astype(dtype), b.astype(dtype))


def _compute_dense(attrs: NoAttributes, operands: Operands) -> tuple[Array, ...]:
    del attrs
    x, w = present(operands, 2)
    total, bias = _matmul_accumulated(x, w.T), optional(operands, 2)
    if bias is not None:
        total = total + bias.astype(total.dtype)
    return (total.astype(x.dtype),)


def _matmul(attrs: NoAttributes, operands: Operands) -> tuple[Array, ...]:
    del attrs
    a, b = present(operands, 2)
    return (np.asarray(_matmul_accumulated(a, b), a.dtype),)


def broken_factors(attrs: GemmAttrs) -> bool:
    """True where a factor is not a whole number: sums of integers are real ones then."""
    return not (float(attrs.alpha).is_integer() and float(attrs.beta).is_integer())


def factor(value: float, dtype: np.dtype[Any]) -> Array:
    """Returns a factor in an element type; that of integers modulo what they hold, as sums are."""
    if dtype.kind in "iu":
        return np.asarray(int(value) % (1 << 64), np.uint64).astype(dtype)
    return np.asarray(value).astype(dtype)


def _gemm(attrs: GemmAttrs, operands: Operands) -> tuple[Array, ...]:
    a, b = present(operands, 2)
    total = _matmul_accumulated(a.T if attrs.trans_a else a, b.T if attrs.trans_b else b)
    if a.dtype.kind in "iu" and broken_factors(attrs):
        total = total.astype(np.float64)
    if attrs.alpha != 1.0:
        total = total * factor(attrs.alpha, total.dtype)
    bias = optional(operands, 2)
    if bias is not None:
        bias = broadcast_into(bias, total.shape)
        total = total + bias.astype(total.dtype) * factor(attrs.beta, total.dtype)
    return (total.astype(a.dtype),)


def _integer_product(
    a: Array, b: Array, pa: QuantParams, pb: QuantParams, *, trans_a: bool, trans_b: bool
) -> Array:
    """Returns ``op(a - za) @ op(b - zb)``, exact, as int64."""
    ca, cb = centered(a, pa), centered(b, pb)
    ca, cb = ca.T if trans_a else ca, cb.T if trans_b else cb
    dtype = exact_dtype(ca, cb, ca.shape[-1])
    total = np.asarray(np.matmul(ca.astype(dtype), cb.astype(dtype))).astype(np.int64)
    lost = lost_of_bytes(pa.storage_dtype, pb.storage_dtype)
    if lost is not None and min(a.ndim, b.ndim) > 1:
        total += lost(a.T if trans_a else a, b.T if trans_b else b)
    return total


def _integer_matmul_qparams(
    types: Types, channel_axis: int | None
) -> tuple[QuantParams, QuantParams] | None:
    """Returns both operands' parameters where the product has an integer form."""
    pa, pb = integer_params(types[0]), integer_params(types[1])
    if pa is None or pb is None or not pa.per_tensor or pb.axis not in (None, channel_axis):
        return None
    return pa, pb


def _qgemm_scale(pa: QuantParams, pb: QuantParams, alpha: float = 1.0) -> Array:
    """Returns ``f32(f32(alpha * sa) * sb)``, the order of onnxruntime's QGemm."""
    first = np.asarray(np.float32(alpha) * pa.scale.astype(np.float32), np.float32)
    return np.asarray(first * pb.scale.astype(np.float32), np.float32)


def _type(types: Types, index: int) -> ValueType | None:
    return types[index] if index < len(types) else None


def _dense_contract(
    attrs: NoAttributes, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del attrs
    params = _integer_matmul_qparams(types, 0)
    if params is None:
        return None
    x, w = present(operands, 2)
    total = _integer_product(x, w, *params, trans_a=False, trans_b=True)
    scale = _qgemm_scale(*params)
    total, bias = with_bias(total, scale, optional(operands, 2), _type(types, 2))
    return (finished(total, scale, bias, results[0]),)


def _matmul_contract(
    attrs: NoAttributes, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del attrs
    a, b = present(operands, 2)
    params = _integer_matmul_qparams(types, b.ndim - 1 if b.ndim > 1 else None)
    if params is None:
        return None
    total = _integer_product(a, b, *params, trans_a=False, trans_b=False)
    scale = _qgemm_scale(*params)
    if scale.ndim and a.ndim == 1:
        scale = scale.reshape(-1)
    return (finished(total, scale, None, results[0]),)


def _gemm_contract(
    attrs: GemmAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    params = _integer_matmul_qparams(types, 0 if attrs.trans_b else 1)
    if params is None:
        return None
    a, b = present(operands, 2)
    total = _integer_product(a, b, *params, trans_a=attrs.trans_a, trans_b=attrs.trans_b)
    scale = _qgemm_scale(*params, attrs.alpha)
    bias, bias_type = optional(operands, 2), _type(types, 2)
    if bias is None or attrs.beta == 1.0:
        total, real = with_bias(total, scale, bias, bias_type)
    else:
        _, real = with_bias(total, np.asarray(np.nan, np.float32), bias, bias_type)
        assert real is not None
        real = real * np.float32(attrs.beta)
    return (finished(total, scale, real, results[0]),)


def rows_fit(node: Node) -> Iterator[str]:
    """Yields what is wrong with the shapes of a product of rows with a matrix of rows."""
    x, w = node.operand(0), node.operand(1)
    if w.rank is not None and w.rank != 2:
        yield f"the weight has rank {w.rank}, not 2"
    if x.rank == 0:
        yield "the input is a scalar"
    if differ(known(x, -1), known(w, 1)):
        yield f"the input has rows of {known(x, -1)} elements, the weight of {known(w, 1)}"
    yield from vector_fits(node.optional(2), known(w, 0), "the bias")


def _check_dense(node: Node, _: Attributes) -> Iterator[str]:
    yield from rows_fit(node)
    yield from per_tensor(node, 0, "the input")
    yield from per_channel(node, 1, 0, "the weight")


def _check_matmul(node: Node, _: Attributes) -> Iterator[str]:
    a, b = node.operand(0), node.operand(1)
    if a.rank == 0 or b.rank == 0:
        yield "an operand is a scalar"
        return
    inner = known(b, 0) if b.rank == 1 else known(b, -2)
    if b.rank is not None and differ(known(a, -1), inner):
        yield f"the first operand has rows of {known(a, -1)} elements, the second {inner} rows"
    if a.rank is not None and b.rank is not None:
        for axis in range(3, min(a.rank, b.rank) + 1):
            sizes = known(a, -axis), known(b, -axis)
            if differ(*sizes) and 1 not in sizes:
                yield f"batch axis {-axis} is {sizes[0]} in one operand and {sizes[1]} in the other"
    yield from per_tensor(node, 0, "the first operand")
    if b.rank is not None:
        columns = b.rank - 1 if b.rank > 1 else None
        yield from per_channel(node, 1, columns, "the second operand")


def _check_gemm(node: Node, attrs: GemmAttrs) -> Iterator[str]:
    a, b = node.operand(0), node.operand(1)
    for value, what in ((a, "first"), (b, "second")):
        if value.rank is not None and value.rank != 2:
            yield f"the {what} operand has rank {value.rank}, not 2"
    inner = known(a, 0 if attrs.trans_a else 1), known(b, 1 if attrs.trans_b else 0)
    if differ(*inner):
        yield f"the inner extents are {inner[0]} and {inner[1]}"
    rows, columns = known(a, 1 if attrs.trans_a else 0), known(b, 0 if attrs.trans_b else 1)
    bias = node.optional(2)
    if bias is not None and bias.rank is not None:
        if bias.rank > 2:
            yield f"the bias has rank {bias.rank}"
        for axis, wanted in ((-1, columns), (-2, rows)):
            extent = known(bias, axis)
            if extent != 1 and differ(extent, wanted):
                yield f"axis {axis} of the bias is {extent}, which does not broadcast to {wanted}"
    yield from per_tensor(node, 0, "the first operand")
    yield from per_channel(node, 1, 0 if attrs.trans_b else 1, "the second operand")


_NUMERICS = (
    "acc = exact sum of (x - zx)(w - zw) + bias_int32; y = sat(rint(f32(acc) * M) + zy), "
    "M = f32(f32(sx * sw) / sy) per output column. Float result: f32(acc) * f32(sx * sw). "
    "Float bias b: quantize(f32(acc) * f32(sx * sw) + b); reading makes it bias_int32 = "
    "rint(b / (sx * sw)) where that moves y, before it is rounded, by 1/16 LSB at most. "
    "onnxruntime 1.32 with graph optimizations does so to every float bias of a Gemm. "
)

DENSE = Row(
    name="Dense",
    flow=Flow.ACCUMULATE,
    attributes=NoAttributes,
    compute=_compute_dense,
    contract=_dense_contract,
    check=_check_dense,
    weight=lambda a, rank: WeightGeometry(0),
    bias=True,
    qnn="dense",
    numerics=_NUMERICS + "x[..., K], w[N, K] (scales on axis 0), bias[N] -> [..., N]. Against "
    "onnxruntime 1.31: as Gemm and MatMul, which it stands for.",
)
GEMM = Row(
    name="Gemm",
    onnx=(
        OnnxOp(
            name="Gemm", defaults={"alpha": 1.0, "beta": 1.0, "trans_a": False, "trans_b": False}
        ),
    ),
    flow=Flow.ACCUMULATE,
    attributes=GemmAttrs,
    compute=_gemm,
    contract=_gemm_contract,
    check=_check_gemm,
    weight=lambda a, rank: WeightGeometry(0 if a.trans_b else 1),
    qnn="dense",
    numerics=_NUMERICS + "alpha != 1: M = f32(f32(f32(alpha * sx) * sw) / sy), and an int32 bias "
    "has the scale f32(f32(alpha * sx) * sw); beta != 1 makes every bias a float "
    "one, f32(b * beta). Against onnxruntime 1.31: its fused QGemm differs in 0 of 1,000,000 "
    "results, its float kernel in 1 of 1,000,000 by 1 LSB, a midpoint within its sum's error.",
)
MATMUL = Row(
    name="MatMul",
    onnx=(OnnxOp(name="MatMul"),),
    flow=Flow.ACCUMULATE,
    attributes=NoAttributes,
    compute=_matmul,
    contract=_matmul_contract,
    check=_check_matmul,
    weight=lambda a, rank: WeightGeometry(rank - 1) if rank is not None and rank > 1 else None,
    qnn="batch_matmul",
    tvm="matmul",
    numerics=_NUMERICS + "The second operand may have one scale per column (its last axis). "
    "Against onnxruntime 1.31: its fused QLinearMatMul and MatMulIntegerToFloat differ in 0 of "
    "170,000 results each, its float kernel in 3 of 680,000 by 1 LSB, each a midpoint within the "
    "error of its sum.",
)

OPERATORS = (DENSE, GEMM, MATMUL)


# ---- Products that another product stands for: its operands moved, and its result ----------------
# The body of such an operator (:mod:`qdqbridge.core.ops.bodies`) has one product of the table in
# it, a Conv, ConvTranspose, Dense or MatMul, and operators that move values around that::
#
#     def _of_pixels(a: EinsumAttrs, shape: Open) -> Pattern:
#         return ("Conv", "a", ("Unsqueeze", "b", AxesAttrs((2, 3))), POINTWISE)
#
# Moving moves stored integers as well, so that the product is the exact one of its integers. Hosts
# are given the steps, each a node of its own (:func:`qdqbridge.tvm.qnn.emit.graph.expanded`) with
# all that its row has: a call on integers, a layout, a kernel.


def product(
    name: str, body: Body, check: Callable[[Node, Any], Iterator[str]], *,
    attributes: type[AnyAttributes], onnx: tuple[OnnxOp, ...], numerics: str,
    weight: Callable[[Any, int | None], WeightGeometry | None], bias: bool = False,
) -> Row[AnyAttributes]:  # fmt: skip
    """Returns the row of a product that another one stands for.

    Args:
        name: ONNX's name.
        body: The other product with what is moved.
        check: What is wrong with a node.
        attributes: The record of its attributes.
        onnx: How ONNX writes it.
        numerics: The contract in words.
        weight: How its second operand lies, from its attributes and that operand's rank.
        bias: Its third operand is a vector over the channels of its result.
    """
    return Row(
        name=name, flow=Flow.ACCUMULATE, attributes=attributes, compute=computed(body),
        contract=_contract(body), check=check, onnx=onnx, body=body, weight=weight,
        bias=bias,
        numerics=numerics,
    )  # fmt: skip


def is_by_steps(op: Operator) -> bool:
    """Returns whether a product is one that another stands for."""
    return op.body is not None and op.weight is not None


# ---- the exact product -------------------------------------------------------------------------


def _contract(body: Body) -> Contract:
    """Returns the contract of a body: the product's, between moves of stored integers."""

    def contract(
        attributes: Any, operands: Operands, types: Types, results: Types
    ) -> tuple[Array, ...] | None:
        result = results[0]
        if isinstance(result, QuantType) and not result.params.per_tensor:
            return None
        typed = [*zip(operands, types, strict=True), *[(None, None)] * len(LETTERS)]

        def step(
            row: Operator, own: Attributes, values: list[tuple[Array | None, ValueType | None]]
        ) -> tuple[Array | None, ValueType | None]:
            arrays, kinds = [v for v, _ in values], [t for _, t in values]
            if row.flow is Flow.MOVE:
                kind = None if kinds[0] is None else moved_type(row, own, kinds[0])
                found = None if kind is None else row.compute(own, arrays)
                return (None if found is None else found[0]), kind
            unknown = any(kind is None for kind in kinds[:2])
            found = None if unknown or row.contract is None else row.contract(
                own, trimmed(arrays), kinds, results
            )  # fmt: skip
            return (None, None) if found is None else (found[0], result)

        stored = folded(body(attributes, first_shape(operands)), typed, step, no_number)[0]
        return None if stored is None else (stored,)

    return contract


def no_number(value: float) -> Any:
    """Refuses a number in the body of a product."""
    raise GraphError(f"{value} in the body of a product", why="it moves values, and multiplies")


def moved_type(row: Operator, attributes: Attributes, type_: ValueType) -> ValueType | None:
    """Returns the type of a value that is moved.

    Its parameters lie along the axis still that they belong to. None where that is not known.
    """
    shape = _moved_shape(row, attributes, type_.shape)
    if not isinstance(type_, QuantType):
        return TensorType(type_.dtype, shape)
    params = type_.params
    moved = params if params.per_tensor else _moved_params(row, attributes, params, type_.shape)
    return None if moved is None else QuantType(moved, shape)


def _moved_shape(row: Operator, attributes: Attributes, shape: Shape) -> Shape:
    known = static_shape(shape)
    if known is not None:
        return row.compute(attributes, (np.broadcast_to(np.int8(0), known),))[0].shape
    if shape is None:
        return None
    if isinstance(attributes, TransposeAttrs | AxesAttrs):  # extents stay, or are 1
        stand_ins = tuple(2 + axis for axis in range(len(shape)))
        moved = _moved_shape(row, attributes, stand_ins) or ()
        return tuple(1 if size == 1 else shape[stand_ins.index(size)] for size in moved)
    found = result_shape(row.name, attributes, [shape], None)
    dims = [] if found is None else [dim for dim in found if dim is not None]
    return tuple(dims) if found is not None and len(dims) == len(found) else None


def _moved_params(
    row: Operator, attributes: Attributes, params: QuantParams, shape: Shape
) -> QuantParams | None:
    """Returns parameters along an axis, which is looked for where it has gone."""
    known = static_shape(shape)
    if isinstance(attributes, TransposeAttrs):
        return permuted_params(params, attributes.perm)
    if known is None or params.blocked or params.axis is None:
        return None
    count = known[params.axis]
    along = laid_along(np.arange(count), params.axis, len(known))
    moved = row.compute(attributes, (np.broadcast_to(along, known),))[0]
    if not moved.size:
        return None
    for axis in range(moved.ndim):
        one = moved[tuple(slice(None) if i == axis else slice(1) for i in range(moved.ndim))]
        if one.size == count and np.array_equal(np.broadcast_to(one, moved.shape), moved):
            return params.with_axis(axis)
    return None


# ---- What files say of packed weights beyond the operators that these are read as: variants ------


_NAME = "MatMulNBits"
OWN_ORDER, PERMUTED = "own", "permuted"
EIGHT_BITS = 4
"""The accuracy_level that wants activations of 8 bits; the others are float32."""
_PAIRS, _BLOCKS_OF_PAIRS = 2, (32, 64, 128)
"""Codes of 2 bits, and their blocks that onnxruntime 1.32 multiplies in 8 bits."""


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """How a file writes a product with a packed weight.

    Attributes:
        accuracy_level: The attribute, None where the file leaves it out.
        zero_points: ``packed``, ``float``, or empty where the file leaves them out.
        order: It has a ``g_idx``: ``own``, which gives columns the blocks that they have anyway, or
            ``permuted``, where a Gather puts activations into the order of the blocks.
        bias: It adds a bias itself.
        block_size: How many neighbours of a row share a scale; 0 where that is not known.
    """

    accuracy_level: int | None = None
    zero_points: str = ""
    order: str = ""
    bias: bool = False
    block_size: int = 0

    def rounds(self, bits: int) -> bool:
        """True where onnxruntime 1.32 rounds the activations to 8 bits.

        Args:
            bits: Bits of a code of the weight.
        """
        rounding = (
            self.accuracy_level == EIGHT_BITS and self.zero_points != "float" and not self.order
        )
        return rounding and (bits != _PAIRS or self.block_size in _BLOCKS_OF_PAIRS)

    def text(self) -> str:
        """Returns the variant of a graph node."""
        flags = [self.zero_points, self.order, "bias" if self.bias else ""]
        level = "" if self.accuracy_level is None else str(self.accuracy_level)
        size = str(self.block_size) if self.block_size else ""
        return f"{_NAME}({','.join([level, *flags, size])})"


def packed_product(variant: str) -> PackedProduct | None:
    """Returns what the variant of a graph node says of a MatMulNBits; None where it is none."""
    if not variant.startswith(f"{_NAME}("):
        return None
    level, zero_points, order, bias, size = variant[len(_NAME) + 1 : -1].split(",")
    return PackedProduct(
        int(level) if level else None, zero_points, order, bool(bias), int(size or 0)
    )


_GATHER = "GatherBlockQuantized"


@dataclass(frozen=True, slots=True)
class PackedGather:
    """How a file writes a Gather of a packed table.

    Attributes:
        storage: ``uint8``, whose bytes hold codes, or the type of the codes.
        zero_points: It states them.
        axis: Along which axis codes are in blocks.
        block_size: How many neighbours share a scale.
    """

    storage: str
    zero_points: bool
    axis: int
    block_size: int

    def text(self) -> str:
        """Returns the variant of a graph node."""
        zeros = "zeros" if self.zero_points else ""
        return f"{_GATHER}({self.storage},{zeros},{self.axis},{self.block_size})"


def packed_gather(variant: str) -> PackedGather | None:
    """Returns what the variant of a graph node says of a GatherBlockQuantized, if it was one."""
    if not variant.startswith(f"{_GATHER}("):
        return None
    storage, zeros, axis, size = variant[len(_GATHER) + 1 : -1].split(",")
    return PackedGather(storage, bool(zeros), int(axis), int(size))
