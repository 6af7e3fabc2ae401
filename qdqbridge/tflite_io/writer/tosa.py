"""What Arm's converter to TOSA gets wrong of TFLite, written as it gets it right.

The records change and the graph does not: what is written computes the same numbers.
Each entry names what ``tosa-converter-for-tflite`` 2026.2 does of the plain form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.tflite_io.counterparts import COUNTERPARTS
from qdqbridge.tflite_io.writer.emission import Emission
from qdqbridge.tflite_io.writer.flatbuffer import ModelRecord, OperatorRecord
from qdqbridge.tflite_io.writer.tensors import refuse

_RANGES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767)}
_NEW = "tosa"
"""How the names of tensors begin that are added here."""
ERF = "tosa-erf:"
"""How the name of a TANH begins that is to be an ERF."""
_WHOLE = "resize by whole factors, or with half_pixel"
_OPTIONS = {row.tflite: row.options for row in COUNTERPARTS}


def _floats(e: Emission, operator: str, x: int, *others: int | float, name: str = _NEW) -> int:
    """Adds an operator on floats, whose result is like ``x``; a float is a scalar."""
    kind, shape = e.type_of(x)
    scalars = (1,) * len(shape)
    operands = [
        e.constant(np.full(scalars, other, np.float32), _NEW) if isinstance(other, float) else other
        for other in others
    ]
    made = e.plain(kind, shape, name)
    e.add(operator, [x, *operands], [made], _OPTIONS[operator])
    return made


def _product(a: int, b: int, operator: OperatorRecord) -> OperatorRecord:
    return OperatorRecord("MUL", 1, (a, b), operator.outputs, _OPTIONS["MUL"])


def _clamped_quantize(e: Emission, operator: OperatorRecord) -> OperatorRecord:
    """QUANTIZE of floats: the zero point is added to int32, and the sum cast, which wraps.

    So floats are clamped before; without a zero point the cast itself saturates.
    """
    (x,), made = operator.inputs, e.model.tensors[operator.outputs[0]]
    parameters = made.quantization
    if e.type_of(x)[0] != "FLOAT32" or parameters is None or made.type not in _RANGES:
        return operator
    if not parameters.zero_point.any() or parameters.zero_point.size > 1:  # it takes one only
        return operator
    zero, scale = int(parameters.zero_point.item()), parameters.scale.item()
    low, high = (float((end - zero) * scale) for end in _RANGES[made.type])
    x = _floats(e, "MINIMUM", _floats(e, "MAXIMUM", x, low), high)
    return replace(operator, inputs=(x,))


def _exact_gelu(e: Emission, operator: OperatorRecord) -> OperatorRecord:
    """GELU of floats becomes tanh of a cube, whatever it says, by a POW of negative bases.

    TOSA has a POW for positive ones only. It has an ERF that TFLite has not: the name of a TANH
    says where it is one (:data:`ERF`).
    """
    (x,), add = operator.inputs, partial(_floats, e)
    if e.type_of(x)[0] != "FLOAT32":
        return operator
    if operator.fields.get("Approximate"):
        inner = add("ADD", x, add("MUL", _power(e, x, 3), 0.044715))
        wave = add("TANH", add("MUL", inner, math.sqrt(2 / math.pi)))
    else:
        wave = add("TANH", add("MUL", x, math.sqrt(0.5)), name=ERF)
    share = add("ADD", wave, 1.0)
    return _product(add("MUL", x, 0.5), share, operator)


def _power(e: Emission, x: int, exponent: int) -> int:
    product = x
    for _ in range(exponent - 1):
        product = _floats(e, "MUL", product, x)
    return product


def _multiplied_power(e: Emission, operator: OperatorRecord) -> OperatorRecord:
    """POW of floats by 2 or 3 is a product: TOSA's POW leaves negative bases undefined."""
    x, exponent = operator.inputs
    constant = e.model.tensors[exponent].data
    number = constant.numpy().ravel()[0] if constant is not None and constant.size == 1 else 0
    if number not in (2, 3) or e.type_of(x)[0] != "FLOAT32":
        return operator
    if e.type_of(x) != e.type_of(operator.outputs[0]):
        return operator
    return _product(_power(e, x, int(number) - 1), x, operator)


def _even_round(e: Emission, operator: OperatorRecord) -> OperatorRecord:
    """ROUND is made of FLOOR, which rounds halves up: floats from 2^23 on have no halves."""
    (x,), add = operator.inputs, partial(_floats, e)
    whole = float(1 << 23)
    size = add("ABS", x)
    small = add("MINIMUM", size, whole)
    rounded = add("SUB", add("ADD", small, whole), whole)
    rounded = add("ADD", rounded, add("SUB", size, small))
    return _product(rounded, add("SIGN", x), operator)


def _three_axes(e: Emission, operator: OperatorRecord) -> OperatorRecord:
    """BATCH_MATMUL of 16 bits: with other than three axes sums of 48 bits are reshaped.

    TOSA does not do that: so operands and result are.
    """
    operands, (y,) = operator.inputs, operator.outputs
    kind, shape = e.type_of(y)
    batches = {e.type_of(index)[1][:-2] for index in (*operands, y)}
    if kind != "INT16" or len(shape) == 3 or len(batches) > 1:
        return operator

    def flat(index: int) -> int:
        shape = e.type_of(index)[1]
        return e.like(index, (math.prod(shape[:-2]), *shape[-2:]), _NEW)

    def reshape(x: int, y: int) -> OperatorRecord:
        shape = e.constant(e.type_of(y)[1], _NEW)
        return OperatorRecord("RESHAPE", 1, (x, shape), (y,), "ReshapeOptions")

    inside, made = [flat(index) for index in operands], flat(y)
    e.model.operators += map(reshape, operands, inside)
    e.model.operators.append(replace(operator, inputs=tuple(inside), outputs=(made,)))
    return reshape(made, y)


def _halfway_nearest(e: Emission, operator: OperatorRecord) -> OperatorRecord:
    """RESIZE_NEAREST_NEIGHBOR by whole factors: a place between two elements takes the next one.

    With centres of pixels no place lies between two, and each element is repeated all the same.

    Raises:
        UnsupportedTargetError: By another factor, where the converter's elements are others.
    """
    if operator.fields.get("AlignCorners") or operator.fields.get("HalfPixelCenters"):
        return operator
    before, after = e.type_of(operator.inputs[0])[1], e.type_of(operator.outputs[0])[1]
    why = (
        f"it goes from {list(before)} to {list(after)}, no multiple of it: Arm's converter rounds "
    )
    key = operator.name, f"{why}places that the operator cuts", _WHOLE
    if any(new % old for old, new in zip(before, after, strict=True)):
        refuse("TOSA", {key: [e.model.tensors[operator.outputs[0]].name]})
    return replace(operator, fields={**operator.fields, "HalfPixelCenters": True})


_Form: TypeAlias = "Callable[[Emission, OperatorRecord], OperatorRecord]"
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

    Raises:
        UnsupportedTargetError: An operator has no such form.
    """
    e = Emission({}, {})
    e.model = replace(model, tensors=list(model.tensors), operators=[])
    e.names.update(tensor.name for tensor in model.tensors)
    for operator in model.operators:
        form = _FORMS.get(operator.name)
        e.model.operators.append(form(e, operator) if form else operator)
    for index, tensor in enumerate(e.model.tensors):
        if tensor.type == "INT4" and tensor.data is not None:
            wide = Constant.of(tensor.data.numpy().astype(np.int8))
            e.model.tensors[index] = replace(tensor, type="INT8", data=wide)
    return e.model
