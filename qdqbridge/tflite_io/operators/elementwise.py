"""TFLite's element-wise operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.counterparts import Counterpart, Family, of_families
from qdqbridge.tflite_io.schema import Op


def unary(op_type: str, **attributes: Any) -> Row:
    """Returns the row of an operator that ONNX has with one operand."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        x = c.real(c.at(op, 0).index)
        c.put(op, c.to.node(op_type, [x], label=c.label(op), **attributes))

    return convert


def binary(op_type: str) -> Row:
    """Returns the row of an operator that ONNX has with the same operands, broadcast alike."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        result = c.to.node(op_type, c.operands(op), label=c.label(op))
        kind = op.option("FusedActivationFunction") if op_type in _FUSED else 0
        c.put(op, c.activated(result, op, int(kind)))

    return convert


_FUSED = ("Add", "Sub", "Mul", "Div")


def comparison(op_type: str, *, negated: bool = False) -> Row:
    """Returns the row of a comparison, whose result is boolean."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        result = c.to.node(op_type, c.operands(op), label=c.label(op))
        c.put_stored(op, c.to.node("Not", [result]) if negated else result)

    return convert


def clip(low: float, high: float) -> Row:
    """Returns the row of a clamp between constants."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        bounds = [c.to.constant(np.float32(low)), c.to.constant(np.float32(high))]
        x = c.real(c.at(op, 0).index)
        c.put(op, c.to.node("Clip", [x, *bounds], label=c.label(op)))

    return convert


def add_n(c: SubgraphConversion, op: Op) -> None:
    """``x0 + x1 + …`` from left to right."""
    total, *others = c.operands(op)
    for other in others:
        total = c.to.node("Add", [total, other], label=c.label(op))
    c.put(op, total)


def square(c: SubgraphConversion, op: Op) -> None:
    """``x · x``."""
    x = c.real(c.at(op, 0).index)
    c.put(op, c.to.node("Mul", [x, x], label=c.label(op)))


def squared_difference(c: SubgraphConversion, op: Op) -> None:
    """``(a - b)²``."""
    difference = c.to.node("Sub", c.operands(op), label=c.label(op))
    c.put(op, c.to.node("Mul", [difference, difference], label=c.label(op)))


def reciprocal_root(c: SubgraphConversion, op: Op) -> None:
    """``1 / sqrt(x)``."""
    root = c.to.node("Sqrt", [c.real(c.at(op, 0).index)], label=c.label(op))
    c.put(op, c.to.node("Div", [c.to.constant(np.float32(1)), root], label=c.label(op)))


def floor_division(c: SubgraphConversion, op: Op) -> None:
    """``floor(a / b)``, of integers too; ONNX's Div cuts integers off towards zero."""
    a, b = c.operands(op)
    kind = c.dtype(c.at(op, 0))
    if kind.is_float:
        c.put(op, c.to.node("Floor", [c.to.node("Div", [a, b])], label=c.label(op)))
        return
    rest = c.to.node("Mod", [a, b])  # has the sign of b
    whole = c.to.node("Sub", [a, rest])
    c.put(op, c.to.node("Div", [whole, b], label=c.label(op)))


def floor_modulus(c: SubgraphConversion, op: Op) -> None:
    """``a - floor(a / b) · b``."""
    a, b = c.operands(op)
    if not c.dtype(c.at(op, 0)).is_float:
        c.put(op, c.to.node("Mod", [a, b], label=c.label(op)))
        return
    quotient = c.to.node("Floor", [c.to.node("Div", [a, b])])
    product = c.to.node("Mul", [quotient, b])
    c.put(op, c.to.node("Sub", [a, product], label=c.label(op)))


def leaky_relu(c: SubgraphConversion, op: Op) -> None:
    """``x`` or ``alpha · x``."""
    x, alpha = c.real(c.at(op, 0).index), float(op.option("Alpha", 0.0))
    c.put(op, c.to.node("LeakyRelu", [x], label=c.label(op), alpha=alpha))


def prelu(c: SubgraphConversion, op: Op) -> None:
    """``x`` or ``slope · x``; the slope is broadcast to x."""
    c.put(op, c.to.node("PRelu", c.operands(op), label=c.label(op)))


def gelu(c: SubgraphConversion, op: Op) -> None:
    """Gelu, by erf or tanh."""
    kind = "tanh" if op.option("Approximate", False) else "none"
    x = c.real(c.at(op, 0).index)
    c.put(op, c.to.node("Gelu", [x], label=c.label(op), approximate=kind))


def select(c: SubgraphConversion, op: Op) -> None:
    """``condition ? a : b``; SELECT's vector condition picks whole rows."""
    condition, a, b = c.operands(op)
    tensor, rank = c.at(op, 0), c.rank(op.inputs[1])
    if op.name == "SELECT" and tensor.shape is not None and len(tensor.shape) == 1 and rank > 1:
        axes = c.to.constant(np.arange(1, rank))
        condition = c.to.node("Unsqueeze", [condition, axes])
    c.put(op, c.to.node("Where", [condition, a, b], label=c.label(op)))


def cast(c: SubgraphConversion, op: Op) -> None:
    """A change of the element type; of complex numbers the real part is kept."""
    target = c.tensor(op.outputs[0])
    x = c.real(c.at(op, 0).index)
    if target.type == "INT64" and c.at(op, 0).index in c.wide_names:
        c.stored_names[op.outputs[0]] = c.wide_names[c.at(op, 0).index]
        return
    if c.at(op, 0).type == "COMPLEX64":
        x = c.to.node("Gather", [x, c.to.constant(np.asarray(0, np.int64))], axis=-1)
    result = c.cast(x, c.dtype(target))
    c.stored_names[op.outputs[0]] = result


def bitcast(c: SubgraphConversion, op: Op) -> None:
    """The same bits in another type of the same width."""
    raise UnknownForm("it reads the bits of numbers as others")


def quantize(c: SubgraphConversion, op: Op) -> None:
    """QUANTIZE: of real numbers, or from one quantization to another."""
    c.put(op, c.real(c.at(op, 0).index))


def dequantize(c: SubgraphConversion, op: Op) -> None:
    """DEQUANTIZE: of integers, or of half floats, which it widens."""
    c.put(op, c.float_of(c.at(op, 0).index))


def fake_quantize(c: SubgraphConversion, op: Op) -> None:
    """FAKE_QUANT: a quantize and a dequantize by a range, nudged so that zero is exact."""
    bits, narrow = int(op.option("NumBits")), bool(op.option("NarrowRange", False))
    if bits > 8 or bits < 2:
        raise UnknownForm(f"its numbers have {bits} bits")
    low, high = float(op.option("Min", 0.0)), float(op.option("Max", 0.0))
    qmin, qmax = int(narrow), (1 << bits) - 1
    if not low <= 0.0 <= high or low == high:
        raise UnknownForm(f"its range {low} to {high} does not hold zero")
    scale = np.float32((high - low) / (qmax - qmin))
    zero = int(np.clip(np.rint(qmin - low / scale), qmin, qmax))
    x = c.real(c.at(op, 0).index)
    operands = [c.to.constant(scale), c.to.constant(np.uint8(zero))]
    bounds = [c.to.constant(np.float32((q - zero) * scale)) for q in (qmin, qmax)]
    clipped = c.to.node("Clip", [x, *bounds], label=c.label(op))
    stored = c.to.node("QuantizeLinear", [clipped, *operands], label=c.label(op))
    c.put(op, c.to.node("DequantizeLinear", [stored, *operands], label=c.label(op)))


def atan2(c: SubgraphConversion, op: Op) -> None:
    """The angle of (x, y), by quadrants; both zero give zero."""
    y, x = c.operands(op)
    zero, pi = c.to.constant(np.float32(0)), c.to.constant(np.float32(np.pi))
    angle = c.to.node("Atan", [c.to.node("Div", [y, x])])
    turn = c.to.node("Where", [c.to.node("Less", [y, zero]), c.to.node("Neg", [pi]), pi])
    left = c.to.node("Less", [x, zero])
    angle = c.to.node("Where", [left, c.to.node("Add", [angle, turn]), angle])
    none = c.to.node("And", [c.to.node("Equal", [x, zero]), c.to.node("Equal", [y, zero])])
    c.put(op, c.to.node("Where", [none, zero, angle], label=c.label(op)))


def shift_right(c: SubgraphConversion, op: Op) -> None:
    """``a >> b`` of unsigned numbers."""
    if c.dtype(c.at(op, 0)).is_signed:
        raise UnknownForm("ONNX shifts the bits of unsigned integers only")
    c.put(op, c.to.node("BitShift", c.operands(op), label=c.label(op), direction="RIGHT"))


def zeros_like(c: SubgraphConversion, op: Op) -> None:
    """As many zeros."""
    shape = c.to.node("Shape", [c.stored(c.at(op, 0).index)])
    zero = c.to.constant(np.zeros((), c.dtype(c.tensor(op.outputs[0])).numpy))
    c.put_stored(op, c.to.node("Expand", [zero, shape], label=c.label(op)))


def _import_row(row: Counterpart) -> Row:
    match row.family:
        case Family.UNARY:
            return unary(row.onnx)
        case Family.LOGICAL if row.onnx == "Not":
            return unary(row.onnx)
        case Family.COMPARISON:
            return comparison(row.onnx)
        case _:
            return binary(row.onnx)


_FAMILIES = (
    Family.UNARY, Family.ARITHMETIC, Family.EXTREME, Family.BINARY, Family.COMPARISON,
    Family.LOGICAL,
)  # fmt: skip

ROWS: Mapping[str, Row] = {
    **{name: _import_row(row) for row in of_families(*_FAMILIES) for name in (row.tflite,
        *row.also)},
    "BITWISE_XOR": binary("BitwiseXor"),
    "ELU": unary("Elu"),
    "HARD_SWISH": unary("HardSwish"),
    "NOT_EQUAL": comparison("Equal", negated=True),
    "RELU6": clip(0.0, 6.0),
    "RELU_N1_TO_1": clip(-1.0, 1.0),
    "RELU_0_TO_1": clip(0.0, 1.0),
    "ADD_N": add_n,
    "ATAN2": atan2,
    "BITCAST": bitcast,
    "CAST": cast,
    "DEQUANTIZE": dequantize,
    "FAKE_QUANT": fake_quantize,
    "FLOOR_DIV": floor_division,
    "FLOOR_MOD": floor_modulus,
    "GELU": gelu,
    "LEAKY_RELU": leaky_relu,
    "PRELU": prelu,
    "QUANTIZE": quantize,
    "RIGHT_SHIFT": shift_right,
    "RSQRT": reciprocal_root,
    "SELECT": select,
    "SELECT_V2": select,
    "SQUARE": square,
    "SQUARED_DIFFERENCE": squared_difference,
    "STABLEHLO_RSQRT": reciprocal_root,
    "STABLEHLO_SELECT": select,
    "ZEROS_LIKE": zeros_like,
}  # fmt: skip
