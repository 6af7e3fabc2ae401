"""A graph as TOSA: TFLite's integers, then Arm's converter and serializer in a process with limits.

TOSA's types hold no quantization, so a JSON beside the file says what its inputs and outputs mean.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqbridge.core.graph.atomic_write import placed_together
from qdqbridge.core.graph.graph import Graph, Note
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.engines.kinds import Placement, engine_kind
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits
from qdqbridge.targets.engines.vendor import refuse_open_shapes
from qdqbridge.tflite_io.writer import TFLiteModel, converted
from qdqbridge.tflite_io.writer.flatbuffer import TensorRecord
from qdqbridge.tflite_io.writer.tensors import refuse

SUFFIXES = (".tosa", ".mlir", ".mlirbc")
"""The flatbuffer, MLIR as text, and MLIR as bytecode."""
ON_FLOATS = "tosa-on-floats"
"""A note: TOSA computes an operator on floats that TFLite computes on integers."""


@dataclass(frozen=True, slots=True)
class TosaModel:
    """What was written.

    Attributes:
        made: The TFLite model that it was made of.
        data: The file.
        requires: The profiles and extensions of TOSA 1.0 that it requires.
        placements: What became of each operator of the TFLite model.
    """

    made: TFLiteModel
    data: bytes
    requires: tuple[str, ...]
    placements: tuple[Placement, ...]

    @property
    def notes(self) -> tuple[Note, ...]:
        """Where it computes otherwise than the graph: TFLite's notes, and what became floats."""
        floats = (Note(ON_FLOATS, each.node, each.why) for each in self.placements if each.why)
        return (*self.made.notes, *floats)

    @property
    def interface(self) -> dict[str, Any]:
        """What its inputs and outputs mean, for a JSON file."""
        model = self.made.model
        inputs = zip(model.inputs, model.input_names, strict=True)
        outputs = zip(model.outputs, model.output_names, strict=True)
        return {
            "requires": list(self.requires),
            "inputs": [_tensor(model.tensors[index], name) for index, name in inputs],
            "outputs": [_tensor(model.tensors[index], name) for index, name in outputs],
        }


def tosa(
    graph: Graph,
    suffix: str = ".tosa",
    *,
    layout: str = "model",
    limits: ProcessLimits | None = None,
) -> TosaModel:
    """Returns a graph as TOSA.

    Args:
        graph: A canonical graph with fixed extents.
        suffix: One of :data:`SUFFIXES`.
        layout: As for TFLite files.
        limits: What Arm's programs may take.

    Raises:
        UnsupportedTargetError: An extent is open; TFLite or TOSA has no counterpart of some nodes,
            which are listed; or Arm's programs are not installed, fail, crash or hang.
    """
    kind = engine_kind("tosa")
    refuse_open_shapes("TOSA", graph.name, graph)
    made = converted(graph, layout=layout, tosa=True)
    allowed = limits or ProcessLimits()
    with closing(
        EngineProcess(kind.worker, "Arm's converter to TOSA", allowed, kind.install)
    ) as at:
        data, requires, rows = at.ask("write the model", "convert", made.model.tobytes(), suffix)
    placements = tuple(Placement(*row) for row in rows)
    if not data:
        left = {(p.operator, p.why, ""): [p.node] for p in placements if not p.taken}
        refuse("TOSA", left, graph.name)
    return TosaModel(made, data, tuple(requires), placements)


def write_tosa(
    graph: Graph,
    path: Path,
    *,
    layout: str = "model",
    overwrite: bool = False,
    limits: ProcessLimits | None = None,
) -> TosaModel:
    """Writes a graph as TOSA, and what its inputs and outputs mean as ``<path>.json``.

    Both files appear complete or not at all. Arguments and errors are those of :func:`tosa`.

    Raises:
        OutputExistsError: A file is there and ``overwrite`` is False.
        OutputFileError: The operating system refuses.
    """
    if path.suffix not in SUFFIXES:
        raise UnsupportedTargetError(
            f"'{path.name}' does not end as TOSA does", fix=f"end it in {', '.join(SUFFIXES)}"
        )
    model = tosa(graph, path.suffix, layout=layout, limits=limits)
    beside = path.with_name(f"{path.name}.json")
    with placed_together([path, beside], overwrite=overwrite) as (file, interface):
        file.write_bytes(model.data)
        interface.write_text(json.dumps(model.interface, indent=1) + "\n", "utf-8")
    return model


def _tensor(tensor: TensorRecord, name: str) -> dict[str, Any]:
    found = {"name": name, "dtype": tensor.type.lower(), "shape": list(tensor.shape)}
    if (quant := tensor.quantization) is not None:
        scale, zero = quant.scale.ravel().tolist(), quant.zero_point.ravel().tolist()
        found |= {"scale": scale, "zero_point": zero}
    return found
