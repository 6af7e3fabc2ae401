"""qnn.conv*, qnn.dense and qnn.batch_matmul, with the bias and the rounding that follow them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import read_attributes
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, weight_geometry
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.types import QuantParams, QuantType, Shape, TensorType, ValueType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    ConvAttrs,
    GemmAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.conversion import REINTERPRET
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.dynamic import (
    DYNAMIC_BLOCK_DENSE,
    DYNAMIC_CONV,
    DYNAMIC_DENSE,
    BlockAttrs,
    DynamicAttrs,
)
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.rewrite import Reject, Rule
from qdqbridge.errors import InvalidModelError
from qdqbridge.tvm.qnn.ranges import DYNAMIC_PRODUCT, PRODUCT, REQUANTIZE
from qdqbridge.tvm.qnn.read import parameters
from qdqbridge.tvm.qnn.read.call import Call, UnroundedProduct, unrounded
from qdqbridge.tvm.qnn.read.parameters import (
    channels_first,
    laid_out,
    transposed,
    weight_first,
)
from qdqbridge.tvm.qnn.read.products import fused_product, product_of_stacks, vector
from qdqbridge.tvm.qnn.read.reading import Reading, Row, call_rule

_CLOSE = 1e-6
"""The relative difference that passes between a product of scales and what a call says."""


def convolution(rank: int, *, transpose: bool) -> Row:
    """Returns the row of ``qnn.conv<rank>d`` or its transpose."""

    def read(reading: Reading, call: Call) -> Value:
        x = _data(reading, call)
        x, back = channels_first(reading, x, str(call.get("data_layout") or ""), rank)
        layout = str(call.get("kernel_layout") or "")
        kernel, axis = weight_first(reading, call, x, layout, rank, transpose=transpose)
        w = parameters.operand(reading, kernel, PRODUCT.operands[1], axis=axis)
        op = CONV_TRANSPOSE if transpose else CONV
        shown = read_attributes(op.attributes, call.attrs, rank + 2, rank)
        return unrounded(_accumulator(call, op, op.attributes(**shown), x, w, back=back))

    return read


def dense(reading: Reading, call: Call) -> Value:
    """``qnn.dense``: a weight of shape (units, K)."""
    x = _data(reading, call)
    w = parameters.operand(reading, call, PRODUCT.operands[1], axis=0)
    product = _as_gemm(reading, _accumulator(call, DENSE, NO_ATTRIBUTES, x, w))
    # Dense is the form of a constant matrix, and of rows.
    if product.op is DENSE and (w.constant is None or x.rank == 1):
        product = _accumulator(call, MATMUL, NO_ATTRIBUTES, x, _swapped(reading, w))
    return unrounded(product)


def dynamic_dense(reading: Reading, call: Call) -> Value:
    """``qnn.dynamic_dense``, whose data are floats."""
    w = parameters.operand(reading, call, DYNAMIC_PRODUCT.operands[0], axis=0)
    operands = [reading.value(call.args[0]), w]
    attributes = DynamicAttrs(bool(call.get("rows", False)))
    type_ = TensorType(call.dtype, call.result.shape)
    return reading.node(DYNAMIC_DENSE, attributes, operands, type_, call)


def dynamic_convolution(rank: int) -> Row:
    """Returns the row of ``qnn.dynamic_conv<rank>d``, whose data are floats."""

    def read(reading: Reading, call: Call) -> Value:
        x = reading.value(call.args[0])
        x, back = channels_first(reading, x, str(call.get("data_layout") or ""), rank)
        layout = str(call.get("kernel_layout") or "")
        kernel, axis = weight_first(reading, call, x, layout, rank, transpose=False)
        w = parameters.operand(reading, kernel, DYNAMIC_PRODUCT.operands[0], axis=axis)
        shown = read_attributes(ConvAttrs, call.attrs, rank + 2, rank)
        shape = call.result.shape
        if back is not None and shape is not None:
            shape = tuple(shape[back.index(axis)] for axis in range(rank + 2))
        type_ = TensorType(call.dtype, shape)
        y = reading.node(DYNAMIC_CONV, ConvAttrs(**shown), [x, w], type_, call)
        return y if back is None else transposed(reading, y, back)

    return read


def dynamic_block_dense(reading: Reading, call: Call) -> Value:
    """``qnn.dynamic_block_dense``, whose data are floats."""
    attributes, argument = BlockAttrs(call.integer("block_size", 0)), DYNAMIC_PRODUCT.operands[0]
    w = parameters.operand(reading, call, argument, axis=0, block=attributes.block_size)
    operands = [reading.value(call.args[0]), w]
    type_ = TensorType(call.dtype, call.result.shape)
    return reading.node(DYNAMIC_BLOCK_DENSE, attributes, operands, type_, call)


def batch_matmul(reading: Reading, call: Call) -> Value:
    """``qnn.batch_matmul``, in which Relay's second operand lies transposed."""
    trans_a = bool(call.get("transpose_a", False))
    trans_b = bool(call.get("transpose_b", True))
    x = _data(reading, call)
    w = parameters.operand(reading, call, PRODUCT.operands[1], axis=-2 if trans_b else -1)
    provenance = call.provenance
    if (
        provenance is not None
        and isinstance(provenance.attributes, GemmAttrs)
        and x.rank == w.rank == 2
    ):
        given = provenance.attributes
        # Else something has moved the operands since, and the span says another product.
        if (given.trans_a, given.trans_b) == (trans_a, trans_b):
            return unrounded(_accumulator(call, GEMM, given, x, w))
    x = _swapped(reading, x) if trans_a else x
    w = _swapped(reading, w) if trans_b else w
    return unrounded(_accumulator(call, MATMUL, NO_ATTRIBUTES, x, w))


def _data(reading: Reading, call: Call) -> Value:
    value = parameters.operand(reading, call, PRODUCT.operands[0])
    if value.quant is None:
        raise reading.refused(f"its data has type {value.type.dtype}")
    return value


def _swapped(reading: Reading, value: Value) -> Value:
    rank = value.rank or 0
    return transposed(reading, value, (*range(rank - 2), rank - 1, rank - 2))


def _accumulator(
    call: Call, op: Any, attributes: Any, x: Value, w: Value, *,
    back: tuple[int, ...] | None = None,
) -> UnroundedProduct:  # fmt: skip
    if x.quant is None or w.quant is None:
        raise InvalidModelError(
            f"{call.op} of operands that are not quantized",
            where=f"{call.where}, '{call.name}'",
            why=f"they are {x.type.dtype} and {w.type.dtype}",
            fix="give scales and zero points that fit the operands",
        )
    sizes = {s for s in (x.quant.params.scale.size, w.quant.params.scale.size) if s != 1}
    if len(sizes) > 1:
        raise InvalidModelError(
            f"{call.op} of operands with {' and '.join(map(str, sorted(sizes)))} scales",
            where=f"{call.where}, '{call.name}'",
            why="one operand has a scale of its own per channel at most, or both equally many",
            fix="give scales and zero points that fit the operands",
        )
    alpha = np.float32(attributes.alpha if isinstance(attributes, GemmAttrs) else 1)
    left = np.asarray(alpha * x.quant.params.scale.astype(np.float32), np.float32)
    # In float32 and in this order, as the contract multiplies them; alpha belongs to the first
    # factor.
    scale = np.asarray(left * w.quant.params.scale.astype(np.float32), np.float32)
    geometry = weight_geometry(op, attributes, w.rank)
    scale = scale if geometry is None else geometry.spread(scale)
    return UnroundedProduct(
        op, attributes, x, w, scale, call.result, back=back, provenance=call.provenance
    )


def _as_gemm(reading: Reading, product: UnroundedProduct) -> UnroundedProduct:
    """Returns a product as the Gemm or MatMul that its span records, where that is the same."""
    provenance = product.provenance
    if (
        provenance is None
        or product.op is not DENSE
        or not isinstance(provenance.attributes, GemmAttrs)
    ):
        return product
    given, x = provenance.attributes, product.x
    if given.trans_a:
        source = _before(reading, x, TransposeAttrs)
        if source is None:
            return product
        x = source
    w = product.w if given.trans_b else _turned_back(reading, product.w)
    left = np.asarray(np.float32(given.alpha) * product.params[0].scale.astype(np.float32))
    scale = np.asarray(left * product.params[1].scale.astype(np.float32), np.float32)
    return replace(product, op=GEMM, attributes=given, x=x, w=w, scale=scale)


def _turned_back(reading: Reading, w: Value) -> Value:
    """Returns a matrix transposed: what was transposed before it was one of codes, if it was."""
    params = None if w.quant is None else w.quant.params
    # Its codes got a type behind the transposition; in front of it, scales lie along the other
    # axis.
    if w.constant is None and params is not None and params.axis is not None:
        source = _before(reading, w, TransposeAttrs, replace(params, axis=1 - params.axis))
        if source is not None:
            return source
    return _swapped(reading, w)


def _before(
    reading: Reading, value: Value, kind: type[Attributes], params: QuantParams | None = None
) -> Value | None:
    """Returns the operand of data movement behind a quantized value.

    Its quantization is the same, or the one that is given.
    """
    node = value.producer
    if node is not None and node.op is REINTERPRET:
        node = node.operand(0).producer
    if node is None or not isinstance(node.attributes, kind) or value.quant is None:
        return None
    return reading.stored(node.operand(0), params or value.quant.params)


# ---- bias --------------------------------------------------------------------------------------

PRODUCT_BEHIND = Part("product", ("unrounded", "x", "w"))
"""The result of a product that no call has rounded."""


def product_in(match: PatternMatch) -> UnroundedProduct:
    """Returns the product that a pattern has found."""
    return match.node("product").record(UnroundedProduct)


_SUM = AnyOf((("add", PRODUCT_BEHIND, "bias"), ("add", "bias", PRODUCT_BEHIND)))


@call_rule("product-with-added-bias", _SUM)
def product_with_added_bias(reading: Reading, call: Call, match: PatternMatch) -> Value:
    """``add(product(x, w), bias) -> product(x, w, bias)``: the last axis is that of the bias."""
    del call
    return _with_bias(reading, product_in(match), reading.value(match["bias"]), -1)


@call_rule("product-with-channel-bias", ("nn.bias_add", PRODUCT_BEHIND, "bias"))
def product_with_bias(reading: Reading, call: Call, match: PatternMatch) -> Value:
    """``nn.bias_add(product(x, w), bias) -> product(x, w, bias)``."""
    rank = len(call.result.shape or ())
    axis = call.integer("axis", 1) % max(rank, 1)
    return _with_bias(reading, product_in(match), reading.value(match["bias"]), axis)


def _with_bias(reading: Reading, product: UnroundedProduct, bias: Value, axis: int) -> Value:
    """Returns a product to which a constant of integers has been added along ``axis`` onwards."""
    if bias.constant is None or not bias.type.dtype.is_integer:
        raise reading.refused("what is added to the int32 result of a product is not constant")
    array = bias.constant.numpy().astype(np.int64)
    if array.ndim == 1 and axis >= 0:
        rank = len(product.result.shape or ())
        array = array.reshape(-1, *([1] * (rank - 1 - axis)))
    # In int64: several additions may stand in a row.
    total = array if product.bias is None else product.bias + array
    return unrounded(replace(product, bias=total))


@call_rule("product-of-vectors", ("squeeze", PRODUCT_BEHIND))
def product_of_vectors(reading: Reading, call: Call, match: PatternMatch) -> Value:
    """``squeeze(product(unsqueeze(x), w)) -> product(x, w)``: vectors were rows or columns."""
    product = product_in(match)
    axes = {axis % len(product.result.shape or ()) for axis in call.ints("axis")}
    rank = len(product.result.shape or ())
    x, w = product.x, product.w
    for axis, side in ((rank - 2, 0), (rank - 1, 1)):
        if axis not in axes:
            continue
        source = _before(reading, (x, w)[side], AxesAttrs) or vector((x, w)[side])
        if source is None:
            raise reading.refused("axes of an int32 product are dropped")
        x, w = (source, w) if side == 0 else (x, source)
    return unrounded(replace(product, x=x, w=w, result=call.result))


@call_rule("product-of-other-integers", ("cast", PRODUCT_BEHIND))
def product_cast(reading: Reading, call: Call, match: PatternMatch) -> Value | Reject:
    """``cast(product(x, w)) -> product(x, w)`` to integers, which are as wide as the sums."""
    del reading
    return match["product"] if call.dtype.is_integer else Reject("it has no counterpart")


def _accumulator_bias(product: UnroundedProduct) -> Value | None:
    if product.bias is None:
        return None
    array: NDArray[Any] = product.bias
    if product.op is not GEMM or array.size == array.shape[-1]:
        channels = product.result.shape
        if product.op in (CONV, CONV_TRANSPOSE) or (
            channels is not None and array.size == channels[-1]
        ):
            array = array.reshape(-1)
    largest = np.abs(array).max(initial=0)
    # A bias beyond int32 is legal in a module, where it was the sum of two.
    storage = DType.INT32 if largest < 1 << 31 else DType.INT64
    axis = (array.ndim - 1) if product.scale.ndim else None
    params = QuantParams(storage, product.scale, np.zeros(product.scale.shape, np.int32), axis=axis)
    data = Constant.of(np.ascontiguousarray(array.astype(storage.numpy)))
    return Value(QuantType(params, data.shape), "", constant=data)


# ---- rounding ----------------------------------------------------------------------------------


@call_rule("product-rounded", ("qnn.requantize", PRODUCT_BEHIND, "s?", "z?", "t?", "u?"))
def product_rounded(reading: Reading, call: Call, match: PatternMatch) -> Value:
    """``qnn.requantize(product(x, w)) -> Conv(x, w)`` or another product, its result quantized."""
    return rounded_product(reading, call, product_in(match))


def rounded_product(reading: Reading, call: Call, product: UnroundedProduct) -> Value:
    """Returns a product that a ``qnn.requantize`` rounds."""
    params = parameters.result(reading, call, REQUANTIZE)
    product = _scaled(reading, product, call)
    return _node(reading, product, call, lambda shape: QuantType(params, shape))


@call_rule("product-dequantized", (("qnn.dequantize", "dequantize"), PRODUCT_BEHIND, "s?", "z?"))
def product_dequantized(reading: Reading, call: Call, match: PatternMatch) -> Value:
    """``qnn.dequantize(product(x, w)) -> Conv(x, w)`` or another product, its result real."""
    product = _scaled(reading, product_in(match), call)
    return _node(reading, product, call, lambda shape: TensorType(call.dtype, shape))


def _scaled(reading: Reading, product: UnroundedProduct, call: Call) -> UnroundedProduct:
    """Returns a product with the scale that a call gives it."""
    given = parameters.array(reading, call.args[1], "scale").astype(np.float32).reshape(-1)
    if parameters.array(reading, call.args[2], "zero point").any():
        raise reading.refused("the int32 result of a product has a zero point")
    own = product.scale.reshape(-1)
    if given.size in (1, own.size) or own.size == 1:
        wide = own.astype(np.float64)  # a Gemm's alpha of 0 makes it 0
        # Importers multiply the scales in float64 or in another order: the last bits are no other
        # scale.
        if (np.abs(given - wide) <= _CLOSE * np.abs(wide)).all():
            return product
    if own.size > 1 and given.size != own.size:
        raise reading.refused(
            f"its {given.size} scale(s) are not the product of its operands', which are {own.size}"
        )
    x, w = product.params
    # The call gives the product a scale of its own. The activation's is known from elsewhere, so
    # that the weight gets the quotient.
    scale = np.asarray(given.astype(np.float64) / x.scale.astype(np.float64), np.float32)
    if product.op is CONV_TRANSPOSE and given.size > 1:
        raise reading.refused("the scale of its result is not the product of its operands'")
    geometry = weight_geometry(product.op, product.attributes, product.w.rank)
    axis = None if scale.size == 1 or geometry is None else geometry.axis
    shaped = scale.reshape(()) if axis is None else scale
    zero = w.zero_point.reshape(-1)[0] if w.per_tensor else w.zero_point
    rescaled = QuantParams(w.storage_dtype, shaped, np.broadcast_to(zero, shaped.shape), axis=axis)
    weight = reading.stored(reading.plain(_integers(product.w)), rescaled)
    reading.memory["rescaled", weight] = product.w
    return replace(product, w=weight, scale=np.asarray(given, np.float32).reshape(shaped.shape))


def _integers(value: Value) -> Value:
    if value.constant is None:
        return value
    return Value(
        TensorType(value.type.dtype, value.type.shape), value.name, constant=value.constant
    )


def _node(
    reading: Reading, product: UnroundedProduct, call: Call, type_of: Callable[[Shape], ValueType]
) -> Value:
    operands = [product.x, product.w]
    bias = _accumulator_bias(product)
    operands += [] if bias is None else [bias]
    shape = call.result.shape
    if product.back is None:
        value = reading.node(product.op, product.attributes, operands, type_of(shape), call)
        stacked = (
            product.op is MATMUL
            and product.provenance is not None
            and product.provenance.op == "MatMul"
        )
        return (fused_product(reading, call, value) if stacked else None) or value
    return laid_out(
        reading, type_of(shape), product.back,
        lambda inner: reading.node(product.op, product.attributes, operands, inner, call),
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    product_with_added_bias,
    product_with_bias,
    product_of_vectors,
    product_cast,
    product_rounded,
    product_dequantized,
    product_of_stacks,
)
