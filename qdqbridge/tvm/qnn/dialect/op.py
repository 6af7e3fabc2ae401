"""The record that defines one operator of the dialect, for every host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.context import CallContext, ResultType

REQUIRED = object()
"""Default of an attribute that every call must give."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operator.

    Attributes:
        name: Relay's name where Relay has the attribute.
        default: A plain Python value, or ``REQUIRED``. Every call carries every attribute.
        doc: What it means, with its units.
    """

    name: str
    default: Any
    doc: str


Infer = Callable[[CallContext], ResultType]
Lower = Callable[[CallContext], Any]


@dataclass(frozen=True, slots=True)
class QnnOp:
    """One operator of the QNN dialect.

    Attributes:
        name: ``qnn.<name>``.
        arguments: Names of the tensor arguments in call order (Relay's order).
        attributes: Every attribute with its default.
        infer: Checks a call and returns the type of its result.
        lower: Returns calls of TE functions that compute the numeric contract exactly.
        doc: The contract in one sentence.
    """

    name: str
    arguments: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    infer: Infer
    lower: Lower
    doc: str

    def check_count(self, count: int) -> None:
        """Checks the number of arguments.

        Raises:
            GraphError: It is not the number that the operator takes.
        """
        if count != len(self.arguments):
            raise GraphError(
                f"cannot build a call of {self.name}",
                why=f"{count} arguments given",
                fix=f"it takes {len(self.arguments)}: {', '.join(self.arguments)}",
            )

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ``attrs`` with every default filled in.

        Raises:
            GraphError: An attribute is unknown or missing.
        """
        names = {attribute.name for attribute in self.attributes}
        unknown = sorted(set(attrs) - names)
        values = {a.name: attrs.get(a.name, a.default) for a in self.attributes}
        missing = sorted(name for name, value in values.items() if value is REQUIRED)
        if unknown or missing:
            raise GraphError(
                f"cannot build a call of {self.name}",
                why=f"unknown attributes {unknown}, missing attributes {missing}",
                fix=f"its attributes are {sorted(names)}",
            )
        return {name: _tuples_to_lists(value) for name, value in values.items()}


def _tuples_to_lists(value: Any) -> Any:
    return [_tuples_to_lists(item) for item in value] if isinstance(value, tuple | list) else value
