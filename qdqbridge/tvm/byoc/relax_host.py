"""Patterns and partitions on Relax.

``patterns(table)`` gives ``FusionPattern``s for TVM's own ``FuseOpsByPattern`` and pattern
registry; :func:`partition` of :mod:`qdqbridge.tvm.byoc.partition` does all of it in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax import dpl
from tvm.relax.backend.utils import has_leaking_intermediate_variables
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import FuseOpsByPattern, FusionPattern, LambdaLift, MergeCompositeFunctions

from qdqbridge.tvm.byoc.coverage import Composite, Contents, kept, needed, variants
from qdqbridge.tvm.byoc.pattern import (
    Anything,
    Applied,
    CallPattern,
    ConstantPattern,
    Either,
    Extents,
    FixedTerm,
    Free,
    Group,
    Optional,
    Pattern,
    Term,
    Tuple,
)
from qdqbridge.tvm.byoc.table import Entry, Table
from qdqbridge.tvm.qnn.origin import label
from qdqbridge.tvm.relax import dialect
from qdqbridge.tvm.relax.read.module import is_region

# ---- Relax expressions as terms: Relay's operator names, plain attributes, functions seen through

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


def with_stated_extents(module: ir.IRModule) -> ir.IRModule:
    """Returns a module whose composites take no shapes as parameters."""
    stated: dict[str, Any] = {}
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function) and "Composite" in (function.attrs or {}):
            shapes: Any = _shapes(function)
            if shapes:
                stated[variable.name_hint] = function.bind_params(shapes)
    if not stated:
        return module
    visitor = _Callers(module, stated)
    main: Any = visitor.visit_expr(module["main"])
    visitor.builder_.update_func(module.get_global_var("main"), main)
    changed = visitor.builder_.finalize()
    for name in stated:
        del changed[module.get_global_var(name)]
    return changed


def _shapes(function: relax.Function) -> dict[relax.Var, relax.ShapeExpr]:
    found: dict[relax.Var, relax.ShapeExpr] = {}
    for parameter in function.params:
        values = getattr(parameter.ty, "values", None)
        if isinstance(parameter.ty, relax.ShapeType) and values is not None:
            found[parameter] = relax.ShapeExpr(list(values))
    return found


@mutator
class _Callers(PyExprMutator):
    """Calls the functions that state their shapes."""

    def __init__(self, module: ir.IRModule, stated: dict[str, Any]) -> None:
        super().__init__(module)
        self._added = {
            name: self.builder_.add_func(function, name) for name, function in stated.items()
        }

    def visit_call_(self, op: Any) -> Any:
        call: Any = self.visit_expr_post_order(op)
        callee = self._added.get(getattr(call.op, "name_hint", ""))
        if callee is None:
            return call
        # The function states its shapes now.
        kept = [arg for arg in call.args if not isinstance(arg.ty, relax.ShapeType)]
        return relax.Call(callee, kept)


del dialect  # its import registers the operators


# ---- patterns --------------------------------------------------------------------------------
@dataclass(slots=True)
class Compiled:
    """A pattern of TVM's, and the captures in it.

    Attributes:
        pattern: The pattern of the result.
        captures: Patterns by the names they capture under.
    """

    pattern: dpl.DFPattern
    captures: dict[str, dpl.DFPattern]


def compile_pattern(pattern: Pattern) -> Compiled:
    """Returns a pattern for ``FuseOpsByPattern``.

    Every place becomes a pattern of its own (one ``is_const()`` used twice would demand the same
    constant twice).
    """
    captures: dict[str, dpl.DFPattern] = {}
    return Compiled(_compiled(pattern, captures), captures)


def _compiled(pattern: Pattern, captures: dict[str, dpl.DFPattern]) -> dpl.DFPattern:
    match pattern:
        case Anything(name=name):
            return _captured(dpl.wildcard(), name, captures)
        case ConstantPattern(name=name):
            return _captured(dpl.is_const(), name, captures)
        case Tuple(fields=fields, name=name):
            inside = [_compiled(part, captures) for part in fields]
            whole = dpl.is_tuple(inside) if fields else dpl.wildcard()
            return _captured(whole, name, captures)
        case Either(choices=some):
            known = [choice for choice in some if needed(choice) <= _registered_relax_ops()]
            compiled = [_compiled(choice, captures) for choice in known]
            # From the last one on: TVM tries the left side first, so that the order of the choices
            # is kept.
            joined = compiled[-1]
            for each in reversed(compiled[:-1]):
                joined = dpl.OrPattern(each, joined)
            return joined
        case Optional(inner=inner, wrapped=wrapped):
            return _compiled(Either(wrapped, inner), captures)
        case CallPattern(op=op, args=args, attrs=attrs, name=name):
            inside = [_compiled(arg, captures) for arg in args]
            called: Any = dpl.CallPattern(dpl.is_op(relax_name(op)), inside, True)
            return _captured(called.has_attr(dict(attrs)) if attrs else called, name, captures)


def _captured(made: dpl.DFPattern, name: str, captures: dict[str, dpl.DFPattern]) -> dpl.DFPattern:
    if name:
        captures[name] = made
    return made


def _registered_relax_ops() -> frozenset[str]:
    return frozenset(relay_name(str(name)) for name in ir.Op.list_op_names())


def patterns(
    table: Table, present: Sequence[str] | None = None, failures: list[Exception] | None = None
) -> list[FusionPattern]:
    """Returns the patterns of a table with their checks, for ``FuseOpsByPattern``.

    Args:
        table: The table.
        present: The operators of the module, by Relay's names; others are left out. None for all.
        failures: Takes what checks raise; None lets TVM have it.
    """
    have = sorted(_registered_relax_ops()) if present is None else present
    found: list[FusionPattern] = []
    for name, one, root in variants(table, have):
        check = (
            _relax_pattern_check(one, root)
            if failures is None
            else kept(_relax_pattern_check(one, root), failures)
        )
        compiled = compile_pattern(root).pattern
        found.append(FusionPattern(f"{table.name}.{name}", compiled, {}, check))
    return found


def _relax_pattern_check(table: Table, root: Pattern) -> Callable[[Any], bool]:
    entry: Entry = replace(table.entries[0], pattern=root)

    def check(context: Any) -> bool:
        # A value inside is read elsewhere: the region would have to compute it twice.
        if has_leaking_intermediate_variables(context):
            return False
        bound: Any = context.matched_bindings
        reader = RelaxTermReader({variable: value for variable, value in bound.items()})
        return table.judge(entry, reader.call(context.matched_expr)).takes

    return check


# ---- modules ---------------------------------------------------------------------------------
def _calls(function: Any, module: Any = None) -> tuple[RelaxTermReader, dict[Any, Any]]:
    bound = dict(bindings(function))
    return RelaxTermReader(bound, module), bound


def present(module: ir.IRModule) -> list[str]:
    """Returns the operators of ``main`` by Relay's names."""
    found: dict[str, None] = {}
    for _, value in bindings(module["main"]):
        if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
            found[relay_name(str(value.op.name))] = None
    return list(found)


def partition(module: ir.IRModule, table: Table, *, regions: bool) -> ir.IRModule:
    """Returns the module with composites; see :func:`qdqbridge.tvm.byoc.partition`."""
    failures: list[Exception] = []
    wanted: list[Any] = sorted(patterns(table, present(module), failures), key=_loses_extents)
    if wanted:
        fuse = FuseOpsByPattern(wanted, bind_constants=True, entry_functions=["main"])
        module = with_stated_extents(fuse(module))
    # An exception that passes through TVM's pass loses its type and its text.
    if failures:
        raise failures[0]
    if not regions:
        return module
    if _casts(module["main"]):  # TVM 0.27 cannot merge across match_cast: each is its own region
        return FuseOpsByPattern([], annotate_codegen=True)(module)
    return _without(MergeCompositeFunctions()(_marked(module)), _MARK)


_MARK = "qdqbridge.untouched"


def _marked(module: ir.IRModule) -> ir.IRModule:
    """Marks functions that are neither ``main`` nor composites as primitive.

    TVM's merging visits every other function, and fails on what it did not group.
    """
    marked = ir.IRModule(dict(module.functions.items()), attrs=module.attrs)
    for variable, function in module.functions.items():
        plain = isinstance(function, relax.Function) and "Composite" not in (function.attrs or {})
        if plain and variable.name_hint != "main":
            marked[variable] = function.with_attr("Primitive", True).with_attr(_MARK, True)
    return marked


def _without(module: ir.IRModule, mark: str) -> ir.IRModule:
    for variable, function in list(module.functions.items()):
        if mark in (function.attrs or {}):
            module[variable] = function.without_attr("Primitive").without_attr(mark)
    return module


def _casts(function: Any) -> bool:
    blocks = function.body.blocks
    return any(isinstance(b, relax.MatchCast) for block in blocks for b in block.bindings)


def _loses_extents(pattern: FusionPattern) -> bool:
    """These come last: what TVM outlines after them has no shapes (see relax_extents)."""
    return pattern.name.endswith(".broadcast_to")


def contents(module: ir.IRModule) -> Contents:
    """Returns what ``main`` of a partitioned module holds."""
    reader, bound = _calls(module["main"], module)
    left: list[Applied] = []
    composites: list[Composite] = []
    regions: list[str] = []
    for variable, value in bound.items():
        if not isinstance(value, ir.Call):
            continue
        callee = module[value.op] if isinstance(value.op, ir.GlobalVar) else None
        attrs: Any = None if callee is None else callee.attrs
        if attrs is not None and "Codegen" in attrs:
            symbol = str(attrs["global_symbol"])
            regions.append(symbol)
            composites += _inside(callee, symbol)
        elif attrs is not None and "Composite" in attrs:
            composites.append(composite(callee, str(value.op.name_hint)))
        else:
            left.append(_known_call(reader, variable))
    return Contents(tuple(left), tuple(composites), tuple(regions), _quantizing(module))


def _quantizing(module: ir.IRModule) -> frozenset[str]:
    """Returns the functions that call operators on quantized values, or others that do."""
    callees = {variable: _callees(f) for variable, f in module.functions.items()}
    found = {v for v, called in callees.items() if any(_on_codes(each) for each in called)}
    while more := {v for v, called in callees.items() if v not in found and called & found}:
        found |= more
    return frozenset(f"@{variable.name_hint}" for variable in found)


def _callees(function: Any) -> set[Any]:
    called: set[Any] = set()

    def visit(expr: Any) -> None:
        if isinstance(expr, ir.Call):
            called.add(expr.op)

    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(function.body, visit)
    return called


def _on_codes(callee: Any) -> bool:
    name = relay_name(str(callee.name)) if isinstance(callee, ir.Op) else ""
    return name.startswith("qnn.")


def _known_call(reader: RelaxTermReader, variable: Any) -> Applied:
    term = reader.term(variable)
    assert isinstance(term, Applied)
    return term


def _inside(region: Any, symbol: str) -> Iterator[Composite]:
    """Yields the composites of a region, or the region itself where it is a single one."""
    if "Composite" in region.attrs:
        yield composite(region, symbol, symbol)
        return
    known: dict[Any, Composite] = {}
    for variable, value in bindings(region):
        if isinstance(value, relax.Function):
            known[variable] = composite(value, symbol, symbol)
        elif isinstance(value, ir.Call) and value.op in known:  # one function may be called twice
            yield known[value.op]


def composite(function: Any, symbol: str = "", region: str = "") -> Composite:
    """Returns a composite function, taken apart."""
    reader, bound = _calls(function)
    calls = [_known_call(reader, v) for v, value in bound.items() if isinstance(value, ir.Call)]
    name = str(function.attrs["Composite"])
    result = reader.term(function.body.body)
    return Composite(name, function, symbol or name, region, tuple(calls), result)


def runnable(module: ir.IRModule) -> ir.IRModule:
    """Returns a partitioned module that any build runs without its codegen."""
    lifted: ir.IRModule = LambdaLift()(module)
    for variable, function in list(lifted.functions_items()):
        if isinstance(function, relax.Function) and is_region(function):
            lifted.update_func(variable, function.without_attr("Codegen"))
    return lifted


def regions_alone(module: ir.IRModule) -> dict[str, ir.IRModule]:
    """Returns for the symbol of each region a module that does nothing but call it."""
    found: dict[str, ir.IRModule] = {}
    for variable, function in module.functions_items():
        if not isinstance(function, relax.Function) or not is_region(function):
            continue
        alone = ir.IRModule({variable: function})
        builder = relax.BlockBuilder(alone)
        given: list[Any] = [relax.Var(each.name, each.ty) for each in function.params]
        with builder.function("main", given):
            result: Any = builder.emit(relax.Call(variable, given))
            if isinstance(function.ret_ty, relax.TupleType):
                count = len(function.ret_ty.fields)
                items: list[Any] = [
                    builder.emit(relax.TupleGetItem(result, i)) for i in range(count)
                ]
                result = builder.emit(relax.Tuple(items))
            builder.emit_func_output(result)
        alone = builder.finalize()
        found[str(function.attrs["global_symbol"])] = alone
    return found
