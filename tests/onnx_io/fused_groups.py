"""Random operators between Q and DQ whose parameters no kernel need have a place for.

Scales along any axis, in blocks, of every operand and of the result; zero points of every kind;
stored types that products do not take; biases of any scale; data movement in between. What the
model means is what onnxruntime computes without optimizations: a float operator on dequantized
numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Granularity = tuple[int | None, int]
CODES = {
    "u8": TensorProto.UINT8, "s8": TensorProto.INT8, "u16": TensorProto.UINT16,
    "s16": TensorProto.INT16, "u4": TensorProto.UINT4, "s4": TensorProto.INT4,
    "s32": TensorProto.INT32,
}  # fmt: skip
RANGES = {
    "u8": (0, 255), "s8": (-128, 127), "u16": (0, 65535), "s16": (-32768, 32767), "u4": (0, 15),
    "s4": (-8, 7), "s32": (-100, 100),
}  # fmt: skip
IR = {13: 7, 19: 9, 21: 10, 23: 11}
BLOCKS = 21
"""The opset that brought blocks, 16 and 4 bits."""
PER_TENSOR: Granularity = (None, 0)


class Group:
    """One model in the making."""

    def __init__(self, seed: int) -> None:
        self.numbers, self.chance = np.random.default_rng(seed), random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[tuple[str, int, tuple[int, ...]]] = []
        self.facts: list[str] = []
        self.opset = self.chance.choice(list(IR))
        self.stored_type = self.any_type(activation=True)
        self._count = 0

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def constant(self, numbers: Any, code: int | None = None) -> str:
        name, array = self.name("c"), np.asarray(numbers)
        made = (
            numpy_helper.from_array(array, name)
            if code is None
            else helper.make_tensor(name, code, array.shape, array.reshape(-1).tolist())
        )
        self.initializers.append(made)
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        result = self.name(op_type.lower())
        self.nodes.append(helper.make_node(op_type, inputs, [result], f"n_{result}", **attributes))
        return result

    def any_type(self, *, activation: bool) -> str:
        types = ["u8", "s8"] * 4
        if self.opset >= BLOCKS:
            types += ["u16", "s16"] if activation else ["u16", "s16", "u4", "s4"]
        return self.chance.choice(types if activation else [*types, "s32"])

    def granularity(self, shape: tuple[int, ...], per_tensor: float) -> Granularity:
        if not shape or self.chance.random() < per_tensor:
            return PER_TENSOR
        axis = self.chance.randrange(len(shape))
        sizes = [size for size in range(2, shape[axis] + 1) if shape[axis] % size == 0]
        blocked = self.opset >= BLOCKS and bool(sizes) and self.chance.random() < 0.3
        return axis, self.chance.choice(sizes) if blocked else 0

    def parameters(
        self, dtype: str, shape: tuple[int, ...], granularity: Granularity, low: float, high: float
    ) -> tuple[list[str], dict[str, int]]:
        axis, block = granularity
        extents = () if axis is None else (shape[axis],)
        attributes = {} if axis is None else {"axis": axis}
        if axis is not None and block:
            extents = tuple(n // block if a == axis else n for a, n in enumerate(shape))
            attributes["block_size"] = block
        scale = self.numbers.uniform(low, high, extents).astype(np.float32)
        first, last = RANGES[dtype]
        zero = np.zeros(extents, int) if first else np.full(extents, (last + 1) // 2)
        kind = "same" if dtype == "s32" else self.chance.choice(("same", "one", "each"))
        if kind == "one":
            zero = zero + max(1, (last - first) // 16)
        if kind == "each":
            ends = (3 * first + last) // 4, (first + 3 * last) // 4 + 1
            zero = self.numbers.integers(*ends, extents)
        return [self.constant(scale), self.constant(zero, CODES[dtype])], attributes

    def weight(self, *shape: int) -> str:
        dtype, granularity = self.any_type(activation=False), self.granularity(shape, 0.3)
        operands, attributes = self.parameters(dtype, shape, granularity, 0.01, 0.03)
        low, high = RANGES[dtype]
        codes = self.constant(self.numbers.integers(low, high + 1, shape), CODES[dtype])
        self.facts.append(f"weight {dtype} {granularity}")
        return self.op("DequantizeLinear", codes, *operands, **attributes)

    def rounded(
        self, real: str, shape: tuple[int, ...], granularity: Granularity | None = None,
        low: float = 0.02, high: float = 0.1,
    ) -> tuple[str, str]:  # fmt: skip
        """Returns what is stored, and the same dequantized."""
        chosen = self.granularity(shape, 0.8) if granularity is None else granularity
        operands, attributes = self.parameters(self.stored_type, shape, chosen, low, high)
        stored = self.op("QuantizeLinear", real, *operands, **attributes)
        self.facts.append(f"rounded {self.stored_type} {chosen}")
        return stored, self.op("DequantizeLinear", stored, *operands, **attributes)

    def operand(self, *shape: int) -> str:
        name, given = self.name("x"), self.chance.random() < 0.25
        self.inputs.append((name, CODES[self.stored_type] if given else 1, shape))
        if not given:
            return self.rounded(name, shape, None, 0.01, 0.03)[1]
        chosen = self.granularity(shape, 0.8)
        operands, attributes = self.parameters(self.stored_type, shape, chosen, 0.01, 0.03)
        self.facts.append(f"given {self.stored_type} {chosen}")
        return self.op("DequantizeLinear", name, *operands, **attributes)

    def bias(self, count: int) -> list[str]:
        kind = self.chance.choice(("none", "none", "float", "s32", "s32 of each", "s8"))
        self.facts.append(f"bias {kind}")
        if kind in ("none", "float"):
            real = self.numbers.normal(size=count).astype(np.float32)
            return [] if kind == "none" else [self.constant(real)]
        dtype = kind[:3].strip()
        chosen = (0, 0) if kind.endswith("each") else PER_TENSOR
        span = (0.002, 0.009) if dtype == "s32" else (0.01, 0.02)
        operands, attributes = self.parameters(dtype, (count,), chosen, *span)
        codes = self.constant(self.numbers.integers(-100, 101, count), CODES[dtype])
        return [self.op("DequantizeLinear", codes, *operands, **attributes)]

    def model(self, result: str, dtype: int) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(*each) for each in self.inputs]
        outputs = [helper.make_tensor_value_info(result, dtype, None)]
        graph = helper.make_graph(self.nodes, "group", inputs, outputs, self.initializers)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR[self.opset])


IMAGE = (1, 4, 6, 6)


def _conv(g: Group) -> str:
    out, k, groups = g.chance.choice((4, 6)), g.chance.choice((1, 3, 4)), g.chance.choice((1, 1, 2))
    w = g.weight(out, 4 // groups, k, 3)
    return g.op("Conv", g.operand(*IMAGE), w, *g.bias(out), group=groups)


def _conv1(g: Group) -> str:
    return g.op("Conv", g.operand(1, 4, 8), g.weight(4, 4, 3), *g.bias(4))


def _conv_transpose(g: Group) -> str:
    return g.op("ConvTranspose", g.operand(*IMAGE), g.weight(4, 4, 3, 3), *g.bias(4))


def _matmul(g: Group) -> str:
    x, w = g.chance.choice((((5, 4), (4, 4)), ((2, 5, 4), (4, 6)), ((2, 5, 4), (2, 4, 4))))
    return g.op("MatMul", g.operand(*x), g.weight(*w))


def _matmul_and_add(g: Group) -> str:
    product = g.op("MatMul", g.operand(*g.chance.choice(((5, 4), (2, 5, 4)))), g.weight(4, 4))
    return g.op("Add", product, *(g.bias(4) or [g.constant(np.ones(4, np.float32))]))


def _two(g: Group) -> str:
    return g.op("MatMul", g.operand(2, 5, 4), g.operand(2, 4, 4))


def _gemm(g: Group) -> str:
    sides = {"transA": g.chance.choice((0, 0, 1)), "transB": g.chance.choice((0, 1))}
    second = (g.weight if g.chance.random() < 0.6 else g.operand)(4, 4)
    return g.op("Gemm", g.operand(4, 4), second, *g.bias(4), **sides)


def _elementwise(g: Group) -> str:
    op_type = g.chance.choice(("Add", "Mul", "Sub", "Max"))
    second = g.operand(*IMAGE) if g.chance.random() < 0.5 else g.weight(4, 1, 1)
    return g.op(op_type, g.operand(*IMAGE), second)


def _where(g: Group) -> str:
    condition = g.constant(g.numbers.integers(0, 2, IMAGE).astype(bool))
    other = g.weight(*IMAGE) if g.chance.random() < 0.3 else g.operand(*IMAGE)
    return g.op("Where", condition, g.operand(*IMAGE), other)


def _concat(g: Group) -> str:
    return g.op("Concat", g.operand(*IMAGE), g.operand(*IMAGE), axis=1)


def _alone(op_type: str, **attributes: Any) -> Callable[[Group], str]:
    return lambda g: g.op(op_type, g.operand(*IMAGE), **attributes)


def _moved(g: Group) -> str:
    """Data movement of activations, or of the weight of a product."""
    kind = g.chance.choice(("out", "weight", "int32"))
    if kind == "weight":
        turned = g.op("Transpose", g.weight(4, 4), perm=[1, 0])
        return g.op("MatMul", g.operand(5, 4), turned)
    if kind == "int32":
        name = g.name("x")
        g.inputs.append((name, TensorProto.INT32, (4, 6)))
        x = g.op("DequantizeLinear", name, g.constant(np.float32(0.01)), g.constant(np.int32(0)))
        g.facts.append("int32")
    else:
        x = g.op("Squeeze", g.operand(1, 4, 6), g.constant(np.array([0])))
    for _ in range(g.chance.choice((1, 2))):
        x = g.chance.choice(
            (
                lambda x: g.op("Transpose", x, perm=[1, 0]),
                lambda x: g.op("Reshape", x, g.constant(np.array([6, -1]))),
                lambda x: g.op("Slice", x, *(g.constant(np.array([n])) for n in (0, 2))),
            )
        )(x)
    return x if g.chance.random() < 0.6 else g.op("Sigmoid", x)


KINDS: tuple[Callable[[Group], str], ...] = (
    _conv, _conv, _conv1, _conv_transpose, _matmul, _matmul, _matmul_and_add, _two, _gemm, _gemm,
    _elementwise, _where, _concat, _moved, _moved, _alone("AveragePool", kernel_shape=[2, 2]),
    _alone("GlobalAveragePool"), _alone("Sigmoid"), _alone("LeakyRelu", alpha=0.2),
    _alone("Softmax", axis=1), _alone("MaxPool", kernel_shape=[2, 2]), _alone("Relu"),
)  # fmt: skip


def group(seed: int) -> tuple[onnx.ModelProto, dict[str, Array], str]:
    """Returns a model, data for it, and what it is in a few words."""
    g = Group(seed)
    kind = KINDS[seed % len(KINDS)]
    result = kind(g)
    if g.chance.random() < 0.15:
        result = g.op("Relu", result)
    end = g.chance.choice(("stored", "real", "real", "float"))
    if end == "float":
        model = g.model(result, 1)
    else:
        known = onnx.shape_inference.infer_shapes(g.model(result, 1), data_prop=True).graph.output
        shape = tuple(dim.dim_value for dim in known[0].type.tensor_type.shape.dim)
        stored, real = g.rounded(result, shape)
        model = g.model(*((real, 1) if end == "real" else (stored, CODES[g.stored_type])))
    fed: dict[str, Array] = {}
    for name, code, extents in g.inputs:
        if code == TensorProto.FLOAT:
            fed[name] = g.numbers.normal(0, 1.2, extents).astype(np.float32)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(code)
            low, high = (
                (-200, 200) if dtype == np.int32 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            )
            fed[name] = g.numbers.integers(low, high + 1, extents).astype(dtype)
    return (
        model,
        fed,
        f"{seed}: opset {g.opset} {getattr(kind, '__name__', 'alone')}, "
        + "; ".join([*g.facts, end]),
    )
