"""Small quantized models, one operator each, in every form: what engines are asked about.

A pattern is a row of facts (operator, types, zero point, weights, bias, clamp, what follows,
opset, rank); ``model(pattern)`` is the ONNX model of it, with integers at its interface so that
nothing but the operator is judged. ``patterns()`` are those of the committed tables, by rule and
not by chance; ``drawn(seed)`` are others, at random. Both take ``more`` for Hexagon: neighbours of
other scales, types and ranks, and constants.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from itertools import product

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

TYPES = {"u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16}
ZEROS = ("low", "middle", "odd", "high")
PRODUCTS = ("Conv", "ConvDepthwise", "ConvTranspose", "Gemm", "MatMul")
REDUCED = ("ConvMax", "MatMulMax", "MatMulMean")
"""Products whose float result is reduced to a matrix before it is rounded."""
UNARY = (
    "Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Gelu", "Softmax", "ReduceMean",
    "ReduceMax", "LayerNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "Reshape",
    "Transpose", "Resize", "Slice", "Pad", "DepthToSpace",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Concat", "MatMulTwo")
IMAGES = frozenset(
    {
        "Conv", "ConvDepthwise", "ConvTranspose", "ConvMax", "MaxPool", "AveragePool",
        "GlobalAveragePool", "Resize", "DepthToSpace",
    }
)  # fmt: skip
KINDS = (
    "ConcatScales", "ConcatConv", "InstanceNormalization", "AddOther", "ConvOther", "MatMulOther",
    "AddConstant", "MulConstant", "ConcatConstant", "SharedConstant", "RowsConverted",
    "DivNumber", "ExpMul", "MatMulBias",
)  # fmt: skip
"""Kinds of neighbours: other scales, types or ranks than an operator alone has, and constants."""
FUNCTIONS = (
    "Abs", "Ceil", "Celu", "Cos", "Elu", "Exp", "Floor", "HardSigmoid", "LogSoftmax", "Mish", "Neg",
    "ReduceMin", "ReduceProd", "ReduceSum", "Round", "Selu", "Sign", "Sin", "Softplus", "Softsign",
    "Sqrt", "ThresholdedRelu",
)  # fmt: skip
"""Further operators of one operand."""
FACTS = (
    "Acos", "Acosh", "ArgMax", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Cosh",
    "CumSum", "Expand", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "Hardmax", "LRN",
    "Log", "LpNormalization", "LpPool", "MeanVarianceNormalization", "RMSNormalization", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceSumSquare", "Shrink", "Sinh", "Tan", "Tile", "TopK", "Trilu",
    "Unsqueeze",
)  # fmt: skip
"""Operators of which only the facts are asked: see :func:`facts`."""
OTHER = {"u8": "s8", "s8": "u8", "u16": "u8", "s16": "u16"}
"""What stands beside each type where a pattern has two."""
SINCE = {"RMSNormalization": 23, "Gelu": 20, "Mish": 18, "HardSwish": 14, "LayerNormalization": 17}


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
    operators = (*PRODUCTS, *UNARY, *BINARY, *REDUCED)
    for operator, dtype, zero in product(operators, TYPES, ZEROS):
        weighted = operator in PRODUCTS
        weights = ("tensor", "channel") if weighted or operator in REDUCED else ("-",)
        biases = ("none", "int32", "float") if weighted and operator != "MatMul" else ("-",)
        clamps = CLAMPS if weighted or operator in ("Add", "Mul", "Concat") else ("none",)
        clamps = ("none", "relu", "q-relu") if operator in REDUCED else clamps
        pooled = operator in IMAGES and operator not in REDUCED
        behinds = BEHIND if pooled else ("end", "reshape", "add")
        ranks = ("4",) if operator in IMAGES else ("2",) if operator == "Gemm" else ("2", "3", "4")
        ranks = ("3",) if operator in ("MatMulMax", "MatMulMean") else ranks
        for rest in product(weights, biases, clamps, behinds, OPSETS, ranks):
            pattern = Pattern(operator, dtype, zero, *rest)
            if sensible(pattern):
                yield pattern


def further() -> Iterator[Pattern]:
    """Yields patterns of ``KINDS`` and ``FUNCTIONS``, and of other operators at further ranks."""
    for kind, dtype, zero in product(KINDS, TYPES, ZEROS):
        weighted = kind in ("ConcatConv", "ConvOther", "MatMulOther", "MatMulBias")
        weights = ("tensor", "channel") if weighted else "-"
        biases = ("none", "int32", "float") if kind == "ConvOther" else "-"
        biases = ("int32", "float") if kind == "MatMulBias" else biases
        clamps = ("none", "relu", "q-relu") if kind == "MatMulBias" else ("none",)
        image = kind in ("ConcatConv", "InstanceNormalization", "ConvOther")
        ranks = ("3", "4") if image else ("3",) if kind == "RowsConverted" else ("2", "3", "4", "5")
        behinds = ("end",) if kind.endswith("Other") else ("end", "reshape", "add")
        for rest in product(weights, biases, clamps, behinds, OPSETS, ranks):
            pattern = Pattern(kind, dtype, zero, *rest)
            if sensible(pattern):
                yield pattern
    for operator, dtype, zero in product(FUNCTIONS, TYPES, ZEROS):
        for rest in product(BEHIND[:2], OPSETS, ("2", "3", "4", "5")):
            pattern = Pattern(operator, dtype, zero, "-", "-", "none", *rest)
            if sensible(pattern):
                yield pattern
    for operator, dtype, zero in product((*PRODUCTS, *UNARY, *BINARY), TYPES, ZEROS):
        if operator in ("Gemm", "Resize", "DepthToSpace", "ReduceMax"):
            continue
        weighted = operator in PRODUCTS
        weights = ("tensor", "channel") if weighted else ("-",)
        biases = ("none", "int32") if weighted and operator != "MatMul" else ("-",)
        rank = ("3",) if operator in IMAGES else ("5",)
        for rest in product(weights, biases, ("none",), ("end", "add"), OPSETS, rank):
            pattern = Pattern(operator, dtype, zero, *rest)
            if sensible(pattern):
                yield pattern


def facts() -> Iterator[Pattern]:
    """Yields each operator alone between DQ and Q, of every type and of two to five axes."""
    taken_apart = {"MatMulTwo", "Resize", "DepthToSpace", "Clip"}
    for operator in (*UNARY, *BINARY, *FUNCTIONS, *FACTS):
        image = operator in IMAGES or operator in FACT_IMAGES
        for dtype, rank in product(TYPES, ("3", "4", "5") if image else ("2", "3", "4", "5")):
            if operator not in taken_apart:
                zero = "low" if operator in _POSITIVE else "middle"
                opset = str(max(21, SINCE.get(operator, 0)))
                yield Pattern(operator, dtype, zero, "-", "-", "none", "end", opset, rank)


FACT_IMAGES = frozenset({"GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "LpPool"})
_POSITIVE = frozenset({"Sqrt", "Log", "Acosh", "ReduceLogSum"})
"""Operators of numbers above 0."""


def sensible(pattern: Pattern) -> bool:
    """Returns whether such a model exists."""
    if int(pattern.opset) < SINCE.get(pattern.operator, 0):
        return False
    if pattern.operator == "Sqrt" and pattern.zero != "low":
        return False  # of numbers below 0 it is none
    if pattern.operator == "MatMulTwo" and pattern.rank == "2":
        return False
    return not (pattern.behind == "pool" and pattern.operator == "GlobalAveragePool")


def patterns(*, more: bool = False) -> list[Pattern]:
    """Returns the patterns of the tables: every n-th of each operator, and ``more``."""
    wanted = {**dict.fromkeys(PRODUCTS, 64), **dict.fromkeys(REDUCED, 36), "Conv": 128}
    found = _chosen(possible(), lambda p: p.operator, wanted)
    wanted = {"MatMulBias": 64}
    if more:
        found += _chosen(further(), _family, wanted, 8)
    return list(dict.fromkeys(found))


def _family(pattern: Pattern) -> tuple[str, object]:
    whole = pattern.operator in KINDS or pattern.operator in FUNCTIONS
    return pattern.operator, whole or pattern.rank


def _chosen(
    every: Iterator[Pattern],
    group: Callable[[Pattern], object],
    wanted: Mapping[str, int],
    usual: int = 16,
) -> list[Pattern]:
    """Returns every n-th pattern of each group."""
    found: list[Pattern] = []
    groups: dict[object, list[Pattern]] = {}
    for pattern in every:
        groups.setdefault(group(pattern), []).append(pattern)
    for each in groups.values():
        number = wanted.get(
            each[0].operator, 16 if each[0].operator in (*KINDS, *FUNCTIONS) else usual
        )
        step = max(1, len(each) // number)
        step += step % 2 == 0  # odd: every factor with an even number of values is gone through
        found += each[::step][: number + 8]
    return found


def drawn(seed: int, count: int, *, more: bool = False) -> list[Pattern]:
    """Returns patterns at random that are not in the tables."""
    known = set(patterns(more=more))
    every = [*possible(), *(further() if more else ())]
    by_operator: dict[str, list[Pattern]] = {}
    for pattern in every:
        if pattern not in known:
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
        self.types: dict[str, np.dtype[np.generic]] = {}
        """Of inputs and of the result, where they are not those of the pattern."""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: NDArray[np.generic] | np.generic, name: str) -> str:
        name = f"{name}_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(
        self, op_type: str, inputs: list[str], domain: str = "", /, **attributes: object
    ) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        node = helper.make_node(op_type, inputs, [f"{name}_out"], name, domain=domain)
        found = attributes.items()
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(found))
        if op_type == "TopK":
            node.output.append(f"{name}_indices")
        self.nodes.append(node)
        return f"{name}_out"

    def quantized(self, real: str, scale: float, dtype: str = "") -> str:
        return self.add("QuantizeLinear", [real, *self._parameters(scale, dtype)], self.domain)

    def real(self, stored: str, scale: float, dtype: str = "") -> str:
        return self.add("DequantizeLinear", [stored, *self._parameters(scale, dtype)], self.domain)

    def again(self, real: str, scale: float) -> str:
        """Returns numbers behind a Q/DQ pair."""
        return self.real(self.quantized(real, scale), scale)

    def _parameters(self, scale: float, dtype: str) -> list[str]:
        """Returns scale and zero point; of another type than the pattern's, scaled to its range."""
        zero = np.array(self.zero, self.dtype)
        if dtype:
            info = np.iinfo(TYPES[dtype])
            scale *= 255 / (int(info.max) - int(info.min)) / self.unit
            zero = np.array((int(info.min) + int(info.max) + 1) // 2, TYPES[dtype])
        return [self.constant(np.float32(scale), "scale"), self.constant(zero, "zero")]

    def stored(self, shape: tuple[int, ...]) -> str:
        """Returns a constant of the pattern's type."""
        high = int(self.info.max) + 1
        values = self.random.integers(int(self.info.min), high, shape)
        return self.constant(values.astype(self.dtype), "stored")

    def weight(self, shape: tuple[int, ...], axis: int) -> tuple[str, NDArray[np.float32]]:
        """Returns the real weight, and its scales."""
        stored = self.random.integers(-127, 128, shape).astype(np.int8)
        channels = self.pattern.weights == "channel"
        each = 1 + np.arange(shape[axis], dtype=np.float32) / 8
        scale = (np.float32(0.01) * each).astype(np.float32)
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


SHAPES: dict[str, tuple[int, ...]] = {
    "2": (4, 16),
    "3": (2, 8, 16),
    "4": (1, 8, 6, 6),
    "5": (1, 2, 3, 4, 8),
}


def model(pattern: Pattern, seed: int = 0) -> onnx.ModelProto:
    """Returns the model of a pattern: stored integers in, stored integers out."""
    net = _Net(pattern, seed)
    shape = SHAPES[pattern.rank]
    if pattern.rank == "3" and pattern.operator in IMAGES | {
        "ConcatConv", "InstanceNormalization", "ConvOther", "RowsConverted",
    }:  # fmt: skip
        shape = (1, 8, 16)
    inputs = {"x": shape}
    x = net.real("x", net.scale)
    if pattern.operator in KINDS:
        return _whole(net, inputs, _kind(net, pattern.operator, x, inputs))
    operands = [x]
    if pattern.operator in BINARY:
        other = (*shape[:-2], shape[-1], shape[-2]) if pattern.operator == "MatMulTwo" else shape
        inputs["y"] = other
        operands.append(net.real("y", net.scale))
    result, spread = _operator(net, pattern.operator, operands, shape)
    if pattern.operator == "ArgMax":
        net.types["result"] = np.dtype(np.int64)
        return _whole(net, inputs, result)
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
    if name in REDUCED:
        whole = name.startswith("Conv")
        made, wide = _product(net, "Conv" if whole else "MatMul", x, shape, spread)
        reduction = f"Reduce{name[-3:] if name.endswith('Max') else name[-4:]}"
        return _reduced(net, reduction, made, (2, 3) if whole else (1,), keep=0), wide
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


def _kind(net: _Net, name: str, x: str, inputs: dict[str, tuple[int, ...]]) -> str:
    """Adds one of ``KINDS``; returns its stored result."""
    shape, spread, scale = inputs["x"], 0.05 * 74, net.scale
    step = 6 / 255 * net.unit
    other = OTHER[net.pattern.dtype]
    match name:
        case "ConcatScales":
            inputs["y"] = shape
            made = net.add("Concat", [x, net.real("y", 1.7 * scale)], axis=1)
            scale = 1.7 * scale
        case "ConcatConv":
            first, spread = _product(net, "Conv", x, shape, spread)
            channels = (shape[0], 4, *shape[2:])
            inputs["y"] = channels
            scale = spread * step
            pair = [net.again(first, 0.6 * scale), net.real("y", 0.8 * scale)]
            joined = net.again(net.add("Concat", pair, axis=1), scale)
            made, spread = _product(net, "Conv", joined, (shape[0], 16, *shape[2:]), spread)
            scale = spread * step
        case "InstanceNormalization":
            gain = net.constant(np.linspace(0.5, 1.5, shape[1], dtype=np.float32), "gain")
            bias = net.constant(np.linspace(-1, 1, shape[1], dtype=np.float32), "bias")
            made, scale = net.add(name, [x, gain, bias]), step
        case "AddOther":
            inputs["y"], net.types["y"] = shape, np.dtype(TYPES[other])
            made = net.add("Add", [x, net.real("y", scale, other)])
            scale = 1.5 * spread * step
        case "ConvOther" | "MatMulOther":
            made, spread = _product(net, name.removesuffix("Other"), x, shape, spread)
            stored = net.quantized(made, spread * step, other)
            net.types["result"] = np.dtype(TYPES[other])
            return stored
        case "MatMulBias":
            w, scales = net.weight((shape[-1], 12), 1)
            made = net.add("Add", [net.add("MatMul", [x, w]), *net.bias(12, scales)])
            scale = spread * 0.01 * 74 * shape[-1] ** 0.5 * step
            return _behind(net, _clamped(net, made, scale), scale)
        case _:
            made, scale = _with_constants(net, name, x, shape)
    return _behind(net, net.quantized(made, scale), scale)


def _with_constants(net: _Net, name: str, x: str, shape: tuple[int, ...]) -> tuple[str, float]:
    """Adds those of ``KINDS`` that have constants beside activations; returns result and scale."""
    spread, scale, step = 0.05 * 74, net.scale, 6 / 255 * net.unit
    match name:
        case "AddConstant" | "MulConstant" | "ConcatConstant":
            operator = name.removesuffix("Constant")
            along = shape if operator == "Concat" else shape[-1:]
            axes = {"axis": 1} if operator == "Concat" else {}
            made = net.add(operator, [x, net.real(net.stored(along), scale)], **axes)
            scale = {"Add": 1.5 * spread * step, "Mul": spread * spread * step}.get(operator, scale)
        case "SharedConstant":
            stored = net.stored(shape[-1:])
            twice = 2 * scale
            first = net.again(net.add("Add", [x, net.real(stored, scale)]), twice)
            made = net.add("Add", [first, net.real(stored, 0.3 * scale)])
            scale = twice
        case "RowsConverted":
            turned = net.again(net.add("Transpose", [x], perm=[0, 2, 1]), scale)
            to = net.constant(np.array([-1, shape[1]]), "shape")
            rows = net.again(net.again(net.add("Reshape", [turned, to]), scale), 0.7 * scale)
            made, spread = _product(net, "MatMul", rows, (shape[0] * shape[2], shape[1]), spread)
            scale = spread * step
        case "DivNumber":
            number = net.constant(np.float32(1.7), "number")
            quotient = net.again(net.add("Div", [x, number]), scale)
            made, spread = _product(net, "MatMul", quotient, shape, spread)
            scale = spread * step
        case _:
            factor = net.constant(np.float32(0.3), "factor")
            power = net.add("Exp", [net.add("Mul", [x, factor])])
            made, scale = net.add("Mul", [power, factor]), step
    return made, scale


def _product(
    net: _Net, name: str, x: str, shape: tuple[int, ...], spread: float
) -> tuple[str, float]:
    wide, axes = 0.01 * 74, len(shape) - 2
    if name == "Conv":
        w, scales = net.weight((12, shape[1], *[3] * axes), 0)
        bias = net.bias(12, scales)
        made = net.add("Conv", [x, w, *bias], pads=[1, 1] * axes)
        return made, spread * wide * (shape[1] * 3**axes) ** 0.5
    if name == "ConvDepthwise":
        w, scales = net.weight((shape[1], 1, *[3] * axes), 0)
        bias = net.bias(shape[1], scales)
        made = net.add("Conv", [x, w, *bias], pads=[1, 1] * axes, group=shape[1])
        return made, spread * wide * 3 ** (axes / 2)
    if name == "ConvTranspose":
        w, scales = net.weight((shape[1], 6, *[2] * axes), 1)
        made = net.add("ConvTranspose", [x, w, *net.bias(6, scales)], strides=[2] * axes)
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
            return net.add(name, [x], kernel_shape=[2] * (rank - 2), strides=[2] * (rank - 2)), None
        case _ if name.startswith("Reduce"):
            return _reduced(net, name, x, (-1,)), None
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
        case "GlobalLpPool" | "LpNormalization":
            return net.add(name, [x], p=2), None
        case _ if name in FACTS:
            operands, given = _fact_parts(net, name, shape)
            return net.add(name, [x, *operands], **given), None
        case _:
            return net.add(name, [x]), None


def _fact_parts(
    net: _Net, name: str, shape: tuple[int, ...]
) -> tuple[list[str], dict[str, object]]:
    """Returns the further operands, and the attributes, of one of ``FACTS``."""
    channels = shape[1]
    ones = np.ones(channels, np.float32)
    match name:
        case "BatchNormalization":
            return [net.constant(ones, "norm") for _ in range(4)], {}
        case "GroupNormalization":
            return [net.constant(ones, "norm") for _ in range(2)], {"num_groups": 2}
        case "RMSNormalization":
            return [net.constant(np.ones(shape[-1], np.float32), "gain")], {}
        case "CumSum":
            return [net.constant(np.array(1), "axis")], {}
        case "Expand":
            return [net.constant(np.array((2, *shape[1:]) if shape[0] == 1 else shape), "to")], {}
        case "Tile":
            return [net.constant(np.array([1] * (len(shape) - 1) + [2]), "repeats")], {}
        case "TopK":
            return [net.constant(np.array([2]), "k")], {}
        case "Unsqueeze":
            return [net.constant(np.array([0]), "axes")], {}
        case "LRN":
            return [], {"size": 3}
        case "LpPool":
            return [], {"kernel_shape": [2] * (len(shape) - 2)}
        case "ArgMax":
            return [], {"axis": -1}
        case _:
            return [], {}


def _reduced(net: _Net, name: str, x: str, axes: tuple[int, ...], keep: int = 1) -> str:
    kept = {} if keep else {"keepdims": 0}
    if int(net.pattern.opset) < (13 if name == "ReduceSum" else 18):
        return net.add(name, [x], axes=list(axes), **kept)
    return net.add(name, [x, net.constant(np.array(axes), "axes")], **kept)


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
    def element(name: str) -> int:
        return helper.np_dtype_to_tensor_dtype(net.types.get(name, net.dtype))

    ports = [helper.make_tensor_value_info(n, element(n), shape) for n, shape in inputs.items()]
    results = [onnx.ValueInfoProto(name=stored)]
    graph = helper.make_graph(net.nodes, "pattern", ports, results, net.constants)
    graph.output[0].type.tensor_type.elem_type = element("result")
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
