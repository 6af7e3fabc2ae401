"""How graphs are put for Hexagon: other nodes, the same numbers, and what is told where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge
from qdqbridge.app.cli.failures import run
from qdqbridge.app.pipeline import check
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.options import AnyProfileName
from qdqbridge.targets.profiles.hexagon.legalizations import LEGALIZATIONS
from qdqbridge.targets.profiles.legalization import legalized

U8, S8, U16 = np.uint8, np.int8, np.uint16
KINDS = {
    U8: TensorProto.UINT8, S8: TensorProto.INT8, U16: TensorProto.UINT16,
    np.int16: TensorProto.INT16,
}  # fmt: skip


class Net:
    """Nodes and initializers of a model, one result per node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(7)

    def c(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_y"], name, **attributes))
        return f"{name}_y"

    def dq(self, x: str, scale: Any, zero: Any, **attributes: Any) -> str:
        scales = self.c(np.asarray(scale, np.float32))
        return self.op("DequantizeLinear", x, scales, self.c(zero), **attributes)

    def q(self, x: str, scale: float, zero: Any) -> str:
        return self.op("QuantizeLinear", x, self.c(np.float32(scale)), self.c(zero))

    def both(self, x: str, scale: float, zero: Any) -> str:
        return self.dq(self.q(x, scale, zero), scale, zero)

    def weight(self, *shape: int, axis: int = 0) -> str:
        stored = self.c(self.random.integers(-127, 128, shape).astype(S8))
        size = shape[axis]
        return self.dq(stored, np.linspace(0.01, 0.02, size), np.zeros(size, S8), axis=axis)

    def floats(self, *shape: int) -> str:
        return self.c(self.random.normal(size=shape).astype(np.float32))


def saved(
    net: Net, inputs: dict[str, tuple[Any, list[int]]], out: str, path: Path, opset: int = 21
) -> Path:
    kinds = {np.float32: TensorProto.FLOAT, **KINDS}
    given = [helper.make_tensor_value_info(n, kinds[t], s) for n, (t, s) in inputs.items()]
    result = [onnx.ValueInfoProto(name=out)]
    graph = helper.make_graph(net.nodes, "net", given, result, net.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def concat(n: Net) -> tuple[dict[str, tuple[Any, list[int]]], str]:
    x = n.dq("x", 0.004, U8(0))
    y = n.both(n.op("Conv", n.dq("z", 0.02, U8(0)), n.weight(4, 3, 1, 1)), 0.02, U8(0))
    joined = n.both(n.op("Concat", x, y, axis=1), 0.03, U8(0))
    out = n.q(n.op("Conv", joined, n.weight(5, 5, 3, 3), pads=[1] * 4), 0.1, U8(120))
    return {"x": (U8, [1, 1, 6, 6]), "z": (U8, [1, 3, 6, 6])}, out


def attention(n: Net, dtype: Any = U8, zero: int = 120) -> Any:
    z = dtype(zero)
    scores = n.both(n.op("Div", n.dq("x", 0.1, z), n.c(np.float32(2.828427))), 0.04, z)
    low = dtype(np.iinfo(dtype).min)
    shares = n.both(n.op("Softmax", scores, axis=-1), 1 / 256, low)
    out = n.q(n.op("MatMul", shares, n.dq("z", 0.1, z)), 0.1, z)
    return {"x": (dtype, [1, 4, 8, 8]), "z": (dtype, [1, 4, 8, 8])}, out


def signed_attention(n: Net) -> Any:
    return attention(n, S8, -5)


def norm(n: Net) -> Any:
    gain, bias = n.dq(n.c(np.arange(1, 5, dtype=U8)), 0.5, U8(0)), n.floats(4)
    out = n.op("InstanceNormalization", n.dq("x", 0.03, S8(3)), gain, bias)
    return {"x": (S8, [1, 4, 5, 5])}, n.q(out, 0.04, S8(-3))


def float_conv(n: Net) -> Any:
    x = n.dq("x", 0.03, U8(100))
    out = n.op("Conv", x, n.weight(4, 3, 3, 3), n.floats(4), pads=[1, 0, 1, 2])
    return {"x": (U8, [1, 3, 5, 5])}, n.op("Sigmoid", out)


def float_conv_of_int8(n: Net) -> Any:
    weight = n.dq(n.c(n.random.integers(-127, 128, (4, 3, 3, 3)).astype(S8)), 0.01, S8(0))
    out = n.op("Conv", n.dq("x", 0.03, S8(0)), weight, pads=[1] * 4)
    return {"x": (S8, [1, 3, 5, 5])}, n.op("Sigmoid", out)


def float_transposed(n: Net) -> Any:
    x = n.dq("x", 0.03, U8(100))
    out = n.op("ConvTranspose", x, n.weight(3, 4, 3, 3, axis=1), strides=[2, 2])
    return {"x": (U8, [1, 3, 5, 5])}, n.op("Sigmoid", out)


def masked(n: Net) -> Any:
    mask = n.c(np.tril(np.ones((5, 5), bool)))
    out = n.op("Where", mask, n.dq("x", 0.03, U8(100)), n.c(np.float32(-1e4)))
    return {"x": (U8, [2, 5, 5])}, n.op("Softmax", out, axis=-1)


def float_norm(n: Net) -> Any:
    out = n.op("InstanceNormalization", n.dq("x", 0.03, U8(100)), n.floats(4), n.floats(4))
    return {"x": (U8, [1, 4, 5, 5])}, n.op("Sigmoid", out)


def float_gelu(n: Net) -> Any:
    gelu_ = n.op("Gelu", n.op("MatMul", "x", n.floats(8, 16)))
    return {"x": (np.float32, [4, 8])}, gelu_


def float_erf(n: Net) -> Any:
    return {"x": (np.float32, [4, 8])}, n.op("Erf", n.op("Div", "x", n.c(np.float32(1.4142135))))


def quotient(n: Net) -> Any:
    scaled = n.op("Div", n.op("Sub", "x", n.c(np.float32(0.25))), n.c(np.float32(3)))
    return {"x": (np.float32, [4, 8])}, n.op("Mul", n.op("Pow", scaled, n.c(np.float32(2))), "x")


def unrounded(n: Net) -> Any:
    conv = n.q(n.op("Conv", n.dq("x", 0.03, U8(100)), n.weight(4, 3, 1, 1)), 0.05, U8(128))
    real = n.dq(conv, 0.05, U8(128))
    gate = n.op("Mul", n.op("Tanh", real), n.op("Sigmoid", real))
    return {"x": (U8, [1, 3, 5, 5])}, n.q(gate, 0.01, U8(128))


def softmax_around_0(n: Net) -> Any:
    return {"x": (S8, [4, 8])}, n.q(n.op("Softmax", n.dq("x", 0.05, S8(0))), 1 / 255, S8(0))


def wide_sigmoid(n: Net) -> Any:
    out = n.q(n.op("Sigmoid", n.dq("x", 1e-4, U16(32768))), 1 / 65535, U16(32768))
    return {"x": (U16, [4, 8])}, out


def wider(n: Net) -> Any:
    x = n.dq("x", 0.05, U8(100))
    return {"x": (U8, [4, 8])}, n.q(n.both(n.op("Add", x, x), 0.035, U8(100)), 0.07, U8(100))


def converted_rows(n: Net) -> Any:
    turned = n.both(n.op("Transpose", n.dq("x", 0.05, U8(100)), perm=[0, 2, 1]), 0.05, U8(100))
    rows = n.both(n.op("Reshape", turned, n.c(np.array([9, 8]))), 0.05, U8(100))
    product = n.op("MatMul", n.both(rows, 0.04, U8(0)), n.weight(8, 6, axis=1))
    return {"x": (U8, [1, 8, 9])}, n.q(product, 0.2, U8(120))


def shared_constant(n: Net) -> Any:
    stored = n.c(n.random.integers(0, 256, 8).astype(U8))
    first = n.both(n.op("Add", n.dq("x", 0.05, U8(100)), n.dq(stored, 0.05, U8(90))), 0.1, U8(100))
    return {"x": (U8, [4, 8])}, n.q(n.op("Add", first, n.dq(stored, 0.02, U8(90))), 0.1, U8(100))


def negated(n: Net) -> Any:
    return {"x": (S8, [4, 8])}, n.q(n.op("Neg", n.dq("x", 0.05, S8(-5))), 0.05, S8(5))


def smallest(n: Net) -> Any:
    x = n.dq("x", 0.001, np.int16(-5))
    return {"x": (np.int16, [4, 8])}, n.q(n.op("ReduceMin", x, n.c(np.array([1]))), 0.001,
                                          np.int16(-5))  # fmt: skip


def hard_sigmoid(n: Net) -> Any:
    out = n.q(n.op("HardSigmoid", n.dq("x", 1e-4, U16(32768))), 1e-4, U16(100))
    return {"x": (U16, [4, 8])}, out


def converted_image(n: Net) -> Any:
    pool = n.both(n.op("MaxPool", n.dq("x", 0.05, U8(100)), kernel_shape=[2, 2]), 0.05, U8(100))
    return {"x": (U8, [1, 4, 6, 6])}, n.q(pool, 0.04, U8(90))


def narrow_operand(n: Net) -> Any:
    gemm = n.op("Gemm", n.dq("x", 0.05, U8(100)), n.weight(8, 6, axis=1))
    return {"x": (U8, [4, 8])}, n.q(gemm, 0.2 / 256, U16(30000))


def narrow_result(n: Net) -> Any:
    gemm = n.op("Gemm", n.dq("x", 0.05 / 256, U16(25000)), n.weight(8, 6, axis=1))
    return {"x": (U16, [4, 8])}, n.q(gemm, 0.2, U8(120))


AXES = [1, 2, 3, 4, 8]


def rows_of_five_axes(n: Net) -> Any:
    product = n.op("MatMul", n.dq("x", 0.05, U8(100)), n.weight(8, 6, axis=1))
    made = n.both(n.op("Tanh", n.both(product, 0.02, U8(120))), 1 / 127, U8(127))
    return {"x": (U8, AXES)}, n.q(n.op("LayerNormalization", made, n.floats(6)), 0.03, U8(130))


def matrices_of_five_axes(n: Net) -> Any:
    product = n.op("MatMul", n.dq("x", 0.05, U8(100)), n.dq("z", 0.04, U8(90)))
    return {"x": (U8, AXES), "z": (U8, [1, 2, 3, 8, 5])}, n.q(product, 0.3, U8(120))


def signed_rows_of_five_axes(n: Net) -> Any:
    rows = n.both(n.op("Flatten", n.dq("x", 0.05, S8(-5))), 0.05, S8(-5))
    return {"x": (S8, AXES)}, n.q(n.op("Add", rows, rows), 0.1, S8(-5))


def signed_concat_of_five_axes(n: Net) -> Any:
    joined = n.op("Concat", n.dq("x", 0.05, S8(-5)), n.dq("z", 0.08, S8(7)), axis=2)
    return {"x": (S8, AXES), "z": (S8, AXES)}, n.q(joined, 0.07, S8(3))


def functions_of_five_axes(n: Net) -> Any:
    floor = n.both(n.op("Floor", n.dq("x", 0.05, U8(100))), 0.05, U8(100))
    return {"x": (U8, AXES)}, n.q(n.op("Neg", floor), 0.05, U8(120))


def added_factor(n: Net) -> Any:
    """The second factor of a MatMul: a sum, turned, not quite around the middle."""
    x = n.dq("x", 0.02, U8(128))
    turned = n.both(n.op("Transpose", n.both(n.op("Add", x, x), 0.02, U8(118)), perm=[0, 2, 1]),
                    0.02, U8(118))  # fmt: skip
    return {"x": (U8, [1, 8, 8])}, n.q(n.op("MatMul", x, turned), 0.05, U8(128))


def narrow_weights(n: Net) -> Any:
    """Weights of 4 bits beside 16, with a stored bias: in finer steps of 8 bits."""
    codes = n.c(n.random.integers(-8, 8, (4, 3, 3, 3)).astype(S8))
    bias = n.dq(n.c(n.random.integers(-900, 900, 4).astype(np.int32)), 0.02 * 2e-4, np.int32(0))
    conv = n.op("Conv", n.dq("x", 2e-4, U16(30000)), n.dq(codes, 0.02, S8(0)), bias)
    return {"x": (U16, [1, 3, 8, 8])}, n.q(conv, 5e-5, U16(32000))


FIVE_AXES = [functions_of_five_axes, rows_of_five_axes, matrices_of_five_axes,
             signed_rows_of_five_axes, signed_concat_of_five_axes]  # fmt: skip
EXACT = [concat, attention, signed_attention, unrounded, wider, converted_rows, shared_constant,
         narrow_operand, converted_image, negated, smallest, added_factor, *FIVE_AXES]  # fmt: skip
NEAR = [
    float_conv,
    float_conv_of_int8,
    float_transposed,
    masked,
    float_norm,
    float_gelu,
    float_erf,
    quotient,
]
ROUNDED_TWICE = [softmax_around_0, wide_sigmoid, hard_sigmoid, narrow_result]
RULES = {
    "concat": "lost-clamp", "attention": "quantized-divisor",
    "signed_attention": "quantized-divisor", "norm": "instance-norm-parameters",
    "float_conv": "float-padding", "float_conv_of_int8": "float-padding",
    "float_transposed": "float-padding",
    "masked": "no-float-where", "float_norm": "instance-norm-parameters",
    "float_gelu": "no-float-gelu", "float_erf": "no-erf", "quotient": "float-quotient",
    "unrounded": "wide-before-floats", "softmax_around_0": "fixed-encodings",
    "wide_sigmoid": "fixed-encodings", "wider": "lost-clamp", "converted_rows": "early-conversion",
    "shared_constant": "one-encoding", "narrow_operand": "one-width", "narrow_result": "one-width",
    "converted_image": "converted-image", "negated": "taken-of-type",
    "smallest": "taken-of-type", "hard_sigmoid": "fixed-encodings",
    "added_factor": "moved-factor",
    **{build.__name__: "up-to-four-axes" for build in FIVE_AXES},
}  # fmt: skip


def feeds(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    random, found = np.random.default_rng(3), dict[str, np.ndarray[Any, Any]]()
    for value in graph.inputs:
        shape = [dim for dim in value.type.shape or () if isinstance(dim, int)]
        if value.type.dtype.is_float:
            found[value.name] = random.normal(size=shape).astype(np.float32)
            continue
        info = np.iinfo(value.type.dtype.numpy)
        found[value.name] = random.integers(info.min, info.max + 1, shape).astype(info.dtype)
    return found


@pytest.mark.parametrize(
    "build", [*EXACT, *NEAR, *ROUNDED_TWICE, norm], ids=lambda build: build.__name__
)
def test_the_rule_is_broken_as_spelled_and_kept_as_written(
    build: Callable[[Net], Any], tmp_path: Path
) -> None:
    net = Net()
    inputs, out = build(net)
    source = saved(net, inputs, out, tmp_path / "source.onnx")
    rule = RULES[build.__name__]
    assert rule in {finding.rule for finding in check(source, "qnn")}
    graph = qdqbridge.load(source)
    digest = graph.digest
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    assert graph.digest == digest  # a copy is legalized
    assert rule not in {finding.rule for finding in check(tmp_path / "written.onnx", "qnn")}
    again = qdqbridge.load(tmp_path / "written.onnx")
    data = feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    assert ours.dtype == theirs.dtype
    if build in EXACT:
        np.testing.assert_array_equal(theirs, ours)
    elif build in ROUNDED_TWICE:  # in the backend's own steps first, which is told
        assert np.abs(theirs.astype(int) - ours.astype(int)).max() <= 1
        assert legalized(graph, LEGALIZATIONS).notes
    elif build is norm:  # a bias of floats in int32: far below a step of the result
        assert np.abs(theirs.astype(int) - ours.astype(int)).max() == 0
    else:  # floats are summed in another order
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)


def gelu(n: Net) -> Any:
    x = n.dq("x", 0.05, U8(120))
    erf = n.op("Erf", n.op("Div", x, n.dq(n.c(U8(255)), 1.4142135 / 255, U8(0))))
    gate = n.op("Add", n.both(erf, 2 / 255, U8(127)), n.dq(n.c(U8(255)), 1 / 255, U8(0)))
    product = n.both(n.op("Mul", x, n.both(gate, 2 / 255, U8(0))), 0.1, U8(4))
    half = n.dq(n.c(U8(255)), 0.5 / 255, U8(0))
    return {"x": (U8, [2, 64])}, n.q(n.op("Mul", product, half), 0.03, U8(6))


def test_a_gelu_of_steps_is_whole_and_its_cost_is_told(tmp_path: Path) -> None:
    net = Net()
    inputs, out = gelu(net)
    graph = qdqbridge.load(saved(net, inputs, out, tmp_path / "gelu.onnx", 17))
    found = legalized(graph, LEGALIZATIONS)
    assert [node.op.name for node in found.nodes] == ["Gelu"]
    (cost,) = found.notes
    assert (cost.rule, cost.reason) == ("no-erf", "Gelu is rounded once, not 4 times")
    data = feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, found))
    (real,) = qdqbridge.evaluate(found, data, exact=True).values()
    assert np.abs(theirs.astype(int) - ours.astype(int)).max() <= 2
    np.testing.assert_array_equal(theirs, real)


def test_blocks_become_channels_and_the_loss_is_told(tmp_path: Path) -> None:
    net = Net()
    weight = net.c(net.random.integers(-8, 8, (32, 6)).astype(S8))
    scales = net.random.uniform(0.01, 0.02, (4, 6)).astype(np.float32)
    real = net.op("DequantizeLinear", weight, net.c(scales), axis=0, block_size=8)
    out = net.q(net.op("MatMul", net.dq("x", 0.05, U8(120)), real), 0.2, U8(120))
    graph = qdqbridge.load(saved(net, {"x": (U8, [4, 32])}, out, tmp_path / "blocks.onnx"))
    found = legalized(graph, LEGALIZATIONS)
    (cost,) = found.notes
    assert cost.rule == "no-blocks"
    assert "blocks of 8, now int8 per channel" in cost.reason
    assert float(cost.reason.split(":")[1].split()[0]) > 40  # dB
    data = feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, found))
    assert np.abs(theirs.astype(int) - ours.astype(int)).max() <= 1
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    assert "no-blocks" not in {f.rule for f in check(tmp_path / "written.onnx", "qnn")}


def test_half_biases_are_integers_and_int4_convolutions_bytes(tmp_path: Path) -> None:
    net, half = Net(), np.float16
    four = net.c(net.random.integers(-8, 8, (4, 3, 1, 1)).astype(S8))
    net.constants[-1].CopyFrom(
        helper.make_tensor(four, TensorProto.INT4, [4, 3, 1, 1], net.random.integers(-8, 8, 12))
    )
    zero = net.c(np.zeros((), S8))
    net.constants[-1].CopyFrom(helper.make_tensor(zero, TensorProto.INT4, [], [0]))
    x = net.op("DequantizeLinear", "x", net.c(half(0.02)), net.c(U8(100)))
    weight = net.op("DequantizeLinear", four, net.c(half(0.05)), zero)
    bias = net.c(net.random.normal(size=4).astype(half))
    conv = net.op("Conv", x, weight, bias)
    out = net.op("QuantizeLinear", conv, net.c(half(0.05)), net.c(U8(128)))
    source = saved(net, {"x": (U8, [1, 3, 5, 5])}, out, tmp_path / "half.onnx")
    rules = {"half-bias", "narrow-convolution"}
    assert rules <= {finding.rule for finding in check(source, "qnn")}
    graph = qdqbridge.load(source)
    assert any(cost.rule == "half-bias" for cost in legalized(graph, LEGALIZATIONS).notes)
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    assert not rules & {finding.rule for finding in check(tmp_path / "written.onnx", "qnn")}
    again, data = qdqbridge.load(tmp_path / "written.onnx"), feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    assert np.abs(theirs.astype(int) - ours.astype(int)).max() <= 1  # the bias is rounded


def test_int16_is_converted_at_the_interface_and_uint16_inside(tmp_path: Path) -> None:
    net = Net()
    wide = np.int16
    weight = net.dq(net.c(net.random.integers(-127, 128, (4, 4, 3, 3)).astype(S8)), 0.01, S8(0))
    out = net.q(net.op("Conv", net.dq("x", 1e-3, wide(-20)), weight), 0.01, wide(7))
    source = saved(net, {"x": (wide, [1, 4, 6, 6])}, out, tmp_path / "int16.onnx")
    graph = qdqbridge.load(source)
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    again = qdqbridge.load(tmp_path / "written.onnx")
    stored = {v.quant.params.storage_dtype.name for v in again.values() if v.quant}
    assert "UINT16" in stored
    assert [v.type.dtype for v in again.inputs] == [v.type.dtype for v in graph.inputs]
    data = feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    np.testing.assert_array_equal(theirs, ours)


def test_converted_numbers_are_clamped_once(tmp_path: Path) -> None:
    net, wide = Net(), np.int16
    product = net.op("MatMul", net.dq("x", 1e-3, wide(-20)), net.weight(8, 6, axis=1))
    low, high = net.c(np.float32(-0.5)), net.c(np.float32(0.5))
    clip = net.op("Clip", net.both(product, 1e-3, wide(7)), low, high)
    source = saved(net, {"x": (wide, [4, 8])}, net.q(clip, 1e-3, wide(7)), tmp_path / "clip.onnx")
    graph = qdqbridge.load(source)
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    written = onnx.load(tmp_path / "written.onnx")
    assert sum(node.op_type in ("Min", "Clip") for node in written.graph.node) == 1
    assert "unsigned" not in {finding.rule for finding in check(tmp_path / "written.onnx", "qnn")}
    again, data = qdqbridge.load(tmp_path / "written.onnx"), feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize(
    ("dtype", "zero"), [(U8, 0), (S8, -128), (U16, 30000), (np.int16, 5)], ids=str
)
def test_16_bits_and_the_smallest_number_are_padded_right(
    dtype: Any, zero: int, tmp_path: Path
) -> None:
    net = Net()
    x = net.dq("x", 0.03, dtype(zero))
    out = net.op("Conv", x, net.weight(4, 3, 3, 3), pads=[1] * 4)
    source = saved(net, {"x": (dtype, [1, 3, 5, 5])}, out, tmp_path / "padded.onnx")
    assert "float-padding" not in {finding.rule for finding in check(source, "qnn")}


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("bias", ["float", "int32", "uint8"])
@pytest.mark.parametrize("clamped", [False, True])
def test_a_sum_behind_a_product_is_its_bias(
    clamped: bool, bias: str, rank: int, tmp_path: Path
) -> None:
    net = Net()
    product = net.op("MatMul", net.dq("x", 0.05, U8(9)), net.weight(8, 6, axis=1))
    scales = 0.05 * np.linspace(0.01, 0.02, 6)
    stored = net.c(net.random.integers(-900, 900, 6).astype(np.int32))
    terms = {
        "float": net.floats(6),
        "int32": net.dq(stored, scales, np.zeros(6, np.int32), axis=0),
        "uint8": net.dq(net.c(np.arange(6, dtype=U8)), 0.05, U8(3)),
    }
    sum_ = net.op("Add", product, terms[bias])
    out = net.q(net.op("Relu", sum_) if clamped else sum_, 0.2, U8(9))
    shape = [2, 3, 4, 8][-rank:]
    source = saved(net, {"x": (U8, shape)}, out, tmp_path / "biased.onnx")
    rules = {finding.rule for finding in check(source, "qnn")}
    whole = bias != "uint8" and not clamped
    assert ("whole-node-unit" in rules) is not whole
    assert ("float-products" in rules) is not whole
    gemm = bias == "int32" or (bias == "float" and rank == 2)
    assert ("clamp-behind-pair" in rules) is (clamped and gemm)


@pytest.mark.parametrize(
    ("op_type", "rule"),
    [
        ("Softsign", "no-such-operator"), ("Selu", "not-made"), ("ThresholdedRelu", "not-made"),
        ("Mish", "inner-mish"), ("Abs", ""), ("Floor", ""), ("Round", ""),
    ],
)  # fmt: skip
def test_operators_that_the_backend_lacks_are_named(
    op_type: str, rule: str, tmp_path: Path
) -> None:
    net = Net()
    out = net.q(net.op(op_type, net.dq("x", 0.05, U8(100))), 0.05, U8(100))
    source = saved(net, {"x": (U8, [4, 8])}, out, tmp_path / "unary.onnx")
    assert {finding.rule for finding in check(source, "qnn")} == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("op_type", "lost"), [("ReduceMax", False), ("ReduceMean", False), ("ReduceSum", True)]
)
def test_a_reduction_is_clamped_before_a_concat(op_type: str, lost: bool, tmp_path: Path) -> None:
    net = Net()
    made = net.op(op_type, net.dq("x", 0.1, U8(128)), net.c(np.array([1])))
    joined = net.op("Concat", net.both(made, 0.02, U8(0)), net.dq("z", 0.05, U8(30)), axis=1)
    out = net.q(joined, 0.1, U8(100))
    given = {"x": (U8, [1, 4, 6]), "z": (U8, [1, 4, 6])}
    source = saved(net, given, out, tmp_path / "joined.onnx")
    assert ("lost-clamp" in {finding.rule for finding in check(source, "qnn")}) is lost


def test_small_weights_beside_16_bits_fill_their_8_bits(tmp_path: Path) -> None:
    net = Net()
    inputs, out = narrow_weights(net)
    source = saved(net, inputs, out, tmp_path / "source.onnx")
    before = max(finding.steps for finding in check(source, "qnn-v73"))
    graph = qdqbridge.load(source)
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn-v73")
    again = qdqbridge.load(tmp_path / "written.onnx")
    (node,) = (node for node in again.nodes if node.op.name == "Conv")
    weight, bias = node.operand(1), node.operand(2)
    assert weight.constant is not None and weight.quant is not None and bias.quant is not None
    assert weight.constant.numpy().min() == -8 * 16
    assert weight.quant.params.scale == np.float32(0.02) / 16
    data = feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    np.testing.assert_array_equal(theirs, ours)
    assert max(f.steps for f in check(tmp_path / "written.onnx", "qnn-v73")) < before / 8


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("product", ["Conv", "MatMul"])
def test_weights_of_16_bits_are_two_of_8(product: str, channels: bool, tmp_path: Path) -> None:
    net, image = Net(), product == "Conv"
    shape, axis = ((4, 3, 3, 3), 0) if image else ((16, 4), 1)
    stored = net.random.integers(-32767, 32767, shape).astype(np.int16)
    scales = np.linspace(1e-5, 2e-5, 4).astype(np.float32) if channels else np.float32(2e-5)
    along = {"axis": axis} if channels else {}
    weight = net.dq(net.c(stored), scales, np.zeros(scales.shape, np.int16), **along)
    operands = [net.dq("x", 2e-5, U16(30000)), weight]
    operands += [net.c(np.linspace(-0.1, 0.1, 4).astype(np.float32))] if image else []
    out = net.q(net.op(product, *operands), 6e-5, U16(32000))
    given = {"x": (U16, [1, 3, 8, 8] if image else [2, 16])}
    source = saved(net, given, out, tmp_path / "source.onnx")
    assert "wide-weights" in {finding.rule for finding in check(source, "qnn")}
    graph = qdqbridge.load(source)
    assert any("two of 8" in cost.reason for cost in legalized(graph, LEGALIZATIONS).notes)
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    found = {finding.rule for finding in check(tmp_path / "written.onnx", "qnn")}
    assert found == {"wide-arithmetic"}
    again, data = qdqbridge.load(tmp_path / "written.onnx"), feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    assert ours.min() > 0 and ours.max() < (1 << 16) - 1
    assert np.abs(theirs.astype(int) - ours.astype(int)).max() <= 2  # rounded three times


def parameter(net: Net, dtype: Any, scale: float, codes: Any, *, channels: bool) -> str:
    """A stored vector with one scale, or one for each of its numbers."""
    stored = net.c(codes.astype(dtype))
    if not channels:
        return net.dq(stored, scale, dtype(0))
    scales = scale * np.linspace(0.5, 1, len(codes))
    return net.dq(stored, scales, np.zeros(len(codes), dtype), axis=0)


@pytest.mark.parametrize("channels", [(True, False), (False, True)])
@pytest.mark.parametrize(
    ("norm", "rule"),
    [("InstanceNormalization", "instance-norm"), ("LayerNormalization", "norm")],
)
def test_norms_with_parameters_of_many_scales_have_one(
    norm: str, rule: str, channels: tuple[bool, bool], tmp_path: Path
) -> None:
    net = Net()
    gain, bias = np.arange(50, 58), np.arange(-4000, 4000, 1000)
    operands = [
        net.dq("x", 0.02, U8(120)),
        parameter(net, S8, 0.01, gain, channels=channels[0]),
        parameter(net, np.int32, 1e-4, bias, channels=channels[1]),
    ]
    shape = [1, 8, 6, 6] if norm.startswith("Instance") else [1, 6, 8]
    out = net.q(net.op(norm, *operands), 0.03, U8(125))
    source = saved(net, {"x": (U8, shape)}, out, tmp_path / "source.onnx", 21)
    assert f"{rule}-parameters" in {finding.rule for finding in check(source, "qnn")}
    graph = qdqbridge.load(source)
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    assert check(tmp_path / "written.onnx", "qnn") == []
    again, data = qdqbridge.load(tmp_path / "written.onnx"), feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    assert np.abs(theirs.astype(int) - ours.astype(int)).max() <= 1  # a scale is rounded to 8 bits


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_a_norm_of_16_bits_is_scaled_and_moved_behind_it(
    stored: bool, biased: bool, tmp_path: Path
) -> None:
    net, wide = Net(), np.int16
    gain = np.linspace(0.5, 1.3, 32).astype(np.float32)
    numbers = net.dq(net.c(np.rint(gain / 5e-5).astype(wide)), 5e-5, wide(0))
    operands = [net.dq("x", 1e-4, U16(30000)), numbers if stored else net.c(gain)]
    operands += [net.c(np.linspace(-0.3, 0.4, 32).astype(np.float32))] if biased else []
    out = net.q(net.op("LayerNormalization", *operands), 1e-4, U16(32000))
    source = saved(net, {"x": (U16, [2, 8, 32])}, out, tmp_path / "source.onnx", 21)
    graph = qdqbridge.load(source)
    found = legalized(graph, LEGALIZATIONS)
    steps = ["LayerNormalization", "Mul", *(["Add"] if biased else [])]
    assert [node.op.name for node in found.nodes] == steps
    assert any("rounded three times" in cost.reason for cost in found.notes)
    before = max(finding.steps for finding in check(source, "qnn"))
    qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")
    assert max(finding.steps for finding in check(tmp_path / "written.onnx", "qnn")) < before / 8
    again, data = qdqbridge.load(tmp_path / "written.onnx"), feeds(graph)
    (ours,), (theirs,) = (qdqbridge.evaluate(g, data).values() for g in (graph, again))
    assert np.abs(theirs.astype(int) - ours.astype(int)).max() <= 2


@pytest.mark.parametrize("zero", [100, 111, 112, 127, 128, 144, 145])
@pytest.mark.parametrize("made", ["Add", "MatMul", "Mul", ""])
def test_a_factor_near_the_middle_of_its_type_is_moved_there(
    made: str, zero: int, tmp_path: Path
) -> None:
    net = Net()
    x = net.dq("x", 0.02, U8(128))
    factor = net.both(net.op(made, x, x) if made else x, 0.02, U8(zero))
    out = net.q(net.op("MatMul", x, factor), 0.05, U8(128))
    source = saved(net, {"x": (U8, [1, 8, 8])}, out, tmp_path / "factor.onnx")
    moved = made in ("Add", "MatMul") and zero in (112, 127, 144)
    assert ("moved-factor" in {finding.rule for finding in check(source, "qnn")}) is moved


def test_a_movement_keeps_its_encoding(tmp_path: Path) -> None:
    for kept in (True, False):
        net = Net()
        moved = net.op("Gather", net.dq("x", 0.05, U8(100)), net.c(np.array([1, 0])), axis=1)
        out = net.q(moved, 0.05 if kept else 0.06, U8(100))
        source = saved(net, {"x": (U8, [4, 8])}, out, tmp_path / f"{kept}.onnx")
        rules = {finding.rule for finding in check(source, "qnn")}
        assert ("moved-encoding" in rules) is not kept


def test_export_tells_what_it_costs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    net = Net()
    inputs, out = gelu(net)
    source = saved(net, inputs, out, tmp_path / "gelu.onnx", 17)
    written = str(tmp_path / "written.onnx")
    assert run(["export", str(source), "-o", written, "--profile", "qnn"]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "rule no-erf" in said
    assert "Gelu is rounded once, not 4 times" in said


def test_a_constant_has_one_scale_per_tensor(tmp_path: Path) -> None:
    net, code = Net(), None
    x, out = net.dq("x", 0.05, U8(0)), ""
    for scale in (0.1, 0.2):
        code = code or net.c(U8(127))
        conv = net.both(net.op("Conv", x, net.weight(4, 4, 1, 1)), scale, U8(0))
        out = net.q(net.op("Min", conv, net.dq(code, scale, U8(0))), scale, U8(0))
        x = net.dq(out, scale, U8(0))
    source = saved(net, {"x": (U8, [1, 4, 5, 5])}, out, tmp_path / "shared.onnx")
    assert "one-encoding" in {finding.rule for finding in check(source, "qnn")}
    qdqbridge.save(qdqbridge.load(source), tmp_path / "written.onnx", "qnn")
    assert check(tmp_path / "written.onnx", "qnn") == []
    assert qdqbridge.load(tmp_path / "written.onnx").digest == qdqbridge.load(source).digest


def test_a_round_of_floats_is_refused_by_name(tmp_path: Path) -> None:
    net = Net()
    real = net.op("Sigmoid", net.dq("x", 0.05, U8(120)))
    out = net.q(net.op("Round", real), 0.2, U8(120))
    graph = qdqbridge.load(saved(net, {"x": (U8, [4, 8])}, out, tmp_path / "round.onnx"))
    assert "no-round" in {f.rule for f in check(tmp_path / "round.onnx", "qnn")}
    with pytest.raises(UnsupportedTargetError, match="--decomposed"):
        qdqbridge.save(graph, tmp_path / "written.onnx", "qnn")


# ---- opsets ---------------------------------------------------------------------------------


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[Path]:
    """A file of the newest opset, whose operators older ones have as well."""
    net = Net()
    out = net.q(net.op("Relu", net.dq("x", 0.05, U8(120))), 0.05, U8(120))
    path = saved(net, {"x": (U8, [4, 8])}, out, tmp_path / "newest.onnx", 28)
    model = onnx.load(path)
    model.ir_version = 14
    onnx.save(model, path)
    yield path


@pytest.mark.parametrize("profile", ["ort", "qnn", "qoperator"])
def test_newer_files_are_written_down_to_what_a_runtime_reads(
    newest: Path, profile: AnyProfileName, tmp_path: Path
) -> None:
    graph = qdqbridge.load(newest)
    assert graph.opset == 28
    assert "versions" in {finding.rule for finding in check(newest, profile)}
    qdqbridge.save(graph, tmp_path / "written.onnx", profile)
    model = onnx.load(tmp_path / "written.onnx")
    assert model.opset_import[0].version == 26
    assert model.ir_version <= 13
    assert "versions" not in {f.rule for f in check(tmp_path / "written.onnx", profile)}


@pytest.mark.parametrize("opset", [13, 17, 21, 28])
def test_an_opset_is_chosen(newest: Path, opset: int, tmp_path: Path) -> None:
    graph = qdqbridge.load(newest)
    qdqbridge.save(graph, tmp_path / "written.onnx", opset=opset)
    assert onnx.load(tmp_path / "written.onnx").opset_import[0].version == opset
    assert qdqbridge.load(tmp_path / "written.onnx").digest == graph.digest


@pytest.mark.parametrize(
    ("opset", "said"), [(12, "there is no opset 12"), (99, "there is no opset 99")]
)
def test_an_opset_that_there_is_not(newest: Path, opset: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTargetError, match=said):
        qdqbridge.save(qdqbridge.load(newest), tmp_path / "written.onnx", opset=opset)
    assert not (tmp_path / "written.onnx").exists()


def test_an_opset_that_cannot_say_it_is_refused_by_name(tmp_path: Path) -> None:
    net = Net()
    out = net.q(net.op("Relu", net.dq("x", 0.05, U16(120))), 0.05, U16(120))
    graph = qdqbridge.load(saved(net, {"x": (U16, [4, 8])}, out, tmp_path / "wide.onnx"))
    with pytest.raises(UnsupportedTargetError, match="opset 17 cannot express") as caught:
        qdqbridge.save(graph, tmp_path / "written.onnx", opset=17)
    assert "tensors stored as uint16: 21 to 28" in caught.value.why


def test_an_operator_that_is_newer_than_the_runtime_is_refused_by_name(tmp_path: Path) -> None:
    net = Net()
    out = net.op("SwiGLU", "x", "y")
    path = saved(
        net, {"x": (np.float32, [4, 8]), "y": (np.float32, [4, 8])}, out, tmp_path / "s.onnx", 28
    )
    graph = qdqbridge.load(path)
    with pytest.raises(UnsupportedTargetError, match="no opset up to 26") as caught:
        qdqbridge.save(graph, tmp_path / "written.onnx")
    assert "SwiGLU" in caught.value.why
    assert "--opset" in caught.value.fix
    qdqbridge.save(graph, tmp_path / "written.onnx", opset=28)
    assert qdqbridge.load(tmp_path / "written.onnx").digest == graph.digest


@pytest.mark.parametrize(("low", "high", "steps"), [(-1.5, 90.0, 71), (-90.0, 1.5, 126)])
def test_a_clip_of_one_end_says_how_much_it_may_lose(
    low: float, high: float, steps: int, tmp_path: Path
) -> None:
    net = Net()
    x = net.dq("x", 0.05, U8(100))
    pair = net.both(net.op("Add", x, x), 0.05, U8(100))
    clip = net.op("Clip", pair, net.c(np.float32(low)), net.c(np.float32(high)))
    source = saved(net, {"x": (U8, [4, 8])}, net.q(clip, 0.05, U8(100)), tmp_path / "clip.onnx")
    (found,) = (f for f in check(source, "qnn") if f.rule == "clip-of-two-ends")
    assert found.steps == steps


def test_a_product_behind_a_lost_clamp_makes_more_of_it(tmp_path: Path) -> None:
    told: list[int] = []
    for scale in (9.0, 0.01):  # of the product's result
        net = Net()
        kept = net.both(net.op("Sub", net.dq("x", 0.1, U8(128)), net.dq("x", 0.05, U8(3))),
                        0.02, U8(20))  # fmt: skip
        joined = net.both(net.op("Concat", kept, net.dq("x", 0.02, U8(20)), axis=1), 0.3, U8(90))
        out = net.q(net.op("Conv", joined, net.weight(4, 8, 1, 1)), scale, U8(100))
        path = tmp_path / f"{scale}.onnx"
        source = saved(net, {"x": (U8, [1, 4, 3, 3])}, out, path)
        told += [f.steps for f in check(source, "qnn") if f.rule == "lost-clamp"]
    assert 0 < told[0] < told[1] == 255
