"""Element-wise operators of one, two and more operands, and casts."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.fuzzing.graph_grower import REALS, Draft, Grower

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos",
    "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf",
    "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu",
    "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan",
    "Tanh", "ThresholdedRelu", "Dropout", "Abs", "Neg", "Relu", "Not", "Identity", "Floor",
)  # fmt: skip


BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "And", "Or", "Xor", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor", "BitShift", "Equal", "Greater", "Less", "GreaterOrEqual",
    "LessOrEqual", "Max", "Min", "Sum", "Mean", "Add", "Sub", "Mul", "Div", "Max", "Min", "Add",
    "Mul", "Sub", "PRelu", "Mod",
)  # fmt: skip


def some_attributes(g: Grower, op_type: str) -> dict[str, Any]:
    """Returns numbers for some of an operator's float attributes, and switches."""
    given: dict[str, Any] = {}
    for attribute in g.schema(op_type).attributes.values():
        kind = attribute.type.name
        if kind == "FLOAT" and g.chance(0.6):
            given[attribute.name] = g.pick(0.0, 1.0, -1.0, 0.5, 0.1, 2.0, 3.0)
    if op_type == "Gelu" and g.chance(0.5):
        given["approximate"] = "tanh"
    if op_type == "IsInf":
        given |= {"detect_negative": g.pick(0, 1), "detect_positive": g.pick(0, 1)}
    return given


def unary(g: Grower) -> Draft | None:
    op_type = g.pick(*UNARY)
    if not g.has(op_type):
        return None
    x = g.any(g.kinds_of(op_type))
    results = 2 if op_type == "Dropout" and g.b.opset >= 10 and g.chance(0.5) else 1
    return Draft(op_type, [x], some_attributes(g, op_type), results)


def binary(g: Grower) -> Draft | None:
    op_type = g.pick(*BINARY)
    if not g.has(op_type):
        return None
    x = g.any(g.kinds_of(op_type))
    attributes: dict[str, Any] = {}
    if op_type == "Pow" and g.b.opset >= 12 and g.chance(0.4):
        y = g.like(x, g.pick(*g.kinds_of(op_type, 1)))
    else:
        y = g.like(x)
    if op_type == "Mod" and (x.kind in REALS or g.chance(0.4)):
        attributes["fmod"] = 1
    if op_type == "BitShift":
        attributes["direction"] = g.pick("LEFT", "RIGHT")
        y = g.constant(g.numbers.integers(0, np.dtype(x.kind).itemsize * 8, y.shape).astype(x.kind))
    operands = [x, y] if op_type in ("PRelu", "BitShift", "Pow") or g.chance(0.6) else [y, x]
    if op_type in ("Max", "Min", "Sum", "Mean"):
        operands += [g.like(x) for _ in range(g.pick(0, 0, 1, 2))]
        operands = operands[: 1 if g.chance(0.1) else None]
    return Draft(op_type, operands, attributes)


def where(g: Grower) -> Draft | None:
    condition = g.any(["bool"])
    if not g.has("Where"):
        return None
    x = g.like(condition, g.kind())
    return Draft("Where", [condition, x, g.like(x)])


def clip(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("Clip"))
    if g.b.opset < 11:
        return Draft("Clip", [x], {"min": g.pick(-1.0, 0.0), "max": g.pick(0.0, 2.5, 6.0)})
    low, high = (
        None if g.chance(0.3) else g.constant(np.array(number, x.kind))
        for number in (g.pick(0, 1, 2), g.pick(3, 1, 6, 0))
    )
    if g.chance(0.2) and low is not None:
        low = g.input_of(low.first)
    return Draft("Clip", [x, low, high])


def cast(g: Grower) -> Draft | None:
    x = g.any()
    kind = g.kind()
    if g.b.opset >= 15 and g.chance(0.15):
        return Draft("CastLike", [x, g.any([kind])])
    attributes: dict[str, Any] = {"to": helper.np_dtype_to_tensor_dtype(np.dtype(kind))}
    if g.b.opset >= 19 and g.chance(0.3):
        attributes["saturate"] = g.pick(0, 1)
    return Draft("Cast", [x], attributes)
