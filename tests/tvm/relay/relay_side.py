"""What tests of reading need from Relay's side: its importers as they are, and its runtime."""

from __future__ import annotations

import platform
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tvm import relay
from tvm.contrib import graph_executor

TARGET = f"llvm -mtriple={platform.machine()}-linux-gnu -opt-level=0"
Arrays = Mapping[str, NDArray[Any]]


def fixed(path: Path, batch: int = 1) -> onnx.ModelProto:
    """Returns a model of a batch that is a number: Relay's importers want one."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        extents = value.type.tensor_type.shape.dim
        if len(extents) and extents[0].dim_param:
            extents[0].dim_value = batch
    del model.graph.value_info[:]
    return model


def imported(model: onnx.ModelProto) -> Any:
    """Returns what Relay's own ONNX importer makes of a model.

    The importer looks for a table that later versions of onnx have under another name.
    """
    if "onnx.mapping" not in sys.modules:
        mapping: Any = types.ModuleType("onnx.mapping")
        known = [kind for kind in TensorProto.DataType.values() if kind]
        mapping.TENSOR_TYPE_TO_NP_TYPE = {k: helper.tensor_dtype_to_np_dtype(k) for k in known}
        sys.modules["onnx.mapping"] = mapping
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    config = {"use_nt_batch_matmul": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the importer's own calls
        mod, _ = relay.frontend.from_onnx(
            model, shape=shapes, freeze_params=True, convert_config=config
        )
    return relay.transform.InferType()(relay.transform.DynamicToStatic()(mod))


def run(mod: Any, inputs: Arrays, *, opt_level: int = 3) -> list[NDArray[Any]]:
    """Builds a module with Relay and returns its results."""
    with tvm.transform.PassContext(opt_level=opt_level):
        library = relay.build(mod, target=TARGET)
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    for name, array in inputs.items():
        module.set_input(name, array)
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


def run_each(mod: Any, name: str, rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Runs a module of batch 1 on every row; returns its results put together."""
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(mod, target=TARGET)
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    found: list[list[NDArray[Any]]] = []
    for row in rows:
        module.set_input(name, row[None])
        module.run()
        found.append([module.get_output(i).numpy() for i in range(module.get_num_outputs())])
    return [np.concatenate(results) for results in zip(*found, strict=True)]
