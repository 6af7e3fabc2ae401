"""What Vela says of a TFLite file, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from qdqbridge.tflite_io.vela import VelaOperator, VelaReport


def report_json(report: VelaReport) -> dict[str, Any]:
    """Returns a report as JSON."""
    return {
        "vela": report.version,
        "accelerator": report.accelerator,
        "macs": report.macs,
        "macs_on_npu": round(report.share, 6),
        "sram_bytes": report.sram,
        "cycles": report.cycles,
        "operators": [
            {
                "operator": operator.name,
                "result": operator.result,
                "target": "NPU" if operator.npu else "CPU",
                "reason": operator.reason,
                "macs": operator.macs,
            }
            for operator in report.operators
        ],
    }


def report_parts(report: VelaReport) -> list[RenderableType]:
    """Returns a report as a table and a summary; equal operators share a row."""
    table = Table(title=f"Vela {report.version}, {report.accelerator}", title_justify="left")
    table.add_column("count", justify="right")
    table.add_column("operator", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("MACs", justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold", ratio=1)
    rows = Counter(_vela_table_row(operator) for operator in report.operators)
    for (name, npu, words), count in rows.items():
        alike = [o for o in report.operators if _vela_table_row(o) == (name, npu, words)]
        style = "" if npu else "yellow"
        target = Text("NPU" if npu else "CPU", style)
        table.add_row(str(count), name, target, _macs(alike), words)
    return [table, Text(_summary(report))]


def _vela_table_row(operator: VelaOperator) -> tuple[str, bool, str]:
    return operator.name, operator.npu, operator.reason.replace(f"({operator.result})", "")


def _macs(operators: Sequence[VelaOperator]) -> str:
    total = sum(operator.macs for operator in operators)
    return f"{total:,}" if total else ""


def _summary(report: VelaReport) -> str:
    return (
        f"{report.share:.1%} of {report.macs:,} MACs on the NPU, {report.sram:,} bytes of SRAM, "
        f"{report.cycles:,} cycles estimated"
    )
