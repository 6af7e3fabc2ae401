"""Writes the reference of what a BYOC table is made of: entries, families, records, limits.

Run as ``python scripts/generators/byoc_reference.py``; with ``--check`` it only says whether the
page is current.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from qdqbridge.tvm.byoc import records
from qdqbridge.tvm.byoc.constraints import Limits
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Entry
from qdqbridge.tvm.byoc.tables import CANONICAL
from scripts.generators.generated_page import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "byoc_reference.md"
_HEAD = """\
# Reference of pattern tables

Written by `scripts/generators/byoc_reference.py` from the code.
[The tutorial](../qdqbridge/tvm/byoc/README.md) says how these are used.

## Entries

The canonical table's, in order of preference. `table.only("conv2d", "dense")` takes some of them; a
record's family is the key under which `Constraints(families={...})` limits it.

| entry | family | record | operators inside |
|---|---|---|---|
"""
_RECORDS = """
## Records

`describe(composite, table)` returns one of these; a type checker narrows it by `isinstance` and
`match`.
All have what `Record` has. Tensors have dtype, shape, scale, zero point and axis; what only moves
or compares stored integers (a maximum, a table, data movement) has no scale of its own, and both
are None. Where no limit fits, `entry.checked(function)` asks one of yours: it is given the record
and returns a list of reasons against it, an empty one to take it.
"""
_LIMITS = """
## Limits

`Limits(...)`, for all families or by family; None leaves a thing free.

| limit | type | meaning |
|---|---|---|
"""


def described(of: type) -> Mapping[str, str]:
    """Returns what the docstring of a class says of its attributes."""
    text = inspect.cleandoc(of.__doc__ or "")
    _, _, listed = text.partition("Attributes:\n")
    listed, _, _ = listed.partition("\n\n")
    found = re.split(r"^ {4}(\w+): ", listed, flags=re.MULTILINE)[1:]
    pairs = zip(found[::2], found[1::2], strict=True)
    return {name: _in_markdown(" ".join(words.split())) for name, words in pairs}


def record_of(entry: Entry) -> type[Record]:
    """Returns the class of an entry's records."""
    return getattr(records, entry.describe.__annotations__["return"])


def page() -> str:
    """Returns the page as it should be."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for entry in CANONICAL:
        kind, operators = record_of(entry), ", ".join(sorted(entry.operators))
        yield f"| `{entry.name}` | `{kind.family}` | `{kind.__name__}` | {operators} |\n"
    yield _RECORDS
    for kind in [v for v in vars(records).values() if isinstance(v, type)]:
        if not issubclass(kind, Record):
            continue
        base = kind.__mro__[1]
        more = "" if base in (object, Record) else f", and what `{base.__name__}` has"
        family = f"Family `{kind.family}`{more}. " if kind.family else ""
        summary = inspect.cleandoc(kind.__doc__ or "").splitlines()[0]
        yield f"\n### {kind.__name__}\n\n{family}{_in_markdown(summary)}\n"
        listed = [f"- `{name}`: {text}\n" for name, text in _members(kind).items()]
        yield "".join(["\n" * bool(listed), *listed])
    yield _LIMITS
    told = described(Limits)
    for each in fields(Limits):
        type_ = str(each.type).replace(" | None", "").replace("|", "\\|")
        yield f"| `{each.name}` | `{type_}` | {told[each.name]} |\n"


def _members(kind: type) -> Mapping[str, str]:
    """Returns what a record of its own has: what its docstring says, other fields, properties."""
    said = described(kind)
    own = {name: f"`{each}`" for name, each in inspect.get_annotations(kind).items()}
    plain = {name: text for name, text in own.items() if "ClassVar" not in text}
    found = {name: said.get(name, text) for name, text in plain.items()} | said
    for name, value in vars(kind).items():
        if isinstance(value, property):
            found[name] = _in_markdown(inspect.cleandoc(value.__doc__ or "").splitlines()[0])
    return found


def _in_markdown(text: str) -> str:
    """Returns words of a docstring without Sphinx's markup."""
    return re.sub(r":\w+:`", "`", text).replace("``", "`")


if __name__ == "__main__":
    sys.exit(main(PAGE, page, __doc__))
