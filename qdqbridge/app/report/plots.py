"""Plots as inline SVG: colours come from the page, so that they follow its light or dark scheme."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from qdqbridge.control_characters import visible

if TYPE_CHECKING:
    from qdqbridge.autoquant.record import LayerError, TensorReport


# ---- HTML and SVG that is escaped by construction: text is text unless it was made here ----------

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
        # What is marked up is escaped already; every other text may come from a file, and is not
        # trusted.
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


# ---- numbers as a report writes them -------------------------------------------------------------


def decibels(value: float | None) -> str:
    """Returns an SQNR, e.g. ``41.3 dB``; ``exact`` where nothing differs."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "exact" if value > 0 else "no signal left"
    return f"{value:.1f} dB"


def exact_decibels(value: float) -> str:
    """Returns an SQNR as every place tells it: ``41.28 dB``."""
    return f"{value:.2f} dB" if math.isfinite(value) else decibels(value)


def number(value: float) -> str:
    """Returns a real number with four significant digits."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    """Returns a share."""
    if value is None:
        return "–"
    return "under 0.01%" if 0 < value < 0.0001 else f"{value:.2%}"


def optional(value: int | None) -> str:
    """Returns a whole number, or a dash."""
    return "–" if value is None else f"{value}"


WIDTH, HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 14, 36
_MARKERS = 120
"""With more layers than this, points have no markers of their own."""

_EQUAL = 110.0
"""From here on, in dB, float32 results of two engines differ: such a point is on the upper edge."""

_BAR_WIDTH, _BAR_HEIGHT = 480, 96


@dataclass(frozen=True, slots=True)
class _PlotAxes:
    """A frame with a scale in dB, and one position for each layer."""

    count: int
    low: float
    high: float

    def x(self, index: int) -> float:
        span = WIDTH - _LEFT - _RIGHT
        return _LEFT + span * (index + 0.5) / max(self.count, 1)

    def y(self, value: float) -> float:
        share = (min(value, self.high) - self.low) / (self.high - self.low)
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * max(share, 0.0)


def error_plot(layers: Sequence[LayerError]) -> Markup:
    """Returns the errors of all layers: accumulated, and each layer alone.

    Args:
        layers: In topological order.
    """
    both = [value for layer in layers for value in (layer.accumulated_db, layer.local_db)]
    # Layers without error would press all others to the lower edge.
    known = [value for value in both if math.isfinite(value) and value < _EQUAL]
    low = min(0.0, math.floor(min(known, default=0) / 10) * 10)
    high = max(math.ceil((max(known, default=0) + 1) / 10) * 10, low + 10)
    axes = _PlotAxes(len(layers), low, high)
    parts = [
        _grid(axes),
        _series(axes, [layer.local_db for layer in layers], layers, "local"),
        _series(axes, [layer.accumulated_db for layer in layers], layers, "accumulated"),
    ]
    worst = min(layers, key=lambda layer: _order(layer.accumulated_db))
    text = (
        f"Signal to quantization noise of {len(layers)} layers in dB, higher is better. The "
        f"lowest accumulated one is {decibels(worst.accumulated_db)} at {worst.name}. The table "
        "below has all numbers."
    )
    return _picture("errors", "Error per layer", text, WIDTH, HEIGHT, parts, class_="plot")


def _order(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _grid(axes: _PlotAxes) -> Markup:
    step = 10 if axes.high - axes.low <= 100 else 20
    lines: list[Markup] = []
    value = axes.low
    while value <= axes.high:
        y = _short(axes.y(value))
        lines.append(tag("path", d=f"M{_LEFT} {y}H{WIDTH - _RIGHT}", class_="grid"))
        lines.append(tag("text", f"{value:g}", x=_LEFT - 6, y=y, class_="end"))
        value += step
    lines.append(tag("text", "dB", x=6, y=_TOP))
    every = max(1, 5 * math.ceil(axes.count / 100)) if axes.count > 20 else 1
    for index in range(axes.count):
        if index == 0 or (index + 1) % every == 0:
            x = _short(axes.x(index))
            lines.append(tag("text", index + 1, x=x, y=HEIGHT - 20, class_="middle"))
    lines.append(
        tag("text", "layer, in the order of the table", x=WIDTH / 2, y=HEIGHT - 3, class_="middle")
    )
    return concat_markup(lines)


def _series(
    axes: _PlotAxes, values: Sequence[float], layers: Sequence[LayerError], kind: str
) -> Markup:
    """Returns a line through the known values; one without error lies on the upper edge."""
    points = [
        (axes.x(index), axes.y(value), index)
        for index, value in enumerate(values)
        if not math.isnan(value)
    ]
    line = "".join(
        f"{'L' if number_ else 'M'}{_short(x)} {_short(y)}"
        for number_, (x, y, _) in enumerate(points)
    )
    parts = [tag("path", d=line, class_=f"line {kind}")] if line else []
    if len(layers) <= _MARKERS:
        for x, y, index in points:
            layer, label = layers[index], decibels(values[index])
            title = tag("title", f"{index + 1} {layer.name} ({layer.operator}), {kind}: {label}")
            parts.append(_marker(x, y, kind, title))
    return tag("g", parts)


def _marker(x: float, y: float, kind: str, title: Markup) -> Markup:
    if kind == "local":
        corner = {"x": _short(x - 3), "y": _short(y - 3)}
        return tag("rect", title, width=6, height=6, class_=f"mark {kind}", **corner)
    return tag("circle", title, cx=_short(x), cy=_short(y), r=3.5, class_=f"mark {kind}")


def histogram(tensor: TensorReport, index: int) -> Markup:
    """Returns the histogram of a tensor with logarithmic counts, and the range of its codes.

    Args:
        tensor: A tensor with counts.
        index: A number that no other picture of the page has.
    """
    first, last = tensor.first, tensor.first + tensor.width * len(tensor.bins)
    if tensor.scale is not None:
        # Codes may reach further than what was seen, and the picture shows both.
        first, last = min(first, tensor.low), max(last, tensor.high)
    span = last - first or 1.0

    def x(value: float) -> float:
        return (value - first) / span * _BAR_WIDTH

    parts: list[Markup] = []
    if tensor.scale is not None:
        a, b = x(tensor.low), x(tensor.high)
        box = {"x": _short(a), "width": _short(b - a)}
        parts.append(tag("rect", y=0, height=_BAR_HEIGHT, class_="range", **box))
    parts.append(tag("path", d=_outline(tensor, x), class_="bars"))
    if tensor.scale is not None:
        ends = "".join(f"M{_short(x(v))} 0V{_BAR_HEIGHT}" for v in (tensor.low, tensor.high))
        parts.append(tag("path", d=ends, class_="ends"))
    if first < 0 < last:
        parts.append(tag("path", d=f"M{_short(x(0.0))} 0V{_BAR_HEIGHT}", class_="zero"))
    baseline = _BAR_HEIGHT + 16
    parts.append(tag("text", number(first), x=0, y=baseline))
    parts.append(tag("text", number(last), x=_BAR_WIDTH, y=baseline, class_="end"))
    text = f"{sum(tensor.bins)} values other than zero from {number(tensor.minimum)} to "
    text += number(tensor.maximum)
    if tensor.scale is not None:
        text += f"; codes stand for {number(tensor.low)} to {number(tensor.high)}"
    size = (_BAR_WIDTH, _BAR_HEIGHT + 20)
    label = f"Histogram of {tensor.name}"
    return _picture(f"h{index}", label, text, *size, parts, class_="histogram")


def _outline(tensor: TensorReport, x: Callable[[float], float]) -> str:
    """Returns the outline of all bars; their heights are logarithms of counts."""
    top = math.log1p(max(tensor.bins, default=0)) or 1.0
    steps: list[str] = []
    for i, count in enumerate(tensor.bins):
        height = _BAR_HEIGHT - 2 - (_BAR_HEIGHT - 4) * math.log1p(count) / top
        y = _BAR_HEIGHT if count == 0 else height
        edge = x(tensor.first + tensor.width * (i + 1))
        steps.append(f"V{_short(y)}H{_short(edge)}")
    return f"M{_short(x(tensor.first))} {_BAR_HEIGHT}{''.join(steps)}V{_BAR_HEIGHT}Z"


def _picture(
    id_: str,
    title: str,
    text: str,
    width: int,
    height: int,
    parts: Iterable[Markup],
    *,
    class_: str,
) -> Markup:
    """Returns an image that is described to those who do not see it."""
    described = [tag("title", title, id=f"{id_}-t"), tag("desc", text, id=f"{id_}-d")]
    return tag(
        "svg",
        described,
        list(parts),
        role="img",
        aria_labelledby=f"{id_}-t {id_}-d",
        viewBox=f"0 0 {width} {height}",
        class_=class_,
    )


def _short(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
