"""Dynamic quantization, which TVM's ONNX frontend takes apart, put together again.

Of ``DynamicQuantizeLinear`` it makes the arithmetic that ONNX defines it by, of ``MatMulInteger``
a product of differences in int32. Q and DQ whose parameters the run finds in another way are read
as ONNX's QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.patterns import Pattern, PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    CastAttrs,
    ClipAttrs,
    LinearAttrs,
    ReduceAttrs,
)
from qdqbridge.core.ops.run_time_parameters import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from qdqbridge.tvm.qnn.read import Call, Entry, Reading, Row
from qdqbridge.tvm.qnn.read.constants import constant_of
from qdqbridge.tvm.qnn.read.reading import tensor
from qdqbridge.tvm.relax.read.standard import standard

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


def rows(shared: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the rows by Relax's name."""
    return {
        "quantize": quantize(shared["quantize"]),
        "dequantize": at_run_time(DEQUANTIZE_LINEAR, shared["dequantize"]),
        "matmul": matmul(shared["matmul"]),
    }
