"""What stands between a shipped table and ``qdqbridge.tvm.byoc``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.relay import dataflow_pattern as dfp

from qdqbridge.tvm.relay.tables.rules import RuleRow

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
