"""TVM's own way from a QDQ file to integers, for comparison: its importer and one pass."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper
from tvm import relay

from qdqbridge.tvm.relay.build import _resolve_llvm_target
from qdqbridge.tvm.relay.dialect import install_shims


def fq2i(path: Path, extents: Mapping[str, int]) -> Any:
    """Returns what the ONNX importer and FakeQuantizationToInteger make of a file.

    The fork's missing wrappers are there, and the importer's old default for batch products is
    set, without which the pass fails.
    """
    install_shims()
    module = relay.transform.InferType()(imported(path, extents))
    module = relay.transform.FakeQuantizationToInteger()(module)
    module = relay.transform.FoldConstant()(relay.transform.InferType()(module))
    return relay.transform.InferType()(module)


def channels_last(module: Any) -> Any:
    """Returns the module after ConvertLayout to NHWC."""
    wanted = {
        name: ["NHWC", "default"] if "conv" in name else ["NHWC"]
        for name in ("qnn.conv2d", "nn.conv2d", "nn.max_pool2d", "nn.avg_pool2d", "qnn.avg_pool2d",
                     "nn.global_avg_pool2d", "image.resize2d")
    }  # fmt: skip
    passes = [relay.transform.ConvertLayout(wanted), relay.transform.FoldConstant()]
    with tvm.transform.PassContext(opt_level=3):
        return relay.transform.InferType()(tvm.transform.Sequential(passes)(module))


def imported(path: Path, extents: Mapping[str, int]) -> Any:
    """Returns what the ONNX importer makes of a file."""
    if "onnx.mapping" not in sys.modules:  # later versions of onnx have it elsewhere
        mapping: Any = types.ModuleType("onnx.mapping")
        known = [kind for kind in TensorProto.DataType.values() if kind]
        mapping.TENSOR_TYPE_TO_NP_TYPE = {k: helper.tensor_dtype_to_np_dtype(k) for k in known}
        sys.modules["onnx.mapping"] = mapping
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_param:
                extent.dim_value = extents.get(extent.dim_param, 1)
    del model.graph.value_info[:]
    fixed = {item.name for item in model.graph.initializer}
    shapes = {
        value.name: [extent.dim_value for extent in value.type.tensor_type.shape.dim]
        for value in model.graph.input
        if value.name not in fixed
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module, _ = relay.frontend.from_onnx(
            model, shape=shapes, freeze_params=True,
            convert_config={"use_nt_batch_matmul": True},
        )  # fmt: skip
    return relay.transform.DynamicToStatic()(module)


def run(module: Any, inputs: Mapping[str, np.ndarray], target: str = "llvm") -> list[np.ndarray]:
    """Builds a module with TVM's own arithmetic and returns its results."""
    from tvm.contrib import graph_executor

    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(module, target=_resolve_llvm_target(target))
    machine = graph_executor.GraphModule(library["default"](tvm.cpu()))
    for name, array in inputs.items():
        machine.set_input(name, array)
    machine.run()
    return [machine.get_output(i).numpy() for i in range(machine.get_num_outputs())]
