"""Relax's calls under Relay's names: arguments that are shapes and numbers become attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import ir, relax, tirx

from qdqbridge.core.graph.types import Shape
from qdqbridge.tvm.qnn.read import Result
from qdqbridge.tvm.relax.emit.broadcasting import written_bound

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


# --------------------------------------------------------------------------------------------------


def attributes(call: ir.Call) -> dict[str, Any]:
    """Returns the attributes of a call."""
    attrs: Any = call.attrs
    if attrs is None:
        return {}
    if isinstance(attrs, ir.DictAttrs):
        return {str(key): plain(attrs[key]) for key in attrs.keys()}  # noqa: SIM118 (no mapping)
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
