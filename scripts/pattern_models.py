"""Small quantized models, one operator each, in every form: what engines are asked about.

A pattern is a row of facts (operator, types, zero point, weights, bias, clamp, what follows,
opset, rank); ``model(pattern)`` is the ONNX model of it, with integers at its interface so that
nothing but the operator is judged. ``patterns()`` are those of the committed tables, by rule and
not by chance; ``drawn(seed)`` are others, at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from itertools import product

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

TYPES = {"u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16}
ZEROS = ("low", "middle", "odd", "high")
PRODUCTS = ("Conv", "ConvDepthwise", "ConvTranspose", "Gemm", "MatMul")
UNARY = (
    "Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Gelu", "Softmax", "ReduceMean",
    "LayerNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "Reshape", "Transpose",
    "Resize", "Slice", "Pad", "DepthToSpace",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Concat", "MatMulTwo")
IMAGES = frozenset(
    {
        "Conv", "ConvDepthwise", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool",
        "Resize", "DepthToSpace",
    }
)  # fmt: skip
SINCE = {"Gelu": 20, "HardSwish": 14, "LayerNormalization": 17}


@dataclass(frozen=True, slots=True)
class Pattern:
    """What distinguishes one model; every field is a word.

    Attributes:
        operator: What computes.
        dtype: Of activations.
        zero: Where in its type the zero point lies.
        weights: ``tensor`` or ``channel`` scales, ``-`` without weights.
        bias: ``none``, ``int32`` or ``float``; ``-`` where there can be none.
        clamp: ``none``; ``relu``, ``clip`` on the result; behind a Q/DQ pair: ``q-relu``,
            ``q-clip`` (two ends), ``q-clip-low``, ``q-clip-high``, ``q-max-min``.
        behind: What follows: ``end``, ``reshape``, ``pool``, ``add``.
        opset: The opset.
        rank: Of the activation.
    """

    operator: str
    dtype: str
    zero: str
    weights: str
    bias: str
    clamp: str
    behind: str
    opset: str
    rank: str

    @property
    def key(self) -> str:
        """The pattern in one word."""
        return "/".join(astuple(self))


FIELDS = tuple(field.name for field in fields(Pattern))
CLAMPS = ("none", "relu", "clip", "q-relu", "q-clip", "q-clip-low", "q-clip-high", "q-max-min")
BEHIND = ("end", "reshape", "pool", "add")
OPSETS = ("17", "21")


def possible() -> Iterator[Pattern]:
    """Yields every pattern there is, in a fixed order."""
    for operator, dtype, zero in product((*PRODUCTS, *UNARY, *BINARY), TYPES, ZEROS):
        weighted = operator in PRODUCTS
        weights = ("tensor", "channel") if weighted else ("-",)
        biases = ("none", "int32", "float") if weighted and operator != "MatMul" else ("-",)
        clamps = CLAMPS if weighted or operator in ("Add", "Mul", "Concat") else ("none",)
        behinds = BEHIND if operator in IMAGES else ("end", "reshape", "add")
        ranks = ("4",) if operator in IMAGES else ("2",) if operator == "Gemm" else ("2", "3", "4")
        for rest in product(weights, biases, clamps, behinds, OPSETS, ranks):
            pattern = Pattern(operator, dtype, zero, *rest)
            if sensible(pattern):
                yield pattern


def sensible(pattern: Pattern) -> bool:
    """Returns whether such a model exists."""
    if int(pattern.opset) < SINCE.get(pattern.operator, 0):
        return False
    if pattern.operator == "MatMulTwo" and pattern.rank == "2":
        return False
    return not (pattern.behind == "pool" and pattern.operator == "GlobalAveragePool")


def patterns() -> list[Pattern]:
    """Returns the patterns of the tables: every n-th of each operator."""
    found: list[Pattern] = []
    by_operator: dict[str, list[Pattern]] = {}
    for pattern in possible():
        by_operator.setdefault(pattern.operator, []).append(pattern)
    for operator, each in by_operator.items():
        wanted = {"Conv": 128}.get(operator, 64 if operator in PRODUCTS else 16)
        step = max(1, len(each) // wanted)
        step += step % 2 == 0  # odd: every factor with an even number of values is gone through
        found += each[::step][: wanted + 8]
    return list(dict.fromkeys(found))


def drawn(seed: int, count: int) -> list[Pattern]:
    """Returns patterns at random that are not in the tables."""
    known = set(patterns())
    others = [pattern for pattern in possible() if pattern not in known]
    by_operator: dict[str, list[Pattern]] = {}
    for pattern in others:
        by_operator.setdefault(pattern.operator, []).append(pattern)
    chance = random.Random(seed)
    names = sorted(by_operator)
    found: dict[Pattern, None] = {}
    while len(found) < count:
        found[chance.choice(by_operator[chance.choice(names)])] = None
    return list(found)


# ---- the models ------------------------------------------------------------------------------


class _Net:
    """Nodes and initializers of one model, as they are added."""

    def __init__(self, pattern: Pattern, seed: int) -> None:
        self.pattern, self.random = pattern, np.random.default_rng(seed)
        self.dtype = np.dtype(TYPES[pattern.dtype])
        info = np.iinfo(self.dtype)
        span = int(info.max) - int(info.min)
        offset = {"low": 0, "middle": (span + 1) // 2, "odd": span * 37 // 255, "high": span}
        self.info, self.zero = info, int(info.min) + offset[pattern.zero]
        self.unit = 255 / span
        """A step of this type in steps of an 8-bit type: scales keep real ranges alike."""
        wide = self.dtype.itemsize == 2 and int(pattern.opset) < 21
        self.domain = "com.microsoft" if wide else ""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: NDArray[np.generic] | np.generic, name: str) -> str:
        name = f"{name}_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type: str, inputs: list[str], domain: str = "", **attributes: object) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        node = helper.make_node(op_type, inputs, [f"{name}_out"], name, domain=domain, **attributes)
        self.nodes.append(node)
        return f"{name}_out"

    def quantized(self, real: str, scale: float) -> str:
        return self.add("QuantizeLinear", [real, *self._parameters(scale)], self.domain)

    def real(self, stored: str, scale: float) -> str:
        return self.add("DequantizeLinear", [stored, *self._parameters(scale)], self.domain)

    def _parameters(self, scale: float) -> list[str]:
        zero = np.array(self.zero, self.dtype)
        return [self.constant(np.float32(scale), "scale"), self.constant(zero, "zero")]

    def weight(self, shape: tuple[int, ...], axis: int) -> tuple[str, NDArray[np.float32]]:
        """Returns the real weight, and its scales."""
        stored = self.random.integers(-127, 128, shape).astype(np.int8)
        channels = self.pattern.weights == "channel"
        scale = np.float32(0.01) * (1 + np.arange(shape[axis], dtype=np.float32) / 8)
        scale = scale if channels else scale[:1].reshape(())
        inputs = [
            self.constant(stored, "weight"),
            self.constant(scale, "weight_scale"),
            self.constant(np.zeros(scale.shape, np.int8), "weight_zero"),
        ]
        along = {"axis": axis} if channels else {}
        domain = self.domain if self.domain else ""
        return self.add("DequantizeLinear", inputs, domain, **along), scale

    def bias(self, size: int, scales: NDArray[np.float32]) -> list[str]:
        if self.pattern.bias in ("-", "none"):
            return []
        step = np.float32(self.scale) * scales
        stored = self.random.integers(-4000, 4000, size).astype(np.int32)
        if self.pattern.bias == "float":
            return [self.constant((stored * step).astype(np.float32), "bias")]
        inputs = [self.constant(stored, "bias"), self.constant(step, "bias_scale")]
        inputs.append(self.constant(np.zeros(step.shape, np.int32), "bias_zero"))
        return [self.add("DequantizeLinear", inputs, **({"axis": 0} if step.ndim else {}))]

    @property
    def scale(self) -> float:
        """Of the inputs."""
        return 0.05 * self.unit


SHAPES = {"2": (4, 16), "3": (2, 8, 16), "4": (1, 8, 6, 6)}


def model(pattern: Pattern, seed: int = 0) -> onnx.ModelProto:
    """Returns the model of a pattern: stored integers in, stored integers out."""
    net = _Net(pattern, seed)
    shape = SHAPES[pattern.rank]
    inputs = {"x": shape}
    x = net.real("x", net.scale)
    operands = [x]
    if pattern.operator in BINARY:
        other = (*shape[:-2], shape[-1], shape[-2]) if pattern.operator == "MatMulTwo" else shape
        inputs["y"] = other
        operands.append(net.real("y", net.scale))
    result, spread = _operator(net, pattern.operator, operands, shape)
    scale = net.scale if spread is None else spread * 6 / 255 * net.unit
    stored = _clamped(net, result, scale)
    stored = _behind(net, stored, scale)
    return _whole(net, inputs, stored)


def _operator(
    net: _Net, name: str, operands: list[str], shape: tuple[int, ...]
) -> tuple[str, float | None]:
    """Adds the operator; returns its result and how far that spreads, None where it is as ``x``."""
    x, spread = operands[0], 0.05 * 74
    if name in PRODUCTS:
        return _product(net, name, x, shape, spread)
    if name in ("Add", "Sub"):
        return net.add(name, operands), spread * 1.5
    if name == "Mul":
        return net.add(name, operands), spread * spread
    if name == "Div":
        return net.add(name, operands), 4.0
    if name == "MatMulTwo":
        return net.add("MatMul", operands), spread * spread * shape[-1] ** 0.5
    if name == "Concat":
        return net.add(name, operands, axis=1), None
    return _unary(net, name, x, shape)


def _product(
    net: _Net, name: str, x: str, shape: tuple[int, ...], spread: float
) -> tuple[str, float]:
    wide = 0.01 * 74
    if name == "Conv":
        w, scales = net.weight((12, shape[1], 3, 3), 0)
        bias = net.bias(12, scales)
        return net.add("Conv", [x, w, *bias], pads=[1, 1, 1, 1]), spread * wide * 72**0.5
    if name == "ConvDepthwise":
        w, scales = net.weight((shape[1], 1, 3, 3), 0)
        bias = net.bias(shape[1], scales)
        made = net.add("Conv", [x, w, *bias], pads=[1, 1, 1, 1], group=shape[1])
        return made, spread * wide * 3
    if name == "ConvTranspose":
        w, scales = net.weight((shape[1], 6, 2, 2), 1)
        made = net.add("ConvTranspose", [x, w, *net.bias(6, scales)], strides=[2, 2])
        return made, spread * wide * 8**0.5
    if name == "Gemm":
        w, scales = net.weight((12, shape[1]), 0)
        return net.add("Gemm", [x, w, *net.bias(12, scales)], transB=1), spread * wide * 4
    w, _ = net.weight((shape[-1], 12), 1)
    return net.add("MatMul", [x, w]), spread * wide * shape[-1] ** 0.5


def _unary(net: _Net, name: str, x: str, shape: tuple[int, ...]) -> tuple[str, float | None]:
    rank = len(shape)
    match name:
        case "Clip":
            ends = [net.constant(np.float32(end), "bound") for end in (0.0, 4.0)]
            return net.add("Clip", [x, *ends]), None
        case "Sigmoid" | "Tanh" | "Softmax":
            attributes = {"axis": -1} if name == "Softmax" else {}
            return net.add(name, [x], **attributes), {"Tanh": 1 / 3}.get(name, 1 / 6)
        case "LayerNormalization":
            scale = net.constant(np.linspace(0.5, 1.5, shape[-1], dtype=np.float32), "gain")
            return net.add(name, [x, scale], axis=-1), 1.0
        case "MaxPool" | "AveragePool":
            return net.add(name, [x], kernel_shape=[2, 2], strides=[2, 2]), None
        case "ReduceMean":
            if int(net.pattern.opset) < 18:
                return net.add(name, [x], axes=[-1]), None
            return net.add(name, [x, net.constant(np.array([-1]), "axes")]), None
        case "Reshape":
            return net.add(name, [x, net.constant(np.array([shape[0], -1]), "shape")]), None
        case "Transpose":
            return net.add(name, [x], perm=[*range(rank - 2), rank - 1, rank - 2]), None
        case "Resize":
            sizes = net.constant(np.array([1.0, 1.0, 2.0, 2.0], np.float32), "scales")
            attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                          "nearest_mode": "floor"}  # fmt: skip
            return net.add(name, [x, "", sizes], **attributes), None
        case "Slice":
            ends = [net.constant(np.array([n]), "n") for n in (1, 5, rank - 1)]
            return net.add(name, [x, *ends]), None
        case "Pad":
            pads = np.array([0] * (rank - 1) + [1] + [0] * (rank - 1) + [2])
            return net.add(name, [x, net.constant(pads, "pads")]), None
        case "DepthToSpace":
            return net.add(name, [x], blocksize=2), None
        case _:
            return net.add(name, [x]), None


def _clamped(net: _Net, result: str, scale: float) -> str:
    """Adds the clamp in its form, and the QuantizeLinear."""
    clamp, high = net.pattern.clamp, scale * 60 / net.unit
    if clamp == "none":
        return net.quantized(result, scale)
    if clamp.startswith("q-"):
        result = net.real(net.quantized(result, scale), scale)
        clamp = clamp.removeprefix("q-")
    if clamp == "relu":
        result = net.add("Relu", [result])
    elif clamp == "max-min":
        codes = [net.zero, min(net.zero + round(60 / net.unit), int(net.info.max))]
        for op_type, code in zip(("Max", "Min"), codes, strict=True):
            if op_type == "Min":
                result = net.real(net.quantized(result, scale), scale)
            stored = net.constant(np.array(code, net.dtype), "code")
            result = net.add(op_type, [result, net.real(stored, scale)])
    else:
        low = "" if clamp == "clip-high" else net.constant(np.float32(0), "low")
        ends = [low] if clamp == "clip-low" else [low, net.constant(np.float32(high), "high")]
        result = net.add("Clip", [result, *ends])
    return net.quantized(result, scale)


def _behind(net: _Net, stored: str, scale: float) -> str:
    """Adds what follows."""
    behind = net.pattern.behind
    if behind == "end":
        return stored
    real = net.real(stored, scale)
    if behind == "pool":
        real = net.add("MaxPool", [real], kernel_shape=[2, 2])
    elif behind == "reshape":
        real = net.add("Flatten", [real])
    else:
        real, scale = net.add("Add", [real, net.real(stored, scale)]), scale * 2
    return net.quantized(real, scale)


def _whole(net: _Net, inputs: dict[str, tuple[int, ...]], stored: str) -> onnx.ModelProto:
    element = helper.np_dtype_to_tensor_dtype(net.dtype)
    graph = helper.make_graph(
        net.nodes,
        "pattern",
        [helper.make_tensor_value_info(name, element, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=stored)],
        net.constants,
    )
    graph.output[0].type.tensor_type.elem_type = element
    imports = [helper.make_opsetid("", int(net.pattern.opset))]
    if net.domain:
        imports.append(helper.make_opsetid(net.domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def data(made: onnx.ModelProto, seed: int = 1) -> dict[str, NDArray[np.generic]]:
    """Returns inputs over the whole range of their type."""
    chance = np.random.default_rng(seed)
    feeds: dict[str, NDArray[np.generic]] = {}
    for value in made.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        info = np.iinfo(dtype)
        feeds[value.name] = chance.integers(info.min, info.max + 1, shape).astype(dtype)
    return feeds
