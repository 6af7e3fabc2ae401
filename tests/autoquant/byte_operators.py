"""Relatives of operators that multiply bytes as such, as outputs of one model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.onnx_io.writer_models import S8, U8, Net

MICROSOFT = "com.microsoft"
LENGTH = 20_000


class Relatives(Net):
    """Nodes that read slices of one input, whose numbers lie between 0 and 1."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = np.random.default_rng(seed)
        self.results: dict[str, str] = {}

    def one_of(self, *values: Any) -> Any:
        return values[int(self.chance.integers(len(values)))]

    def often(self, share: float) -> bool:
        return bool(self.chance.random() < share)

    def floats_of(self, *shape: int) -> str:
        size, start = math.prod(shape), int(self.chance.integers(LENGTH - math.prod(shape)))
        ends = [self.constant(np.array([end])) for end in (start, start + size)]
        return self.op("Reshape", self.op("Slice", "x", *ends), self.constant(np.array(shape)))

    def codes(self, dtype: Any, *shape: int) -> str:
        low = int(np.iinfo(dtype).min)
        return self.q(self.floats_of(*shape), 1 / 255, low, dtype)

    def weight_codes(self, dtype: Any, *shape: int) -> str:
        info, size = np.iinfo(dtype), math.prod(shape)
        if self.often(0.2) and size < LENGTH:
            return self.codes(dtype, *shape)  # computed while the model runs
        drawn = self.chance.integers(info.min, info.max + 1, shape)
        ends = self.chance.choice([info.min, info.max], shape)
        return self.constant((ends if self.often(0.4) else drawn).astype(dtype))

    def point(self, dtype: Any, share: float, *shape: int) -> str:
        info = np.iinfo(dtype)
        if not self.often(share):
            return ""
        return self.constant(self.chance.integers(info.min, info.max + 1, shape).astype(dtype))

    def maybe(self, share: float, array: Any) -> str:
        return self.constant(array) if self.often(share) else ""

    def add(self, op_type: str, operands: list[str], results: int = 1, **attributes: Any) -> None:
        while not operands[-1]:
            operands.pop()
        first = self.op(op_type, *operands, results=results, **attributes)
        names = [first, *(f"{first}_{i}" for i in range(1, results))]
        self.results |= dict.fromkeys(names, op_type)

    def write(self, folder: Path) -> tuple[Path, dict[str, NDArray[Any]]]:
        """Returns the file of all nodes so far, and data for it."""
        graph = helper.make_graph(
            self.nodes, "relatives",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [LENGTH])],
            [onnx.ValueInfoProto(name=name) for name in self.results], self.tensors,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        path = folder / "relatives.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        x = self.chance.uniform(size=LENGTH)
        ends = self.chance.integers(0, 2, LENGTH)
        return path, {"x": np.where(self.chance.random(LENGTH) < 0.5, x, ends).astype(np.float32)}


def conv_integer(net: Relatives) -> None:
    x, w = (S8, U8) if net.often(0.7) else (net.one_of(U8, S8), net.one_of(U8, S8))
    rank, group, channels = net.one_of(1, 2, 2, 3), net.one_of(1, 1, 2, 4), net.one_of(1, 3, 8)
    kernel = [int(k) for k in net.chance.integers(1, 4, rank)]
    images = [int(n) for n in net.chance.integers(5, 8, rank)]  # no less than a kernel spans
    operands = [
        net.codes(x, net.one_of(1, 2), channels * group, *images),
        net.weight_codes(w, group * net.one_of(1, 2, 3), channels, *kernel),
        net.point(x, 0.7),
        net.point(w, 0.6),
    ]
    window: dict[str, Any] = {"group": group}
    window["strides"] = [int(stride) for stride in net.chance.integers(1, 3, rank)]
    if net.often(0.3):
        window["auto_pad"] = net.one_of("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        window["pads"] = [int(pad) for pad in net.chance.integers(0, 3, 2 * rank)]
        window["dilations"] = [int(each) for each in net.chance.integers(1, 3, rank)]
    net.add("ConvInteger", operands, **window)


def matmul_integer(net: Relatives) -> None:
    a, b = (U8, S8) if net.often(0.7) else (net.one_of(U8, S8), net.one_of(U8, S8))
    rows, terms, columns = (net.one_of(1, 2, 3, 8, 17) for _ in range(3))
    stack = net.one_of((), (2,), (2, 3))
    own = stack if net.often(0.5) else ()
    each = (columns,) if not own and net.often(0.4) else ()
    operands = [
        net.codes(a, *stack, rows, terms),
        net.weight_codes(b, *own, terms, columns),
        net.point(a, 0.7),
        net.point(b, 0.6, *each),
    ]
    net.add("MatMulInteger", operands)


def product_of_activations(net: Relatives) -> None:
    """QLinearMatMul whose second activation is signed: in a QDQ file both become unsigned."""
    rows, terms, columns = (net.one_of(1, 4, 9, 20) for _ in range(3))
    pairs = [
        [net.codes(U8, rows, terms), net.constant(np.float32(0.01)), net.point(U8, 1.0)],
        [net.codes(S8, terms, columns), net.constant(np.float32(0.02)), net.point(S8, 1.0)],
        [net.constant(np.float32(0.4)), net.constant(np.uint8(128))],
    ]
    net.add("QLinearMatMul", [each for pair in pairs for each in pair])


def _scaled(net: Relatives, codes: str, dtype: Any, scale: float) -> list[str]:
    return [codes, net.constant(np.float32(scale)), net.point(dtype, 1.0)]


def _result(net: Relatives, dtype: Any) -> list[str]:
    return [net.constant(np.float32(0.3)), net.point(dtype, 1.0)]


def quantized_conv(net: Relatives) -> None:
    x, w = net.one_of((U8, S8), (U8, S8), (U8, S8), (S8, S8), (U8, U8))
    group, channels = net.one_of((1, 3), (1, 8), (2, 4), (4, 1), (6, 2))
    kernel = net.one_of([1, 1], [3, 3], [2, 3])
    many = group * net.one_of(1, 2, 3)
    operands = [
        *_scaled(net, net.codes(x, net.one_of(1, 2), channels * group, 5, 6), x, 0.02),
        *_scaled(net, net.weight_codes(w, many, channels, *kernel), w, 0.01),
        *_result(net, x),
    ]
    net.add("QLinearConv", operands, group=group)


def quantized_gemm(net: Relatives) -> None:
    a, b = net.one_of((U8, S8), (U8, S8), (U8, S8), (S8, S8), (U8, U8))
    rows, terms, columns = (net.one_of(1, 2, 5, 16) for _ in range(3))
    turned = [int(net.often(0.3)), int(net.often(0.5))]
    left, right = ((terms, rows)[:: 1 if turned[0] else -1], (columns, terms))
    right = right if turned[1] else right[::-1]
    operands = [
        *_scaled(net, net.codes(a, *left), a, 0.02),
        *_scaled(net, net.weight_codes(b, *right), b, 0.01),
        "",
        *_result(net, a),
    ]
    net.add("QGemm", operands, domain=MICROSOFT, transA=turned[0], transB=turned[1])


def quantized_matmul(net: Relatives) -> None:
    a, b = net.one_of((U8, S8), (U8, S8), (U8, S8), (S8, S8), (U8, U8))
    rows, terms, columns = (net.one_of(1, 2, 5, 16) for _ in range(3))
    operands = [
        *_scaled(net, net.codes(a, rows, terms), a, 0.02),
        *_scaled(net, net.weight_codes(b, terms, columns), b, 0.01),
        *_result(net, a),
    ]
    net.add("QLinearMatMul", operands)


def dynamic_product(net: Relatives) -> None:
    kind = net.one_of(S8, S8, S8, U8)
    rows, terms, columns = (net.one_of(1, 2, 5, 16) for _ in range(3))
    b, scale = net.weight_codes(kind, terms, columns), net.constant(np.float32(0.01))
    if net.often(0.5):
        operands = [net.floats_of(rows, terms), b, scale, net.point(kind, 1.0)]
        net.add("DynamicQuantizeMatMul", operands, domain=MICROSOFT)
        return
    operands = [net.codes(U8, rows, terms), b, net.constant(np.float32(0.02)), scale]
    operands += [net.point(U8, 1.0), net.point(kind, 1.0)]
    net.add("MatMulIntegerToFloat", operands, domain=MICROSOFT)


def attention(net: Relatives) -> None:
    kind = S8 if net.often(0.8) else U8
    heads, size, wide = net.one_of(1, 2, 4), net.one_of(2, 4, 8), net.one_of(3, 8, 17)
    batch, steps, past = net.one_of(1, 2, 3), net.one_of(1, 2, 5), net.one_of(0, 0, 3)
    hidden = heads * size
    columns = (3 * hidden,) if net.often(0.5) else ()
    masks = [
        np.ones((batch, steps + past)) * (net.chance.random((batch, steps + past)) < 0.7),
        net.chance.integers(1, steps + 1, batch),
    ]
    operands = [
        net.codes(U8, batch, steps, wide),
        net.weight_codes(kind, wide, 3 * hidden),
        net.floats(3 * hidden),
        net.constant(np.float32(0.005)),
        net.constant(net.chance.uniform(5e-4, 2e-3, columns).astype(np.float32)),
        net.maybe(0.5, net.one_of(*masks).astype(np.int32)),
        net.point(U8, 1.0),
        net.point(kind, 0.6, *columns),
        net.floats_of(2, batch, heads, past, size) if past else "",
    ]
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": int(net.often(0.4))}
    if net.often(0.2):
        attributes["mask_filter_value"] = -100.0
    results = 2 if past or net.often(0.2) else 1
    net.add("QAttention", operands, results, domain=MICROSOFT, **attributes)


def lstm(net: Relatives) -> None:
    kind, directions = (S8 if net.often(0.8) else U8), net.one_of(1, 2)
    hidden, wide, steps = net.one_of(2, 4, 7), net.one_of(1, 5, 16), net.one_of(1, 3, 5)
    batch = net.one_of(1, 2, 3)

    def normal(*shape: int) -> NDArray[np.float32]:
        return net.chance.normal(size=(directions, *shape)).astype(np.float32)

    scales: list[str] = []
    for _ in range(2):
        own = (directions, 4 * hidden) if net.often(0.5) else (directions,)
        zero = np.zeros(own, kind)
        if kind is U8 or len(own) == 1:  # int8 with a scale each has 0
            zero += net.chance.integers(0, 40, (directions, *[1] * (len(own) - 1))).astype(kind)
            zero[1:] = zero[:1]
        drawn = net.chance.uniform(5e-4, 3e-3, own).astype(np.float32)
        scales += [net.constant(drawn), net.constant(zero)]
    operands = [
        net.floats_of(steps, batch, wide),
        net.weight_codes(kind, directions, wide, 4 * hidden),
        net.weight_codes(kind, directions, hidden, 4 * hidden),
        net.maybe(0.6, normal(8 * hidden)),
        net.maybe(0.4, net.chance.integers(1, steps + 1, batch).astype(np.int32)),
        net.maybe(0.4, normal(batch, hidden)),
        net.maybe(0.4, normal(batch, hidden)),
        net.maybe(0.3, normal(3 * hidden)),
        *scales,
    ]
    one = net.one_of("forward", "reverse")
    attributes: dict[str, Any] = {"direction": one if directions == 1 else "bidirectional"}
    if net.often(0.3):
        attributes["clip"] = 1.5
    if net.often(0.2):
        attributes["input_forget"] = 1
    if net.often(0.3):
        attributes["activations"] = ["Sigmoid", "Tanh", "Relu"] * directions
    net.add("DynamicQuantizeLSTM", operands, 3, domain=MICROSOFT, hidden_size=hidden, **attributes)
    if net.often(0.2):  # without the results of all steps, ends are carried on
        whole = net.nodes[-1].output[0]
        net.nodes[-1].output[0] = ""
        del net.results[whole]


def relatives(seed: int, count: int) -> Relatives:
    """Returns as many nodes of each kind."""
    net = Relatives(seed)
    kinds: tuple[Callable[[Relatives], None], ...] = (
        conv_integer, matmul_integer, product_of_activations, attention, lstm, quantized_conv,
        quantized_gemm, quantized_matmul, dynamic_product,
    )  # fmt: skip
    for _ in range(count):
        for kind in kinds:
            kind(net)
    return net
