"""Times of kernels as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # TVM is imported by who runs it
    from qdqbridge.tvm.relax.kernel_times import KernelTime


def kernels_json(times: Sequence[KernelTime], limit: float) -> dict[str, Any]:
    """Returns times as JSON; ``limit`` is in operations per second."""
    return {
        "limit_gops": limit / 1e9,
        "kernels": [
            {
                "name": entry.name,
                "calls": entry.calls,
                "us": entry.seconds * 1e6,
                "gops": None if entry.rate is None else entry.rate / 1e9,
            }
            for entry in times
        ],
    }


def kernels_table(times: Sequence[KernelTime], limit: float) -> Table:
    """Returns times as a table; ``limit`` is in operations per second."""
    whole = sum(entry.seconds for entry in times)
    table = Table(
        title=f"kernels; the dot product reaches {limit / 1e9:.0f} GOP/s",
        title_justify="left",
        show_footer=True,
    )
    columns = (
        ("kernel", "all"),
        ("calls", str(sum(entry.calls for entry in times))),
        ("µs", f"{whole * 1e6:.1f}"),
        ("time", ""),
        ("GOP/s", ""),
        ("of the limit", ""),
    )
    for head, foot in columns:
        table.add_column(head, foot, justify="left" if head == "kernel" else "right")
    for entry in times:
        rate = "" if entry.rate is None else f"{entry.rate / 1e9:.1f}"
        share = "" if entry.rate is None else f"{entry.rate / limit:.0%}"
        part = f"{entry.seconds / whole:.1%}" if whole else ""
        table.add_row(
            Text(entry.name), str(entry.calls), f"{entry.seconds * 1e6:.1f}", part, rate, share
        )
    return table
