"""TVM's own importer of ONNX and its own kernels, as a user of TVM alone runs a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def run_imported(model: Any, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Returns what TVM computes of a model without any rule of this package.

    Args:
        model: ONNX's ModelProto.
        inputs: In the order of the model's.
    """
    module = from_onnx(model, keep_params_in_input=False)
    device: Any = tvm.cpu()
    machine = relax.VirtualMachine(relax.build(module, "llvm"), device)
    found = machine["main"](*(tvm.runtime.tensor(each) for each in inputs))
    arrays = found if isinstance(found, list | tuple | tvm.ir.Array) else [found]
    return [np.asarray(each.numpy()) for each in arrays]
