"""What Arm's converter to TOSA gets wrong of TFLite, written as it gets it right.

The records change and the graph does not: what is written computes the same numbers.
Each entry names what ``tosa-converter-for-tflite`` 2026.2 does of the plain form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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

    def floats(self, operator: str, x: int, *others: int | float, name: str = NEW) -> int:
        """Adds an operator on floats, whose result is like ``x``; a float is a scalar."""
        operands = (x, *(self._scalar(o, x) if isinstance(o, float) else o for o in others))
        return self.added(operator, operands, replace(self.tensor(x), data=None), name)

    def added(
        self, operator: str, operands: tuple[int, ...], like: TensorRecord, name: str = NEW
    ) -> int:
        """Adds an operator and returns its result, which is like another tensor."""
        index = self._new(replace(like, name=f"{name}{len(self.model.tensors)}"))
        record = OperatorRecord(operator, 1, operands, (index,), _OPTIONS.get(operator, ""))
        self.model.operators.append(record)
        return index

    def shape(self, extents: tuple[int, ...]) -> int:
        """Adds a shape."""
        return self._constant("INT32", np.array(extents, np.int32))

    def _scalar(self, number: float, like: int) -> int:
        shape = (1,) * len(self.tensor(like).shape)
        return self._constant("FLOAT32", np.full(shape, number, np.float32))

    def _constant(self, kind: str, data: NDArray[Any]) -> int:
        name = f"{NEW}{len(self.model.tensors)}"
        return self._new(TensorRecord(name, kind, data.shape, data=Constant.of(data)))

    def _new(self, tensor: TensorRecord) -> int:
        self.model.tensors.append(tensor)
        return len(self.model.tensors) - 1


_OPTIONS: Mapping[str, str] = MappingProxyType({
    "ADD": "AddOptions", "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions", "MUL": "MulOptions", "RESHAPE": "ReshapeOptions",
    "SIGN": "SignOptions", "SUB": "SubOptions",
})  # fmt: skip


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
    low, high = (float((end - zero) * scale) for end in _RANGES[made.type])
    x = rewriter.floats("MINIMUM", rewriter.floats("MAXIMUM", x, low), high)
    return replace(operator, inputs=(x,))


def _exact_gelu(rewriter: _RecordRewriter, operator: OperatorRecord) -> OperatorRecord:
    """GELU of floats becomes tanh of a cube, whatever it says, by a POW of negative bases.

    TOSA has a POW for positive ones only. It has an ERF that TFLite has not: the name of a TANH
    says where it is one (:data:`ERF`).
    """
    (x,), add = operator.inputs, rewriter.floats
    if rewriter.tensor(x).type != "FLOAT32":
        return operator
    if operator.fields.get("Approximate"):
        inner = add("ADD", x, add("MUL", _power(rewriter, x, 3), 0.044715))
        wave = add("TANH", add("MUL", inner, math.sqrt(2 / math.pi)))
    else:
        wave = add("TANH", add("MUL", x, math.sqrt(0.5)), name=ERF)
    share = add("ADD", wave, 1.0)
    return _binary("MUL", add("MUL", x, 0.5), share, operator)


def _power(rewriter: _RecordRewriter, x: int, exponent: int) -> int:
    product = x
    for _ in range(exponent - 1):
        product = rewriter.floats("MUL", product, x)
    return product


def _binary(name: str, a: int, b: int, operator: OperatorRecord) -> OperatorRecord:
    return OperatorRecord(name, 1, (a, b), operator.outputs, _OPTIONS[name])


def _multiplied_power(rewriter: _RecordRewriter, operator: OperatorRecord) -> OperatorRecord:
    """POW of floats by 2 or 3 is a product: TOSA's POW leaves negative bases undefined."""
    x, exponent = operator.inputs
    constant = rewriter.tensor(exponent).data
    number = constant.numpy().ravel()[0] if constant is not None and constant.size == 1 else 0
    if number not in (2, 3) or rewriter.tensor(x).type != "FLOAT32":
        return operator
    if rewriter.tensor(x).shape != rewriter.tensor(operator.outputs[0]).shape:
        return operator
    return _binary("MUL", _power(rewriter, x, int(number) - 1), x, operator)


def _even_round(rewriter: _RecordRewriter, operator: OperatorRecord) -> OperatorRecord:
    """ROUND is made of FLOOR, which rounds halves up: floats from 2^23 on have no halves."""
    (x,), add = operator.inputs, rewriter.floats
    whole = float(1 << 23)
    size = add("ABS", x)
    small = add("MINIMUM", size, whole)
    rounded = add("SUB", add("ADD", small, whole), whole)
    rounded = add("ADD", rounded, add("SUB", size, small))
    return _binary("MUL", rounded, add("SIGN", x), operator)


def _three_axes(rewriter: _RecordRewriter, operator: OperatorRecord) -> OperatorRecord:
    """BATCH_MATMUL of 16 bits: with other than three axes sums of 48 bits are reshaped.

    TOSA does not do that: so operands and result are.
    """
    x, y = rewriter.tensor(operator.inputs[0]), rewriter.tensor(operator.outputs[0])
    batches = {rewriter.tensor(index).shape[:-2] for index in (*operator.inputs, *operator.outputs)}
    if x.type != "INT16" or len(y.shape) == 3 or len(batches) > 1:
        return operator

    def flat(tensor: TensorRecord) -> TensorRecord:
        shape = (math.prod(tensor.shape[:-2]), *tensor.shape[-2:])
        return replace(tensor, shape=shape, data=None)

    operands = tuple(
        rewriter.added("RESHAPE", (index, rewriter.shape(made.shape)), made)
        for index in operator.inputs
        for made in (flat(rewriter.tensor(index)),)
    )
    made = rewriter.added(operator.name, operands, flat(y))
    rewriter.model.operators[-1] = replace(operator, inputs=operands, outputs=(made,))
    return _binary("RESHAPE", made, rewriter.shape(y.shape), operator)


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
    "BATCH_MATMUL": _three_axes,
    "GELU": _exact_gelu,
    "POW": _multiplied_power,
    "ROUND": _even_round,
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
