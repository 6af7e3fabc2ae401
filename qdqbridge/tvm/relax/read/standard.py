"""Relax operators that ONNX has and the graph has no row for: they become ONNX's own nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import CastAttrs
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.onnx_io.assembly import STANDARD_OPSET as OPSET
from qdqbridge.onnx_io.assembly import Attribute, standard_operator
from qdqbridge.tvm.qnn.read import Call, Reading, Row
from qdqbridge.tvm.qnn.read.reading import tensor


def standard(
    reading: Reading,
    op_type: str,
    operands: Sequence[Value],
    types: Sequence[TensorType],
    call: Call | None = None,
    *,
    opset: int = OPSET,
    **attributes: Attribute,
) -> list[Value]:
    """Adds a node of an ONNX operator and returns its results.

    Args:
        reading: The graph so far.
        op_type: ONNX's name.
        types: The types of its results.
        call: The call that it comes from.
        opset: The opset whose meaning it has.
        attributes: ONNX's attributes.
    """
    counts = (len(operands), len(types))
    op, record = standard_operator(op_type, *counts, opset=opset, attributes=attributes)
    return reading.several(op, record, list(operands), list(types), call)


def same_operands(op_type: str, opset: int = OPSET, **attributes: Attribute) -> Row:
    """Returns the row of an operator whose arguments are the operands of ONNX's."""

    def read(reading: Reading, call: Call) -> Value:
        operands = [reading.plain(entry) for entry in call.args]
        types = [tensor(call)]
        return standard(reading, op_type, operands, types, call, opset=opset, **attributes)[0]

    return read


def negated(op_type: str) -> Row:
    """Returns the row of an operator that is ``Not(op_type(…))``."""

    def read(reading: Reading, call: Call) -> Value:
        operands = [reading.plain(entry) for entry in call.args]
        inner = standard(reading, op_type, operands, [tensor(call)])
        return standard(reading, "Not", inner, [tensor(call)], call)[0]

    return read


def is_finite(reading: Reading, call: Call) -> Value:
    """``isfinite(x)``: neither infinite nor NaN."""
    x, type_ = reading.plain(call.args[0]), tensor(call)
    parts = [standard(reading, name, [x], [type_])[0] for name in ("IsInf", "IsNaN")]
    either = standard(reading, "Or", parts, [type_])
    return standard(reading, "Not", either, [type_], call)[0]


def extreme_index(op_type: str) -> Row:
    """Returns the row of ``argmax`` and ``argmin`` along one axis."""

    def read(reading: Reading, call: Call) -> Value:
        x = reading.plain(call.args[0])
        if call.get("axis") is None:
            raise reading.refused("it looks along all axes at once")
        axis = call.integer("axis") % max(x.rank or 0, 1)
        kept = int(bool(call.get("keepdims", False)))
        index = TensorType(DType.INT64, call.result.shape)
        return standard(reading, op_type, [x], [index], call, axis=axis, keepdims=kept)[0]

    return read


def cumulated(reading: Reading, call: Call) -> Value:
    """``cumsum(x, axis, exclusive)``."""
    x = reading.plain(call.args[0])
    if call.get("axis") is None:
        raise reading.refused("it sums over the flattened tensor")
    if x.type.dtype is not call.dtype:
        x = _insert_cast(reading, x, call.dtype)
    axis = reading.constant(np.asarray(call.integer("axis") % max(x.rank or 0, 1), np.int64))
    exclusive = int(bool(call.get("exclusive", False)))
    return standard(reading, "CumSum", [x, axis], [tensor(call)], call, exclusive=exclusive)[0]


def _insert_cast(reading: Reading, x: Value, dtype: DType) -> Value:
    return reading.node("Cast", CastAttrs(dtype), [x], TensorType(dtype, x.type.shape))


_AXES_ARE_OPERANDS = 18


def product(reading: Reading, call: Call) -> Value:
    """``prod(x, axis, keepdims)``."""
    x = reading.plain(call.args[0])
    given = call.get("axis")
    rank = max(x.rank or 0, 1)
    axes = list(range(x.rank or 0)) if given is None else [a % rank for a in call.ints("axis")]
    operands = [x, reading.constant(np.asarray(sorted(axes), np.int64))]
    kept = int(bool(call.get("keepdims", False)))
    types = [tensor(call)]
    return standard(
        reading, "ReduceProd", operands, types, call, opset=_AXES_ARE_OPERANDS, keepdims=kept
    )[0]


def shifted(direction: str) -> Row:
    """Returns the row of a shift of bits, which ONNX has for unsigned integers."""

    def read(reading: Reading, call: Call) -> Value:
        operands = [reading.plain(entry) for entry in call.args]
        # ONNX's BitShift leaves open what becomes of a sign.
        if operands[0].type.dtype.numpy.kind != "u":
            raise reading.refused("ONNX shifts the bits of unsigned integers only")
        types = [tensor(call)]
        return standard(reading, "BitShift", operands, types, call, direction=direction)[0]

    return read


def largest(reading: Reading, call: Call) -> list[Value]:
    """``topk(x, k, axis, ret_type, largest)``."""
    x = reading.plain(call.args[0])
    kind, k = str(call.get("ret_type", "both")), call.integer("k")
    count = reading.constant(np.asarray([k], np.int64))
    shape = call.results[0].shape
    types = [TensorType(x.type.dtype, shape), TensorType(DType.INT64, shape)]
    axis = call.integer("axis", -1) % max(x.rank or 0, 1)
    big = int(bool(call.get("largest", True)))
    found = standard(reading, "TopK", [x, count], types, call, axis=axis, largest=big)
    values, index = found[0], _index(reading, found[1], call.results[-1].dtype)
    return {"both": [values, index], "values": [values], "indices": [index]}[kind]


def _index(reading: Reading, index: Value, dtype: str) -> Value:
    wanted = DType.of(np.dtype(dtype))
    same = wanted is DType.INT64 or not wanted.is_integer
    return index if same else _insert_cast(reading, index, wanted)


def along(op_type: str) -> Row:
    """Returns the row of ``gather_elements`` and ``scatter_elements``."""

    def read(reading: Reading, call: Call) -> Value:
        operands = [reading.plain(entry) for entry in call.args]
        more: dict[str, Attribute] = {"axis": call.integer("axis", 0) % (operands[0].rank or 1)}
        return _scattered(reading, call, op_type, operands, more)

    return read


def at_positions(op_type: str) -> Row:
    """Returns the row of ``gather_nd`` and ``scatter_nd``; ONNX's take int64 indices only."""

    def read(reading: Reading, call: Call) -> Value:
        operands = [reading.plain(entry) for entry in call.args]
        if operands[1].type.dtype is not DType.INT64:
            operands[1] = _insert_cast(reading, operands[1], DType.INT64)
        lead = int(call.get("batch_dims", 0) or 0)
        return _scattered(reading, call, op_type, operands, {"batch_dims": lead} if lead else {})

    return read


_REDUCTIONS = {"update": "none", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _scattered(
    reading: Reading, call: Call, op_type: str, operands: list[Value], more: dict[str, Attribute]
) -> Value:
    reduction = call.get("reduction")
    if reduction is not None:
        if str(reduction) not in _REDUCTIONS:
            raise reading.refused(f"its reduction is {reduction}")
        more["reduction"] = _REDUCTIONS[str(reduction)]
    # The oldest opset that has the reduction: a newer one would keep the file from older runtimes.
    newer = 18 if more.get("reduction") in ("min", "max") else OPSET
    operands[1] = _index_type(reading, operands[1])
    return standard(reading, op_type, operands, [tensor(call)], call, opset=newer, **more)[0]


def _index_type(reading: Reading, value: Value) -> Value:
    wide = (DType.INT32, DType.INT64)
    return value if value.type.dtype in wide else _insert_cast(reading, value, DType.INT64)


def triangle(*, upper: bool) -> Row:
    """Returns the row of ``triu(x, k)`` and ``tril(x, k)``."""

    def read(reading: Reading, call: Call) -> Value:
        x = reading.plain(call.args[0])
        offset = reading.constant(np.asarray(call.integer("k", 0), np.int64))
        return standard(reading, "Trilu", [x, offset], [tensor(call)], call, upper=int(upper))[0]

    return read


def one_hot(reading: Reading, call: Call) -> Value:
    """``one_hot(indices, on_value, off_value, depth, axis)``."""
    index = reading.plain(call.args[0])
    if index.type.dtype is not DType.INT64:  # the one type that goes with depth in onnxruntime
        index = _insert_cast(reading, index, DType.INT64)
    numbers = [float(call.attrs["off_value"]), float(call.attrs["on_value"])]
    values = reading.constant(np.asarray(numbers, call.dtype.numpy))
    depth = reading.constant(np.asarray(call.integer("depth"), np.int64))
    axis = call.integer("axis", -1)
    return standard(reading, "OneHot", [index, depth, values], [tensor(call)], call, axis=axis)[0]


_NAMES = {
    "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "equal": "Equal", "logical_and": "And", "logical_or": "Or",
    "logical_xor": "Xor", "logical_not": "Not", "isnan": "IsNaN", "isinf": "IsInf",
    "tan": "Tan", "sinh": "Sinh", "cosh": "Cosh", "asin": "Asin", "acos": "Acos", "atan": "Atan",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh",
}  # fmt: skip
_BITS = {
    "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor",
    "bitwise_not": "BitwiseNot",
}  # fmt: skip
_BITS_SINCE = 18

_make: Callable[..., Row] = same_operands
STANDARD: Mapping[str, Row] = {
    **{name: _make(op_type) for name, op_type in _NAMES.items() if op_type not in BY_NAME},
    **{name: _make(op_type, _BITS_SINCE) for name, op_type in _BITS.items()},
    "left_shift": shifted("LEFT"),
    "right_shift": shifted("RIGHT"),
    "floor_mod": _make("Mod", fmod=0),
    "mod": _make("Mod", fmod=1),
    "nonzero": _make("NonZero"),
    "not_equal": negated("Equal"),
    "isfinite": is_finite,
    "argmax": extreme_index("ArgMax"),
    "argmin": extreme_index("ArgMin"),
    "cumsum": cumulated,
    "prod": product,
    "topk": largest,
    "gather_elements": along("GatherElements"),
    "scatter_elements": along("ScatterElements"),
    "gather_nd": at_positions("GatherND"),
    "scatter_nd": at_positions("ScatterND"),
    "triu": triangle(upper=True),
    "tril": triangle(upper=False),
    "one_hot": one_hot,
}
"""One row per operator, by Relax's name."""
