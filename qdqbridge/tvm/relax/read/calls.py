"""Relax's calls under Relay's names: arguments that are shapes and numbers become attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax, tirx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import Shape, TensorType, static_shape
from qdqbridge.core.ops.attributes import AxisAttrs, ExpandAttrs, ShapeAttrs
from qdqbridge.tvm.qnn.read import Call, Reading, Result, Row
from qdqbridge.tvm.qnn.read.call import constant_of
from qdqbridge.tvm.qnn.read.reading import tensor
from qdqbridge.tvm.relax.emit.broadcasting import written_bound
from qdqbridge.tvm.relax.read.module_errors import ReaderPlace, explained_errors
from qdqbridge.tvm.relax.read.standard import standard

# ---- TVM's values as Python numbers, strings and tuples ------------------------------------------

Decoded = tuple[str, list[Any], dict[str, Any]]
"""Relay's operator, the tensor arguments, the attributes."""


def plain(value: Any) -> Any:
    """Returns a TVM value as Python numbers, strings and tuples; symbolic extents as they are."""
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, relax.ShapeExpr):
        return tuple(plain(item) for item in value.values)
    if isinstance(value, relax.Tuple):
        return tuple(plain(item) for item in value.fields)
    if isinstance(value, ir.Array | tuple | list):
        return tuple(plain(item) for item in value)
    return value


# ---- the calls of a module, found in time that grows with their number alone ---------------------


def calls_of(module: ir.IRModule) -> Iterator[Any]:
    """Yields the calls of a module's Relax functions, those inside of branches too.

    TVM's visitors enter the type of a variable wherever it is read: a tuple of many fields takes
    them time in the square of its length.
    """
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            yield from _inside(function.body)


def _inside(body: Any) -> Iterator[Any]:
    seen: set[Any] = set()
    stack = [body]
    while stack:
        expr = stack.pop()
        if isinstance(expr, relax.Var | ir.GenericConst) or expr in seen:
            continue
        seen.add(expr)
        if isinstance(expr, ir.Call):
            yield expr
        # In the order of execution: the last one pushed is looked at first.
        stack += reversed(_relax_subexprs(expr))


def _relax_subexprs(expr: Any) -> list[Any]:
    if isinstance(expr, relax.SeqExpr):
        bindings = [binding for block in expr.blocks for binding in block.bindings]
        return [*(binding.value for binding in bindings), expr.body]
    if isinstance(expr, ir.Call):
        return [expr.op, *expr.args]
    if isinstance(expr, relax.If):
        return [expr.cond, expr.true_branch, expr.false_branch]
    if isinstance(expr, relax.Function):
        return [expr.body]
    if isinstance(expr, relax.Tuple):
        return list(expr.fields)
    return [expr.tuple_value] if isinstance(expr, relax.TupleGetItem) else []


def attributes(call: ir.Call) -> dict[str, Any]:
    """Returns the attributes of a call."""
    attrs: Any = call.attrs
    if attrs is None:
        return {}
    # The dialect's attributes are a dictionary; those of TVM's own operators are fields of a type,
    # which only its reflection names.
    if isinstance(attrs, ir.DictAttrs):
        return {str(key): plain(attrs[key]) for key in attrs.keys()}  # noqa: SIM118 (no mapping)
    # Of every class above it as well: fields are listed where they are declared.
    kinds = [kind for kind in type(attrs).__mro__ if "__tvm_ffi_type_info__" in vars(kind)]
    names = [field.name for kind in kinds for field in kind.__tvm_ffi_type_info__.fields or ()]
    return {name: plain(getattr(attrs, name)) for name in names}


def decoded(call: ir.Call) -> Decoded:
    """Returns a call of a Relax operator as Relay would write it."""
    name = str(call.op.name).removeprefix("relax.")
    args, attrs = list(call.args), attributes(call)
    special = _SPECIAL.get(name)
    if special is not None:
        args, more = special(args)
        attrs |= more
    renamed = _ATTRIBUTES.get(name, {})
    attrs = {renamed.get(key, key): value for key, value in attrs.items()}
    return _NAMES.get(name, name), args, attrs


def results_of(type_: Any) -> list[Result]:
    """Returns the types of a tensor, or of the fields of a tuple."""
    fields = getattr(type_, "fields", None)
    if fields is not None:
        return [result for field in fields for result in results_of(field)]
    if not isinstance(type_, relax.TensorType):
        return [Result("int64", None)]
    return [Result(str(type_.dtype or "float32"), _relax_type_shape(type_))]


def _relax_type_shape(type_: Any) -> Shape:
    if type_.shape is None or not hasattr(type_.shape, "values"):
        return None
    return tuple(_dim(extent) for extent in type_.shape.values)


def _dim(extent: Any) -> int | str:
    extent = plain(extent)
    if isinstance(extent, int):
        return extent
    return str(extent.name) if isinstance(extent, tirx.Var) else str(extent)


Special = Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]]


def _to_attributes(*names: str) -> Special:
    """The arguments after the first are attributes of these names."""

    def split(args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        return [args[0]], {name: plain(a) for name, a in zip(names, args[1:], strict=False)}

    return split


def _dropping_first(args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The first argument is the shape of the result, which its type has too."""
    return list(args[1:]), {}


def _numbers(*names: str) -> Special:
    """All arguments are attributes of these names."""

    def split(args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        return [], {name: plain(arg) for name, arg in zip(names, args, strict=False)}

    return split


def _strided_slice(args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Bounds of an open axis may be the larger one of two: see ``relax.bounds``."""
    (x,), found = _to_attributes("axes", "begin", "end", "strides")(args)
    shape = getattr(x.ty, "shape", None)
    begins, ends = list(found["begin"]), list(found["end"])
    if not isinstance(shape, relax.ShapeExpr) or len(found["axes"]) != len(begins):
        return [x], found
    for index, axis in enumerate(found["axes"]):
        for computed, known in ((ends, begins), (begins, ends)):
            if not isinstance(computed[index], int) and isinstance(known[index], int):
                extent, bound = shape.values[axis], computed[index]
                # backwards from the first element on where there is none: the larger one of 0
                written = [written_bound(extent, bound, other) for other in (known[index], 0)]
                computed[index] = next((each for each in written if each is not None), bound)
    return [x], {**found, "begin": tuple(begins), "end": tuple(ends)}


_SPECIAL: dict[str, Special] = {
    "reshape": _to_attributes("newshape"),
    "broadcast_to": _to_attributes("shape"),
    "qnn.broadcast_to": _to_attributes("shape"),
    "strided_slice": _strided_slice,
    "clip": _to_attributes("a_min", "a_max"),
    "image.resize2d": _to_attributes("size"),
    "image.resize3d": _to_attributes("size"),
    "triu": _to_attributes("k"),
    "tril": _to_attributes("k"),
    "one_hot": _to_attributes("on_value", "off_value"),
    "full": _dropping_first,
    "zeros": _dropping_first,
    "ones": _dropping_first,
    "arange": _numbers("start", "end", "step"),
}
_NAMES = {
    "permute_dims": "transpose",
    "concat": "concatenate",
    "astype": "cast",
    "nn.leakyrelu": "nn.leaky_relu",
    "qnn.broadcast_to": "broadcast_to",
}
"""Relay's name where Relax has another."""

_ATTRIBUTES = {"tile": {"repeats": "reps"}, "nn.layer_norm": {"axes": "axis"}}
"""Relay's names of attributes where Relax has others."""


# ---- rows of tensors that are made from nothing: of one number, of a range, of a shape -----------

_LARGEST = 1 << 16
"""Elements up to which a constant is written out; a larger one is expanded from one number."""

_LONGEST = 1 << 24
"""Elements of a range that are written out; anybody may write a longer one in few letters."""


def filled(number: float) -> Row:
    """Returns the row of ``zeros`` and ``ones``, and of those like another tensor."""

    def read(reading: Reading, call: Call) -> Value:
        single = np.asarray(number, call.dtype.numpy)
        return _expand_scalar(reading, call, reading.constant(single))

    return read


def full(reading: Reading, call: Call) -> Value:
    """``full(shape, number)`` and ``full_like(x, number)``."""
    value = reading.plain(call.args[-1])
    found = constant_of(value)
    if found is not None and found.size == 1:
        single = found.reshape(()).astype(call.dtype.numpy)
        value = reading.constant(single)
    return _expand_scalar(reading, call, value)


def _expand_scalar(reading: Reading, call: Call, value: Value) -> Value:
    """Returns a value of one element as a tensor of the call's shape."""
    extents = static_shape(call.result.shape)
    if extents is None:
        return _like(reading, call, value)
    if value.constant is not None and int(np.prod(extents)) <= _LARGEST:
        return reading.constant(np.full(extents, value.constant.numpy().reshape(())))
    return reading.node("Expand", ExpandAttrs(extents), [value], tensor(call), call)


def _like(reading: Reading, call: Call, value: Value) -> Value:
    """Returns a value of one element in the shape of the call's first argument, a tensor."""
    first = call.args[0] if call.args else None
    if not isinstance(first, Value) or first.type.shape != call.result.shape:
        raise reading.refused("its shape is known at run time only")
    vector = TensorType(DType.INT64, (first.rank or 0,))
    shape = reading.node("Shape", ShapeAttrs(), [first], vector, call)
    return reading.node("Expand", ExpandAttrs(None), [value, shape], tensor(call), call)


def arange(reading: Reading, call: Call) -> Value:
    """``arange(start, end, step)`` between numbers."""
    ends = [call.get(name) for name in ("start", "end", "step")]
    if any(not isinstance(end, int | float) for end in ends):
        raise reading.refused("an end of its range is known at run time only")
    start, end, step = ends
    # Text of a few letters must not make gigabytes.
    if step == 0 or (end - start) / step > _LONGEST:
        raise reading.refused(f"its range has more than {_LONGEST} elements, or a step of 0")
    return reading.constant(np.arange(start, end, step).astype(call.dtype.numpy))


def size(reading: Reading, call: Call) -> Value:
    """``size(x)``: the number of elements."""
    x = reading.value(call.args[0])
    return standard(reading, "Size", [x], [TensorType(DType.INT64, ())], call)[0]


ROWS: Mapping[str, Row] = {
    "zeros": filled(0),
    "ones": filled(1),
    "zeros_like": filled(0),
    "ones_like": filled(1),
    "full": full,
    "full_like": full,
    "arange": arange,
    "size": size,
}
"""One row per operator, by Relax's name."""


# ---- whether a module has images whose channels come last ----------------------------------------

_LAST = ("NWC", "NHWC", "NDHWC")
_SHAPE_NAMES = ("data_layout", "layout")


@explained_errors(ReaderPlace("the module"))
def channels_last(module: ir.IRModule) -> bool:
    """Returns whether an operator of a module works on channels-last images.

    Such operators are read as channels-first ones between transposes, which then have to be
    carried to where they undo each other.
    """
    given = (call.attrs for call in calls_of(module) if call.attrs is not None)
    return any(str(_attribute(attrs, name)) in _LAST for attrs in given for name in _SHAPE_NAMES)


def _attribute(attrs: Any, name: str) -> Any:
    if isinstance(attrs, ir.DictAttrs):
        return attrs[name] if name in attrs.keys() else ""  # noqa: SIM118 (no mapping)
    return getattr(attrs, name, "")


_VECTOR = TensorType(DType.INT64, (1,))
_ARITHMETIC = ((tirx.Add, "Add"), (tirx.Sub, "Sub"), (tirx.Mul, "Mul"), (tirx.FloorDiv, "Div"))


class Extents:
    """Knows which tensor has which symbolic extent.

    Args:
        reading: The graph so far.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.sources: dict[Any, tuple[Value, int]] = {}

    def note(self, value: Value, type_: Any) -> None:
        """Enters the extents of a tensor that are variables."""
        extents: list[Any] = list(getattr(type_.shape, "values", None) or ())
        for axis, extent in enumerate(extents):
            if isinstance(extent, tirx.Var):
                # The first tensor that has it: inputs come before what is computed from them.
                self.sources.setdefault(extent, (value, axis))

    def vector(self, extents: Sequence[Any]) -> Value:
        """Returns extents as an int64 vector: a constant where all are numbers.

        Raises:
            UnsupportedModelError: An extent belongs to no tensor that is known.
        """
        known = [plain(extent) for extent in extents]
        if all(isinstance(extent, int) for extent in known):
            return self.reading.constant(np.asarray(known, np.int64))
        parts = [self._one(extent) for extent in extents]
        type_ = TensorType(DType.INT64, (len(parts),))
        return parts[0] if len(parts) == 1 else self._node("Concat", AxisAttrs(0), parts, type_)

    def target(self, shape: Sequence[Any], own: Sequence[Any]) -> Value | None:
        """Returns what a tensor of extents ``own`` is broadcast to, where that is not constant.

        An extent that the tensor has already is 1 in it, as in the target of ONNX's Expand.
        """
        wide = (*(1,) * (len(shape) - len(own)), *own)
        names = [e if isinstance(e, int) else str(getattr(e, "name", e)) for e in map(plain, shape)]
        # ONNX's Expand keeps an extent where its target says 1, so an open one need not be
        # computed.
        rest = [1 if n == w else e for e, n, w in zip(shape, names, wide, strict=True)]
        return None if all(isinstance(plain(e), int) for e in rest) else self.vector(rest)

    def knows(self, extent: Any) -> bool:
        """True where an extent is arithmetic of extents of known tensors."""
        if isinstance(plain(extent), int):
            return True
        if isinstance(extent, tirx.Var):
            return extent in self.sources
        known = any(isinstance(extent, kind) for kind, _ in _ARITHMETIC)
        return known and self.knows(extent.a) and self.knows(extent.b)

    def _one(self, extent: Any) -> Value:
        """Returns one extent as a vector of one element."""
        number = plain(extent)
        if isinstance(number, int):
            return self.reading.constant(np.asarray([number], np.int64))
        if isinstance(extent, tirx.Var) and extent in self.sources:
            value, axis = self.sources[extent]
            return self._node("Shape", ShapeAttrs(axis, axis + 1), [value], _VECTOR)
        for kind, name in _ARITHMETIC:
            if isinstance(extent, kind):
                operands = [self._one(extent.a), self._one(extent.b)]
                return self._node(name, NO_ATTRIBUTES, operands, _VECTOR)
        raise self.reading.refused(f"the extent {extent} is no arithmetic of known extents")

    def _node(self, name: str, attributes: Any, operands: list[Value], type_: TensorType) -> Value:
        return self.reading.node(name, attributes, operands, type_)
