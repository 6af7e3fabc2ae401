"""Small random models whose inputs leave extents open, and what to feed them.

Every family is a function of an :class:`OpenBuilder`, which names open extents and draws numbers
for them; :func:`case` makes the model of a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.onnx_models import Array, Builder

SIZES = (2, 5, 1, 3, 9, 17)
"""What open extents are fed with, in turn; each family may add others."""
Dims = tuple["int | str", ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with open extents.

    Attributes:
        name: The family, and its seed.
        model: The model.
        shapes: Shape of every input.
        feeds: Numbers for the open extents, a mapping for every run.
        seed: Of the data.
    """

    name: str
    model: onnx.ModelProto
    shapes: Mapping[str, Dims]
    feeds: tuple[Mapping[str, int], ...]
    seed: int

    def inputs(self, extents: Mapping[str, int]) -> dict[str, Array]:
        """Returns arrays for numbers of the open extents."""
        rng = np.random.default_rng(self.seed + sum(extents.values()))
        made: dict[str, Array] = {}
        for value in self.model.graph.input:
            shape = [extents[d] if isinstance(d, str) else d for d in self.shapes[value.name]]
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                made[value.name] = rng.normal(0, 2, shape).astype(np.float32)
            elif value.type.tensor_type.elem_type == TensorProto.BOOL:
                made[value.name] = rng.integers(0, 2, shape).astype(np.bool_)
            else:
                made[value.name] = rng.integers(0, 4, shape)
        return made


class OpenBuilder(Builder):
    """A builder with a source of choices."""

    def __init__(self, seed: int, opset: int = 17) -> None:
        super().__init__(opset)
        self.rng = np.random.default_rng(seed)
        self.shapes: dict[str, Dims] = {}

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def feed(self, shape: Dims, elem_type: int = TensorProto.FLOAT) -> str:
        """Adds an input."""
        name = f"x{len(self.shapes)}"
        self.shapes[name] = shape
        return self.input(name, list(shape), elem_type)

    def image(self) -> Dims:
        """Returns the shape of an image: always open in one axis at least."""
        sides = self.pick((7, "w"), ("h", 6), ("h", "w"), (6, 7))
        batch = self.pick("n", 2) if "h" in sides or "w" in sides else "n"
        return (batch, self.pick(4, 6), *sides)

    def tensor(self, rank: int = 0) -> Dims:
        """Returns the shape of some tensor, open in one axis at least."""
        rank = rank or int(self.rng.integers(1, 5))
        shape = [self.pick(n, n, number) for n, number in zip("nmkl", (4, 6, 8, 5), strict=True)]
        shape = shape[:rank]
        if not any(isinstance(d, str) for d in shape):
            shape[0] = "n"
        return tuple(shape)

    def quantized(self, x: str, scale: float = 0.0) -> str:
        """Returns ``x`` behind Q and DQ."""
        dtype = self.pick(np.uint8, np.int8, np.uint8, np.int8)
        zero = (
            int(self.rng.integers(100, 140)) if dtype is np.uint8 else int(self.rng.integers(-9, 9))
        )
        return self.qdq(x, scale or float(np.float32(self.rng.uniform(0.02, 0.06))), zero, dtype)

    def data(self, shape: Dims, scale: float = 0.0) -> str:
        """Returns a quantized input."""
        return self.quantized(self.feed(shape), scale)

    def result(self, y: str, scale: float = 0.0) -> None:
        """Makes ``y`` an output, nearly always a quantized one."""
        self.output(self.quantized(y, scale), None)

    def ints(self, *numbers: int) -> str:
        return self.init(np.asarray(numbers, np.int64))

    def extent(self, x: str, axis: int) -> str:
        """Returns an extent of ``x`` as a vector of one element."""
        shape = self.op("Shape", x)
        if self.opset >= 15 and self.chance(0.3):
            return self.op("Shape", x, start=axis, end=axis + 1)
        if self.chance(0.5):
            picked = self.op("Gather", shape, self.init(np.asarray(axis, np.int64)), axis=0)
            return self.op("Unsqueeze", picked, self.ints(0))
        return self.op("Slice", shape, self.ints(axis), self.ints(axis + 1), self.ints(0))


Family = Callable[[OpenBuilder], "tuple[Mapping[str, int], ...]"]


def _sizes(*names: str, offset: int = 0, count: int = 4) -> tuple[Mapping[str, int], ...]:
    return tuple(
        {name: SIZES[(offset + i + 2 * j) % len(SIZES)] for j, name in enumerate(names)}
        for i in range(count)
    )


_ALL = ("n", "m", "k", "l", "h", "w")


def broadcasting(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    """Operands whose extents are equal, 1, or unknown to be either."""
    rank = b.pick(1, 2, 3, 4)
    base = [b.pick("n", "m", 4, 1) for _ in range(rank)]
    others = {"n": ("n", "p", 1, "n"), "m": ("m", "q", 1), 4: (4, 1, "p"), 1: (1, 5, "q")}
    second = tuple(b.pick(*others[d]) for d in base)[b.pick(0, 0, min(1, rank - 1)) :]
    if not any(isinstance(d, str) for d in (*base, *second)):
        base[0] = "n"
        second = ("p",) * (len(second) == rank) + second[len(second) == rank :]
    op = b.pick("Add", "Mul", "Sub", "Div", "Min", "Max", "Where", "PRelu", "Pow")
    left = b.data(tuple(base))
    right = b.data(second) if b.chance(0.8) or op == "PRelu" else b.feed(second)
    if op == "Where":
        condition = b.feed(tuple(b.pick(d, d, 1) for d in base), TensorProto.BOOL)
        b.result(b.op(op, condition, left, right))
    elif op == "Pow":
        b.result(b.op(op, b.op("Abs", left), right), 0.5)
    else:
        b.result(b.op(op, *((left, right) if op == "PRelu" or b.chance(0.5) else (right, left))))
    return (
        {"n": 3, "m": 5, "p": 3, "q": 5}, {"n": 3, "m": 5, "p": 1, "q": 1},
        {"n": 1, "m": 1, "p": 3, "q": 5}, {"n": 1, "m": 1, "p": 1, "q": 1},
        {"n": 3, "m": 5, "p": 2, "q": 5}, {"n": 4, "m": 5, "p": 4, "q": 2},
        {"n": 3, "m": 5, "p": 4, "q": 5},
    )  # fmt: skip


_COMPARED = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_LOGICAL = ("And", "Or", "Xor")
_SEVERAL = ("Sum", "Mean", "Max", "Min")
_INTEGERS = ("Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Mul")


def repeating(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    """What repeats open extents that have 0, 1, 2 or more elements when it runs."""
    b.opset = b.opsets[""] = 18
    kind = b.pick("expand", "expand", "computed", "tile", "repeats", *("met",) * 4, "gemm", "fit",
                  "normed", "steps", "slope", "einsum", "einsum")  # fmt: skip
    rank = b.pick(1, 2, 3)
    shape = tuple(b.pick("n", "n", "m", 3, 1) for _ in range(rank))
    shape = shape if any(isinstance(d, str) for d in shape) else ("n", *shape[1:])
    other = tuple(b.pick(d, d, 1, "p", 3) for d in shape)[b.pick(0, 0, min(1, rank - 1)) :]
    if kind == "expand":
        wanted = [b.pick(1, 3) if d == 3 else b.pick(1, 1, 3, 2) for d in shape]
        wanted = [*b.pick([], [2], [1, 3]), *wanted][b.pick(0, 0, 1) if rank > 1 else 0 :]
        y = b.op("Expand", b.data(shape), b.ints(*wanted))
    elif kind == "computed":
        y = b.op("Expand", b.data(shape), b.op("Shape", b.feed(other)))
    elif kind == "tile":
        y = b.op("Tile", b.data(shape), b.ints(*(b.pick(1, 2, 3) for _ in shape)))
    elif kind == "repeats":
        repeats = [b.extent(b.feed(("p", 2)), 0) if i == 0 else b.ints(2) for i in range(rank)]
        y = b.op("Tile", b.data(shape), b.op("Concat", *repeats, axis=0))
    elif kind == "met":
        y = _met(b, shape, other)
    elif kind == "gemm":
        w = b.weight(b.rng.integers(-90, 90, (8, 5)).astype(np.int8), 0.01)
        fixed = b.init(b.rng.normal(size=(3, b.pick(1, 5))).astype(np.float32))
        added = b.feed(b.pick(("p", 5), ("n", 5), ("p", 1), (1, 5), ("p", "q")))
        y = b.op("Gemm", b.data(("n", 8)), w, fixed if b.chance(0.3) else added)
    elif kind == "slope":
        x, slope = b.pick((b.data(shape), b.data(other)), (b.feed(shape), b.feed(other)))
        y = b.op("PRelu", x, slope)
    elif kind == "einsum":
        y = _summed(b, shape)
    elif kind == "fit":
        w = b.weight(b.rng.integers(-90, 90, (8, 3)).astype(np.int8), 0.01)
        product = b.quantized(b.op("MatMul", b.data(("n", 2, 8)), w), 0.1)
        y = b.op(b.pick("Add", "Mul"), product, b.data(b.pick(("p", 2, 3), ("p", 1), ("n", 1, 1))))
    elif kind == "normed":
        length = b.pick(("p",), (3,), (1,))
        gamma = b.feed(length) if b.chance(0.5) else b.data(length)
        added = [b.feed(b.pick(length, ("q",)))] if b.chance(0.5) else []
        last = b.pick(3, "p", "m")
        y = b.op("LayerNormalization", b.data((*shape, last)), gamma, *added)
    else:
        spread = b.quantized(b.op("Expand", b.data(shape), b.ints(3)))
        if b.chance(0.5):
            y = b.op("Add", spread, b.data(other))
        else:
            y = b.op("PRelu", spread, b.data((*(b.pick(1, d) for d in shape[:-1]), b.pick(1, "p"))))
    b.result(y)
    names = ("n", "m", "p", "q")
    runs = ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3), (1, 1, 0, 5), (0, 1, 1, 1),
            (1, 3, 1, 5), (3, 1, 3, 5), (2, 3, 1, 5), (1, 2, 2, 1), (5, 5, 1, 1))  # fmt: skip
    return tuple(dict(zip(names, run, strict=True)) for run in runs)


def _summed(b: OpenBuilder, shape: Dims) -> str:
    """Returns an Einsum whose operands meet in a label and in an ellipsis."""
    other = tuple(b.pick(d, 1, "p") for d in shape)
    equation, left, right = b.pick(
        ("...ik,...kj->...ij", (*shape, 2, "q"), (*other, "q", 3)),
        ("k...,k...", ("q", *shape), ("q", *other)),
        ("...,...->...", shape, other),
        ("...i,i...->i...", (*shape, "q"), ("q", *other)),
    )
    return b.op("Einsum", b.feed(left), b.feed(right), equation=equation)


def _met(b: OpenBuilder, shape: Dims, other: Dims) -> str:
    """Returns what an operator that works on elements gives of two shapes or more."""
    kind = b.pick("several", "where", "compared", "logical", "integers")
    if kind == "several":
        third = tuple(b.pick(d, 1, "n") for d in shape)
        return b.op(b.pick(*_SEVERAL), b.data(shape), b.data(other), b.data(third))
    if kind == "where":
        condition = b.feed(b.pick(shape, other), TensorProto.BOOL)
        return b.op("Where", condition, b.data(shape), b.data(b.pick(shape, other, (1,))))
    if kind == "compared":
        return b.op("Cast", b.op(b.pick(*_COMPARED), b.data(shape), b.data(other)), to=1)
    if kind == "logical":
        pair = [b.feed(each, TensorProto.BOOL) for each in (shape, other)]
        return b.op("Cast", b.op(b.pick(*_LOGICAL), *pair), to=1)
    pair = [b.feed(each, TensorProto.INT64) for each in (shape, other)]
    divisor = b.op("Add", pair[1], b.ints(1))
    return b.op("Cast", b.op(b.pick(*_INTEGERS), pair[0], divisor), to=1)


def products(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    """MatMul with batches that broadcast, and rows that are open."""
    kind = b.pick("weight", "pair", "pair", "gemm", "vector")
    if kind == "weight":
        x = b.data((*b.pick(("n",), ("n", "m"), (2, "m"), ()), b.pick("k", 3), 8))
        w = b.weight(b.rng.integers(-90, 90, (8, 5)).astype(np.int8), 0.01)
        b.result(b.op("MatMul", x, w), 0.2)
    elif kind == "gemm":
        x = b.data(("n", 8))
        w = b.weight(b.rng.integers(-90, 90, (5, 8)).astype(np.int8), 0.01)
        b.result(b.op("Gemm", x, w, transB=1), 0.2)
    elif kind == "vector":
        b.result(b.op("MatMul", b.data(("n", "m", "k")), b.data(("k",))), 0.5)
    else:
        lead = b.pick((("n",), ("n",)), (("n",), ("p",)), (("n", "m"), ("m",)), (("n", 2), (1, 2)))
        inner = b.pick("k", 6)
        x, y = b.data((*lead[0], b.pick("l", 3), inner)), b.data((*lead[1], inner, b.pick("l", 4)))
        b.result(b.op("MatMul", x, y), 0.5)
    return (
        {"n": 3, "m": 5, "k": 4, "l": 7, "p": 3}, {"n": 1, "m": 1, "k": 1, "l": 1, "p": 1},
        {"n": 4, "m": 2, "k": 9, "l": 3, "p": 1}, {"n": 4, "m": 2, "k": 9, "l": 3, "p": 3},
    )  # fmt: skip


def heads(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    """Reshapes to heads and back, by computed shapes."""
    x = b.feed(("n", b.pick("m", 6), 8))
    stored = b.quantized(x)
    n, m = b.extent(x, 0), b.extent(x, 1)
    style = b.pick("concat", "minus", "div", "mul")
    if style == "concat":
        target = b.op("Concat", n, m, b.ints(2), b.ints(4), axis=0)
    elif style == "minus":
        target = b.op("Concat", n, b.ints(-1), b.ints(2), b.ints(4), axis=0)
    elif style == "div":
        target = b.op("Concat", n, m, b.ints(2), b.op("Div", b.extent(x, 2), b.ints(2)), axis=0)
    else:
        flat = b.op("Concat", b.op("Mul", n, m), b.ints(8), axis=0)
        rows = b.op("Reshape", stored, flat)
        w = b.weight(b.rng.integers(-90, 90, (8, 8)).astype(np.int8), 0.01)
        y = b.quantized(b.op("MatMul", rows, w), 0.1)
        back = b.op("Concat", n, m, b.ints(-1), axis=0)
        b.result(b.op("Add", b.op("Reshape", y, back), stored), 0.1)
        return _sizes("n", "m")
    split = b.op("Reshape", stored, target)
    permuted = b.op("Transpose", split, perm=[0, 2, 1, 3])
    score = b.op("MatMul", permuted, b.op("Transpose", split, perm=[0, 2, 3, 1]))
    weights = b.quantized(b.op("Softmax", b.quantized(score, 0.3), axis=-1), 1 / 255)
    mixed = b.quantized(b.op("MatMul", weights, permuted))
    joined = b.op("Transpose", mixed, perm=[0, 2, 1, 3])
    back = b.op("Concat", n, m, b.op("Mul", b.ints(2), b.ints(4)), axis=0)
    merged = b.op("Reshape", joined, back)
    b.result(b.op("Add", merged, stored))
    return _sizes("n", "m")


def positions(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    """A table cut, spread or repeated to the extents of the input, and added to it."""
    x = b.feed((b.pick("n", 2), "m", 8))
    stored = b.quantized(x)
    n, m = b.extent(x, 0), b.extent(x, 1)
    table = b.weight(b.rng.integers(-90, 90, (1, 20, 8)).astype(np.int8), 0.02)
    kind = b.pick("slice", "expand", "class", "tile", "fill", "range", "sum")
    if kind == "slice":
        part = b.op("Slice", table, b.ints(0), m, b.ints(1))
    elif kind == "range":
        zero, one = (b.init(np.asarray(i, np.int64)) for i in (0, 1))
        ids = b.op("Range", zero, b.op("Squeeze", m, b.ints(0)), one)
        part = b.op("Gather", table, ids, axis=1)
    elif kind == "expand":
        row = b.weight(b.rng.integers(-90, 90, (1, 1, 8)).astype(np.int8), 0.02)
        part = b.op("Expand", row, b.op("Concat", n, m, b.ints(8), axis=0))
    elif kind == "tile":
        row = b.weight(b.rng.integers(-90, 90, (1, 1, 8)).astype(np.int8), 0.02)
        part = b.op("Tile", row, b.op("Concat", n, m, b.ints(1), axis=0))
    elif kind == "fill":
        shape = b.op("Concat", n, m, b.ints(8), axis=0)
        fill = b.op("ConstantOfShape", shape)
        part = b.quantized(fill)
    elif kind == "sum":
        shape = b.op("Concat", n, b.op("Add", m, b.ints(1)), b.ints(8), axis=0)
        part = b.op("Slice", b.quantized(b.op("ConstantOfShape", shape)), b.ints(0), m, b.ints(1))
    else:
        row = b.weight(b.rng.integers(-90, 90, (1, 1, 8)).astype(np.int8), 0.02)
        token = b.op(
            "Expand", row, b.op("Concat", n, b.ints(-1 if b.chance(0) else 1), b.ints(8), axis=0)
        )
        stored = b.op("Concat", b.quantized(token), stored, axis=1)
        whole = b.op("Add", m, b.ints(1))
        part = b.op("Slice", table, b.ints(0), whole, b.ints(1))
    b.result(b.op("Add", stored, part))
    return _sizes("n", "m")


def reductions(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    op = b.pick(
        "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "GlobalAveragePool",
        "GlobalMaxPool", "ReduceL2", "ReduceProd",
    )  # fmt: skip
    if op.startswith("Global"):
        shape = b.pick(b.image(), ("n", 4, "w"), ("n", "m", "w"))
        b.result(b.op(op, b.data(shape)))
        return _sizes(*_ALL)
    shape = b.tensor()
    x = b.data(shape)
    axes = [a for a in range(len(shape)) if b.chance(0.5)] or [len(shape) - 1]
    keep = b.pick(0, 1)
    if op == "ReduceProd":
        x = b.op("Sigmoid", x)
    if op == "ReduceSum":
        y = b.op(op, x, b.ints(*axes), keepdims=keep)
    else:
        y = b.op(op, x, axes=axes, keepdims=keep)
    b.result(y, 0.3 if op == "ReduceSum" else 0.0)
    return _sizes(*_ALL)


def norms(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    op = b.pick("LayerNormalization", "LayerNormalization", "InstanceNormalization",
                "GroupNormalization", "BatchNormalization", "RMSNormalization")  # fmt: skip
    f32 = np.float32
    if op in ("LayerNormalization", "RMSNormalization"):
        if op == "RMSNormalization":
            b.opset = b.opsets[""] = 23
        shape = b.tensor()
        axis = int(b.rng.integers(0, len(shape)))
        last = shape[-1] if isinstance(shape[-1], int) else 1
        gamma = b.rng.uniform(0.5, 1.5, (last,)).astype(f32)
        args = [b.data(shape), b.init(gamma)]
        if b.chance(0.7) and op == "LayerNormalization":
            args.append(b.init(b.rng.normal(size=(last,)).astype(f32)))
        b.result(b.op(op, *args, axis=b.pick(axis, axis - len(shape))))
        return _sizes(*_ALL)
    shape = b.pick(b.image(), ("n", 4, "w"), ("n", 4, "h", "w"))
    channels = int(shape[1])
    gamma, beta = (b.init(b.rng.uniform(0.5, 1.5, (channels,)).astype(f32)) for _ in range(2))
    args = [b.data(shape), gamma, beta]
    if op == "BatchNormalization":
        mean, var = (b.init(b.rng.uniform(0.5, 1.5, (channels,)).astype(f32)) for _ in range(2))
        b.result(b.op(op, *args, mean, var))
    elif op == "GroupNormalization":
        b.opset = b.opsets[""] = 21
        b.result(b.op(op, *args, num_groups=2))
    else:
        b.result(b.op(op, *args))
    return _sizes(*_ALL)


def softmaxes(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    if b.chance(0.3):
        b.opset = b.opsets[""] = 11
    shape = b.tensor()
    op = b.pick("Softmax", "Softmax", "LogSoftmax")
    axis = int(b.rng.integers(-len(shape), len(shape)))
    b.result(b.op(op, b.data(shape), axis=axis), 1 / 255 if op == "Softmax" else 0.05)
    return _sizes(*_ALL)


def resizes(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    mode = b.pick("nearest", "nearest", "linear", "linear", "cubic")
    shape = b.image() if mode == "cubic" or b.chance(0.8) else ("n", 4, "w")
    spatial = len(shape) - 2
    scales = [b.pick(2.0, 0.5, 1.5, 3.0, 0.75, 1.0, 1.3) for _ in range(spatial)]
    coordinates = b.pick(
        "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
        *(("half_pixel_symmetric",) if b.chance(0.5) else ()),
    )  # fmt: skip
    b.opset = b.opsets[""] = 19 if coordinates == "half_pixel_symmetric" else 17
    rounding = b.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    extra: dict[str, Any] = {"nearest_mode": rounding} if mode == "nearest" else {}
    if mode == "cubic" and b.chance(0.5):
        extra["exclude_outside"] = 1
    x = b.feed(shape)
    stored = b.quantized(x)
    kind = b.pick("scales", "scales", "sizes", "computed")
    if kind == "scales":
        factors = b.init(np.asarray([1.0, 1.0, *scales], np.float32))
        y = b.op("Resize", stored, "", factors, mode=mode,
                 coordinate_transformation_mode=coordinates, **extra)  # fmt: skip
    else:
        if kind == "sizes":
            wanted = [b.ints(b.pick(5, 8, 12)) for _ in range(spatial)]
        else:
            wanted = [b.op("Mul", b.extent(x, axis + 2), b.ints(2)) for axis in range(spatial)]
        lead = b.op("Slice", b.op("Shape", x), b.ints(0), b.ints(2), b.ints(0))
        y = b.op("Resize", stored, "", "", b.op("Concat", lead, *wanted, axis=0), mode=mode,
                 coordinate_transformation_mode=coordinates, **extra)  # fmt: skip
    b.result(y)
    return _sizes(*_ALL, offset=1)


def pads(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    shape = b.tensor(b.pick(1, 2, 3, 4))
    mode = b.pick("constant", "constant", "reflect", "edge", "wrap")
    if mode == "wrap":
        b.opset = b.opsets[""] = 19
    low = b.pick(0, -1, -2) if mode != "wrap" else b.pick(0, 0, -1)
    amounts = [int(b.rng.integers(low, 3)) if b.chance(0.6) else 0 for _ in range(2 * len(shape))]
    args = [b.data(shape), b.ints(*amounts)]
    if mode == "constant" and b.chance(0.6):
        args.append(b.init(np.float32(b.pick(0.0, 0.5, -1.0))))
    b.result(b.op("Pad", *args, mode=mode))
    small = dict.fromkeys(_ALL, 2)
    large = [{str(name): size + 3 for name, size in feed.items()} for feed in _sizes(*_ALL)]
    return (*large, {str(name): size for name, size in small.items()})


def windows(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    """Pools and convolutions over open images."""
    shape = b.pick(b.image(), ("n", 4, "w"), ("n", 4, "h", "w"))
    spatial = len(shape) - 2
    channels = int(shape[1])
    op = b.pick("MaxPool", "AveragePool", "Conv", "Conv", "ConvTranspose", "DepthwiseConv")
    kernel = [b.pick(1, 2, 3) for _ in range(spatial)]
    extra: dict[str, Any] = {"strides": [b.pick(1, 2) for _ in kernel]}
    if b.chance(0.3) and op != "ConvTranspose":
        extra["auto_pad"] = b.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        extra["pads"] = [b.pick(0, *range(k)) for k in (*kernel, *kernel)]
    x = b.data(shape)
    if op in ("MaxPool", "AveragePool"):
        if "auto_pad" not in extra and b.chance(0.4):
            extra["ceil_mode"] = 1
        if op == "AveragePool" and b.chance(0.4):
            extra["count_include_pad"] = 1
        b.result(b.op(op, x, kernel_shape=kernel, **extra))
    else:
        groups = channels if op == "DepthwiseConv" else 1
        size = (channels, 3) if op == "ConvTranspose" else (channels, channels // groups)
        w = b.weight(b.rng.integers(-90, 90, (*size, *kernel)).astype(np.int8), 0.01)
        b.result(b.op(op.replace("Depthwise", ""), x, w, group=groups, **extra), 0.2)
    return tuple({name: size + 2 for name, size in feed.items()} for feed in _sizes(*_ALL))


def moving(b: OpenBuilder) -> tuple[Mapping[str, int], ...]:
    """Data movers over open axes."""
    kind = b.pick("slice", "gather", "concat", "split", "flatten", "squeeze", "reshape", "tile",
                  "depth", "transpose", "gathered", "split_even")  # fmt: skip
    shape = b.tensor(b.pick(2, 3, 4))
    axis = int(b.rng.integers(len(shape)))
    if kind == "slice":
        step = b.pick(1, 1, 2, -1, -2)
        start, end = (0, 1 << 40) if step > 0 else (-1, -(1 << 40))
        start = b.pick(start, start, 1, -2)
        end = b.pick(end, end, -1 if step > 0 else 0)
        y = b.op("Slice", b.data(shape), b.ints(start), b.ints(end), b.ints(axis), b.ints(step))
    elif kind == "gather":
        indices = b.pick(np.asarray([0, -1]), np.asarray(-1), np.asarray([[0], [1]]))
        y = b.op("Gather", b.data(shape), b.init(indices.astype(np.int64)), axis=axis)
    elif kind == "gathered":
        indices = b.feed(b.pick(("i",), ("n",), ("n", 2)), TensorProto.INT64)
        table = b.weight(b.rng.integers(-90, 90, (8, 5)).astype(np.int8), 0.02)
        y = b.op("Gather", b.pick(table, b.data((4, "m"))), indices, axis=0)
    elif kind == "concat":
        other = tuple(b.pick(d, "p", 3) if i == axis else d for i, d in enumerate(shape))
        y = b.op("Concat", b.data(shape), b.data(other), axis=axis)
    elif kind == "split":
        shape = tuple(
            6 if i == axis else "n" if i == (axis + 1) % len(shape) else d
            for i, d in enumerate(shape)
        )
        parts = b.op("Split", b.data(shape), b.ints(2, 4), outputs=2, axis=axis)
        b.result(f"{parts}:1")
        y = parts
    elif kind == "split_even":
        shape = tuple("e" if i == axis else d for i, d in enumerate(shape))
        parts = b.op("Split", b.data(shape), outputs=2, axis=axis)
        b.result(f"{parts}:1")
        y = parts
    elif kind == "flatten":
        y = b.op("Flatten", b.data(shape), axis=b.pick(*range(len(shape) + 1)))
    elif kind == "squeeze":
        y = b.op("Squeeze", b.op("Unsqueeze", b.data(shape), b.ints(1)), b.ints(1))
    elif kind == "reshape":
        target = b.pick([-1], [0, -1], [1, 0, -1] if len(shape) == 2 else [0, 0, -1])
        y = b.op("Reshape", b.data(shape), b.ints(*target))
    elif kind == "tile":
        y = b.op("Tile", b.data(shape), b.ints(*(b.pick(1, 2, 3) for _ in shape)))
    elif kind == "depth":
        image = b.pick(("n", 8, "h", "w"), ("n", 8, 4, "w"), (1, 8, "h", 2))
        if b.chance(0.5):
            y = b.op("DepthToSpace", b.data(image), blocksize=2, mode=b.pick("DCR", "CRD"))
        else:
            even = tuple("e" if d in ("h", "w") else d for d in image)
            y = b.op("SpaceToDepth", b.data(even), blocksize=2)
    else:
        y = b.op("Transpose", b.data(shape), perm=[int(i) for i in b.rng.permutation(len(shape))])
    b.result(y)
    return tuple(
        {**feed, "e": 4 + 2 * i, "i": 1 + i, "p": 2 + i} for i, feed in enumerate(_sizes(*_ALL))
    )


FAMILIES: tuple[Family, ...] = (
    broadcasting, repeating, products, heads, positions, reductions, norms, softmaxes, resizes,
    pads, windows, moving,
)  # fmt: skip


def case(seed: int) -> Case:
    """Returns the case of a seed."""
    family = FAMILIES[seed % len(FAMILIES)]
    b = OpenBuilder(seed)
    feeds = family(b)
    return Case(f"{family.__name__}_{seed}", b.model(), dict(b.shapes), feeds, seed)
