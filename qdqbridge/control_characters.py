"""What a stranger's model's names may not do where they are shown.

A name can hold any character: those that a terminal obeys, and those that turn the direction of a
text round, so that it reads as another. Everything that is shown passes here: errors, what the
command line prints, pages. JSON escapes them in its own way.
"""

from __future__ import annotations

import re
from typing import Any, cast

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
"""C0 but tab and new line, DEL, C1; separators of lines; what Unicode calls Bidi_Control."""


def visible(text: str) -> str:
    """Returns a text whose control characters are written as escapes."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def all_visible(value: Any) -> Any:
    """Returns JSON's lists and objects with every text in them, keys too, as :func:`visible`."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {all_visible(key): all_visible(each) for key, each in items}
    if isinstance(value, list | tuple):
        return [all_visible(each) for each in cast("list[Any]", value)]
    return value
