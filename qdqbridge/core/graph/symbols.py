"""Arithmetic of extents: sums of products of names, each sum written in one way.

An extent is a number or a name (:data:`~qdqbridge.core.graph.types.Dim`). What is computed from
names
is a name too, in parentheses: ``(n*8)``, ``(past+sequence)``, so that two extents that are computed
in two ways and must be equal have one name. What is no such sum has no name here: None. Names that
would be read as something else in a sum (``1``, ``past + 1``) stand in quotes there: ``('1'*8)``.

Names that begin with ``?`` are the reader's own, of extents that a file does not name. A file's own
names that begin as these or as computed ones do have a backslash in front (:func:`dim_name`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from qdqbridge.core.graph.types import Dim

_Monomial: TypeAlias = "tuple[str, ...]"
_Sum: TypeAlias = "dict[_Monomial, int]"
"""Coefficients of products of names; the product of none is 1."""
_TERMS, _FACTORS, _LARGEST = 16, 8, 1 << 31
_PLAIN = re.compile(r"(?!-?\d+$)[^+*()\s']+")
_TERM, _FACTOR = re.compile(r"(?:'[^']*'|[^+'])+"), re.compile(r"(?:'[^']*'|[^*'])+")
_RESERVED = ("(", "?", "\\")


def dim_name(name: str) -> str:
    """Returns what an extent is called here that a file calls by a name."""
    return f"\\{name}" if name.startswith(_RESERVED) else name


def name_in_files(dim: Dim) -> Dim | None:
    """Returns what a file may call an extent; None where it is to be left open.

    These are extents that no file named, and what is computed from them, or from a name that would
    be taken for a computed extent in the file.
    """
    if isinstance(dim, int):
        return dim
    if is_computed(dim):
        factors = {factor for names, _ in terms(dim) for factor in names}
        return None if any(factor.startswith(_RESERVED) for factor in factors) else dim
    return None if dim.startswith("?") else dim.removeprefix("\\")


def is_computed(name: str) -> bool:
    """Returns whether a name is that of a computed extent."""
    return name.startswith("(")


def total(dims: Iterable[Dim | None]) -> Dim | None:
    """Returns the sum of extents; None where it has no name."""
    found: _Sum = {}
    for dim in dims:
        parsed = _parsed(dim)
        if parsed is None:
            return None
        for factors, coefficient in parsed.items():
            found[factors] = found.get(factors, 0) + coefficient
    return _dim_from_polynomial(found)


def product(dims: Iterable[Dim | None]) -> Dim | None:
    """Returns the product of extents; None where it has no name."""
    found: _Sum = {(): 1}
    for dim in dims:
        parsed = _parsed(dim)
        if parsed is None or len(found) * len(parsed) > _TERMS * _TERMS:
            return None
        multiplied: _Sum = {}
        for a, first in found.items():
            for b, second in parsed.items():
                factors = tuple(sorted((*a, *b)))
                multiplied[factors] = multiplied.get(factors, 0) + first * second
        found = multiplied
    return _dim_from_polynomial(found)


def quotient(dividend: Dim | None, divisor: Dim | None) -> Dim | None:
    """Returns an extent divided by another where nothing is left over for any extents, else None.

    The divisor has to be one product of names.
    """
    parsed, by = _parsed(dividend), _parsed(divisor)
    if parsed is None or by is None or len(by) != 1:
        return None
    ((names, number),) = by.items()
    if number == 0:
        return None
    found: _Sum = {}
    for factors, coefficient in parsed.items():
        rest = list(factors)
        for name in names:
            if name not in rest:
                return None
            rest.remove(name)
        if coefficient % number:
            return None
        found[tuple(rest)] = coefficient // number
    return _dim_from_polynomial(found)


def with_numbers(dim: Dim, numbers: Mapping[str, int]) -> Dim:
    """Returns an extent in which names are numbers where these are given."""
    if isinstance(dim, int):
        return dim
    if not is_computed(dim):
        return int(numbers[dim]) if dim in numbers else dim
    parts = [
        product([*(with_numbers(name, numbers) for name in names), number])
        for names, number in terms(dim)
    ]
    found = total(parts)
    return dim if found is None else found


def terms(name: str) -> list[tuple[tuple[str, ...], int]]:
    """Returns the products of names that a computed extent is the sum of, with coefficients."""
    return list((_parsed(name) or {(name,): 1}).items())


def _parsed(dim: Dim | None) -> _Sum | None:
    if dim is None:
        return None
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    if not is_computed(dim):
        return None if "'" in dim else {(dim,): 1}
    found: _Sum = {}
    for term in _TERM.findall(dim[1:-1]):
        factors: list[str] = _FACTOR.findall(term)
        number = factors.pop() if re.fullmatch(r"-?\d+", factors[-1]) else "1"
        found[tuple(factor.strip("'") for factor in factors)] = int(number)
    return found


def _dim_from_polynomial(summed: _Sum) -> Dim | None:
    kept = {factors: number for factors, number in summed.items() if number}
    if len(kept) > _TERMS or any(
        len(factors) > _FACTORS or abs(number) >= _LARGEST for factors, number in kept.items()
    ):
        return None
    if not any(kept):  # no names, so at most the number alone
        return kept.get((), 0)
    if len(kept) == 1:
        ((factors, number),) = kept.items()
        if len(factors) == number == 1:
            return factors[0]
    ordered = sorted(kept.items(), key=lambda item: (-len(item[0]), item[0]))
    return "(" + "+".join(_term(factors, number) for factors, number in ordered) + ")"


def _term(factors: _Monomial, number: int) -> str:
    names = [name if _PLAIN.fullmatch(name) else f"'{name}'" for name in factors]
    written = [] if number == 1 and factors else [str(number)]
    return "*".join([*names, *written])
