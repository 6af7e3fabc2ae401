"""Parameters of verbs that say how a model is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qdqbridge.app.cli.helping import READ
from qdqbridge.app.report.inspection import Inspection
from qdqbridge.app.sources import inspect_model, is_module, load_model
from qdqbridge.core.arguments import BIT_FOR_BIT, ReadingOptions
from qdqbridge.core.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Sources(ReadingOptions):
    """Rewrites beyond the bit-exact ones, and where the parameters of a module are.

    Attributes:
        params: An .npz file with the parameters of a Relax module.
        adapter: An .onnx_adapter file, whose arrays are constants of the ONNX model.
        optional_inputs: Inputs of an ONNX model that have initializers stay inputs.
        encodings: A file of encodings or a calibration cache, which quantizes a float model: of
            AIMET or QAIRT, of onnxruntime (TensorQuantOverrides, calibration table), of TensorRT.
    """

    params: Path | None = None
    adapter: Path | None = None
    optional_inputs: bool = False
    encodings: Path | None = None

    def read(self, model: Path) -> Graph:
        """Returns a model in canonical form; ``params`` are for modules that want them."""
        return self._read(model, self.params)

    def read_any(self, model: Path) -> Graph:
        """Returns one of several models, some of which may be no modules."""
        return self._read(model, self.params if is_module(model) else None)

    def _read(self, model: Path, params: Path | None) -> Graph:
        return load_model(
            model,
            params=params,
            options=self,
            adapter=self.adapter,
            optional_inputs=self.optional_inputs,
            encodings=self.encodings,
        )

    def file(self, model: Path) -> Path | None:
        """Returns the file that holds what is read; none does with what is beside it."""
        beside = self.adapter is not None or self.encodings is not None
        return None if beside or self.optional_inputs else model

    def inspect(self, model: Path) -> Inspection:
        """Returns what a model holds."""
        return inspect_model(
            model,
            params=self.params,
            options=self,
            adapter=self.adapter,
            optional_inputs=self.optional_inputs,
            encodings=self.encodings,
        )


Reading = Annotated[Sources, Parameter(name="*", negative=(), group=READ)]
Rewriting = Annotated[ReadingOptions, Parameter(name="*", negative=(), group=READ)]
AS_IT_IS = Sources()
EXACTLY = BIT_FOR_BIT
