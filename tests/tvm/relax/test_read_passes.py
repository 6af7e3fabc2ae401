"""What TVM's ordinary high-level passes leave is still the same graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import onnx
import pytest

from tests.places import MODELS

pytest.importorskip("tvm")

import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

import qdqbridge as qb
from qdqbridge.options import RelaxVariant
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.frontend_cases import imported
from tests.tvm.relax.read_cases import same
from tests.tvm.relax.targets import compiled

pytestmark = pytest.mark.relax

FOLDER = MODELS
T = relax.transform
Array = np.ndarray[Any, Any]


class Net(Builder):
    """A builder with seeded weights."""

    rng = np.random.default_rng(0)

    def weight_of(self, *shape: int) -> str:
        return self.init(self.rng.normal(0, 0.2, shape).astype(np.float32))


def residual() -> onnx.ModelProto:
    """A convolution, a depthwise one beside it, a norm of batches, a classifier."""
    b = Net(17)
    w = b.weight_of
    x = b.op("Relu", b.op("Conv", b.input("x", [1, 3, 8, 8]), w(8, 3, 3, 3), w(8), pads=[1] * 4))
    y = b.op("Relu", b.op("Conv", x, w(8, 1, 3, 3), w(8), group=8, pads=[1] * 4))
    x = b.op("MaxPool", b.op("Add", y, x), kernel_shape=[2, 2], strides=[2, 2])
    variance = b.init(np.linspace(0.5, 2, 8).astype(np.float32))
    x = b.op("Conv", b.op("Concat", x, b.op("Sigmoid", x), axis=1), w(8, 16, 1, 1))
    x = b.op("BatchNormalization", x, w(8), w(8), w(8), variance)
    x = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", x)))
    b.output(b.op("Softmax", b.op("Gemm", x, w(8, 10), w(10)), axis=-1), [1, 10])
    return b.model()


def attention() -> onnx.ModelProto:
    """A norm, attention with two heads, a Gelu in steps."""
    b = Net(17)
    w = b.weight_of
    heads, whole = (b.init(np.array(s, np.int64)) for s in ([1, 8, 2, 8], [1, 8, 16]))
    x = b.input("x", [1, 8, 16])
    h = b.op("LayerNormalization", x, w(16), w(16), axis=-1)
    parts = [b.op("Reshape", b.op("Add", b.op("MatMul", h, w(16, 16)), w(16)), heads)
             for _ in range(3)]  # fmt: skip
    turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (b.op("Transpose", p, perm=t) for p, t in zip(parts, turns, strict=True))
    scores = b.op("Softmax", b.op("Div", b.op("MatMul", q, k), b.init(np.float32(2.5))), axis=-1)
    mixed = b.op("Transpose", b.op("MatMul", scores, v), perm=[0, 2, 1, 3])
    x = b.op("Add", x, b.op("MatMul", b.op("Reshape", mixed, whole), w(16, 16)))
    h = b.op("MatMul", x, w(16, 32))
    inner = b.op("Erf", b.op("Div", h, b.init(np.float32(1.414))))
    gate = b.op("Mul", h, b.op("Add", inner, b.init(np.float32(1))))
    b.output(b.op("Add", x, b.op("MatMul", gate, w(32, 16))), [1, 8, 16])
    return b.model()


def stored(name: str) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.load(FOLDER / f"{name}.onnx")


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual,
    "attention": attention,
    "quantized": stored("digits_cnn_u8s8_per_channel"),
    "quantized attention": stored("digits_attention_u8s8_per_channel"),
}
FLOATS = ("residual", "attention")
SOURCES = ("qnn", "qdq", "importer")
CONVOLUTION = is_op("relax.nn.relu")(is_op("relax.nn.conv2d")(wildcard(), wildcard()))


@cache
def proto(net: str) -> onnx.ModelProto:
    return NETS[net]()


@cache
def graph_of(net: str) -> qb.Graph:
    return canonical(proto(net))


def module_of(net: str, source: RelaxVariant | Literal["importer"]) -> Any:
    if source == "importer":
        return imported(proto(net))
    return qb.to_relax(graph_of(net), variant=source)[0]


PASSES: dict[str, Any] = {
    "dead code": T.DeadCodeElimination(),
    "common subexpressions": T.EliminateCommonSubexpr(),
    "bindings": T.CanonicalizeBindings(),
    "NHWC": T.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
    "HWIO": T.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}),
    "decomposed": T.DecomposeOpsForInference(),
    "composites": T.FuseOpsByPattern([("test.conv", CONVOLUTION)], annotate_codegen=False),
    "regions": T.FuseOpsByPattern([("test.conv", CONVOLUTION)], annotate_codegen=True),
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("net", NETS)
def test_the_graph_is_the_same(
    net: str, source: RelaxVariant | Literal["importer"], name: str
) -> None:
    same(qb.from_relax(PASSES[name](module_of(net, source))), graph_of(net))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("net", NETS)
def test_after_folding(net: str, source: RelaxVariant | Literal["importer"]) -> None:
    """The same, but where a pass has computed weights from their codes: these are floats then."""
    graph = graph_of(net)
    again = qb.from_relax(T.FoldConstant()(module_of(net, source)))
    if net in FLOATS or source == "qnn":
        same(again, graph)
        return
    codes, left = (sum(v.is_constant and v.quant is not None for v in g.values())
                   for g in (graph, again))  # fmt: skip
    assert left < codes
    x = {graph.inputs[0].name: np.load(FOLDER / "digits_test.npz")["x"][:16]}
    (ours,), (wanted,) = (qb.evaluate(g, x).values() for g in (again, graph))
    assert (ours.argmax(1) == wanted.argmax(1)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("net", FLOATS)
def test_mixed_precision_is_computed_as_tvm_does(net: str, dtype: str) -> None:
    module = T.ToMixedPrecision(out_dtype=dtype)(module_of(net, "importer"))
    graph = qb.from_relax(module)
    assert any(node.op.name == "Cast" for node in graph.nodes)
    shape: Any = graph.inputs[0].type.shape
    x = np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
    (ours,) = qb.evaluate(graph, {graph.inputs[0].name: x}).values()
    cpu: Any = tvm.cpu()
    machine = relax.VirtualMachine(compiled(module), cpu)
    theirs = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert ours.dtype == theirs.dtype
    # Sums of half floats in another order: a few units of their last place (2^-10).
    np.testing.assert_allclose(ours, theirs, rtol=4e-3, atol=4e-3)
