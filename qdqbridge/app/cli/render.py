"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qdqbridge.app.report.inspection import Inspection, Port
from qdqbridge.core.graph.diff import GraphDifference
from qdqbridge.core.graph.graph import Note
from qdqbridge.core.graph.printer import params_text
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.targets.comparison.compare import Comparison, summary, type_text

if TYPE_CHECKING:
    from qdqbridge.targets.engines.kinds import EngineVerdict, Placement
    from qdqbridge.targets.profiles import ExportProfile, Finding
    from qdqbridge.targets.profiles.export import ExportChange
    from qdqbridge.tflite_io.vela import VelaOperator, VelaReport
    from qdqbridge.tvm.relax.kernel_times import KernelTime


def type_json(type_: ValueType | None) -> dict[str, Any] | None:
    """Returns a type as JSON; floats of scales are exact, in hexadecimal, within ``text``."""
    if type_ is None:
        return None
    shape = None if type_.shape is None else list(type_.shape)
    if not isinstance(type_, QuantType):
        return {"dtype": str(type_.dtype), "shape": shape}
    params = type_.params
    return {
        "dtype": str(params.storage_dtype),
        "shape": shape,
        "text": params_text(params),
        "scale": params.scale.astype(np.float64).tolist(),
        "zero_point": params.zero_point.tolist(),
        "axis": params.axis,
        "block_size": params.block_size,
        "qmin": params.qmin,
        "qmax": params.qmax,
    }


def shape_text(type_: ValueType) -> str:
    """Returns a shape as text."""
    return "[*]" if type_.shape is None else f"[{', '.join(map(str, type_.shape))}]"


def note_json(note: Note) -> dict[str, Any]:
    """Returns a note as JSON."""
    return {
        "rule": note.rule,
        "node": note.node,
        "reason": note.reason,
        "culprits": list(note.culprits),
    }


def notes_table(notes: Sequence[Note]) -> Table:
    """Returns notes as a table."""
    table = Table(title="notes", title_justify="left")
    for heading in ("node", "reason", "tensors", "rule"):
        table.add_column(heading, overflow="fold")
    for note in notes:
        cells = (note.node, note.reason, ", ".join(note.culprits), note.rule)
        table.add_row(*map(Text, cells))
    return table


def inspection_json(found: Inspection) -> dict[str, Any]:
    """Returns a model's summary as JSON."""
    header = found.header
    return {
        "file": header.file,
        "ir_version": header.ir_version,
        "opsets": dict(header.opsets),
        "producer": header.producer,
        "digest": found.digest,
        "inputs": [_port_json(port) for port in found.inputs],
        "outputs": [_port_json(port) for port in found.outputs],
        "onnx_nodes": dict(header.operators),
        "raw_nodes": dict(found.raw),
        "canonical_nodes": dict(found.canonical),
        "quantized_activations": dict(found.activations),
        "quantized_constants": dict(found.constants),
        "float_activations": found.floats,
        "notes": [note_json(note) for note in found.notes],
        "pairs_can_saturate": list(found.paired),
    }


def _port_json(port: Port) -> dict[str, Any]:
    return {"name": port.name, "type": type_json(port.type)}


def inspection_parts(found: Inspection) -> list[RenderableType]:
    """Returns a model's summary as tables."""
    header = found.header
    facts = Table(title=Text(header.file), title_justify="left", show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    opsets = ", ".join(f"{domain} {version}" for domain, version in header.opsets.items())
    rows = [
        ("opset", opsets if header.ir_version is None else f"{opsets} (IR {header.ir_version})"),
        ("producer", header.producer or "not said"),
        *(("input", _port_text(port)) for port in found.inputs),
        *(("output", _port_text(port)) for port in found.outputs),
        ("quantized activations", _counts(found.activations)),
        ("quantized constants", _counts(found.constants)),
        ("float activations", str(found.floats)),
        ("digest", found.digest),
    ]
    if found.paired:
        count = f"{len(found.paired)} product{'s' * (len(found.paired) > 1)}"
        row = ("x86 without VNNI", f"pairs of {count} can saturate; 'explain' names them")
        rows.insert(-1, row)
    for key, value in rows:
        facts.add_row(key, Text(value))
    parts: list[RenderableType] = [facts, _operator_table(found)]
    if found.notes:
        word = "note" if len(found.notes) == 1 else "notes"
        parts.append(Text(f"{len(found.notes)} {word}; 'qdqbridge explain' lists them"))
    return parts


def _port_text(port: Port) -> str:
    return f"{port.name}: {type_text(port.type)} {shape_text(port.type)}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"


def _operator_table(found: Inspection) -> Table:
    table = Table("operator", title="nodes", title_justify="left", show_footer=True)
    columns = (found.header.operators, found.raw, found.canonical)
    for heading, counts in zip(("in the file", "as read", "canonical"), columns, strict=True):
        table.add_column(heading, justify="right", footer=str(sum(counts.values())))
    names = dict.fromkeys(name for counts in columns for name in counts)
    for name in sorted(names):
        table.add_row(Text(name), *(str(counts.get(name, "")) for counts in columns))
    return table


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Returns a comparison as JSON; an infinite SQNR (no difference) is null."""
    return {
        "a": comparison.a,
        "b": comparison.b,
        "local": comparison.local,
        "equal": comparison.equal,
        "max_lsb": comparison.max_lsb,
        "unexplained": comparison.unexplained if comparison.local else None,
        "misread": comparison.misread if comparison.local else None,
        "summary": summary(comparison),
        "unmatched": list(comparison.unmatched),
        "values": [
            {
                "name": value.name,
                "node": value.node,
                "type": type_json(value.type),
                "output": value.is_output,
                "elements": value.count,
                "mismatches": value.mismatches,
                "max_lsb": value.max_lsb,
                "max_abs": value.max_abs,
                "max_ulp": value.max_ulp,
                "sqnr_db": value.sqnr_db,
                "top1_agreement": value.top1,
                "causes": dict(value.causes),
                "bound": value.bound,
                "moved": value.moved,
            }
            for value in comparison.values
        ],
    }


def arrays_json(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Returns the statistics of arrays as JSON."""
    return {
        name: {"dtype": str(array.dtype), "shape": list(array.shape), **_statistics(array)}
        for name, array in arrays.items()
    }


def arrays_table(arrays: Mapping[str, NDArray[Any]]) -> Table:
    """Returns the statistics of arrays as a table."""
    table = Table("output", "type", "shape", "min", "max", "mean")
    for name, array in arrays.items():
        numbers = (f"{value:.6g}" for value in _statistics(array).values())
        table.add_row(Text(name), str(array.dtype), Text(str(list(array.shape))), *numbers)
    return table


def _statistics(array: NDArray[Any]) -> dict[str, float]:
    # Strings, and tensors without elements, have no least number.
    if not array.size or array.dtype == object:
        return {"min": float("nan"), "max": float("nan"), "mean": float("nan")}
    wide = array.astype(np.float64)
    return {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}


# ---- what engines take, and what an export changed for one, as tables and as JSON ----------------

_MOST_ENGINES = 20


def verdict_json(verdict: EngineVerdict) -> dict[str, Any]:
    """Returns what an engine takes as JSON."""
    return {
        "engine": verdict.engine,
        "version": verdict.version,
        "whole": verdict.takes_all,
        "partitions": verdict.partitions,
        "placements": [asdict(placement) for placement in verdict.placements],
    }


def verdict_parts(verdict: EngineVerdict) -> list[RenderableType]:
    """Returns what an engine takes as a table of what it leaves, and a summary."""
    places = Counter(placement.place for placement in verdict.placements)
    listed = ", ".join(f"{number} {place}" for place, number in places.most_common())
    pieces = "1 partition" if verdict.partitions == 1 else f"{verdict.partitions} partitions"
    summary = Text(f"{verdict.engine} ({verdict.version}): {listed}; {pieces}")
    # Those of which the engine says why; where it says so of none, all of them.
    left = [placement for placement in verdict.left if placement.why] or list(verdict.left)
    if not left:
        return [summary]
    table = Table(title=f"{verdict.engine} leaves", title_justify="left")
    for name in ("node", "operator", "runs", "why"):
        table.add_column(name, overflow="fold")
    for placement in left[:_MOST_ENGINES]:
        table.add_row(*map(Text, _cells(placement)))
    more = len(left) - _MOST_ENGINES
    rest = [Text(f"… and {more} more (--json lists them)")] if more > 0 else []
    return [table, *rest, summary]


def _cells(placement: Placement) -> tuple[str, str, str, str]:
    why = placement.why or "the engine does not say"
    return placement.node, placement.operator, placement.place, why


def changes_json(changes: Sequence[ExportChange]) -> list[dict[str, str]]:
    """Returns what an export changed as JSON."""
    return [asdict(change) for change in changes]


def changes_parts(changes: Sequence[ExportChange]) -> list[RenderableType]:
    """Returns what an export changed as a table."""
    if not changes:
        return [Text("nothing differs from the file that was read")]
    table = Table(title="changed", title_justify="left")
    for name in ("what", "before", "after", "why"):
        table.add_column(name, overflow="fold")
    for change in changes:
        table.add_row(*map(Text, (change.what, change.before, change.after, change.why)))
    return [table]


# ---- times of kernels as a table for people and as JSON for programs -----------------------------


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


# ---- what Vela says of a TFLite file, as a table for people and as JSON for programs -------------


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


_STYLES = {
    "refused": "bold red",
    "other numbers": "red",
    "elsewhere": "yellow",
    "float": "yellow",
    "no kernel": "dim",
    "other numbers on some processors": "yellow",
}
KEPT = frozenset({"other numbers on some processors"})
"""Effects that no file of a profile is free of: they are shown, and fail no check."""


def findings_json(profile: ExportProfile, findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the findings of a check as JSON."""
    return {
        "profile": profile.name,
        "runtime": profile.runtime,
        "met": all(finding.effect.value in KEPT for finding in findings),
        "rules": [
            {"name": rule.name, "applies_to": rule.applies_to, "source": rule.source}
            for rule in profile.rules
        ],
        "findings": [
            {
                "rule": finding.rule,
                "effect": finding.effect.value,
                "node": finding.node,
                "operator": finding.operator,
                "reason": finding.reason,
                "tensors": list(finding.tensors),
                "fix": finding.fix,
                "source": finding.source,
            }
            for finding in findings
        ],
    }


def findings_parts(profile: ExportProfile, findings: Sequence[Finding]) -> list[RenderableType]:
    """Returns the findings of a check as a table and a summary."""
    if not findings:
        rules = len(profile.rules)
        text = f"{profile.runtime}: all {rules} rules of profile '{profile.name}' are kept"
        return [Text(text)]
    table = Table(title=f"{profile.runtime}, profile '{profile.name}'", title_justify="left")
    table.add_column("count", justify="right")
    table.add_column("operator", no_wrap=True)
    table.add_column("effect", no_wrap=True)
    table.add_column("reason", overflow="fold", ratio=3)
    table.add_column("nodes", overflow="fold", ratio=3)
    table.add_column("rule", overflow="fold", ratio=1)
    for group in _groups(findings):
        first, count = group[0], len(group)
        effect = Text(first.effect.value, style=_STYLES[first.effect.value])
        reason = first.reason if count == 1 else _QUOTED.sub("'…'", first.reason)
        cells = map(Text, (reason, _listed(group), first.rule))
        table.add_row(str(count), Text(first.operator), effect, *cells)
    counts = Counter(finding.effect.value for finding in findings)
    listed = ", ".join(f"{counts[effect]} {effect}" for effect in _STYLES if counts[effect])
    word = "finding" if len(findings) == 1 else "findings"
    return [table, Text(f"{len(findings)} {word}: {listed}"), *_fixes(findings)]


_LISTED = 3
_QUOTED = re.compile(r"'[^']*'")


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Returns findings that differ only in the names of nodes and tensors together."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        # Names are what findings of one kind differ in: without them they are one row.
        reason = _QUOTED.sub("", finding.reason)
        key = (finding.rule, finding.operator, finding.effect.value, reason)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _listed(group: Sequence[Finding]) -> str:
    names = ", ".join(finding.node for finding in group[:_LISTED])
    more = len(group) - _LISTED
    return f"{names} and {more} more (--json lists them)" if more > 0 else names


def _fixes(findings: Sequence[Finding]) -> list[RenderableType]:
    fixes = {finding.rule: finding.fix for finding in findings if finding.fix}
    return [Text(f"  {rule}: {fix}", style="dim") for rule, fix in fixes.items()]


def differences_json(differences: Sequence[GraphDifference]) -> dict[str, Any]:
    """Returns a diff as JSON."""
    return {
        "equal": not differences,
        "differences": [
            {"kind": d.kind.value, "where": d.where, "text": d.text, "a": d.a, "b": d.b}
            for d in differences
        ],
    }


def differences_parts(differences: Sequence[GraphDifference]) -> list[RenderableType]:
    """Returns a diff as a table and a summary."""
    if not differences:
        return [Text("equal: both models have one canonical form")]
    table = Table(show_edge=True)
    table.add_column("what", no_wrap=True)
    table.add_column("where", overflow="fold", ratio=2)
    table.add_column("difference", overflow="fold", ratio=3)
    for difference in differences:
        cells = (difference.kind.value, difference.where, difference.text)
        table.add_row(*map(Text, cells))
    counts = Counter(difference.kind.value for difference in differences)
    listed = ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
    return [table, Text(f"{len(differences)} difference{'s' if differences[1:] else ''}: {listed}")]
