"""Patterns and partitions on Relay (TVM up to 0.19, and its forks).

``pattern_table(table)`` gives what ``register_pattern_table`` and ``MergeComposite`` take;
:func:`qdqbridge.tvm.byoc.partition` does all of it in one call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import tvm
from tvm import relay
from tvm.relay import dataflow_pattern as dfp

from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc import descriptions
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
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Check, Entry, Table
from qdqbridge.tvm.qnn.origin import label

# ---- Relay's own patterns in our algebra: so a shipped table can say why it leaves an operator

_ENDS = ("clip", "qnn.requantize", "qnn.quantize")
"""What a composite may end with, behind the operator that it is about."""
Why = Callable[[str, Any], "list[str]"]
"""(entry, root expression) -> why the table's own check refuses."""


def converted(pattern: Any) -> Pattern:
    """Returns a pattern of ``tvm.relay.dataflow_pattern`` in our algebra.

    Conditions on types are left out; a shipped table's checks ask for them again.
    """
    return _converted(pattern, {})


def _converted(pattern: Any, known: dict[Any, Pattern]) -> Pattern:
    # Patterns share parts: without memory a part would be several, and each would match anything.
    if pattern not in known:
        known[pattern] = _made(pattern, known)
    return known[pattern]


def _made(pattern: Any, known: dict[Any, Pattern]) -> Pattern:
    if isinstance(pattern, dfp.ConstantPattern):
        return ConstantPattern()
    if isinstance(pattern, dfp.AltPattern):
        return Either(_converted(pattern.left, known), _converted(pattern.right, known))
    if isinstance(pattern, dfp.AttrPattern):
        return _with_attributes(_converted(pattern.pattern, known), pattern.attrs)
    if isinstance(pattern, dfp.TypePattern | dfp.DataTypePattern | dfp.ShapePattern):
        return _converted(pattern.pattern, known)
    if isinstance(pattern, dfp.TuplePattern):
        return Tuple(*(_converted(field, known) for field in pattern.fields or ()))
    if isinstance(pattern, dfp.CallPattern):
        return _call(pattern, known)
    return Anything()


def _call(pattern: Any, known: dict[Any, Pattern]) -> Pattern:
    args = [_converted(arg, known) for arg in pattern.args or ()]
    names = _operators(pattern.op)
    calls = [CallPattern(name, *args) for name in names]
    if not calls:
        return Anything()
    return calls[0] if len(calls) == 1 else Either(*calls)


def _operators(pattern: Any) -> list[str]:
    if isinstance(pattern, dfp.AltPattern):
        return _operators(pattern.left) + _operators(pattern.right)
    if isinstance(pattern, dfp.ExprPattern) and isinstance(pattern.expr, tvm.ir.Op):
        return [str(pattern.expr.name)]
    return []


def _with_attributes(pattern: Pattern, attrs: Any) -> Pattern:
    if isinstance(pattern, Either):
        return Either(*(_with_attributes(choice, attrs) for choice in pattern.choices))
    if not isinstance(pattern, CallPattern):
        return pattern
    wanted = {str(key): _pattern_attr_value(attrs[key]) for key in attrs.keys()}  # noqa: SIM118
    return CallPattern(pattern.op, *pattern.args, attrs=wanted, name=pattern.name)


def _pattern_attr_value(value: Any) -> Any:
    if isinstance(value, tvm.ir.Array):
        return [_pattern_attr_value(part) for part in value]
    inner = getattr(value, "value", value)
    return inner if isinstance(inner, bool | int | float) else str(inner)


def explaining(name: str, patterns: Sequence[Any], why: Why | None = None) -> Table:
    """Returns a table that judges as a shipped one does, and finds words for it.

    Args:
        name: The codegen.
        patterns: (name, pattern) or (name, pattern, check) as its pattern table returns them.
        why: Says more than "its own check refuses" where a check does.
    """
    entries: list[Entry] = []
    used: dict[str, int] = {}
    for full, pattern, *check in patterns:
        short = str(full).removeprefix(f"{name}.")
        used[short] = count = used.get(short, 0) + 1
        # Shipped tables use one name for several patterns, in the order in which they are tried.
        unique = short if count == 1 else f"{short}#{count}"
        own = _own_check(short, check[0] if check else _anything, why)
        entries.append(Entry(unique, converted(pattern), descriptions.other, own))
    return Table(name.replace(".", "_"), tuple(entries))


def _anything(expr: Any) -> bool:
    del expr
    return True


def _extension(expr: Any) -> str:
    """Returns the operator of ours for which a pattern of Relay's operators is meant to stand."""
    while isinstance(expr, tvm.relay.Call):
        name = str(getattr(expr.op, "name", ""))
        if name.startswith(EXTENSION):
            return name
        # Behind what a composite may end with stands the operator that it is about.
        if name not in _ENDS:
            return ""
        expr = expr.args[0]
    return ""


def _own_check(entry: str, check: Callable[[Any], Any], why: Why | None) -> Check:
    def asked(record: Record) -> list[str]:
        expr = record.output.term.source
        extension = _extension(expr)
        if extension:
            return [
                f"it is {extension}, with an element type or axis that Relay's operator has not"
            ]
        try:
            taken = bool(check(expr))
        # A vendor's check meets calls of ours that it was not written for.
        except (tvm.TVMError, QdqBridgeError, AttributeError, IndexError, KeyError, TypeError,
                ValueError, AssertionError) as error:  # fmt: skip
            return [f"its own check fails: {type(error).__name__} {error}".splitlines()[0]]
        if taken:
            return []
        return (why(entry, expr) if why else []) or ["its own check refuses"]

    return asked


Expr = Any


# ---- patterns --------------------------------------------------------------------------------


_ARITIES = tuple(range(1, 17))


def compile_pattern(pattern: Pattern, arities: Sequence[int] = _ARITIES) -> Any:
    """Returns a pattern for ``MergeComposite``; constants are embedded in the composite.

    Operators take a fixed number of arguments on Relay: those that a pattern does not name become
    "a constant, or anything".

    Args:
        pattern: The pattern.
        arities: Lengths of tuples; a tuple of constants is a pattern for each length.
    """
    match pattern:
        case Anything():
            return dfp.wildcard()
        case ConstantPattern():
            return dfp.is_constant()
        case Tuple(fields=fields, every=every):
            if fields or every is None:
                return dfp.is_tuple([compile_pattern(part) for part in fields] if fields else None)
            tuples = [dfp.is_tuple([compile_pattern(every) for _ in range(n)]) for n in arities]
            return reduce(operator.or_, tuples)
        case Either(choices=some):
            known = [choice for choice in some if needed(choice) <= _registered_relay_ops()]
            return reduce(operator.or_, [compile_pattern(choice, arities) for choice in known])
        case Optional(inner=inner, wrapped=wrapped):
            return compile_pattern(Either(wrapped, inner), arities)
        case CallPattern(op=op, args=args, attrs=attrs):
            inside = [compile_pattern(arg, arities) for arg in args]
            missing = max(
                int(tvm.ir.Op.get(_registered_op_names(op)[0]).num_inputs) - len(inside), 0
            )
            # A wildcard alone would make constants parameters of the composite, which code
            # generators want inside.
            inside += [dfp.is_constant() | dfp.wildcard() for _ in range(missing)]
            called = reduce(operator.or_, map(dfp.is_op, _registered_op_names(op)))(*inside)
            return called.has_attr(dict(attrs)) if attrs else called


EXTENSION = "qnn.qdq_"
"""Operators of ours that go beyond Relay's of the same name: another type, another axis."""


def _registered_op_names(op: str) -> list[str]:
    """Returns the operators that go by one name here."""
    ours = op.replace("qnn.", EXTENSION, 1) if op.startswith("qnn.") else op
    known = set(map(str, tvm.ir.Op.list_op_names()))
    return [name for name in dict.fromkeys((op, ours)) if name in known] or [op]


def _name_of(op: Any) -> str:
    """Returns the name under which patterns know an operator."""
    return str(op.name).replace(EXTENSION, "qnn.", 1)


def _registered_relay_ops() -> frozenset[str]:
    names = map(str, tvm.ir.Op.list_op_names())
    return frozenset(name.replace(EXTENSION, "qnn.", 1) for name in names)


def pattern_table(
    table: Table, present: Sequence[str] | None = None, arities: Sequence[int] = _ARITIES
) -> list[tuple[str, Any, Callable[[Any], bool]]]:
    """Returns (name, pattern, check) of a table, as ``MergeComposite`` takes them.

    Args:
        table: The table.
        present: The operators of the module; entries of others are left out. None for all.
        arities: Lengths of tuples of constants.
    """
    have = sorted(_registered_relay_ops()) if present is None else present
    return [
        (f"{table.name}.{name}", compile_pattern(root, arities), _relay_pattern_check(one, root))
        for name, one, root in variants(table, have)
    ]


def _relay_pattern_check(table: Table, root: Pattern) -> Callable[[Any], bool]:
    entry: Entry = replace(table.entries[0], pattern=root)
    return lambda expr: table.judge(entry, RelayTermReader().call(expr)).takes


# ---- terms -----------------------------------------------------------------------------------


class RelayTermReader:
    """Hands out terms for the expressions of one function.

    Args:
        names: Names of calls, for people.
        module: Where to look through calls of composites and regions; None to stop at them.
        outer: Parameters of the function as (reader, expression) of its caller.
    """

    def __init__(
        self,
        names: dict[Any, str] | None = None,
        module: Any = None,
        outer: Mapping[Any, Any] | None = None,
    ) -> None:
        self._names, self._module, self._outer = names or {}, module, outer or {}
        self._terms: dict[Any, Term] = {}

    def term(self, expr: Expr) -> Term:
        """Returns the term of an expression; one per expression."""
        if expr not in self._terms:
            self._terms[expr] = self._made(expr)
        return self._terms[expr]

    def _made(self, expr: Expr) -> Term:
        if expr in self._outer:
            reader, passed = self._outer[expr]
            return reader.term(passed)
        if isinstance(expr, relay.Call):
            return self._inside(expr) or self.call(expr)
        if isinstance(expr, relay.TupleGetItem):
            whole = self.term(expr.tuple_value)
            if isinstance(whole, Group):
                return whole.fields[int(expr.index)]
        if isinstance(expr, relay.Tuple):
            return Group(expr, lambda: [self.term(field) for field in expr.fields])
        shape, dtype = _type(expr)
        if isinstance(expr, relay.Constant):
            return FixedTerm(expr, shape, dtype, expr.data.numpy)
        name = expr.name_hint if isinstance(expr, relay.Var) else type(expr).__name__
        return Free(expr, shape, dtype, name)

    def _inside(self, expr: Expr) -> Term | None:
        """Returns what a call of a composite or a region computes, as if it stood here."""
        callee = expr.op
        if self._module is not None and isinstance(callee, tvm.ir.GlobalVar):
            callee = self._module[callee]
        if self._module is None or not isinstance(callee, relay.Function):
            return None
        if not (_attribute(callee, "Composite") or _attribute(callee, "Compiler")):
            return None
        outer = {p: (self, arg) for p, arg in zip(callee.params, expr.args, strict=True)}
        return RelayTermReader(self._names, self._module, outer).term(callee.body)

    def call(self, expr: Expr) -> Applied:
        """Returns the term of a call."""
        op, composite = expr.op, ""
        if isinstance(op, tvm.ir.Op):
            name = _name_of(op)
        elif isinstance(op, relay.Function):
            composite = _attribute(op, "Composite")
            name = f"@{composite or 'function'}"
        else:
            name = f"@{getattr(op, 'name_hint', 'function')}"
        shape, dtype = _type(expr)
        return Applied(
            expr, shape, dtype, name, lambda: [self.term(a) for a in expr.args],
            lambda: _host_call_attrs(expr.attrs), name=self._names.get(expr, ""),
            composite=composite,
        )  # fmt: skip


def _type(expr: Expr) -> tuple[Extents, str]:
    try:
        type_ = expr.checked_type
    except (ValueError, AttributeError):  # not inferred
        return None, ""
    if not isinstance(type_, tvm.ir.TensorType):
        return None, ""
    shape = tuple(d.value if isinstance(d, tvm.tir.IntImm) else str(d) for d in type_.shape)
    return shape, str(type_.dtype)


def _host_call_attrs(attrs: Any) -> dict[str, Any]:
    if attrs is None:
        return {}
    return {str(key): _relay_attr_value(attrs[key]) for key in attrs.keys()}  # noqa: SIM118


def _relay_attr_value(value: Any) -> Any:
    if isinstance(value, tvm.tir.IntImm | tvm.tir.FloatImm):
        return value.value
    if isinstance(value, tvm.ir.Array | tuple | list):
        return tuple(_relay_attr_value(part) for part in value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    return str(value)


def _attribute(function: Any, name: str) -> str:
    attrs = function.attrs
    return str(attrs[name]) if attrs is not None and name in attrs.keys() else ""  # noqa: SIM118


# ---- modules ---------------------------------------------------------------------------------


def calls(body: Expr) -> Iterator[Expr]:
    """Yields the calls of an expression, operands first; functions are not looked into."""
    seen: set[Any] = set()
    waiting: list[tuple[Expr, bool]] = [(body, False)]
    while waiting:
        expr, ready = waiting.pop()
        if ready:
            if isinstance(expr, relay.Call):
                yield expr
            continue
        if expr in seen:
            continue
        seen.add(expr)
        waiting.append((expr, True))
        waiting += [(part, False) for part in reversed(list(_relay_subexprs(expr)))]


def _relay_subexprs(expr: Expr) -> Sequence[Expr]:
    if isinstance(expr, relay.Call):
        return list(expr.args)
    if isinstance(expr, relay.Tuple):
        return list(expr.fields)
    return [expr.tuple_value] if isinstance(expr, relay.TupleGetItem) else []


def present(module: Any) -> list[str]:
    """Returns the operators of ``main``."""
    found = calls(module["main"].body)
    return list(dict.fromkeys(_name_of(c.op) for c in found if isinstance(c.op, tvm.ir.Op)))


def partition(module: Any, table: Table, *, regions: bool) -> Any:
    """Returns the module with composites; see :func:`qdqbridge.tvm.byoc.partition`."""
    module = relay.transform.InferType()(module)
    tuples = {len(t.fields) for c in calls(module["main"].body) for t in c.args if _is_tuple(t)}
    failures: list[Exception] = []
    rows = pattern_table(table, present(module), sorted(tuples) or _ARITIES)
    patterns = [(name, pattern, kept(check, failures)) for name, pattern, check in rows]
    module = divided(module, patterns, table.name, regions=regions)
    if failures:
        raise failures[0]
    return module


def _is_tuple(expr: Expr) -> bool:
    return isinstance(expr, relay.Tuple)


def divided(module: Any, patterns: Sequence[Any], name: str, *, regions: bool) -> Any:
    """Returns a module with the matches of Relay patterns in composites, and these in regions.

    Args:
        module: The module, types inferred.
        patterns: (name, pattern) or (name, pattern, check), as a pattern table returns them.
        name: The codegen; composites are called ``<name>.<entry>``.
        regions: Group composites into regions.
    """
    passes: list[Any] = []
    if patterns:
        passes += [relay.transform.MergeComposite(list(patterns)), relay.transform.InferType()]
    if regions:
        passes += [
            relay.transform.AnnotateTarget([name], include_non_call_ops=False),
            relay.transform.MergeCompilerRegions(),
            relay.transform.PartitionGraph(),
            relay.transform.InferType(),
        ]
    return tvm.transform.Sequential(passes)(module)


def contents(module: Any) -> Contents:
    """Returns what ``main`` of a partitioned module holds."""
    order = list(calls(module["main"].body))
    reader = RelayTermReader(
        {call: _relay_span_label(call, i) for i, call in enumerate(order)}, module
    )
    left: list[Applied] = []
    composites: list[Composite] = []
    regions: list[str] = []
    for call in order:
        op = call.op
        region = module[op] if isinstance(op, tvm.ir.GlobalVar) else None
        if region is not None and _attribute(region, "Compiler"):
            symbol = _attribute(region, "global_symbol")
            regions.append(symbol)
            composites += [_taken(inner, symbol) for inner in calls(region.body)]
        elif isinstance(op, relay.Function) and _attribute(op, "Composite"):
            composites.append(composite(op))
        else:
            term = reader.term(call)
            assert isinstance(term, Applied)
            left.append(term)
    return Contents(tuple(left), tuple(composites), tuple(regions))


def _taken(inner: Expr, symbol: str) -> Composite:
    """Returns a call in a region: a composite, or an operator that the target takes by its name."""
    if isinstance(inner.op, relay.Function):
        return composite(inner.op, symbol, symbol)
    alone = RelayTermReader().call(inner)
    return Composite(f"operator {alone.op}", inner, symbol, symbol, (alone,), alone)


def _relay_span_label(call: Expr, index: int) -> str:
    """Returns the name that the emitter or importer left on a call, or its number."""
    span = call.span
    named = "" if span is None or span.source_name is None else str(span.source_name.name)
    return label(named) or f"%{index}"


def composite(function: Any, symbol: str = "", region: str = "") -> Composite:
    """Returns a composite function, taken apart."""
    reader = RelayTermReader()
    inside = [reader.term(call) for call in calls(function.body)]
    applied = tuple(term for term in inside if isinstance(term, Applied))
    name = _attribute(function, "Composite")
    return Composite(
        name, function, symbol or name, region, applied, reader.term(function.body)
    )  # fmt: skip
