"""Rules that give float products one form: what is added to them per channel is their bias.

onnxruntime's float kernels round a bias inside a product differently from one behind it, so the
origin remembers what the file had, and writers write that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.reshapes import reshape_between
from qdqbridge.core.canonical.storage import mirror
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Note, Origin, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.types import Dim, TensorType
from qdqbridge.core.ops.attributes import GemmAttrs, ReshapeAttrs, TransposeAttrs
from qdqbridge.core.ops.build import constant, dequantized, result
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    made_by,
    pattern_rule,
    replaced,
    rule,
    stored_behind,
)

ROWS = GemmAttrs(trans_b=True)
"""The attributes of a float product whose weight has one row per unit."""


def added_origin(product: Node, add: Node) -> Origin:
    """Returns the origin of a product that has taken in an Add behind it."""
    origin = product.origin.joined(add.origin)
    if not product.origin.variant or product.origin.with_add:
        return origin
    return replace(origin, variant=product.origin.variant, with_add=True)


@pattern_rule(
    "convolution-bias",
    ("Add", Part("product", (("Conv", "ConvTranspose"), "x", "w"), sole=True), "column"),
)
def convolution_bias(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(Conv(x, w), column) -> Conv(x, w, vector)`` for a float result of Conv.

    Importers write a bias so: reshaped to one element per channel.
    """
    del context
    conv = match.node("product")
    if conv.output.quant is not None or _integer(conv):
        return None
    vector = _channel_addend(conv, match["column"])
    return None if vector is None else with_added_bias(conv, node, vector)


def _integer(conv: Node) -> bool:
    """True for a product of integers, whose bias has a rule of its own."""
    return conv.operand(0).quant is not None and conv.operand(1).quant is not None


def with_added_bias(product: Node, add: Node, bias: Value) -> Replace:
    """Proposes a product with the bias that an Add behind it adds."""
    operands, origin = [*product.inputs[:2], bias], added_origin(product, add)
    return replaced(add, product.op, product.attributes, operands, origin)


def _channel_addend(conv: Node, addend: Value) -> Value | None:
    """Returns the vector behind an addend (1, C, 1, …), None where it is something else."""
    shape, out = addend.type.shape, conv.output.type.shape
    if shape is None or out is None or len(out) < 3:
        return None
    wanted = (out[1], *([1] * (len(out) - 2)))
    # Only one number per channel, at the channels' axis, is a bias; (C,) alone broadcasts along the
    # width.
    if shape not in (wanted, (1, *wanted)) or not isinstance(out[1], int):
        return None
    reshape = made_by(addend, RESHAPE)
    if reshape is not None and isinstance(reshape.attributes, ReshapeAttrs):
        source = reshape.operand(0)
        known = source.rank == 1 and source.quant is None and not conv.origin.variant
        return source if known else None
    stored = stored_behind(addend) or addend
    if stored.constant is None:
        return None
    flat = stored.constant.map(lambda a: a.reshape(-1), shape=(out[1],))
    params = None if stored.quant is None else stored.quant.params
    if params is None:
        return constant(flat, None, stored.name)
    typed = constant(flat, params.with_axis(None if params.axis is None else 0), stored.name)
    return dequantized(typed, addend.type.dtype, conv.origin)


@rule("product-of-matrices", MATMUL, GEMM)
def product_of_matrices(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(a, w) -> Gemm(a, transpose(w); transB)`` for float matrices and a constant w.

    A Gemm says of itself that it takes matrices: nobody else has to know the rank of a. A vector
    becomes a matrix of one row: ``Reshape(Gemm(Reshape(a), transpose(w); transB))``.
    """
    del context
    a, w, given = node.operand(0), node.operand(1), node.attributes
    if a.rank == 1 and w.rank == 2 and a.quant is None and _is_plain(w):
        return of_one_row(node, a, GEMM, ROWS, _transposed_constant(w))
    matrices = w.rank == 2 and (a.rank == 2 or (a.rank is None and node.op is GEMM))
    if not matrices or a.quant is not None or not _is_plain(w):
        return None
    if isinstance(given, GemmAttrs) and given != GemmAttrs():
        return None
    return replaced(node, GEMM, ROWS, [a, _transposed_constant(w), *node.inputs[2:]])


def of_one_row(node: Node, x: Value, op: Operator, attributes: Attributes, w: Value) -> Proposal:
    """Proposes for the product of a vector that of a matrix of one row with ``w``, row per unit."""
    assert x.type.shape is not None and w.type.shape is not None  # a vector and a matrix
    row = result(RESHAPE, ReshapeAttrs((1, -1)), [x], x.type.with_shape((1, *x.type.shape)))
    type_ = node.output.type.with_shape((1, w.type.shape[0]))
    product = result(op, attributes, [row, w], type_, node.origin)
    return replaced(node, RESHAPE, ReshapeAttrs((-1,)), [product])


def of_one_row_with_bias(product: Node, vector: Node, add: Node, bias: Value | None) -> Proposal:
    """Proposes the product of a vector with the bias that an Add behind it adds."""
    if bias is None or vector.output.rank != 1:
        return None
    operands, type_ = [*product.inputs[:2], bias], product.output.type
    origin = added_origin(product, add)
    row = result(product.op, product.attributes, operands, type_, origin)
    return replaced(add, vector.op, vector.attributes, [row], vector.origin)


def _is_plain(w: Value) -> bool:
    return w.constant is not None and w.quant is None and w.type.dtype.is_float


@rule("bias-is-a-vector", GEMM)
def bias_is_a_vector(node: Node, context: RuleContext) -> Proposal:
    """``Gemm(a, w, row) -> Gemm(a, w, vector)`` for a constant of one row, as sums are folded."""
    del context
    bias, w = node.optional(2), node.operand(1)
    if bias is None or bias.constant is None or bias.quant is not None or w.type.shape is None:
        return None
    units = w.type.shape[0 if node.record(GemmAttrs).trans_b else 1]
    if bias.type.shape != (1, units) or not isinstance(units, int):
        return None
    vector = bias.constant.map(lambda array: array.reshape(-1), shape=(units,))
    operands = [*node.inputs[:2], constant(vector, None, bias.name)]
    return replaced(node, GEMM, node.attributes, operands)


_WITHOUT_BIAS = Part("product", ("Gemm", "x", Part("w", constant=True)), sole=True)
_AS_VECTOR = Part("flat", ("Reshape", _WITHOUT_BIAS), sole=True)


@pattern_rule(
    "product-bias",
    ("Add", AnyOf((_WITHOUT_BIAS, _AS_VECTOR)), Part("vector", constant=True)),
)
def product_bias(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(Gemm(a, w), vector) -> Gemm(a, w, vector)`` for a float product and a constant."""
    del context
    product, w, vector = match.node("product"), match["w"], match["vector"]
    if product.output.quant is not None or product.attributes != ROWS:
        return None
    units, data = w.type.shape[0] if w.type.shape else None, vector.constant
    if not (_is_plain(w) and _is_plain(vector)) or data is None:
        return None
    if data.shape not in ((units,), (1, units)):
        return None
    flat = data.map(lambda array: array.reshape(-1), shape=data.shape[-1:])
    bias = constant(flat, None, vector.name)
    if "flat" in match.values:
        return of_one_row_with_bias(product, match.node("flat"), node, bias)
    return with_added_bias(product, node, bias)


_CONVERSIONS = ("dequantize", "requantize", "quantize")
_ROWS_OF_ALL = Part("rows", (("Reshape", "Flatten"), "x"))
_TAKEN = AnyOf((_ROWS_OF_ALL, Part("converted", (_CONVERSIONS, _ROWS_OF_ALL))))
_PRODUCT = (("Gemm", "Dense"), _TAKEN, Part("w", constant=True), "bias?")
_ROUNDED = Part("rounded", (_CONVERSIONS, Part("product", _PRODUCT, sole=True)))


@pattern_rule(
    "product-of-rows", (("Reshape", "Flatten"), AnyOf((Part("product", _PRODUCT), _ROUNDED)))
)
def product_of_rows(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Reshape(Gemm(Reshape(x), w, bias)) -> Add(MatMul(x, transpose(w)), bias)``; so Dense(x, w).

    The Reshapes make rows of all but the last axis and undo that: optimizers write a product of
    more axes so. Conversions may stand between: they move past a Reshape. Each of the two may have
    taken in a Reshape beside it: what is left then is that one. So may others that read the rows.
    """
    product, x, w = match.node("product"), match["x"], match["w"]
    source, output, origin = product.output, node.output, match.origin()
    given, wanted, size = x.type.shape, output.type.shape, w.type.shape
    last = match.values.get("rounded", source)
    if size is None or given is None or wanted is None or source.rank != 2 or len(given) < 2:
        return None
    # A Reshape with other parameters on both sides is a rounding, which may not get lost.
    if output.type != last.type.with_shape(wanted) or not _same_encoding(x, match["rows"]):
        return None
    others = [reader for reader in context.readers(last) if reader is not node]
    if context.is_output(last) or any(other.op not in (RESHAPE, FLATTEN) for other in others):
        return None
    if others and wanted != (*given[:-1], size[0]):  # which of them undoes the rows?
        return None
    moved = (x, match.values.get("converted"), source, last)
    if any(v is not None and v.quant and not v.quant.params.per_tensor for v in moved):
        return None
    if given[-1] == size[1]:
        shape = (*given[:-1], size[0])
    elif wanted[-1:] == size[:1] and len(wanted) > 2:
        shape = wanted
        x = _reshaped(x, (*wanted[:-1], size[1]))
    else:
        return None
    if x is None:
        return None
    if (taken := match.values.get("converted")) is not None:
        conversion, type_ = match.node("converted"), taken.type.with_shape(x.type.shape)
        x = result(conversion.op, conversion.attributes, [x], type_, conversion.origin)
    value = _of_all_axes(product, x, w, match.values.get("bias"), shape)
    if value is not None and last is not source:
        rounding, type_ = match.node("rounded"), last.type.with_shape(shape)
        value = result(rounding.op, rounding.attributes, [value], type_, rounding.origin)
    if value is not None and shape != wanted:
        value = _reshaped(value, wanted)
    if value is None or value.producer is None:
        return None
    value.name, value.producer.origin = output.name, origin
    rows = _reshaped(value, last.type.shape or ()) if others else None
    if others and rows is None:
        return None
    return Replace({output: value} if rows is None else {output: value, last: rows})


def _reshaped(x: Value, shape: tuple[Dim, ...]) -> Value | None:
    """Returns a value of another shape; None where ONNX has no target for it."""
    type_ = x.type.with_shape(shape)
    target = reshape_between(x, Value(type_))
    return None if target is None else result(RESHAPE, ReshapeAttrs(target), [x], type_)


def _of_all_axes(
    product: Node, x: Value, w: Value, bias: Value | None, shape: tuple[Dim, ...]
) -> Value | None:
    """Returns a product of rows as one of all axes; None where it has no such form."""
    type_, origin = product.output.type.with_shape(shape), product.origin
    # It takes data of any rank; its weight has one row per unit in both.
    if product.op is DENSE:
        return result(DENSE, product.attributes, [x, *product.inputs[1:]], type_, origin)
    if product.attributes != ROWS or not _is_plain(w) or x.quant is not None:
        return None
    if product.output.quant is not None:
        return None
    if bias is not None and (bias.constant is None or bias.rank != 1):
        return None
    value = result(MATMUL, NO_ATTRIBUTES, [x, _transposed_constant(w)], type_, origin)
    return value if bias is None else result(ADD, NO_ATTRIBUTES, [value, bias], type_, origin)


def _transposed_constant(w: Value) -> Value:
    assert w.constant is not None  # the caller says so
    data = w.constant.transposed()
    return Value(TensorType(data.dtype, data.shape), w.name, constant=data)


def _same_encoding(a: Value, b: Value) -> bool:
    return (a.quant and a.quant.params) == (b.quant and b.quant.params)


# ---- dense ---------------------------------------------------------------------------------------
# Rules that give every product with a constant matrix one form: ``Dense(x, w[N, K], bias)``.


@rule("matmul-is-dense", MATMUL)
def matmul_is_dense(node: Node, context: RuleContext) -> Proposal:
    """``MatMul(x, w) -> Dense(x, transpose(w))`` for a quantized constant matrix w.

    A vector becomes a matrix of one row: ``Reshape(Dense(Reshape(x), transpose(w)))``.
    """
    del context
    x, w = node.operand(0), node.operand(1)
    if w.constant is None or w.quant is None or w.rank != 2 or not x.rank:
        return None
    if x.rank > 1:
        return _replace_by_dense(node, transposed(w), None)
    return of_one_row(node, x, DENSE, NO_ATTRIBUTES, transposed(w))


@rule("gemm-is-dense", GEMM)
def gemm_is_dense(node: Node, context: RuleContext) -> Proposal:
    """``Gemm(x, w, c) -> Dense(x, w, c)`` for a quantized constant w and a bias per column.

    A transposed x becomes a Transpose, an alpha that is a power of two part of w's scales: both
    change no bit of the product.
    """
    del context
    attributes, w, bias = node.attributes, node.operand(1), node.optional(2)
    if not isinstance(attributes, GemmAttrs) or w.constant is None or w.quant is None:
        return None
    weight = _times(w, attributes.alpha)
    if weight is None:
        return Reject(
            f"Gemm with alpha {attributes.alpha:.6g} keeps its form: no exact part of the scales"
        )
    weight = weight if attributes.trans_b else transposed(weight)
    if bias is not None:
        bias = _dense_bias(bias, attributes.beta, weight)
        if isinstance(bias, Reject):
            return bias
    return _replace_by_dense(
        node, weight, bias, _transpose_gemm_a(node) if attributes.trans_a else None
    )


@pattern_rule(
    "parts-of-one-product",
    (
        "Add",
        Part("product", ("Dense", "x", Part("w", constant=True), "bias?"), sole=True),
        Part("rest", ("Dense", "x", Part("v", constant=True)), sole=True),
    ),
)
def parts_of_one_product(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Add(Dense(x, w, bias), Dense(x, v)) -> Dense(x, w + v, bias)``, floats, of two parts.

    Each has zeros where the other one has weights, and their scales are the same: so ``quantize``
    writes a product for onnxruntime on x86 without VNNI. Sums of integers stay the same; a float
    is rounded once and not three times, so that this is no part of the canonical form.
    """
    del context
    x, w, v, product = match["x"], match["w"], match["v"], match.node("product")
    values = (product.output, match["rest"], node.output)
    if x.quant is None or w.quant is None or v.quant is None or any(y.quant for y in values):
        return None
    if w.quant.params != v.quant.params or w.quant.params.zero_point.any():
        return None
    assert w.constant is not None and v.constant is not None
    first: NDArray[Any] = w.constant.numpy()
    second: NDArray[Any] = v.constant.numpy()
    if first.shape != second.shape or np.any((first != 0) & (second != 0)):
        return None
    whole = constant(Constant.of(np.add(first, second)), w.quant.params, w.name)
    operands = [x, whole, *product.inputs[2:]]
    value = result(
        DENSE, NO_ATTRIBUTES, operands, node.output.type, match.origin(), node.output.name
    )
    text = "two parts of it are one product again, whose sum is rounded to float once"
    return Replace({node.output: value}, (Note("parts-of-one-product", product.name, text),))


def _times(w: Value, alpha: float) -> Value | None:
    """Returns a weight with its scales multiplied by a power of two, None for any other factor."""
    assert w.constant is not None and w.quant is not None
    params = w.quant.params
    if alpha == 1.0:
        return w
    # A power of two changes the exponent of a scale alone; every other factor would round it.
    if math.frexp(abs(alpha))[0] != 0.5 or params.scale_dtype is not params.expressed_dtype:
        return None
    with np.errstate(over="ignore", under="ignore"):
        wide = params.scale.astype(np.float64) * alpha
        scale = wide.astype(params.scale.dtype)
    # Subnormal scales lose digits, and kernels may take them for 0.
    tiny = float(np.finfo(np.float32).tiny)
    if (scale.astype(np.float64) != wide).any() or (np.abs(wide) < tiny).any():
        return None
    # A negative factor would make scales negative: the integers get the sign.
    found = mirror(w.constant, replace(params, scale=scale))
    return None if found is None else constant(*found, w.name)


def _transpose_gemm_a(node: Node) -> Value:
    """Returns the transposed first operand."""
    x = node.operand(0)
    shape = None if x.type.shape is None else x.type.shape[::-1]
    type_ = x.type.with_shape(shape)
    return result(TRANSPOSE, TransposeAttrs((1, 0)), [x], type_, node.origin)


def _replace_by_dense(
    node: Node, weight: Value, bias: Value | None, x: Value | None = None
) -> Proposal:
    operands = [x or node.operand(0), weight] + ([bias] if bias is not None else [])
    value = result(DENSE, NO_ATTRIBUTES, operands, node.output.type, node.origin, node.output.name)
    return Replace({node.output: value})


def transposed(w: Value) -> Value:
    """Returns a constant matrix with its axes swapped: a view, and its parameters moved along."""
    assert w.constant is not None and w.quant is not None
    params = w.quant.params
    if params.blocked:
        params = replace(
            params,
            scale=params.scale.T,
            zero_point=params.zero_point.T,
            axis=None if params.axis is None else 1 - params.axis,
        )
    elif params.axis is not None:
        params = params.with_axis(1 - params.axis)
    return constant(w.constant.transposed(), params, w.name)


def _dense_bias(bias: Value, beta: float, weight: Value) -> Value | Reject:
    stored = stored_behind(bias) or bias
    units = weight.constant.shape[0] if weight.constant is not None else 0
    if stored.constant is None:
        return Reject("its bias is not constant", (bias.name,))
    if stored.constant.size != units:
        if stored.constant.size != 1:
            return Reject(f"its bias has shape {stored.constant.shape}", (bias.name,))
        return _real_bias(stored, beta, units)
    if stored.constant.shape not in ((units,), (1, units)):
        return Reject(f"its bias has shape {stored.constant.shape}", (bias.name,))
    if beta != 1.0:
        return _real_bias(stored, beta, units)
    params = None if stored.quant is None else stored.quant.params
    if params is not None and params.axis is not None:
        params = params.with_axis(0)
    data = stored.constant.map(lambda a: a.reshape(units), shape=(units,))
    return constant(data, params, stored.name)


def _real_bias(stored: Value, beta: float, units: int) -> Value:
    assert stored.constant is not None
    data: NDArray[Any] = stored.constant.numpy()
    real = data if stored.quant is None else dequantize(data, stored.quant.params)
    # As float numbers: a bias of int32 times beta need be no integer.
    scaled = (real.astype(np.float32) * np.float32(beta)).reshape(-1)
    vector = np.ascontiguousarray(np.broadcast_to(scaled, (units,)))
    return constant(Constant.of(vector), None, stored.name)
