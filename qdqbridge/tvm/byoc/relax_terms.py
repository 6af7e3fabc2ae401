"""Relax expressions as terms: Relay's operator names, plain attributes, functions seen through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx

from qdqbridge.tvm.byoc.terms import Applied, Extents, FixedTerm, Free, Group, Term
from qdqbridge.tvm.qnn.origin import label

_RELAY_NAMES = {
    "relax.permute_dims": "transpose", "relax.concat": "concatenate", "relax.astype": "cast",
    "relax.nn.relu": "nn.relu",
}  # fmt: skip
_RELAX_NAMES = {relay: own for own, relay in _RELAY_NAMES.items()}
_ARGUMENTS = {
    "clip": ("a_min", "a_max"),
    "reshape": ("newshape",),
    "broadcast_to": ("shape",),
    "strided_slice": ("axes", "begin", "end", "strides"),
}
"""Arguments of Relax's operators that are attributes of Relay's."""
_SHARED = frozenset(dir(ir.Attrs)) | frozenset(("get_int", "get_int_tuple", "get_str"))


def relax_name(op: str) -> str:
    """Returns Relax's name of an operator that has Relay's."""
    if op.startswith("qnn."):
        return op
    return _RELAX_NAMES.get(op, f"relax.{op}")


def relay_name(op: str) -> str:
    """Returns Relay's name of an operator that has Relax's."""
    return _RELAY_NAMES.get(op, op.removeprefix("relax."))


def bindings(function: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (variable, value) of a function in order of execution."""
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding):
                yield binding.var, binding.value


class RelaxTermReader:
    """Hands out terms for the expressions of one function.

    Args:
        bindings: The expressions of variables that are looked through.
        module: Where to look through calls of composites and regions; None to stop at them.
        outer: Parameters of the function as (reader, expression) of its caller.
    """

    def __init__(
        self,
        bindings: Mapping[Any, Any],
        module: Any = None,
        outer: Mapping[Any, Any] | None = None,
    ) -> None:
        self._bindings, self._module, self._outer = bindings, module, outer or {}
        self._terms: dict[Any, Term] = {}

    def term(self, expr: Any) -> Term:
        """Returns the term of an expression; one per variable."""
        if isinstance(expr, relax.Var):
            if expr not in self._terms:
                self._terms[expr] = self._variable(expr)
            return self._terms[expr]
        if isinstance(expr, ir.GenericConst):
            shape, dtype = _type(expr)
            return FixedTerm(expr, shape, dtype, expr.value.numpy)
        if isinstance(expr, relax.Tuple):
            return Group(expr, lambda: [self.term(field) for field in expr.fields])
        if isinstance(expr, ir.Call):
            return self.call(expr)
        shape, dtype = _type(expr)
        return Free(expr, shape, dtype, type(expr).__name__)

    def _variable(self, variable: Any) -> Term:
        if variable in self._outer:
            reader, expr = self._outer[variable]
            return reader.term(expr)
        bound = self._bindings.get(variable)
        if isinstance(bound, ir.Call):
            return self._inside(bound) or self.call(
                bound, _relax_span_label(bound) or variable.name
            )
        if isinstance(bound, relax.TupleGetItem):
            whole = self.term(bound.tuple_value)
            if isinstance(whole, Group):
                return whole.fields[int(bound.index)]
        if isinstance(bound, relax.Var | relax.Tuple | ir.GenericConst):
            return self.term(bound)
        shape, dtype = _type(variable)
        return Free(variable, shape, dtype, variable.name)

    def _inside(self, call: Any) -> Term | None:
        """Returns what a call of a composite or a region computes, as if it stood here."""
        callee = None
        if self._module is not None and isinstance(call.op, relax.Var):
            callee = self._bindings.get(call.op)
        elif self._module is not None and isinstance(call.op, ir.GlobalVar):
            callee = self._module[call.op]
        attrs: Any = getattr(callee, "attrs", None) or {}
        if not isinstance(callee, relax.Function) or not {"Composite", "Codegen"} & set(
            attrs.keys()
        ):
            return None
        outer = {p: (self, arg) for p, arg in zip(callee.params, call.args, strict=True)}
        return RelaxTermReader(dict(bindings(callee)), self._module, outer).term(callee.body.body)

    def call(self, call: Any, name: str = "") -> Applied:
        """Returns the term of a call."""
        if isinstance(call.op, ir.Op):
            op = relay_name(str(call.op.name))
        else:
            op = f"@{getattr(call.op, 'name_hint', getattr(call.op, 'name', 'function'))}"
        shape, dtype = _type(call)
        names = _ARGUMENTS.get(op, ())
        return Applied(
            call, shape, dtype, op,
            lambda: [self.term(a) for a in call.args if not _is_attribute(a, names)],
            lambda: _relax_call_attrs(call, names), name=name,
        )  # fmt: skip


def _relax_span_label(call: Any) -> str:
    """Returns the name in the model that the emitter left on a call; empty where there is none."""
    span = getattr(call, "span", None)
    source = getattr(span, "source_name", None)
    return "" if source is None else label(str(source.name))


def _is_attribute(expr: Any, names: Sequence[str]) -> bool:
    return isinstance(expr, relax.ShapeExpr | tirx.IntImm | tirx.FloatImm) or (
        bool(names) and isinstance(expr, relax.Tuple)
    )


def _type(expr: Any) -> tuple[Extents, str]:
    type_ = expr.ty
    if not isinstance(type_, relax.TensorType):
        return None, ""
    shape: Any = type_.shape
    extents = None
    if isinstance(shape, relax.ShapeExpr):
        extents = tuple(_relax_attr_value(extent) for extent in shape.values)
    return extents, str(type_.dtype)


def _relax_call_attrs(call: Any, names: Sequence[str]) -> dict[str, Any]:
    attrs, found = call.attrs, {}
    if isinstance(attrs, ir.DictAttrs):
        keys: Any = attrs.keys()
        found = {str(key): _relax_attr_value(attrs[key]) for key in keys}
    elif attrs is not None:
        keys = [key for key in dir(attrs) if not key.startswith("_") and key not in _SHARED]
        found = {key: _relax_attr_value(getattr(attrs, key)) for key in keys}
    extra = [a for a in call.args[1:] if _is_attribute(a, names)]
    return {**found, **dict(zip(names, map(_relax_attr_value, extra), strict=False))}


def _relax_attr_value(value: Any) -> Any:
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, relax.ShapeExpr):
        return tuple(_relax_attr_value(extent) for extent in value.values)
    if isinstance(value, relax.Tuple):
        return tuple(_relax_attr_value(part) for part in value.fields)
    if isinstance(value, ir.Array | tuple | list):
        return tuple(_relax_attr_value(part) for part in value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value)
