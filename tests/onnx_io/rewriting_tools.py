"""Tools of others that write a model in another form, where they are installed.

Each is a function from a model to one that is meant to compute the same. onnx's and onnxruntime's
are always there; onnxslim, onnxsim and onnxscript where somebody has installed them.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import version_converter

from tests.onnx_io.model_views import Model, copy_of, opset

Tool = Callable[[Model], Model]

_OPSETS = (13, 15, 17, 18, 19, 20, 21, 22, 23)


def _converted(model: Model) -> Model:
    """To another opset, as onnx converts it."""
    now = opset(model)
    return version_converter.convert_version(
        copy_of(model), random.Random(now).choice([each for each in _OPSETS if each > now] or [now])
    )


def _optimized(model: Model) -> Model:
    """As onnxruntime saves it after its basic optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        ort.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["WeightBiasQuantization"],  # it rounds float weights
        )
        return onnx.load(options.optimized_model_filepath)


def _slimmed(model: Model) -> Model:
    return importlib.import_module("onnxslim").slim(copy_of(model))


def _simplified(model: Model) -> Model:
    return importlib.import_module("onnxsim").simplify(copy_of(model))[0]


def _optimized_by_onnxscript(model: Model) -> Model:
    return importlib.import_module("onnxscript.optimizer").optimize(copy_of(model))


_ALL: Mapping[str, tuple[str, Tool]] = {
    "version_converter": ("onnx", _converted),
    "onnxruntime": ("onnxruntime", _optimized),
    "onnxslim": ("onnxslim", _slimmed),
    "onnxsim": ("onnxsim", _simplified),
    "onnxscript": ("onnxscript", _optimized_by_onnxscript),
}
TOOLS: Mapping[str, Tool] = {
    name: tool for name, (module, tool) in _ALL.items() if importlib.util.find_spec(module)
}
"""By name: the tools that are installed."""
