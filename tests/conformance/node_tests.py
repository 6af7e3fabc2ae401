"""ONNX's own backend node tests of quantization, with parameters as constants or as inputs.

In ONNX's tests scales and zero points are graph inputs. Every model that people have holds them
as initializers, and so do these, and weights of convolutions too, unless they are left as they are.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qdqbridge.core.graph.dtypes import DType
from tests.onnx_models import Array

_QUANTIZATION = re.compile("quantize|qlinear|integer")
_CONSTANT = re.compile("scale|zero_point|^w$")


@dataclass(frozen=True)
class NodeTest:
    """One test of ONNX: a model, what to feed, and what must come out."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    rtol: float
    atol: float

    def check(self, outputs: Mapping[str, Array]) -> None:
        """Compares as ONNX's runner does, and integers exactly where ONNX would let 1e-3 pass."""
        for name, expected in self.outputs.items():
            actual = outputs[name]
            shown = f"{self.name}: {actual.dtype} {actual.shape}"
            assert actual.dtype == expected.dtype, f"{shown} instead of {expected.dtype}"
            assert actual.shape == expected.shape, f"{shown} instead of {expected.shape}"
            if DType.of(expected.dtype).bits <= 8 or expected.dtype.kind in "iu":
                np.testing.assert_array_equal(_plain(actual), _plain(expected), self.name)
            else:  # what ONNX itself allows of this case
                np.testing.assert_allclose(
                    actual, expected, rtol=self.rtol, atol=self.atol, err_msg=self.name
                )


@cache
def node_tests(*, as_inputs: bool = False) -> tuple[NodeTest, ...]:
    """Returns the quantization tests that the installed onnx can make.

    Args:
        as_inputs: Leave the parameters graph inputs, as ONNX has them.
    """
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():  # making the inputs of other operators' tests divides by zero
        warnings.simplefilter("ignore")
        cases = [c for c in collect_testcases(None) if _QUANTIZATION.search(c.name)]
    cases.sort(key=lambda c: c.name)
    return tuple(_node_test(case, as_inputs=as_inputs) for case in cases)


def _node_test(case: Any, *, as_inputs: bool) -> NodeTest:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    (fed, wanted), *_ = case.data_sets
    inputs: dict[str, Array] = {}
    kept = list(model.graph.input)
    del model.graph.input[:]
    for info, given in zip(kept, fed, strict=True):
        array = _array(given)
        if _CONSTANT.search(info.name) and not as_inputs:
            model.graph.initializer.append(_tensor(given, array, info.name))
        else:
            model.graph.input.append(info)
            inputs[info.name] = array
    names = [info.name for info in model.graph.output]
    outputs = {name: _array(array) for name, array in zip(names, wanted, strict=True)}
    return NodeTest(case.name, model, inputs, outputs, case.rtol, case.atol)


def _array(given: Any) -> Array:
    """Returns an input or output; ONNX writes those that NumPy cannot hold as TensorProto."""
    return np.asarray(
        numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given
    )


def _plain(array: Array) -> Array:
    """Returns numbers that NumPy itself can compare."""
    return array.astype(np.float32) if array.dtype.kind not in "biu" else array


def _tensor(given: Any, array: Array, name: str) -> onnx.TensorProto:
    if isinstance(given, onnx.TensorProto):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(given)
        tensor.name = name
        return tensor
    return numpy_helper.from_array(array, name)
