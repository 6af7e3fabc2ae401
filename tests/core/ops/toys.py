"""Operators that the package has no row of, and models of one node of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.table import BY_NAME

_ROWS = (2, 3, 16)
_IMAGE = (2, 3, 9, 9)


@dataclass(frozen=True)
class Toy:
    """An operator to take through everything.

    Attributes:
        op: Its name.
        operands: The shapes of its quantized operands.
        attributes: ONNX's attributes.
        more: Constants that are operands after the quantized ones.
        scale: Of the result.
        zero: The zero point of the result.
        tflite: Why the writer of TFLite refuses it; empty where it writes it.
        weight: A constant that is an operand after these: of 8 bits, its scales along an axis.
    """

    op: str
    operands: Sequence[tuple[int, ...]] = (_ROWS,)
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    more: Sequence[NDArray[Any]] = ()
    scale: float = 0.03
    zero: int = 90
    tflite: str = ""
    weight: tuple[NDArray[Any], int] | None = None


_INDICES = np.random.default_rng(1).integers(0, 3, (2, 2, 16))
"""TVM's operator takes none that count from the end; a row to keep would emit them wrapped."""
_FACTORS = np.random.default_rng(3).normal(1, 0.2, (3, 16)).astype(np.float32)
_WINDOWS = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "ceil_mode": 1}
_LACKING, _DILATED = "TFLite has no counterpart", "it is dilated"
TOYS = (
    Toy("Atan", tflite=_LACKING),
    Toy("Shrink", attributes={"lambd": 0.75, "bias": 0.25}, tflite=_LACKING),
    Toy("Mean", (_ROWS, _ROWS)),
    Toy("ReduceL2", attributes={"keepdims": 0}, more=(np.array([-1, 1]),), scale=0.07),
    Toy("GatherElements", attributes={"axis": 1}, more=(_INDICES,), scale=0.05, tflite=_LACKING),
    Toy(
        "LpPool", (_IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]},
        scale=0.07,
    ),
    Toy(
        "Einsum", ((2, 6, 5, 7),), {"equation": "bchw,co->bohw"}, scale=0.05, tflite=_LACKING,
        weight=(np.random.default_rng(2).integers(-127, 128, (6, 4), np.int8), 1),
    ),
    Toy("LpNormalization", attributes={"axis": 1, "p": 2}, scale=1 / 128),
    Toy("MinPool", (_IMAGE,), _WINDOWS | {"dilations": [1, 2]}, scale=0.05, tflite=_DILATED),
    Toy("RmsPool", (_IMAGE,), _WINDOWS | {"count_include_pad": 1}, zero=0),
    Toy("RmsPool", (_IMAGE,), {"kernel_shape": [1, 1]}, zero=0),
    Toy("ReduceRange", attributes={"axes": [-1, 1], "keepdims": 0}, scale=0.07, zero=0),
    Toy("ReduceRange", attributes={"axes": [2]}, scale=0.07, zero=0),
    Toy(
        "MeanDeviationNormalization", attributes={"axis": 1, "epsilon": 0.01},
        more=(_FACTORS, _FACTORS - 1), scale=0.04,
    ),
    Toy("MeanDeviationNormalization", more=(_FACTORS[0],), scale=0.04),
    Toy("LargestNormalization", (_IMAGE,), more=(_FACTORS[:, 0], _FACTORS[:, 1]), scale=0.02),
    Toy("SoftmaxOne", attributes={"axis": 1}, scale=1 / 256, zero=0),
)  # fmt: skip


def model(toy: Toy, *, quantized: bool) -> onnx.ModelProto:
    letters = "ab"[: len(toy.operands)]
    moves = BY_NAME[toy.op].flow is Flow.MOVE
    numbers: dict[str, Any] = {"s": np.float32(0.05), "z": np.uint8(120)}
    numbers |= {"sy": np.float32(toy.scale), "zy": np.uint8(120 if moves else toy.zero)}
    constants: dict[str, NDArray[Any]] = dict(zip("mn", toy.more, strict=False))
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    if quantized:
        tensors += [numpy_helper.from_array(np.array(v), name) for name, v in numbers.items()]
    nodes: list[onnx.NodeProto] = []
    if toy.weight is not None:
        constants["w"], more = _weight(toy, tensors, quantized=quantized)
        nodes += more
    names: list[str] = []
    for name in letters:
        if quantized:
            nodes.append(helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"]))
        names.append(f"{name}d" if quantized else name)
    rest = quantized or moves
    output, domain = "r" if rest else "y", BY_NAME[toy.op].onnx[0].domain
    node = helper.make_node(toy.op, [*names, *constants], [output], "toy", domain=domain)
    node.attribute.extend(helper.make_attribute(key, v) for key, v in toy.attributes.items())
    nodes.append(node)
    if quantized:
        nodes.append(helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["yq"]))
        nodes.append(helper.make_node("DequantizeLinear", ["yq", "sy", "zy"], ["y"]))
    elif moves:  # something has to compute
        nodes.append(helper.make_node("Relu", ["r"], ["y"]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(letters, toy.operands, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("toys", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _weight(
    toy: Toy, tensors: list[onnx.TensorProto], *, quantized: bool
) -> tuple[NDArray[Any], list[onnx.NodeProto]]:
    assert toy.weight is not None
    stored, axis = toy.weight
    scales = np.linspace(0.004, 0.02, stored.shape[axis], dtype=np.float32)
    if not quantized:
        along = [-1 if i == axis else 1 for i in range(stored.ndim)]
        real = stored * scales.reshape(along)
        tensors.append(numpy_helper.from_array(real, "w"))
        return real, []
    tensors.append(numpy_helper.from_array(stored, "stored"))
    tensors.append(numpy_helper.from_array(scales, "scales"))
    operands = ["stored", "scales"]
    return stored, [helper.make_node("DequantizeLinear", operands, ["w"], axis=axis)]


def feed_of(toy: Toy) -> dict[str, NDArray[np.float32]]:
    """Returns data for its quantized operands."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(0, 2, shape).astype(np.float32)
        for name, shape in zip("ab", toy.operands, strict=False)
    }
