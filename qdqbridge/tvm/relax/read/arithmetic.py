"""Rows of arithmetic and activations that only Relax writes so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import Shape, TensorType
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    AxesAttrs,
    CastAttrs,
    ClipAttrs,
    LinearAttrs,
    ReduceAttrs,
    SeluAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.normalization import RMS_NORMALIZATION
from qdqbridge.core.ops.run_time_parameters import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from qdqbridge.tvm.qnn.read import Call, Entry, Reading, Row
from qdqbridge.tvm.qnn.read.call import constant_of
from qdqbridge.tvm.qnn.read.floating import made, of_row, plain
from qdqbridge.tvm.qnn.read.reading import tensor
from qdqbridge.tvm.qnn.read.resize import reduced_axes
from qdqbridge.tvm.qnn.read.rules.activations import VARIANCE
from qdqbridge.tvm.relax.read.standard import standard

# ---- ``nn.attention``: products, a scale, a softmax, as ONNX writes it ---------------------------

_HEADS_FIRST = (0, 2, 1, 3)
_KEYS = (0, 2, 3, 1)


def attention(reading: Reading, call: Call) -> Value:
    """``nn.attention(q, k, v[, bias]; scale, causal_mask)`` of (batch, length, heads, width)."""
    if call.get("window_size") is not None:
        raise reading.refused("it attends to a sliding window")
    q, k, v = (reading.plain(entry) for entry in call.args[:3])
    queries = _permuted(reading, q, _HEADS_FIRST)
    keys = _permuted(reading, k, _KEYS)
    values = _permuted(reading, v, _HEADS_FIRST)
    scores = _matmul_node(reading, queries, keys)
    scores = _scaled(reading, call, scores, q)
    if len(call.args) > 3:
        bias = reading.plain(call.args[3])
        scores = reading.node("Add", NO_ATTRIBUTES, [scores, bias], scores.type)
    mask = _mask(reading, call, scores)
    if mask is not None:
        least = reading.constant(np.asarray(-np.inf, scores.type.dtype.numpy))
        scores = reading.node("Where", NO_ATTRIBUTES, [mask, scores, least], scores.type)
    weights = reading.node("Softmax", SoftmaxAttrs((3,)), [scores], scores.type)
    mixed = _matmul_node(reading, weights, values)
    return reading.node("Transpose", TransposeAttrs(_HEADS_FIRST), [mixed], tensor(call), call)


def _permuted(reading: Reading, value: Value, perm: tuple[int, ...]) -> Value:
    shape = value.type.shape
    if shape is None or len(shape) != 4:
        raise reading.refused("an operand has no four axes")
    type_ = TensorType(value.type.dtype, tuple(shape[axis] for axis in perm))
    return reading.node("Transpose", TransposeAttrs(perm), [value], type_)


def _matmul_node(reading: Reading, a: Value, b: Value) -> Value:
    rows, columns = a.type.shape or (), b.type.shape or ()
    shape: Shape = (*rows[:3], *columns[-1:])
    return reading.node("MatMul", NO_ATTRIBUTES, [a, b], TensorType(a.type.dtype, shape))


def _scaled(reading: Reading, call: Call, scores: Value, q: Value) -> Value:
    width: Any = (q.type.shape or (0,))[-1]
    given = call.get("scale")
    if given is None and not isinstance(width, int):
        raise reading.refused("the width of its heads is known at run time only")
    factor = 1 / math.sqrt(width) if given is None else float(given)
    constant = reading.constant(np.asarray(factor, scores.type.dtype.numpy))
    return reading.node("Mul", NO_ATTRIBUTES, [scores, constant], scores.type)


def _mask(reading: Reading, call: Call, scores: Value) -> Value | None:
    """Returns which keys a query may see, None where it sees all."""
    kind = call.get("causal_mask")
    if kind is None:
        return None
    rows, columns = (scores.type.shape or (0, 0))[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise reading.refused("its causal mask has an unknown length")
    offset = abs(columns - rows) if str(kind) == "BottomRight" else 0
    return reading.constant(np.tri(rows, columns, offset, dtype=np.bool_))


ROWS: Mapping[str, Row] = {"nn.attention": attention, "nn.attention_bias": attention}
"""One row per operator, by Relax's name."""


Compute = Callable[[Reading, Call], Value]


def combined(
    reading: Reading, name: str, operands: list[Value], like: Value, call: Call | None = None
) -> Value:
    """Adds an operator whose result has the type of ``like``."""
    type_ = TensorType(like.type.dtype, like.type.shape)
    return reading.node(name, NO_ATTRIBUTES, operands, type_, call)


def rsqrt(reading: Reading, call: Call) -> Value:
    """``rsqrt(x)``: ``1 / sqrt(x)``."""
    x = reading.plain(call.args[0])
    return combined(reading, "Reciprocal", [combined(reading, "Sqrt", [x], x)], x, call)


def square(reading: Reading, call: Call) -> Value:
    """``square(x)``: ``x * x``."""
    x = reading.plain(call.args[0])
    return combined(reading, "Mul", [x, x], x, call)


def truncated(reading: Reading, call: Call) -> Value:
    """``trunc(x)``: ``sign(x) * floor(|x|)``."""
    x = reading.plain(call.args[0])
    # Floor and its kin are for floats in ONNX.
    if x.type.dtype.is_integer:
        return x
    whole = combined(reading, "Floor", [combined(reading, "Abs", [x], x)], x)
    return combined(reading, "Mul", [combined(reading, "Sign", [x], x), whole], x, call)


def fused(reading: Reading, call: Call) -> Value:
    """``ewise_fma(a, b, c)``: ``a * b + c``."""
    a, b, c = (reading.plain(entry) for entry in call.args)
    product = reading.node("Mul", NO_ATTRIBUTES, [a, b], tensor(call))
    return reading.node("Add", NO_ATTRIBUTES, [product, c], tensor(call), call)


def outer(reading: Reading, call: Call) -> Value:
    """``outer(a, b)``: every product of an element of a and one of b."""
    a, b = (reading.plain(entry) for entry in call.args)
    column = TensorType(a.type.dtype, (*(a.type.shape or ()), 1))
    standing = reading.node("Unsqueeze", AxesAttrs((1,)), [a], column)
    return reading.node("Mul", NO_ATTRIBUTES, [standing, b], tensor(call), call)


def floor_divided(reading: Reading, call: Call) -> Value:
    """``floor_divide(a, b)``; one that a span names is part of a quotient of integers."""
    if call.provenance is not None:
        return reading.unread(call)[0]
    a, b = (reading.plain(entry) for entry in call.args)
    if a.type.dtype.is_float:
        quotient = reading.node("Div", NO_ATTRIBUTES, [a, b], tensor(call))
        return combined(reading, "Floor", [quotient], quotient, call)
    # ONNX's Div of integers is cut towards zero, its Mod has the sign of the divisor: without the
    # rest the quotient is whole, and both ways of rounding are one.
    rest = standard(reading, "Mod", [a, b], [tensor(call)], fmod=0)[0]
    whole = reading.node("Sub", NO_ATTRIBUTES, [a, rest], tensor(call))
    return combined(reading, "Div", [whole, b], whole, call)


def floor_mod(row: Row) -> Row:
    """Returns ``row`` of ``floor_mod`` that also knows floats: ``a - floor(a / b) * b``."""

    def read(reading: Reading, call: Call) -> Entry:
        a, b = (reading.plain(entry) for entry in call.args)
        if not a.type.dtype.is_float:
            return row(reading, call)
        quotient = reading.node("Div", NO_ATTRIBUTES, [a, b], tensor(call))
        whole = combined(reading, "Floor", [quotient], quotient)
        times = reading.node("Mul", NO_ATTRIBUTES, [whole, b], tensor(call))
        return reading.node("Sub", NO_ATTRIBUTES, [a, times], tensor(call), call)

    return read


def bounded(row: Row, clip: Row, *, low: bool) -> Row:
    """Returns ``row`` of ``maximum`` or ``minimum`` that reads a bound of integers as a clip."""

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        for entry, other in (call.args, call.args[::-1]):
            bound = constant_of(other) if isinstance(other, Value) else None
            whole = isinstance(entry, Value) and entry.type.dtype.is_integer
            if not whole or call.provenance is not None or bound is None or bound.size != 1:
                continue
            code, dtype = int(bound.reshape(())), call.dtype
            ends = (code, dtype.qmax) if low else (dtype.qmin, code)
            if entry.constant is not None and entry.quant is None:
                return reading.constant(np.clip(entry.constant.numpy(), *ends), entry.name)
            attrs = dict(zip(("a_min", "a_max"), ends, strict=True))
            return clip(reading, replace(call, op="clip", args=(entry,), attrs=attrs))
        return row(reading, call)

    return read


# ---- activations -------------------------------------------------------------------------------
def softplus(reading: Reading, call: Call) -> Value:
    """``nn.softplus(x, beta, threshold)``; beyond 20 it is x in float32 anyway."""
    x, beta = reading.plain(call.args[0]), float(call.get("beta", 1.0))
    if float(call.get("threshold", 20.0)) < _SAME_AS_X:
        raise reading.refused(f"it is linear from {call.attrs['threshold']} on")
    if beta == 1.0:
        return made(reading, call, "Softplus", NO_ATTRIBUTES, [x])
    factor = reading.constant(np.asarray(beta, x.type.dtype.numpy))
    scaled = combined(reading, "Mul", [x, factor], x)
    return combined(reading, "Div", [combined(reading, "Softplus", [scaled], x), factor], x, call)


_SAME_AS_X = 20.0


def prelu(reading: Reading, call: Call) -> Value:
    """``nn.prelu(x, slope, axis)``: a slope per channel, or one."""
    x, slope = (reading.plain(entry) for entry in call.args)
    rank, axis = x.rank or 0, call.integer("axis", 1) % max(x.rank or 0, 1)
    trailing = rank - 1 - axis
    shape = slope.type.shape or ()
    if trailing and shape != (1,):
        # ONNX's PRelu broadcasts from the last axis; TVM's slope is for the channels.
        axes = AxesAttrs(tuple(range(1, 1 + trailing)))
        type_ = TensorType(slope.type.dtype, (*shape, *([1] * trailing)))
        slope = reading.node("Unsqueeze", axes, [slope], type_)
    return made(reading, call, "PRelu", NO_ATTRIBUTES, [x, slope])


def _selu(reading: Reading, call: Call) -> Value:
    attributes = SeluAttrs(1.67326319217681884765625, 1.05070102214813232421875)
    return made(reading, call, "Selu", attributes, [reading.plain(call.args[0])])


# ---- statistics --------------------------------------------------------------------------------
def variance(reading: Reading, call: Call) -> Value:
    """``variance(x, axis, keepdims)``: the mean of the squared differences from the mean."""
    x = reading.plain(call.args[0])
    given = reduced_axes(call, x)
    kept = tuple(1 if i in given.axes else dim for i, dim in enumerate(x.type.shape or ()))
    mean = reading.node("ReduceMean", ReduceAttrs(given.axes), [x], TensorType(x.type.dtype, kept))
    centred = combined(reading, "Sub", [x, mean], x)
    squares = combined(reading, "Mul", [centred, centred], x)
    value = reading.node("ReduceMean", given, [squares], tensor(call), call)
    if value.producer is not None:
        # The mark tells rules of frontends that one call made these nodes: a model may write them
        # too.
        value.producer.origin = replace(value.producer.origin, variant=VARIANCE)
    return value


def deviation(reading: Reading, call: Call) -> Value:
    """``std(x, axis, keepdims)``."""
    return combined(reading, "Sqrt", [inner := variance(reading, call)], inner, call)


def dropout(reading: Reading, call: Call) -> Entry:
    """``nn.dropout(x)``: x in inference; the mask is true everywhere."""
    x = reading.plain(call.args[0])
    return [x, *reading.unread(call, "it also returns a mask")[1:]]


def _activation(name: str, attributes: Attributes) -> Row:
    return plain(name, attributes)


def rows(shared: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the rows by Relax's name; some fall back to those of ``shared``."""
    return {
        "rsqrt": rsqrt,
        "square": square,
        "trunc": truncated,
        "ewise_fma": fused,
        "outer": outer,
        "floor_divide": floor_divided,
        "floor_mod": floor_mod(shared["floor_mod"]),
        "maximum": bounded(shared["maximum"], shared["clip"], low=True),
        "minimum": bounded(shared["minimum"], shared["clip"], low=False),
        "nn.silu": _activation("Swish", AlphaAttrs(1.0)),
        "nn.selu": _selu,
        "nn.softplus": softplus,
        "nn.prelu": prelu,
        "nn.rms_norm": of_row(RMS_NORMALIZATION),
        "nn.dropout": dropout,
        "variance": variance,
        "std": deviation,
    }


# ---- Dynamic quantization, which TVM's ONNX frontend takes apart, put together again -------------
# Of ``DynamicQuantizeLinear`` it makes the arithmetic that ONNX defines it by, of ``MatMulInteger``
# a product of differences in int32. Q and DQ whose parameters the run finds in another way are read
# as ONNX's QuantizeLinear and DequantizeLinear.


_LARGEST: Pattern = ("Max", 0.0, ("ReduceMax", "x"))
_LEAST: Pattern = ("Min", 0.0, ("ReduceMin", "x"))
_SCALE: Pattern = ("Div", ("Sub", _LARGEST, _LEAST), 255.0)
_ZERO_POINT: Pattern = ("Cast", ("Round", ("Clip", ("Sub", 0.0, ("Div", _LEAST, "scale")))))
_DIFFERENCE: Pattern = ("Sub", ("Cast", "codes"), ("Cast", "zero_point"))
_OF_COLUMNS: Pattern = ("Sub", ("Cast", "codes"), ("Unsqueeze", ("Cast", "zero_point")))


def quantize(row: Row) -> Row:
    """Returns ``row`` that also knows parameters computed from the data themselves."""

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        x, scale, zero_point = call.args[:3]
        if not isinstance(scale, Value) or not isinstance(zero_point, Value):
            return row(reading, call)
        if not _from_the_data(x, scale, zero_point):
            return at_run_time(QUANTIZE_LINEAR, row)(reading, call)
        operand = reading.plain(x)
        types = [tensor(call), *(TensorType(v.type.dtype, ()) for v in (scale, zero_point))]
        y = standard(reading, "DynamicQuantizeLinear", [operand], types, call)[0]
        assert y.producer is not None
        _take_over(reading, y.producer, [scale, zero_point])
        return y

    return read


def at_run_time(op: Operator, row: Row) -> Row:
    """Returns ``row`` of a Q or DQ that also knows parameters that only the run knows."""

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        operands = [reading.value(entry) for entry in call.args[:3]]
        if all(constant_of(parameter) is not None for parameter in operands[1:]):
            return row(reading, call)
        type_, vector = tensor(call), any(parameter.rank for parameter in operands[1:])
        attributes = LinearAttrs(type_.dtype, call.integer("axis") if vector else None)
        return reading.node(op, attributes, operands, type_, call)

    return read


def _from_the_data(x: Entry, scale: Value, zero_point: Value) -> bool:
    found = PatternMatch({"x": x, "scale": scale} if isinstance(x, Value) else {})
    if not match_value_pattern(scale, _SCALE, found) or not match_value_pattern(
        zero_point, _ZERO_POINT, found
    ):
        return False
    rank = found.values["x"].rank
    clips = [n.attributes for n in found.nodes if isinstance(n.attributes, ClipAttrs)]
    reductions = [n.attributes for n in found.nodes if isinstance(n.attributes, ReduceAttrs)]
    over = None if rank is None else ReduceAttrs(tuple(range(rank)), keepdims=False)
    whole = set(reductions) == {over}
    return whole and clips == [ClipAttrs(0.0, 255.0)] and zero_point.type.dtype is DType.UINT8


def _take_over(reading: Reading, node: Node, computed: list[Value]) -> None:
    """Makes values results of a node that stand for what was computed step by step before."""
    # Where the first of them is: what reads the scale stands before the codes are made.
    place = min(reading.nodes.index(v.producer) for v in computed if v.producer is not None)
    reading.nodes.remove(node)
    reading.nodes.insert(place, node)
    for index, value in enumerate(computed, start=1):
        assert value.producer is not None
        reading.nodes.remove(value.producer)
        node.outputs[index] = value
        value.producer = node


def matmul(row: Row) -> Row:
    """Returns ``row`` that reads products of differences in int32 as MatMulInteger."""

    def read(reading: Reading, call: Call) -> Entry | list[Value]:
        sides = [_match_zero_point_subtract(entry, index) for index, entry in enumerate(call.args)]
        known = [side for side in sides if side is not None]
        if call.provenance is not None or call.dtype is not DType.INT32 or len(known) < 2:
            return row(reading, call)
        operands = [reading.plain(part) for place in (0, 1) for part in (s[place] for s in known)]
        return standard(reading, "MatMulInteger", operands, [tensor(call)], call)[0]

    return read


def _match_zero_point_subtract(entry: Entry, rank: int) -> tuple[Value, Value] | None:
    """Returns 8-bit codes and their zero point behind a difference of both in int32.

    Args:
        entry: An operand of a product.
        rank: The largest rank of its zero point: columns of the second have each their own.
    """
    found = PatternMatch()
    patterns = (_DIFFERENCE, _OF_COLUMNS)[: 1 + rank]
    if not isinstance(entry, Value) or not any(
        match_value_pattern(entry, p, found) for p in patterns
    ):
        return None
    codes, zero_point = found.values["codes"], found.values["zero_point"]
    casts = [n.attributes for n in found.nodes if isinstance(n.attributes, CastAttrs)]
    eight = codes.type.dtype in (DType.INT8, DType.UINT8) and (zero_point.rank or 0) <= rank
    same = codes.type.dtype is zero_point.type.dtype
    columns = [n.attributes for n in found.nodes if isinstance(n.attributes, AxesAttrs)]
    eight = eight and set(columns) <= {AxesAttrs((0,))}
    return (codes, zero_point) if eight and same and casts == [CastAttrs(DType.INT32)] * 2 else None


def dynamic_rows(shared: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the rows by Relax's name."""
    return {
        "quantize": quantize(shared["quantize"]),
        "dequantize": at_run_time(DEQUANTIZE_LINEAR, shared["dequantize"]),
        "matmul": matmul(shared["matmul"]),
    }
