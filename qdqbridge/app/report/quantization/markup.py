"""HTML and SVG that is escaped by construction: text is text unless it was made here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from qdqbridge.control_characters import visible

_UNPRINTABLE = re.compile("[\ud800-\udfff\ufffe\uffff]")
_VOID = ("meta", "br")


@dataclass(frozen=True, slots=True)
class Markup:
    """Finished HTML."""

    text: str

    def __str__(self) -> str:
        return self.text


Content: TypeAlias = "Markup | str | int | None"


def tag(
    name: str, *content: Content | Iterable[Content], **attributes: str | float | None
) -> Markup:
    """Returns an element.

    Args:
        name: Its name.
        content: What is in it; text is escaped, None is nothing.
        attributes: Its attributes; ``class_`` is ``class``, ``aria_label`` is ``aria-label``, None
            leaves one out.
    """
    found = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{clean(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{found}>")
    return Markup(f"<{name}{found}>{concat_markup(*content)}</{name}>")


def concat_markup(*content: Content | Iterable[Content]) -> Markup:
    """Returns several pieces in a row."""
    parts: list[str] = []
    for piece in content:
        if isinstance(piece, Markup):
            parts.append(piece.text)
        elif isinstance(piece, (str, int)):
            parts.append(clean(str(piece)))
        elif piece is not None:
            parts.append(concat_markup(*piece).text)
    return Markup("".join(parts))


def clean(text: str) -> str:
    """Returns ``text`` escaped; what nobody can write so becomes a replacement character."""
    return escape(_UNPRINTABLE.sub("\ufffd", visible(text)), quote=True)


def name_of(text: str) -> Markup:
    """Returns a name out of a file: in a fixed width, isolated from the text around it."""
    return tag("code", text)


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Content]]) -> Markup:
    """Returns a table whose first column names the rows.

    Args:
        caption: What it shows.
        headings: One for each column; those that end in ``#`` are of numbers.
        rows: Their cells.
    """
    numbers = [heading.endswith("#") for heading in headings]
    head = tag(
        "tr",
        [
            tag("th", heading.rstrip("#"), scope="col", class_="n" if number else None)
            for heading, number in zip(headings, numbers, strict=True)
        ],
    )
    body = [_html_table_row(cells, numbers) for cells in rows]
    inner = tag("table", tag("caption", caption), tag("thead", head), "\n", tag("tbody", body))
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=caption)


def _html_table_row(cells: Sequence[Content], numbers: Sequence[bool]) -> Markup:
    first, *rest = cells
    made = [tag("th", first, scope="row", class_="n" if numbers[0] else None)]
    made += [
        tag("td", cell, class_="n" if number else None)
        for cell, number in zip(rest, numbers[1:], strict=True)
    ]
    return concat_markup(tag("tr", made), "\n")


def details(summary: Content, *content: Content | Iterable[Content]) -> Markup:
    """Returns something that is folded away until the reader opens it."""
    return tag("details", tag("summary", summary), *content)
