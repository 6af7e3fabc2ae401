"""What stands between a shipped table and ``qdqbridge.tvm.byoc``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import ir, relay
from tvm.relay import dataflow_pattern as dfp

# ---- Why a table's check refuses an expression: conditions as data, refusals as sentences --------
# A row names the operator that an entry is about; its rules look at that call, at the data that
# goes in and at the result. A rule that cannot look at an expression has nothing to say.


Rule = Callable[["MatchedExpression"], Iterator[str]]
_AVERAGES = ("nn.avg_pool2d", "nn.global_avg_pool2d", "nn.adaptive_avg_pool2d", "mean", "sum")
_PADDED = ("qnn.conv2d", "qnn.conv2d_transpose")
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class MatchedExpression:
    """An expression that a pattern matched.

    Attributes:
        root: The result.
        call: The operator that the entry is about.
        before: The call between the data and ``call``, if there is one.
        outer: The calls from the result to ``call``, which is not among them.
    """

    root: Any
    call: Any
    before: Any
    outer: tuple[Any, ...]

    @property
    def data(self) -> Any:
        """The data operand."""
        return (self.call if self.before is None else self.before).args[0]

    def inside(self, op: str) -> Any:
        """Returns the call of an operator between the result and ``call``; None if none is."""
        return next((each for each in self.outer if _relay_op_name(each) == op), None)


@dataclass(frozen=True, slots=True)
class RuleRow:
    """What an entry takes.

    Attributes:
        operators: The operator that it is about is one of these.
        rules: Its conditions.
    """

    operators: tuple[str, ...]
    rules: tuple[Rule, ...]

    def refusals(self, expr: Any) -> list[str]:
        """Returns why an expression is refused; nothing where it is taken or not understood."""
        found = _found(expr, self.operators)
        return [] if found is None else [reason for rule in self.rules for reason in rule(found)]


def row(operator: str | tuple[str, ...], *rules: Rule) -> RuleRow:
    """Returns a row for one operator, or several."""
    return RuleRow((operator,) if isinstance(operator, str) else operator, rules)


def _found(expr: Any, operators: tuple[str, ...]) -> MatchedExpression | None:
    outer: list[Any] = []
    call = expr
    while _relay_op_name(call) not in operators:
        outer.append(call)
        if not isinstance(call, relay.Call) or not call.args or len(outer) > _DEPTH:
            return None
        call = call.args[0]
    first = call.args[0] if call.args else None
    before = first if _belongs(_relay_op_name(first), _relay_op_name(call)) else None
    named = tuple(
        each for each in outer if _relay_op_name(each)
    )  # an operator may be in a region already
    return MatchedExpression(expr, call, before, named)


def _belongs(first: str, operator: str) -> bool:
    """Returns whether a call stands between the data and the operator, in one composite."""
    if first == "qnn.dequantize":
        return not operator.startswith("qnn.")
    return (first == "cast" and operator in _AVERAGES) or (
        first == "nn.pad" and operator in _PADDED
    )


def _relay_op_name(expr: Any) -> str:
    is_operator = isinstance(expr, relay.Call) and isinstance(expr.op, ir.Op)
    return str(expr.op.name) if is_operator else ""


def dtype(expr: Any) -> str:
    """Returns the element type of an expression; empty for tuples."""
    type_ = expr.checked_type
    return str(type_.dtype) if isinstance(type_, ir.TensorType) else ""


def shape(expr: Any) -> tuple[int, ...]:
    """Returns the extents of an expression; empty for tuples."""
    type_ = expr.checked_type
    return tuple(int(e) for e in type_.shape) if isinstance(type_, ir.TensorType) else ()


def number(expr: Any) -> NDArray[Any] | None:
    """Returns the elements of a constant."""
    return expr.data.numpy() if isinstance(expr, relay.Constant) else None


# ---- rules -----------------------------------------------------------------------------------


def types(*allowed: str, result: tuple[str, ...] | None = None) -> Rule:
    """The element types of the data and, unless stated apart, of the result."""

    def rule(found: MatchedExpression) -> Iterator[str]:
        ends = (("data", found.data, allowed), ("result", found.root, result or allowed))
        for what, expr, taken in ends:
            parts = expr.fields if isinstance(expr, relay.Tuple) else [expr]
            for actual in sorted({dtype(part) for part in parts} - {*taken, ""}):
                yield f"the {what} is {actual}, {_or(taken)} is taken"

    return rule


def weights(*allowed: str) -> Rule:
    """The element type of the weight."""

    def rule(found: MatchedExpression) -> Iterator[str]:
        if dtype(found.call.args[1]) not in allowed:
            yield f"the weight is {dtype(found.call.args[1])}, {_or(allowed)} is taken"

    return rule


def operands(*allowed: str) -> Rule:
    """The element types of two operands, which must be equal."""

    def rule(found: MatchedExpression) -> Iterator[str]:
        actual = [dtype(arg) for arg in found.call.args[:2]]
        if actual[0] != actual[1] or actual[0] not in allowed:
            yield f"the operands are {' and '.join(dict.fromkeys(actual))}, {_or(allowed)} is taken"

    return rule


def batch(found: MatchedExpression) -> Iterator[str]:
    """One example at a time."""
    extents = shape(found.data)
    if extents and extents[0] != 1:
        yield f"the batch is {extents[0]}, 1 is taken"


def rank(low: int, high: int) -> Rule:
    """The number of axes of data and result."""

    def rule(found: MatchedExpression) -> Iterator[str]:
        for what, expr in (("data", found.data), ("result", found.root)):
            axes = len(shape(expr))
            if axes and not low <= axes <= high:
                yield f"the {what} has {axes} axes, {_range(low, high)} are taken"

    return rule


def attribute(key: str, *allowed: Any, what: str = "") -> Rule:
    """An attribute is one of these."""

    def rule(found: MatchedExpression) -> Iterator[str]:
        actual = _rule_attr_value(getattr(found.call.attrs, key))
        if actual not in allowed:
            yield f"{what or key} is {_shown(actual)}, {_or(allowed)} is taken"

    return rule


def extents(key: str, low: int, high: int) -> Rule:
    """All numbers of an attribute lie in a range."""

    def rule(found: MatchedExpression) -> Iterator[str]:
        actual = _rule_attr_value(getattr(found.call.attrs, key))
        if any(not low <= value <= high for value in actual):
            yield f"{key} is {_shown(actual)}, {_range(low, high)} is taken"

    return rule


def ungrouped(found: MatchedExpression) -> Iterator[str]:
    """One group, or one for each channel."""
    groups, layout = int(found.call.attrs.groups), str(found.call.attrs.data_layout)
    if groups not in (1, shape(found.data)[layout.index("C")]):
        yield f"there are {groups} groups, one or one for each channel is taken"


def one_multiplier(found: MatchedExpression) -> Iterator[str]:
    """A depthwise kernel makes one channel of each."""
    layout, kernel = str(found.call.attrs.kernel_layout), shape(found.call.args[1])
    if int(found.call.attrs.groups) > 1 and kernel[layout.index("I")] != 1:
        yield f"every channel becomes {kernel[layout.index('I')]}, 1 is taken"


def not_depthwise(found: MatchedExpression) -> Iterator[str]:
    """A convolution of this kernel layout mixes channels."""
    if int(found.call.attrs.groups) == shape(found.call.args[1])[-1]:
        yield "it has as many groups as output channels, which is taken as HWOI"


def symmetric_weight(found: MatchedExpression) -> Iterator[str]:
    """The zero point of the weight is 0."""
    zero = number(found.call.args[3])
    if zero is None or zero.any():
        yield "the zero point of the weight is not 0"


def per_tensor(found: MatchedExpression) -> Iterator[str]:
    """One scale and zero point for the weight."""
    scale = number(found.call.args[5])
    if scale is not None and scale.size > 1:
        yield f"the weight has {scale.size} scales, one for the tensor is taken"


def output(*pairs: tuple[str, float, int]) -> Rule:
    """The result has one of these (element type, scale, zero point)."""

    def rule(found: MatchedExpression) -> Iterator[str]:
        scale, zero = (number(arg) for arg in found.root.args[1:3])
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            yield "the result has no single scale and zero point"
        elif (dtype(found.root), float(scale), int(zero)) not in pairs:
            wanted = _or(tuple(f"1/{round(1 / s)} and {z} of {t}" for t, s, z in pairs))
            yield f"scale and zero point are {scale:.6g} and {zero}, {wanted} is taken"

    return rule


def _rule_attr_value(value: Any) -> Any:
    if isinstance(value, ir.Array):
        return tuple(_rule_attr_value(part) for part in value)
    if isinstance(value, str):
        return str(value)
    return bool(value) if isinstance(value, bool) else getattr(value, "value", value)


def _shown(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value) or "not stated"


def _or(values: tuple[Any, ...]) -> str:
    return " or ".join(map(_shown, values))


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


# ---- What stands between a shipped table and ``qdqbridge.tvm.byoc`` ------------------------------


Check = Callable[[Any], Any]


def _takes_all(expr: Any) -> bool:
    del expr
    return True


def _unchanged(module: Any) -> Any:
    return module


@dataclass(frozen=True, slots=True)
class Adapter:
    """A shipped table (see ``qdqbridge.tvm.byoc.model.ShippedTable``).

    Attributes:
        name: The code generator's name, the prefix of its composites.
        variant: The variant of ``relay.emit`` that it matches.
        table: Returns its own (name, pattern) or (name, pattern, check).
        rewrites: What ``qdqbridge.tvm.byoc.prepare`` may do for it, by name.
        reasons: By entry (without the prefix): why its check refuses, as rules.
        guards: By entry: rules that refuse beside the table's own check, where that one takes
            what its code generator does not mean.
        shim: A context in which the table imports and its checks run.
        prepare: The table's own passes before its patterns.
        also: Entries that are asked for words only: what ``prepare`` starts from.
    """

    name: str
    variant: str
    table: Callable[[], Sequence[Any]]
    rewrites: tuple[str, ...] = ()
    reasons: Mapping[str, RuleRow] = field(default_factory=dict[str, RuleRow])
    guards: Mapping[str, RuleRow] = field(default_factory=dict[str, RuleRow])
    shim: Callable[[], AbstractContextManager[object]] = nullcontext
    prepare: Callable[[Any], Any] = _unchanged
    also: Callable[[], Sequence[Any]] = tuple

    def shims(self) -> AbstractContextManager[object]:
        """Returns a context in which its Python module imports and its checks run."""
        return self.shim()

    def prepared(self, module: Any) -> Any:
        """Returns the module after the table's own passes that need no code generator."""
        return self.prepare(module)

    def patterns(self) -> list[tuple[str, Any, Check]]:
        """Returns (name, pattern, check) as ``MergeComposite`` takes them."""
        return [self._guarded(*entry) for entry in self.table()]

    def others(self) -> list[tuple[str, Any, Check]]:
        """Returns (name, pattern, check) of what is taken by other means than patterns.

        That is what its own passes start from, and the operators that it takes alone, without a
        composite: ``AnnotateTarget`` asks the attribute ``target.<name>`` of an operator.
        """
        found: list[tuple[str, Any, Check]] = list(self.also())
        for op in map(str, tvm.ir.Op.list_op_names()):
            operator, key = tvm.ir.Op.get(op), f"target.{self.name}"
            check = operator.get_attr(key) if operator.has_attr(key) else None
            if check is not None:
                operands = [dfp.wildcard() for _ in range(max(int(operator.num_inputs), 0))]
                found.append((f"{self.name}.{op}", dfp.is_op(op)(*operands), check))
        return found

    def _guarded(self, name: str, pattern: Any, check: Check = _takes_all) -> Any:
        guard = self.guards.get(name.removeprefix(f"{self.name}."))
        if guard is None:
            return name, pattern, check
        return name, pattern, lambda expr: not guard.refusals(expr) and bool(check(expr))

    def why(self, entry: str, expr: Any) -> list[str]:
        """Returns why an entry refuses an expression; nothing where that is not known."""
        rows = (self.guards.get(entry), self.reasons.get(entry))
        return [reason for row in rows if row is not None for reason in row.refusals(expr)]
