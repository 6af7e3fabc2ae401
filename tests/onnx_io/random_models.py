"""Random small ONNX models: float and quantized operators, odd forms, open batches.

:func:`random_model` makes the model of a seed. Shapes come from ONNX's own inference, so every node
fits what it reads. Nothing here is run: the models are for what must not depend on values, such as
the digest after a way out and back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.onnx_models import Builder

Dims = tuple[Any, ...]

_UNARY = (
    "Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Erf", "HardSwish", "HardSigmoid", "LeakyRelu",
    "Elu", "Selu", "Softplus", "Softsign", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Celu",
    "Reciprocal", "Sqrt", "Log", "ThresholdedRelu", "Identity", "Atan",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu", "Pow")
_REDUCTIONS = ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceL2", "ReduceProd")
_STORED = (np.uint8, np.int8, np.uint8, np.int8, np.int8)


class Maker:
    """A model that grows node by node, with the shapes of what it has."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.opset = self.rng.choice((13, 15, 17, 18, 19, 21))
        self.b = Builder(self.opset)
        self.shapes: dict[str, Dims] = {}
        self.open = self.rng.random() < 0.4

    def input(self) -> str:
        rank = self.rng.choice((1, 2, 2, 3, 3, 4, 4, 5))
        shape: list[Any] = [self.rng.choice((1, 2, 3, 4, 8)) for _ in range(rank)]
        if self.open:
            shape[0] = "n"
        name = self.b.input(f"x{len(self.shapes)}", shape)
        self.shapes[name] = tuple(shape)
        return name

    def any(self, *ranks: int) -> str | None:
        """A value, of one of these ranks."""
        found = [n for n, s in self.shapes.items() if not ranks or len(s) in ranks]
        return self.rng.choice(found[-4:]) if found else None

    def some(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def floats(self, *shape: int) -> str:
        return self.b.init(self.data.normal(size=shape).astype(np.float32))

    def ints(self, *numbers: int) -> str:
        return self.b.init(np.array(numbers, np.int64))

    def scale(self) -> float:
        return float(np.float32(2.0 ** self.rng.uniform(-12, -2)))

    def weight(self, shape: Dims, axis: int | None = None) -> str:
        """A constant: float, or stored in one of many ways."""
        if self.rng.random() < 0.25:
            return self.floats(*shape)
        dtype: Any = self.some(*_STORED)
        info = np.iinfo(dtype)
        stored = self.data.integers(info.min, info.max + 1, shape).astype(dtype)
        scale: Any = self.scale()
        along: dict[str, Any] = {}
        if axis is not None and self.rng.random() < 0.5:
            scale = np.array([self.scale() for _ in range(shape[axis])], np.float32)
            along = {"axis": axis}
        zero = self.some(0, 128, 100) if dtype == np.uint8 else self.some(0, 0, -3)
        if self.opset >= 21 and self.rng.random() < 0.3:
            return self.nibbles(shape, scale, along)
        return self.b.weight(stored, scale, zero, **along)

    def nibbles(self, shape: Dims, scale: Any, along: dict[str, Any]) -> str:
        kind = self.some(TensorProto.INT4, TensorProto.UINT4)
        low = -8 if kind == TensorProto.INT4 else 0
        numbers = self.data.integers(low, low + 16, shape)
        data = helper.make_tensor(self.b.name("w4"), kind, shape, numbers.reshape(-1).tolist())
        zeros = helper.make_tensor(
            self.b.name("z4"), kind, np.shape(scale), [low + 8] * int(np.size(scale))
        )
        self.b.initializers += [data, zeros]
        names = [data.name, self.b.init(np.asarray(scale, np.float32)), zeros.name]
        return self.b.op("DequantizeLinear", *names, **along)

    def qdq(self, x: str) -> str:
        dtype: Any = self.some(*_STORED)
        zero = self.some(0, 128, 124, 255) if dtype == np.uint8 else self.some(0, -128, 7)
        if self.opset >= 21 and self.rng.random() < 0.15:
            dtype, zero = self.some((np.int16, 0), (np.uint16, 32768))
        return self.b.qdq(x, self.scale(), zero, dtype)

    def settle(self, *names: str | None) -> bool:
        """Enters new values if ONNX knows their shapes and they are not empty."""
        model = self.b.model()
        try:
            inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True,
                                                         data_prop=True)  # fmt: skip
        except Exception:  # the node does not fit what it reads
            return False
        known = {v.name: v.type.tensor_type for v in inferred.graph.value_info}
        for name in names:
            type_ = known.get(name or "")
            if type_ is None or not type_.HasField("shape"):
                return False
            shape = tuple(
                d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
                for d in type_.shape.dim
            )
            if (
                "?" in shape
                or any(isinstance(d, int) and d < 1 for d in shape)
                or type_.elem_type != TensorProto.FLOAT
            ):
                return False
            if np.prod([d for d in shape if isinstance(d, int)], initial=1) > 1 << 14:
                return False
            self.shapes[name or ""] = shape
        return True


# ---- kinds of nodes ---------------------------------------------------------------------------

Kind = Callable[[Maker], "str | None"]


def unary(m: Maker) -> str | None:
    x = m.any()
    return x and m.b.op(m.some(*_UNARY), x)


def clipped(m: Maker) -> str | None:
    x = m.any()
    low, high = (m.b.init(np.float32(v)) for v in sorted((m.rng.gauss(0, 2), m.rng.gauss(0, 2))))
    return x and m.b.op("Clip", x, m.some(low, ""), high)


def binary(m: Maker) -> str | None:
    x, y = m.any(), m.any()
    if x is None or y is None:
        return None
    shape = m.shapes[x]
    known = [d if isinstance(d, int) else 1 for d in shape]
    last = tuple(known[-1:])
    y = m.some(y, x, m.floats(), m.floats(*last), m.weight(last), m.weight(tuple(known)))
    op = m.some(*_BINARY)
    pair = [x, y] if op in ("PRelu", "Pow") or m.rng.random() < 0.5 else [y, x]
    return m.b.op(op, *pair)


def extreme(m: Maker) -> str | None:
    x, y, z = m.any(), m.any(), m.any()
    if x is None or y is None or z is None:
        return None
    operands = m.some([x], [x, x], [x, x, x], [x, y, x], [x, y, z], [x, m.floats(), y])
    return m.b.op(m.some("Min", "Max", "Sum", "Mean"), *operands)


def chosen(m: Maker) -> str | None:
    x, y = m.any(), m.any()
    if x is None or y is None:
        return None
    test = m.b.op(m.some("Less", "Greater", "Equal"), x, m.floats())
    if m.rng.random() < 0.3:
        test = m.b.op(m.some("And", "Or", "Xor"), m.b.op("Less", y, m.floats()), test)
    return m.b.op("Where", test, x, m.some(y, m.floats(), m.weight((1,))))


def tested(m: Maker) -> str | None:
    x = m.any()
    return x and m.b.op("Cast", m.b.op(m.some("IsNaN", "IsInf"), x), to=TensorProto.FLOAT)


def reshaped(m: Maker) -> str | None:
    x = m.any()
    if x is None:
        return None
    shape = m.shapes[x]
    if m.rng.random() < 0.2:
        return m.b.op("Flatten", x, axis=m.some(0, 1, len(shape)))
    if m.rng.random() < 0.4:
        target = [0] * len(shape)
        target[m.rng.randrange(len(target))] = -1
    elif m.rng.random() < 0.5 or any(isinstance(d, str) for d in shape):
        target = [m.some(0, -1), *(d for d in shape[1:] if isinstance(d, int))]
        if len(target) < len(shape):  # an open extent is left out: the first takes it
            target[0] = -1
        if len(target) > 1 and m.rng.random() < 0.5:
            target = [target[0], int(np.prod(target[1:]))]
    else:
        size = int(np.prod(shape))
        part = m.some(*(k for k in range(1, size + 1) if size % k == 0))
        target = m.some([part, size // part], [-1, part], [1, part, -1], [size])
    return m.b.op("Reshape", x, m.ints(*target))


def moved(m: Maker) -> str | None:
    x = m.any(2, 3, 4, 5)
    if x is None:
        return None
    rank = len(m.shapes[x])
    axes = list(range(rank))
    m.rng.shuffle(axes)
    one, zero = m.ints(*[1] * rank), [0] * (2 * rank)
    pads = m.some(zero, [m.rng.randrange(2) for _ in zero])
    pad = m.b.init(np.float32(0.5))
    axis = m.rng.randrange(rank)
    makers: tuple[Callable[[], str], ...] = (
        lambda: m.b.op("Transpose", x, perm=axes),
        lambda: m.b.op("Tile", x, m.some(one, m.ints(*[1] * (rank - 1), 2))),
        lambda: m.b.op("Pad", x, m.ints(*pads), m.some("", pad), mode="constant"),
        lambda: m.b.op("Slice", x, m.ints(0), m.ints(m.some(1, 2**31 - 1, -1)), m.ints(rank - 1)),
        lambda: m.b.op("Unsqueeze", x, m.ints(m.some(0, -1, 1))),
        lambda: m.b.op("Squeeze", x, m.ints(axis)),
        lambda: m.b.op("Concat", *m.some([x], [x, x], [x, x, x]), axis=axis),
        lambda: m.b.op("Gather", x, m.ints(*m.some([0], [0, -1], [-1])), axis=axis),
        lambda: m.b.op("Expand", x, one),
        lambda: m.b.op("CumSum", x, m.b.init(np.int64(m.some(0, -1)))),
    )
    return m.some(*makers)()


def table(m: Maker) -> str | None:
    x = m.any()
    if x is None:
        return None
    index = m.b.op("Cast", m.b.op("IsNaN", x), to=TensorProto.INT64)
    return m.b.op("Gather", m.weight((2, m.some(3, 4))), index)


def normalized(m: Maker) -> str | None:
    x = m.any(2, 3, 4)
    if x is None:
        return None
    shape = m.shapes[x]
    last = shape[-1] if isinstance(shape[-1], int) else None
    if m.opset >= 17 and last is not None and m.rng.random() < 0.3:
        return m.b.op("LayerNormalization", x, m.weight((last,)), m.floats(last), axis=-1)
    return m.b.op(m.some("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), x, axis=-1)


def reduced(m: Maker) -> str | None:
    x = m.any(2, 3, 4)
    if x is None:
        return None
    op, axis = m.some(*_REDUCTIONS), m.rng.randrange(len(m.shapes[x]))
    keep = m.some(0, 1)
    if m.opset >= 18 or (op == "ReduceSum" and m.opset >= 13):
        return m.b.op(op, x, m.ints(axis), keepdims=keep)
    return m.b.op(op, x, axes=[axis], keepdims=keep)


def product(m: Maker) -> str | None:
    x = m.any(1, 2, 3, 4, 5)
    if x is None:
        return None
    depth = m.shapes[x][-1]
    if not isinstance(depth, int):
        return None
    units = m.some(1, 3, 4)
    if len(m.shapes[x]) == 2 and m.rng.random() < 0.5:
        trans = m.some(0, 1)
        w = m.weight((units, depth) if trans else (depth, units), 0 if trans else 1)
        bias = m.some([], [m.floats(units)], [m.weight((units,))])
        alpha, beta = m.some((1.0, 1.0), (1.0, 1.0), (0.3, 1.0), (2.0, 0.5))
        return m.b.op("Gemm", x, w, *bias, transB=trans, alpha=alpha, beta=beta)
    if m.rng.random() < 0.2:
        return m.b.op("MatMul", x, m.weight((depth,)))
    made = m.b.op("MatMul", x, m.weight((depth, units), 1))
    return m.b.op("Add", m.floats(units), made) if m.rng.random() < 0.4 else made


def convolution(m: Maker) -> str | None:
    x = m.any(3, 4)
    if x is None or not isinstance(m.shapes[x][1], int):
        return None
    channels, rank = m.shapes[x][1], len(m.shapes[x]) - 2
    kernel = [m.some(1, 2, 3) for _ in range(rank)]
    if m.rng.random() < 0.2:
        w = m.weight((channels, m.some(1, 2, 4), *kernel), 1)
        return m.b.op("ConvTranspose", x, w, strides=[m.some(1, 2)] * rank)
    group = m.some(1, 1, channels)
    outputs = group * m.some(1, 2, 4)
    w = m.weight((outputs, channels // group, *kernel), 0)
    bias = m.some([], [m.floats(outputs)])
    return m.b.op("Conv", x, w, *bias, group=group, pads=[m.some(0, 1)] * (2 * rank))


def pooled(m: Maker) -> str | None:
    x = m.any(3, 4)
    if x is None:
        return None
    rank = len(m.shapes[x]) - 2
    if m.rng.random() < 0.3:
        return m.b.op(m.some("GlobalAveragePool", "GlobalMaxPool"), x)
    kernel = m.some([1] * rank, [2] * rank)
    return m.b.op(m.some("MaxPool", "AveragePool"), x, kernel_shape=kernel, strides=m.some(
        [1] * rank, kernel))  # fmt: skip


def resized(m: Maker) -> str | None:
    x = m.any(3, 4)
    if x is None:
        return None
    shape = m.shapes[x]
    factors = m.some([1.0] * len(shape), [1.0, 1.0, *([2.0] * (len(shape) - 2))])
    mode = m.some("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    scales = m.b.init(np.array(factors, np.float32))
    return m.b.op("Resize", x, "", scales, mode=m.some("nearest", "linear"),
                  coordinate_transformation_mode=mode)  # fmt: skip


KINDS: tuple[Kind, ...] = (
    unary, unary, clipped, binary, binary, extreme, chosen, tested, reshaped, reshaped, moved,
    moved, table, normalized, reduced, product, product, convolution, convolution, pooled, resized,
)  # fmt: skip


def random_model(seed: int) -> onnx.ModelProto:
    """Returns the model of a seed: two to eight operators, most of them with quantized results."""
    m = Maker(seed)
    for _ in range(m.some(1, 1, 2)):
        m.input()
    inputs = set(m.shapes)
    for name in list(m.shapes):
        made = m.qdq(name) if m.rng.random() < 0.7 else None
        if made is not None:
            m.settle(made)
    for _ in range(m.some(2, 4, 6, 8)):
        before = len(m.b.nodes), len(m.b.initializers)
        made = m.some(*KINDS)(m)
        stored = m.qdq(made) if made is not None and m.rng.random() < 0.6 else made
        if stored is None or not m.settle(stored):
            del m.b.nodes[before[0] :], m.b.initializers[before[1] :]
    made = [name for name in m.shapes if name not in inputs] or list(m.shapes)
    read = {name for node in m.b.nodes for name in node.input}
    for name in [n for n in made if n not in read][-3:] or made[-1:]:
        m.b.output(name, list(m.shapes[name]))
    return m.b.model()
