"""How graphs are put for Qualcomm's Hexagon: what its backend takes, and computes right.

Measured on the host build of the backend (onnxruntime-qnn 2.7.0 on onnxruntime 1.32); each
legalization keeps a rule of :mod:`.rules`, whose page has the figures.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qdqbridge.core.canonical.linear import parts_of_one_product
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.types import QuantParams, per_tensor, static_shape
from qdqbridge.core.ops.attributes import ReshapeAttrs
from qdqbridge.core.ops.build import constant, quantized, requantized, result
from qdqbridge.core.ops.conversion import DEQUANTIZE, REQUANTIZE
from qdqbridge.core.ops.data_movement import FLATTEN, RESHAPE, SQUEEZE, TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, CONCAT, DIV, MUL, WHERE
from qdqbridge.core.ops.matmul import DENSE, MATMUL
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.ops.selection import PAD
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import (
    Proposal,
    Replace,
    RuleContext,
    converted_interface,
    pattern_rule,
    replaced,
    rule,
)
from qdqbridge.targets.profiles.hexagon.floats import (
    exact_norms,
    norms_of_channels,
    norms_of_one_scale,
    quantized_norms,
    wide_norms,
)
from qdqbridge.targets.profiles.hexagon.products import (
    channels_of_blocks,
    float_products,
    half_biases,
    kept_factors,
    stretched_weights,
    weights_in_digits,
    whole_bytes,
    wide_products,
)
from qdqbridge.targets.profiles.hexagon.units import IMAGES, MOST_AXES, ROWS_ONLY, kept_clamps
from qdqbridge.targets.profiles.legalization import (
    enters,
    erfs_in_steps,
    is_attention_score,
    one_width,
    result_encodings,
    whole_gelus,
    wide_operands,
)


@rule("one-channel-as-the-result", CONCAT)
def one_channel_inputs(node: Node, context: RuleContext) -> Proposal:
    """``Concat(x, y) -> Concat(requantize(x), y)``: an input of one channel as the result is."""
    del context
    target = node.output.quant
    if target is None or not target.params.per_tensor:
        return None
    operands: dict[tuple[Node, int], Value] = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.quant is None or not enters(value):
            continue
        alone = (value.type.shape or ())[1:2] == (1,)
        if alone and not value.quant.params.same_mapping(target.params):
            name = f"{value.name}_for_{node.output.name}"
            operands[node, index] = requantized(value, target.params.widened(), name=name)
    return Replace(operands=operands) if operands else None


@rule("divisor-as-a-one", DIV)
def divisors(node: Node, context: RuleContext) -> Proposal:
    """``Div(x, c) -> Div(x, 1 * c)``: a float divisor as the integer 1 in units of itself.

    Where there is no integer around it is ``Mul(x, 1 / c)``: the backend cannot finalize a Div, Sub
    or Exp of floats in front of a product, if no product stands before.
    """
    del context
    divisor, source, quant = node.operand(1), node.operand(0).quant, node.output.quant
    if divisor.constant is None or divisor.constant.size != 1 or not _plain_floats(divisor):
        return None
    array = divisor.constant.numpy()
    number = float(np.asarray(array, np.float64).item())
    if not 0 < number < np.inf:
        return None
    if array.dtype == np.float32 and source is not None and quant is not None:
        wide = source.params.storage_dtype.bits > _BYTE
        dtype = DType.UINT16 if wide else DType.UINT8
        one = np.ones(array.shape, dtype.numpy)
        params = per_tensor(dtype, np.float32(number))
        return Replace(operands={(node, 1): constant(one, params, divisor.name)})
    if quant is not None and not is_attention_score(node):
        return None
    factor = np.asarray(1 / np.asarray(array, np.float64)).astype(array.dtype)
    value = constant(factor, None, f"{divisor.name}_reciprocal")
    text = f"x / {number:g} is x * {factor.item():g}"
    costs = () if np.frexp(number)[0] == _POWER else (Note("quantized-divisor", node.name, text),)
    return replaced(node, MUL, NO_ATTRIBUTES, [node.operand(0), value], notes=costs)


_BYTE, _POWER = 8, 0.5


@rule("constant-of-its-own")
def constants_apart(node: Node, context: RuleContext) -> Proposal:
    """Constants that share their data, with other parameters, get data of their own."""
    shared, copies = context.fact(_constants_of_shared_data), dict[Value, Value]()
    for value in node.inputs:
        if value is not None and value in shared and value.constant is not None:
            data = value.constant.map(np.copy)
            copies[value] = Value(value.type, value.name, constant=data)
            copies[value].written = value.written
    return Replace(copies) if copies else None


def _constants_of_shared_data(graph: Graph) -> set[Value]:
    """Returns the constants whose data an earlier one has, with other parameters."""
    known, found = dict[tuple[object, ...], QuantParams](), set[Value]()
    for value in graph.values():
        if value.constant is None or value.quant is None:
            continue
        array, params = value.constant.numpy(), value.quant.params
        place = (array.__array_interface__["data"][0], array.strides, array.shape, array.dtype)
        first = known.setdefault(place, params)
        if first is not params and not first.same_mapping(params):
            found.add(value)
    return found


@pattern_rule("square-of-floats", ("Pow", "x", Part("exponent", constant=True)))
def squares(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Pow(x, 2) -> Mul(x, x)`` of floats."""
    del context
    x, exponent = match["x"], match["exponent"]
    if any(value.quant is not None for value in (x, exponent, node.output)):
        return None
    assert exponent.constant is not None
    if x.type.shape != node.output.type.shape or (exponent.constant.numpy() != _SQUARE).any():
        return None
    return replaced(node, MUL, NO_ATTRIBUTES, [x, x])


_SQUARE = 2


@pattern_rule("difference-of-floats", ("Sub", "x", "y"))
def differences(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Sub(x, y) -> Add(x, -y)`` of floats: the same numbers."""
    del context
    x, y = match["x"], match["y"]
    if any(value.quant is not None for value in (x, y, node.output)) or not y.type.dtype.is_float:
        return None
    if y.constant is not None:
        negative = constant(np.negative(y.constant.numpy()), None, f"{y.name}_negative")
    else:
        minus = constant(np.asarray(-1, y.type.dtype.numpy), None, f"{y.name}_minus")
        negative = result(MUL, NO_ATTRIBUTES, [y, minus], y.type, node.origin)
    return replaced(node, ADD, NO_ATTRIBUTES, [x, negative])


@pattern_rule(
    "choice-of-stored",
    AnyOf((
        ("Where", "mask", "x", "y"),
        ("quantize", Part("chosen", ("Where", "mask", "x", "y"), sole=True)),
    )),
)  # fmt: skip
def stored_choices(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``quantize(Where(m, x, y)) -> Where(m, quantize(x), quantize(y))``: the same numbers."""
    del context
    mask, quant, made = match["mask"], node.output.quant, match.nodes[-1]
    if quant is None or not quant.params.per_tensor or mask.quant is not None:
        return None
    if quant.params.expressed_dtype is not DType.FLOAT32:
        return None
    given = [match["x"], match["y"]]
    sides = [_encode_operand(value, quant.params, node.output.name) for value in given]
    if made is node and sides == given:
        return None
    return replaced(node, WHERE, NO_ATTRIBUTES, [mask, *sides], made.origin)


def _encode_operand(value: Value, params: QuantParams, name: str) -> Value:
    """Returns an operand in an encoding; one that is stored, or a number, is as it was."""
    if value.quant is not None or value.type.dtype is not DType.FLOAT32:
        return value
    made = value.producer
    if made is not None and made.op is DEQUANTIZE:
        source = made.operand(0)
        if source.quant is not None and source.quant.params.same_mapping(params):
            return source
    if value.constant is None:
        return quantized(value, params, name=f"{value.name}_for_{name}")
    array = value.constant.numpy()
    if array.size == 1 or np.isnan(array).any():
        return value
    return constant(quantize(array, params), params, f"{value.name}_for_{name}")


@pattern_rule("choice-as-product", ("Where", Part("mask", constant=True), "x", "y"))
def masks_of_numbers(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Where(mask, x, c) -> x * mask + where(mask, 0, c)`` of floats, both constants: the same."""
    del context
    mask, sides, output = match["mask"].constant, [match["x"], match["y"]], node.output
    known = [index for index, value in enumerate(sides) if _plain_floats(value)]
    if output.type.dtype is not DType.FLOAT32 or output.quant is not None or len(known) != 1:
        return None
    other, real = sides[known[0]].constant, sides[1 - known[0]]
    assert mask is not None and other is not None
    number = other.numpy()
    keeps = mask.numpy() == (known[0] == 1)
    rest = np.where(keeps, np.zeros((), number.dtype), number)
    if not np.isfinite(rest).all():
        return None
    factor = constant(keeps.astype(number.dtype), None, f"{output.name}_mask")
    offset = constant(rest, None, f"{output.name}_masked")
    kept = result(MUL, NO_ATTRIBUTES, [real, factor], output.type, node.origin)
    return replaced(node, ADD, NO_ATTRIBUTES, [kept, offset])


def _plain_floats(value: Value) -> bool:
    return value.constant is not None and value.quant is None and value.type.dtype.is_float


# ---- more than four axes -------------------------------------------------------------------------
#
# Operators of more than four axes, which Hexagon takes of fewer: they see rows meanwhile.

_OF_ROWS = frozenset({DENSE, LAYER_NORMALIZATION, *(BY_NAME[n] for n in ROWS_ONLY if n in BY_NAME)})
"""Operators that do the same with every row."""


@rule("leading-axes-as-one", *_OF_ROWS, MATMUL)
def as_rows(node: Node, context: RuleContext) -> Proposal:
    """``f(x) -> Reshape(f(Reshape(x)))`` of more than four axes: all leading ones as one."""
    del context
    kept = count = 2 if node.op is MATMUL else 1
    shapes = [static_shape(v.type.shape) for v in (*node.inputs[:count], node.output) if v]
    if not _equal_leading_axes(node, shapes, kept):
        return None
    name, whole = node.output.name, shapes[-1] or ()
    rows = [_in_rows(node.operand(index), kept) for index in range(count)]
    type_ = node.output.type.with_shape(_merged(whole, kept))
    operands = [*rows, *node.inputs[count:]]
    made = result(node.op, _along_rows(node), operands, type_, node.origin, f"{name}_of_rows")
    return Replace({node.output: _reshaped(made, whole, name)})


def _equal_leading_axes(node: Node, shapes: list[tuple[int, ...] | None], kept: int) -> bool:
    """True where everything has the same leading axes, and too many."""
    norm, last = LAYER_NORMALIZATION.of(node), shapes[-1]
    whole = node.operand(0).quant is not None and node.output.quant is not None
    if node.op in (DENSE, MATMUL) and not whole:
        return False  # products of floats are taken
    if last is None or len(last) <= MOST_AXES or (norm and norm.axis != len(last) - 1):
        return False
    return all(shape is not None and shape[:-kept] == last[:-kept] for shape in shapes)


def _along_rows(node: Node) -> Attributes:
    norm = LAYER_NORMALIZATION.of(node)
    return node.attributes if norm is None else replace(norm, axis=1)


def _merged(shape: tuple[int, ...], kept: int) -> tuple[int, ...]:
    return (math.prod(shape[:-kept]), *shape[-kept:])


def _in_rows(value: Value, kept: int) -> Value:
    """Returns a value with its leading axes as one, without a way back and forth."""
    shape = _merged(static_shape(value.type.shape) or (), kept)
    made = value.producer
    source = made.operand(0) if made is not None and made.op is RESHAPE else None
    if source is not None and source.type == value.type.with_shape(shape):
        return source
    return _reshaped(value, shape, f"{value.name}_rows")


def _reshaped(value: Value, shape: tuple[int, ...], name: str) -> Value:
    return result(RESHAPE, ReshapeAttrs(shape), [value], value.type.with_shape(shape), name=name)


# ---- signed types --------------------------------------------------------------------------------
#
# Which signed types become unsigned for Hexagon, and what stands at the interface then.
#
# A unit of the backend has one type; most of its operators take int8, few take int16.

_MATRIX, _IMAGE = 2, 4
"""The ranks up to which there is no layout to change, and up to which there is one."""
_PLAIN = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split"})
"""Data-movement operators that are taken of any type."""


def unsigned_types(graph: Graph) -> tuple[DType, ...]:
    """Returns the signed types that become unsigned.

    int8 does where an operator wants that, and where there is uint8 as well; int16 where anything
    is computed of it.
    """
    stored = {v.quant.params.storage_dtype for v in graph.values() if v.quant and not v.is_constant}
    wide = (DType.INT16,) if DType.INT16 in stored and any(map(_wants_uint16, graph.nodes)) else ()
    mixed = {DType.INT8, DType.UINT8} <= stored
    return (*wide, DType.INT8) if mixed or any(map(_wants_uint8, graph.nodes)) else wide


@rule("interface-converted")
def converted_interfaces(node: Node, context: RuleContext) -> Proposal:
    """``f(x) -> requantize(f(requantize(x)))`` of signed inputs and outputs, which keep their type.

    Inside, what is signed becomes unsigned.
    """
    signed = context.fact(unsigned_types)

    def wanted(value: Value) -> bool:
        if value.quant is None or value.quant.params.storage_dtype not in signed:
            return False
        beside = [value.producer] if value.producer is not None else [n for n, _ in value.users]
        return not all(map(_is_conversion, beside))

    return converted_interface(node, context, wanted, _converted)


def _is_conversion(node: Node) -> bool:
    return _converts(node) and not _moves_wrongly(node)


@rule("conversion-moved-up", REQUANTIZE)
def early_conversions(node: Node, context: RuleContext) -> Proposal:
    """``requantize(Reshape(Transpose(x))) -> Reshape(requantize(Transpose(x)))``: the same numbers.

    In front of a product the backend takes the rows in another order otherwise.
    """
    del context
    moved = node.operand(0).producer
    if moved is None or moved.op is not RESHAPE or len(moved.output.users) > 1:
        return None
    source, quant = moved.operand(0), node.output.quant
    made = source.producer
    if made is None or made.op is not TRANSPOSE or quant is None:
        return None
    if not any(user.op.flow is Flow.ACCUMULATE for user, _ in node.output.users):
        return None
    early = requantized(source, quant.params, node.origin, f"{source.name}_converted")
    return replaced(node, RESHAPE, moved.attributes, [early], moved.origin)


@rule("converted-image-as-rows", REQUANTIZE)
def converted_rows(node: Node, context: RuleContext) -> Proposal:
    """Images that are converted where they leave the graph, as rows meanwhile.

    Otherwise the provider moves its change of layout behind the conversion, and leaves it there.
    """
    value, source = node.output, node.operand(0)
    made, dims = source.producer, static_shape(value.type.shape)
    if not context.is_output(value) or value.quant is None or dims is None:
        return None
    if not _MATRIX < len(dims) <= _IMAGE:
        return None
    while made is not None and made.op.flow in (Flow.ELEMENTWISE, Flow.CONVERT):
        made = made.operand(0).producer
    if made is None or made.op.name not in IMAGES:
        return None
    rows = _reshaped(source, (dims[0], math.prod(dims[1:])), f"{value.name}_rows")
    stored = requantized(rows, value.quant.params, node.origin, f"{value.name}_converted")
    return Replace({value: _reshaped(stored, dims, value.name)})


def _wants_uint16(node: Node) -> bool:
    return _computes(node) or _moves_wrongly(node)


def _wants_uint8(node: Node) -> bool:
    x = node.operand(0).quant if node.inputs and node.inputs[0] is not None else None
    if x is None or x.params.storage_dtype is not DType.INT8:
        return False
    if node.op is PAD:
        return int(x.params.zero_point.reshape(-1)[0]) not in (0, DType.INT8.qmax)
    divides = node.op is DIV and node.operand(1).is_constant
    return divides or _moves_wrongly(node) or node.op.name in _UNSIGNED


_UNSIGNED = frozenset({"HardSigmoid", "InstanceNormalization", "LeakyRelu", "LogSoftmax", "Neg"})
"""Operators that are taken of uint8, and not of int8."""


def _moves_wrongly(node: Node) -> bool:
    """True for movements of signed integers that more than four axes make wrong."""
    if len(node.operand(0).type.shape or ()) <= MOST_AXES:
        return False
    moved = node.op in (RESHAPE, FLATTEN, SQUEEZE) and enters(node.operand(0))
    if node.op is DEQUANTIZE and enters(node.operand(0)):
        moved = any(user.op in (RESHAPE, FLATTEN, SQUEEZE) for user, _ in node.output.users)
    return moved or (node.op is CONCAT and _of_two_scales(node))


def _of_two_scales(node: Node) -> bool:
    sides = [value.quant.params for value in node.inputs if value is not None and value.quant]
    return any(not side.same_mapping(sides[0]) for side in sides)


def _computes(node: Node) -> bool:
    return node.op.name not in _PLAIN and not _converts(node)


def _converts(node: Node) -> bool:
    return node.op.flow is Flow.CONVERT


def _converted(value: Value) -> Value:
    """Returns a value with the same parameters once more, which the writer makes unsigned.

    What is made within narrower ends stays within them, so that it is clamped once.
    Images of 16 bits are rows meanwhile: the provider moves its changes of layout through
    conversions otherwise, to where a Transpose of int16 is left alone, which is not taken.
    """
    assert value.quant is not None
    shape, name = value.type.shape, f"{value.name}_converted"
    params = value.quant.params if value.producer is None else value.quant.params.widened()
    dims = tuple(dim for dim in shape or () if isinstance(dim, int))
    plain = params.storage_dtype.bits <= _BYTE or shape is None or len(dims) < len(shape)
    if plain or len(dims) <= _MATRIX or len(dims) > _IMAGE:
        return requantized(value, params, name=name)
    rows = _reshaped(value, (dims[0], math.prod(dims[1:])), f"{value.name}_rows")
    return _reshaped(requantized(rows, params, name=f"{name}_rows"), dims, name)


LEGALIZATIONS = (
    parts_of_one_product,
    whole_gelus,
    erfs_in_steps,
    result_encodings,
    stored_choices,
    masks_of_numbers,
    divisors,
    squares,
    differences,
    one_channel_inputs,
    constants_apart,
    channels_of_blocks,
    whole_bytes,
    half_biases,
    weights_in_digits,
    stretched_weights,
    wide_products,
    float_products,
    norms_of_one_scale,
    wide_norms,
    exact_norms,
    quantized_norms,
    norms_of_channels,
    as_rows,
    early_conversions,
    one_width,
    wide_operands,
    kept_clamps,
    kept_factors,
    converted_interfaces,
    converted_rows,
)
"""In the order in which they are applied."""
