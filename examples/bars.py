"""The pictures of the gallery: horizontal bars as an SVG file, which needs no library."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

_STYLE = "text{font:13px system-ui,sans-serif;fill:#1b1f24}.n{text-anchor:end}rect.b{fill:#54aeff}"


def folder() -> Path:
    """Returns where pictures and files go: the folder that is given, or the working directory."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    path.mkdir(parents=True, exist_ok=True)
    return path


def draw(path: Path, title: str, values: Mapping[str, float], unit: str = "") -> None:
    """Writes a bar for each value, with its name on the left and its number on the right.

    Args:
        path: The .svg file.
        title: Above the bars.
        values: By name, none of them negative.
        unit: Behind each number.
    """
    height, longest = 46 + 26 * len(values), max(values.values()) or 1
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="720" height="{height}" rx="8" fill="#f6f8fa" stroke="#d0d7de"/>',
        f'<text x="20" y="26" font-weight="600">{escape(title)}</text>',
    ]
    for row, (name, value) in enumerate(values.items()):
        y, width = 42 + 26 * row, max(300 * value / longest, 1)
        number = f"{value:,.1f}".removesuffix(".0")
        lines += [
            f'<text class="n" x="260" y="{y + 14}">{escape(name)}</text>',
            f'<rect class="b" x="270" y="{y}" width="{width:.0f}" height="18" rx="2"/>',
            f'<text x="{278 + width:.0f}" y="{y + 14}">{number} {escape(unit)}</text>',
        ]
    path.write_text("\n".join([*lines, "</svg>"]) + "\n", "utf-8")
    print(f"wrote {path.name}")
