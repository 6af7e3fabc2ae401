"""IREE on the CPU: its importer of ONNX files, its compiler, its runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import iree.compiler
import iree.runtime
import numpy as np
import onnx
from iree.compiler.tools.import_onnx import __main__ as importer

from qdqbridge.targets.engines.workers import Array, Loaded


class IreeWorker:
    """Compiles ONNX files for this processor; it tells nothing of single nodes."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._types: dict[str, list[Any]] = {}

    def version(self) -> str:
        """Returns the version that decides."""
        return f"IREE {version('iree-base-compiler')}, CPU"

    def load(self, key: str, file: str) -> Loaded:
        """Imports and compiles a model."""
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "model.mlir"
            importer.main(importer.parse_arguments([file, "-o", str(made)]))
            data = iree.compiler.compile_file(
                str(made), target_backends=["llvm-cpu"], input_type="onnx",
                extra_args=["--iree-llvmcpu-target-cpu=host", "--mlir-disable-threading"],
            )  # fmt: skip
        config = iree.runtime.Config("local-sync")
        context = iree.runtime.SystemContext(config=config)
        module = iree.runtime.VmModule.copy_buffer(config.vm_instance, data)
        context.add_vm_module(module)
        names = [name for name in module.function_names if "$" not in name and name[:2] != "__"]
        self._modules[key] = context.modules[module.name][names[0]]
        outputs = onnx.load(file, load_external_data=False).graph.output
        types = [each.type.tensor_type.elem_type for each in outputs]
        self._types[key] = list(map(onnx.helper.tensor_dtype_to_np_dtype, types))
        return [], 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model; IREE's integers have no signs."""
        found = self._modules[key](*inputs.values())
        arrays = map(np.asarray, found if isinstance(found, list | tuple) else [found])
        return {
            name: array.view(kind) if array.dtype.kind == "i" and kind.kind == "u" else array
            for name, array, kind in zip(names, arrays, self._types[key], strict=True)
        }


WORKER = IreeWorker
