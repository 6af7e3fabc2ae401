"""What a module's parts raise where they do not fit each other, with the place.

TVM builds and loads modules whose calls lack operands or attributes, or have them of other kinds;
it finds out when it infers types or compiles. So does a reader, wherever it first looks.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qdqbridge.errors import InvalidModelError

_RAISED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)
"""Python's words for it, and TVM's (its errors are RuntimeErrors)."""


@dataclass(slots=True)
class ReaderPlace:
    """Where a reader is.

    Attributes:
        function: Names the function.
        variable: What is being bound.
    """

    function: str
    variable: Any = None

    def __str__(self) -> str:
        name = getattr(self.variable, "name", None)
        return self.function if name is None else f"{self.function}, binding '{name}'"


@contextmanager
def explained_errors(place: ReaderPlace) -> Generator[None, None, None]:
    """Runs what reads a module.

    Raises:
        InvalidModelError: Its parts do not fit each other.
    """
    try:
        yield
    except _RAISED as error:
        words = " ".join(str(error).split())[:300]
        raise InvalidModelError(
            "the module makes no sense",
            where=str(place),
            why=f"{type(error).__name__}: {words}",
            fix="save it anew; if TVM compiles it, please report it",
        ) from error
