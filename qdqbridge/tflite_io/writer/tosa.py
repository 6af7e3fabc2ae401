"""What Arm's converter to TOSA gets wrong of TFLite, written as it gets it right.

The records change and the graph does not: what is written computes the same numbers.
Each entry names what ``tosa-converter-for-tflite`` 2026.2 does of the plain form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tflite_io.writer.flatbuffer import ModelRecord, OperatorRecord, TensorRecord

_RANGES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767)}
NEW = "tosa:"
"""How the names of tensors begin that are added here."""
ERF = "tosa-erf:"
"""How the name of a TANH begins that is to be an ERF."""


class _RecordRewriter:
    """A model whose operators are written anew.

    Attributes:
        model: A copy: tensors are added to it, those that are there keep their places.
    """

    def __init__(self, model: ModelRecord) -> None:
        self.model = replace(model, tensors=list(model.tensors), operators=[])

    def tensor(self, index: int) -> TensorRecord:
        """Returns a tensor."""
        return self.model.tensors[index]

    def scalar(self, number: float, like: int) -> int:
        """Adds a float constant of one element, with the rank of a tensor."""
        data = np.full((1,) * len(self.tensor(like).shape), number, np.float32)
        name = f"{NEW}{len(self.model.tensors)}"
        return self._added(TensorRecord(name, "FLOAT32", data.shape, data=Constant.of(data)))

    def result(
        self, operator: str, operands: tuple[int, ...], of: int, options: str = "", name: str = NEW
    ) -> int:
        """Adds an operator; its result has the shape of the tensor ``of`` and is a float."""
        name = f"{name}{len(self.model.tensors)}"
        made = replace(self.tensor(of), name=name, type="FLOAT32", quantization=None, data=None)
        index = self._added(made)
        self.model.operators.append(OperatorRecord(operator, 1, operands, (index,), options))
        return index

    def _added(self, tensor: TensorRecord) -> int:
        self.model.tensors.append(tensor)
        return len(self.model.tensors) - 1


def _clamped_quantize(rewriter: _RecordRewriter, operator: OperatorRecord) -> OperatorRecord:
    """QUANTIZE of floats: the zero point is added to int32, and the sum cast, which wraps.

    So floats are clamped before; without a zero point the cast itself saturates.
    """
    (x,), made = operator.inputs, rewriter.tensor(operator.outputs[0])
    parameters = made.quantization
    if rewriter.tensor(x).type != "FLOAT32" or parameters is None or made.type not in _RANGES:
        return operator
    if not parameters.zero_point.any() or parameters.zero_point.size > 1:  # it takes one only
        return operator
    zero, scale = int(parameters.zero_point.item()), parameters.scale.item()
    low, high = ((end - zero) * scale for end in _RANGES[made.type])
    for name, end in (("MAXIMUM", low), ("MINIMUM", high)):
        x = rewriter.result(name, (x, rewriter.scalar(end, x)), x, "MaximumMinimumOptions")
    return replace(operator, inputs=(x,))


def _exact_gelu(rewriter: _RecordRewriter, operator: OperatorRecord) -> OperatorRecord:
    """GELU of floats becomes tanh of a cube, whatever it says, by a POW of negative bases.

    TOSA has a POW for positive ones only. It has an ERF that TFLite has not: the name of a TANH
    says where it is one (:data:`ERF`).
    """
    (x,) = operator.inputs
    if rewriter.tensor(x).type != "FLOAT32":
        return operator

    def times(a: int, b: float) -> int:
        return rewriter.result("MUL", (a, rewriter.scalar(b, x)), x, "MulOptions")

    if operator.fields.get("Approximate"):
        square = rewriter.result("MUL", (x, x), x, "MulOptions")
        cube = rewriter.result("MUL", (square, x), x, "MulOptions")
        inner = rewriter.result("ADD", (x, times(cube, 0.044715)), x, "AddOptions")
        wave = rewriter.result("TANH", (times(inner, math.sqrt(2 / math.pi)),), x)
    else:
        wave = rewriter.result("TANH", (times(x, math.sqrt(0.5)),), x, name=ERF)
    share = rewriter.result("ADD", (wave, rewriter.scalar(1.0, x)), x, "AddOptions")
    return OperatorRecord("MUL", 1, (times(x, 0.5), share), operator.outputs, "MulOptions")


def _halfway_nearest(rewriter: _RecordRewriter, operator: OperatorRecord) -> OperatorRecord:
    """RESIZE_NEAREST_NEIGHBOR by whole factors: a place between two elements takes the next one.

    With centres of pixels no place lies between two, and each element is repeated all the same.

    Raises:
        UnsupportedTargetError: By another factor, where the converter's elements are others.
    """
    if operator.fields.get("AlignCorners") or operator.fields.get("HalfPixelCenters"):
        return operator
    x, y = (rewriter.tensor(index) for index in (operator.inputs[0], operator.outputs[0]))
    if any(after % before for before, after in zip(x.shape, y.shape, strict=True)):
        raise UnsupportedTargetError(
            "TOSA cannot take this graph (1 operator)",
            where=f"{operator.name} '{y.name}'",
            why=f"it goes from {list(x.shape)} to {list(y.shape)}, no multiple of it: Arm's "
            "converter rounds places that the operator cuts",
            fix="resize by whole factors, or with half_pixel",
        )
    return replace(operator, fields={**operator.fields, "HalfPixelCenters": True})


_Form: TypeAlias = "Callable[[_RecordRewriter, OperatorRecord], OperatorRecord]"
_FORMS: Mapping[str, _Form] = MappingProxyType({
    "QUANTIZE": _clamped_quantize,
    "GELU": _exact_gelu,
    "RESIZE_NEAREST_NEIGHBOR": _halfway_nearest,
})  # fmt: skip


def rewritten_for_tosa(model: ModelRecord) -> ModelRecord:
    """Returns a model that computes the same, in forms that become TOSA's.

    Constants of 4 bits are stored in 8: the converter reshapes and casts them, which TOSA does not
    do, and the reference model reads its CONV2D's weights otherwise.
    """
    rewriter = _RecordRewriter(model)
    for operator in model.operators:
        form = _FORMS.get(operator.name)
        rewriter.model.operators.append(form(rewriter, operator) if form else operator)
    for index, tensor in enumerate(rewriter.model.tensors):
        if tensor.type == "INT4" and tensor.data is not None:
            wide = Constant.of(tensor.data.numpy().astype(np.int8))
            rewriter.model.tensors[index] = replace(tensor, type="INT8", data=wide)
    return rewriter.model
