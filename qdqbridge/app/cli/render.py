"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qdqbridge.app.report.inspection import Inspection, Port
from qdqbridge.core.graph.graph import Note
from qdqbridge.core.graph.printer import params_text
from qdqbridge.core.graph.types import QuantType, ValueType
from qdqbridge.targets.comparison.compare import Comparison
from qdqbridge.targets.comparison.tables import comparison_parts, summary, type_text

__all__ = [
    "arrays_json",
    "arrays_table",
    "comparison_json",
    "comparison_parts",
    "inspection_json",
    "inspection_parts",
    "note_json",
    "notes_table",
    "type_json",
]


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
    if not array.size or array.dtype == object:
        return {"min": float("nan"), "max": float("nan"), "mean": float("nan")}
    wide = array.astype(np.float64)
    return {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
