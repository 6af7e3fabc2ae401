"""Comparisons as tables for people."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.printer import params_text
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.targets.comparison.causes import MISREAD, UNEXPLAINED
from qdqbridge.targets.comparison.compare import Comparison
from qdqbridge.targets.comparison.difference import TensorDifference

_LISTED = 8
_FAR = 1000


def comparison_text(comparison: Comparison, width: int = 140) -> str:
    """Returns a comparison as plain text."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, no_color=True, legacy_windows=False)
    for part in comparison_parts(comparison):
        console.print(part)
    return visible(buffer.getvalue())


def comparison_parts(comparison: Comparison, *, everything: bool = True) -> list[RenderableType]:
    """Returns a table of the values, and a line for each thing to know beside it.

    Args:
        comparison: What to show.
        everything: Show equal intermediate values as well.
    """
    shown = [v for v in comparison.values if everything or v.is_output or not v.equal]
    parts: list[RenderableType] = []
    if shown:
        parts.append(_differences_table(comparison, shown))
    parts.append(Text(summary(comparison)))
    if comparison.unmatched:
        parts.append(Text(_unmatched(comparison), style="dim"))
    return parts


def _differences_table(comparison: Comparison, shown: list[TensorDifference]) -> Table:
    mode = ", each node on recorded operands" if comparison.local else ""
    table = Table(title=f"{comparison.a} against {comparison.b}{mode}", title_justify="left")
    table.add_column("value", overflow="fold", ratio=4)
    table.add_column("made by", no_wrap=True)
    table.add_column("type", overflow="fold", ratio=2)
    for heading in ("elements", "differ", "max", "SQNR dB"):
        table.add_column(heading, justify="right", no_wrap=True)
    if comparison.local:
        table.add_column("cause", overflow="fold", ratio=2)
    else:
        table.add_column("top-1", justify="right", no_wrap=True)
    for value in shown:
        last = _causes(value) if comparison.local else _top1(value)
        table.add_row(
            Text(value.name, style="bold" if value.is_output else ""),
            Text(value.operator),
            Text(type_text(value.type)),
            str(value.count),
            Text(_share(value), style="" if value.equal else "yellow"),
            _largest(value),
            _decibels(value.sqnr_db),
            Text(last, style="bold red" if UNEXPLAINED in last or MISREAD in last else ""),
        )
    return table


def summary(comparison: Comparison) -> str:
    """Returns one sentence that says how the comparison ended."""
    if not comparison.values:
        return "nothing was compared: the two sides share no tensor names"
    different = [value for value in comparison.values if not value.equal]
    if not different:
        total = sum(value.count for value in comparison.values)
        return f"all {len(comparison.values)} values are equal ({total} elements)"
    worst = comparison.worst
    assert worst is not None
    text = f"{len(different)} of {len(comparison.values)} values differ; worst: '{worst.name}'"
    text += f", {_share(worst)}, at most {_largest(worst)}"
    if comparison.local:
        text += f"; {comparison.unexplained} elements unexplained"
        text += f", {comparison.misread} {MISREAD}" if comparison.misread else ""
    return text


def _unmatched(comparison: Comparison) -> str:
    names = comparison.unmatched
    listed = ", ".join(names[:_LISTED]) + (" …" if len(names) > _LISTED else "")
    return f"not in {comparison.b}, or there in another type: {listed}"


def type_text(type_: ValueType | None) -> str:
    """Returns the element type of a value, with scales in decimal."""
    if type_ is None:
        return "?"
    if not isinstance(type_, QuantType):
        return str(type_.dtype)
    params = type_.params
    if not params.per_tensor:
        axis, dtype = params.axis, params.storage_dtype
        size = f" blocks of {params.block_size}" if params.blocked else ""
        return f"{dtype} axis={axis}{size}"
    return short_params(type_)


def short_params(type_: QuantType) -> str:
    """Returns per-tensor parameters in decimal, e.g. ``uint8 0.0157 z=128``."""
    params = type_.params
    if not params.per_tensor:
        return params_text(params)
    text = f"{params.storage_dtype} {float(params.scale):.6g} z={int(params.zero_point)}"
    return text if params.full_range else f"{text} {params.qmin}..{params.qmax}"


def _share(value: TensorDifference) -> str:
    return "0" if value.equal else f"{value.mismatches} ({value.fraction:.2%})"


def _largest(value: TensorDifference) -> str:
    if value.equal:
        return "0"
    if value.max_lsb is not None:
        return f"{value.max_lsb} LSB"
    near = value.max_ulp is not None and value.max_ulp < _FAR
    return f"{value.max_abs:.3g}" + (f" ({value.max_ulp} ulp)" if near else "")


def _decibels(number: float) -> str:
    return "∞" if number == float("inf") else f"{number:.1f}"


def _top1(value: TensorDifference) -> str:
    return "" if value.top1 is None else f"{value.top1:.2%}"


def _causes(value: TensorDifference) -> str:
    return ", ".join(f"{number} {cause}" for cause, number in value.causes.items())
