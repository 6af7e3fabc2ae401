"""Rows of plain operators on stored integers, as importers and FakeQuantizationToInteger use them.

They write ``cast(int32) -> nn.avg_pool2d -> cast(int8)`` for an average, ``qnn.requantize`` to
int32, ``clip``, ``cast`` for a result in 8 bits, and ``maximum(x, zero_point)`` for a Relu. Each of
these is one operator whose result is rounded once, into the last of the types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import NO_ORIGIN, Node, Note, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow
from qdqbridge.core.graph.patterns import PatternMatch
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, static_shape
from qdqbridge.core.ops.attributes import IN_FLOAT32
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REQUANTIZE
from qdqbridge.core.ops.data_movement import TRANSPOSE
from qdqbridge.core.ops.reduction import REDUCE_SUM
from qdqbridge.core.rewrite import Rule
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.ranges import REQUANTIZE as REQUANTIZE_CALL
from qdqbridge.tvm.qnn.read import parameters
from qdqbridge.tvm.qnn.read.accumulate import PRODUCT_BEHIND, product_in, rounded_product
from qdqbridge.tvm.qnn.read.call import Call, Entry, Result, constant_of, unrounded
from qdqbridge.tvm.qnn.read.parameters import changed, result
from qdqbridge.tvm.qnn.read.reader import TO_FIRST, TO_LAST, WITHOUT_PROVENANCE
from qdqbridge.tvm.qnn.read.reading import Reading, Row, call_rule
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node

Clamp = Callable[[QuantParams], QuantParams]
"""The same mapping over the range that a clamp of the integers leaves."""

_TWO_STEPS = frozenset(("AveragePool", "Min", "Max"))
"""Operators that our tflite variant computes in the operand's mapping before it requantizes."""
_ROUNDS = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)


def _per_tensor_codes(entry: Entry) -> Value | None:
    """Returns an argument where it is integers that are known to stand for real numbers."""
    if isinstance(entry, Value) and entry.quant is not None and entry.quant.params.per_tensor:
        return entry
    return None


def _qparams_of(value: Value) -> QuantParams:
    assert value.quant is not None
    return value.quant.params


def _rounding(value: Value) -> Node | None:
    """Returns the node that rounds ``value``: it may as well round into another type."""
    node = value.producer
    # A transpose rounds nothing: the node in front of it does, and may give another type.
    if node is not None and node.op is TRANSPOSE and _for_layout(node):
        return _rounding(node.operand(0))
    if node is None or len(node.outputs) != 1:
        return None
    return node if node.op.flow in _ROUNDS or node.op in (QUANTIZE, REQUANTIZE) else None


def _for_layout(node: Node) -> bool:
    """True for a transpose that a layout asks for, not the model."""
    return node.origin == NO_ORIGIN or node.origin.variant in (
        WITHOUT_PROVENANCE,
        TO_FIRST,
        TO_LAST,
    )


def _retyped(reading: Reading, value: Value, params: QuantParams, call: Call) -> Value:
    """Returns ``value`` rounded into ``params`` instead; it must have a rounding node."""
    node = value.producer
    assert node is not None and value.quant is not None
    type_ = QuantType(params, value.type.shape)
    if node.op is not TRANSPOSE:
        return reading.retyped(value, type_, call)
    inner = _retyped(reading, node.operand(0), params, call)
    return reading.node(node.op, node.attributes, [inner], type_)


# ---- other widths ------------------------------------------------------------------------------


def cast(reading: Reading, call: Call) -> Entry:
    """``cast(q)`` to another integer type: the same real numbers, stored wider or narrower."""
    data = _per_tensor_codes(call.args[0])
    if data is None or not call.dtype.is_integer:
        return read.ROWS["cast"](reading, call)
    params, dtype = _qparams_of(data), call.dtype
    if dtype is params.storage_dtype:
        return data
    qmin, qmax = max(params.qmin, dtype.qmin), min(params.qmax, dtype.qmax)
    same = changed(params, dtype, qmin, qmax)
    # An average lies between the codes that it is of, so that a narrower type of these loses
    # nothing.
    if (qmin, qmax) != (params.qmin, params.qmax) and not _is_average(reading, data):
        raise reading.refused(f"it cuts bits off integers of {params.qmin} to {params.qmax}")
    # A wider type keeps every code; so does one that the codes fit into, of a value that nobody
    # rounds.
    if dtype.bits >= params.storage_dtype.bits or _rounding(data) is None:
        type_ = QuantType(same, call.result.shape)
        return reading.node(REQUANTIZE, NO_ATTRIBUTES, [data], type_, call)
    return _retyped(reading, data, same, call)


def requantize(reading: Reading, call: Call) -> Entry:
    """``qnn.requantize``: of an average, the one rounding that it has."""
    entry, plain = call.args[0], read.ROWS["qnn.requantize"]
    data = _per_tensor_codes(entry)
    if data is None or not (_is_average(reading, data) or _same_node(reading, data, call)):
        return plain(reading, call)
    _check_sum(reading, data, call)
    # The call says other parameters of its operand than are known of it: as written, it converts.
    if not _agrees(reading, data, call):
        return plain(reading, call)
    return _retyped(reading, data, result(reading, call, REQUANTIZE_CALL), call)


# ---- operators that compute between a DQ and a Q -----------------------------------------------


def between(row: Row, when: Callable[[Call], bool] = lambda call: True) -> Row:
    """Returns ``row`` that reads ``op(q)`` as ``Q(op(DQ(q)))``, into the mapping of q.

    TVM computes it on the integers, and truncates or rounds in its own way; the graph rounds the
    real result once.

    Args:
        row: Reads the operator on floats.
        when: False for calls that only move integers.
    """

    def rounded(reading: Reading, call: Call) -> Entry:
        data = _per_tensor_codes(call.args[0])
        if data is None or not when(call):
            return row(reading, call)
        _check_zero(reading, call, _qparams_of(data))
        real = _dequantize_node(reading, _narrow(reading, data, call))
        floats = tuple(Result("float32", r.shape) for r in call.results)
        made = row(reading, replace(call, args=(real, *call.args[1:]), results=floats))
        # TVM gives the result in the operand's own codes; a requantize behind it says the real
        # ones, and takes the place of this rounding.
        params = _summed(changed(_qparams_of(data), call.dtype), data, call)
        type_ = QuantType(params, call.result.shape)
        value = reading.node(QUANTIZE, IN_FLOAT32, [reading.value(made)], type_, call)
        # What follows may round it once more, into the type that the average is meant to have.
        reading.memory["average", value] = True
        return value

    return rounded


def _dequantize_node(reading: Reading, value: Value) -> Value:
    type_ = TensorType(DType.FLOAT32, value.type.shape)
    return reading.node(DEQUANTIZE, NO_ATTRIBUTES, [value], type_)


def _is_average(reading: Reading, value: Value) -> bool:
    return ("average", value) in reading.memory


def _same_node(reading: Reading, value: Value, call: Call) -> bool:
    """True where a span says that ``value`` and what a call makes of it are one operator."""
    provenance, node = call.provenance, value.producer
    if provenance is None or node is None or provenance.op not in _TWO_STEPS:
        return False
    return provenance_of_node(node) == provenance and _rounding(value) is not None


def _narrow(reading: Reading, data: Value, call: Call) -> Value:
    """Returns the integers behind those that were widened to 32 bits for the sum."""
    node = data.producer
    if data.type.dtype is not DType.INT32 or node is None or node.op is not REQUANTIZE:
        return data
    source = node.operand(0)
    if source.quant is None or source.type.dtype is DType.INT32:
        return data
    params = _qparams_of(source)
    # Widening alone keeps the mapping; a rescaling beside it rounds every term, which one rounding
    # at the end does not reproduce.
    if changed(params, DType.INT32) != changed(_qparams_of(data), DType.INT32):
        notes: list[Note] = reading.memory.setdefault(("notes",), [])
        why = (
            "TVM rounds every element to the result's scale before it averages; the graph does not"
        )
        notes.append(Note("rounded-before-average", call.name, why))
    return source


def _summed(params: QuantParams, data: Value, call: Call) -> QuantParams:
    """Returns the mapping of sums of integers: every term has brought its zero point along."""
    if call.op != "sum" or not params.zero_point.any():
        return params
    before, after = static_shape(data.type.shape), static_shape(call.result.shape)
    if before is None or after is None:
        return params
    terms = math.prod(before) // max(math.prod(after), 1)
    zero = np.asarray(params.zero_point * terms, np.int32)
    return QuantParams(
        params.storage_dtype, params.scale, zero, expressed_dtype=params.expressed_dtype
    )


def _check_zero(reading: Reading, call: Call, params: QuantParams) -> None:
    """Integers that stand for 0 must be 0 where TVM pads with zeros of its own."""
    if params.zero_point.any() and call.get("count_include_pad") and any(call.ints("padding")):
        zero = int(params.zero_point)
        raise reading.refused(f"it averages over padding of integers 0 whose zero point is {zero}")


def _agrees(reading: Reading, value: Value, call: Call) -> bool:
    """True where a requantize says of its integers what they mean."""
    scale = parameters.array(reading, call.args[1], "scale")
    zero = parameters.array(reading, call.args[2], "zero point")
    own = _qparams_of(value)
    return bool((scale == own.scale.astype(np.float32)).all() and (zero == own.zero_point).all())


def _check_sum(reading: Reading, value: Value, call: Call) -> None:
    """What a call says of sums must be the sum of the zero points."""
    node = None if value.producer is None else value.producer.operand(0).producer
    if node is None or node.op is not REDUCE_SUM:
        return
    stated = parameters.array(reading, call.args[2], "zero point")
    if int(stated) != int(_qparams_of(value).zero_point):
        raise reading.refused(
            f"it states zero point {int(stated)} for sums of integers whose zero point is "
            f"{int(_qparams_of(value).zero_point)}"
        )


def _clamp_between(low: float, high: float) -> Clamp:
    def clamp(params: QuantParams) -> QuantParams:
        qmin = int(min(max(params.qmin, low), params.qmax))
        return params.with_range(qmin, int(max(min(params.qmax, high), qmin)))

    return clamp


def _clamped(reading: Reading, call: Call, clamp: Clamp) -> Entry | None:
    """Returns argument 0 clamped where it is stored integers or a product, else None."""
    data = _per_tensor_codes(call.args[0])
    if data is None:
        return None
    params = clamp(_qparams_of(data))
    # int32 codes are what a rounding has not saturated yet; the clamp is that saturation.
    if data.type.dtype is DType.INT32 and _rounding(data) is not None:
        return _retyped(reading, data, params, call)
    return reading.narrowed(data, params, call)


def relu(reading: Reading, call: Call) -> Entry:
    """``nn.relu`` of stored integers: the codes from 0 on."""
    return _clamped(reading, call, _clamp_between(0, float("inf"))) or read.ROWS["nn.relu"](
        reading, call
    )


@call_rule("product-clamped", ("nn.relu", PRODUCT_BEHIND))
def product_clamped(reading: Reading, call: Call, match: PatternMatch) -> Value:
    """``nn.relu(product(x, w)) -> product(x, w)``, which is clamped where it is rounded."""
    del call
    same = unrounded(replace(product_in(match)))
    reading.memory["clamped", same] = True
    return same


@call_rule("clamped-product-rounded", ("qnn.requantize", PRODUCT_BEHIND, "s?", "z?", "t?", "u?"))
def clamped_product_rounded(reading: Reading, call: Call, match: PatternMatch) -> Value | None:
    """``requantize(product(x, w)) -> requantize(Conv(x, w))`` in the codes from that of 0 on."""
    if ("clamped", match["product"]) not in reading.memory:
        return None
    value = rounded_product(reading, call, product_in(match))
    params = _qparams_of(value)
    low = _clamp_between(int(params.zero_point), float("inf"))
    return reading.narrowed(value, low(params), call)


CLAMPED: tuple[Rule, ...] = (product_clamped, clamped_product_rounded)
"""Rules of calls that look at clamped products."""


def clip(reading: Reading, call: Call) -> Entry:
    """``clip`` of the int32 codes that a rounding gives: the range that it saturates to."""
    data = _per_tensor_codes(call.args[0])
    if data is None or data.type.dtype is not DType.INT32:
        return read.ROWS["clip"](reading, call)
    limits = _clamp_between(float(call.attrs["a_min"]), float(call.attrs["a_max"]))
    return _clamped(reading, call, limits) or read.ROWS["clip"](reading, call)


def extreme(op: str) -> Row:
    """Returns the row of ``maximum`` or ``minimum``: with a constant code it is a clamp."""
    name = {"Max": "maximum", "Min": "minimum"}[op]

    def row(reading: Reading, call: Call) -> Entry:
        # Frontends write the bound on either side.
        for first, second in (call.args, call.args[::-1]):
            data = _per_tensor_codes(first)
            bound = constant_of(second) if isinstance(second, Value) else None
            if data is None or bound is None or bound.size != 1:
                continue
            code = float(bound.reshape(-1)[0])
            limits = (code, float("inf")) if op == "Max" else (-float("inf"), code)
            clamped = _clamped(reading, replace(call, args=(first,)), _clamp_between(*limits))
            return clamped if clamped is not None else read.ROWS[name](reading, call)
        return _of_two(reading, call, op) or read.ROWS[name](reading, call)

    return row


def _of_two(reading: Reading, call: Call, op: str) -> Entry | None:
    """Returns the larger or smaller of two quantized tensors of one mapping."""
    a, b = (_per_tensor_codes(entry) for entry in call.args)
    if a is None or b is None or not _qparams_of(a).same_mapping(_qparams_of(b)):
        return None
    # Of two operands either range may be the wider one, and the extreme of both lies in their
    # union.
    type_ = QuantType(_qparams_of(a).widened(), call.result.shape)
    return reading.node(op, NO_ATTRIBUTES, [a, b], type_, call)


def _interpolates(call: Call) -> bool:
    return str(call.get("method", "linear")) not in ("nearest_neighbor",)


def rows(plain: Mapping[str, Row]) -> dict[str, Row]:
    """Returns rows for stored integers, which fall back to those of ``plain``."""
    kinds = ("avg", "global_avg", "adaptive_avg")
    averages = ["mean", "sum", *(f"nn.{kind}_pool{n}d" for n in (1, 2, 3) for kind in kinds)]
    sizes: list[Any] = [*(f"image.resize{n}d" for n in (1, 2, 3)), "nn.upsampling"]
    return {
        "cast": cast,
        "qnn.requantize": requantize,
        "nn.relu": relu,
        "clip": clip,
        "maximum": extreme("Max"),
        "minimum": extreme("Min"),
        **{name: between(plain[name]) for name in averages if name in plain},
        **{name: between(plain[name], _interpolates) for name in sizes},
    }
