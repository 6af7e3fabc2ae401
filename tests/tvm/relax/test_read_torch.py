"""What TVM's PyTorch frontend writes, in modules built here: PyTorch is not needed for these."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax, tirx

import qdqbridge as qb
from qdqbridge.errors import UnsupportedModelError, UnsupportedQuantization
from qdqbridge.tvm.relax.frontends import converters, imported
from tests.onnx_models import Builder, canonical, ints, ops
from tests.tvm.relax.read_cases import read_back, same

pytestmark = pytest.mark.relax

Make = Callable[[Any], Any]
op: Any = relax.op  # its annotations know no symbolic extents


def module(make: Make, *shape: Any, dtype: str = "float32") -> Any:
    """A module of one parameter; ``make`` gets the block builder's environment and it."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape), dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(make(SimpleNamespace(block_builder=bb, env={"x": x})))
        bb.emit_func_output(result)
    return bb.get()


def node(name: str, *args: Any, **kwargs: Any) -> Any:
    return SimpleNamespace(name=name, target=name, args=args, kwargs=kwargs)


# ---- quantized_decomposed ----------------------------------------------------------------------

SCALES = np.array([0.5, 0.25, 0.125], np.float64)  # PyTorch keeps them so


def convert(importer: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Adds an operator of ``quantized_decomposed``; a string among its arguments is a tensor."""
    constants = {"scales": SCALES, "zeros": np.zeros(3, np.int64), "scale": np.array([0.25])}
    made = node(name, *args, **kwargs)
    made.args = tuple(SimpleNamespace(name=a) if a in constants else a for a in args)
    return converters(constants)[name](made, importer)


def test_a_quantized_convolution_is_that_of_onnx() -> None:
    weight = ints((3, 2, 3, 3))

    def network(importer: Any) -> Any:
        env, emit = importer.env, importer.block_builder.emit
        args = (0.03125, 100, 0, 255, "torch.uint8")
        env["q"] = convert(importer, "quantize_per_tensor.default", "x", *args)
        x = convert(importer, "dequantize_per_tensor.default", "q", *args)
        env["w"] = relax.const(weight)
        per_channel = ("scales", "zeros", 0, -128, 127, "torch.int8")
        w = convert(importer, "dequantize_per_channel.default", "w", *per_channel)
        bias = relax.const(np.array([[[[1.5]], [[-2.0]], [[0.25]]]], np.float32))
        y = emit(relax.op.add(emit(relax.op.nn.conv2d(x, w, padding=1)), bias))
        env["y"] = emit(relax.op.nn.relu(y))
        last = ("scale", 0, -128, 127, "torch.int8")
        env["z"] = convert(importer, "quantize_per_tensor.tensor", "y", *last)
        return convert(importer, "dequantize_per_tensor.tensor", "z", *last)

    b = Builder(17)
    x = b.qdq(b.input("x", [1, 2, 5, 5]), 0.03125, 100)
    w = b.weight(weight, SCALES.astype(np.float32), axis=0)
    y = b.op("Conv", x, w, b.init(np.array([1.5, -2.0, 0.25], np.float32)), pads=[1, 1, 1, 1])
    b.output(b.qdq(b.op("Relu", y), 0.25, 0, np.int8))
    same(qb.from_relax(module(network, 1, 2, 5, 5)), canonical(b.model()))


def test_a_narrower_range_is_kept() -> None:
    """Quantizers with reduce_range store 0 to 127 in uint8; PyTorch's ONNX exporter forgets it."""

    def network(importer: Any) -> Any:
        args = (0.5, 3, 0, 127, "torch.uint8")
        importer.env["q"] = convert(importer, "quantize_per_tensor.default", "x", *args)
        return convert(importer, "dequantize_per_tensor.default", "q", *args)

    graph = qb.from_relax(module(network, 4))
    quant = graph.nodes[0].output.quant
    assert quant is not None and (quant.params.qmin, quant.params.qmax) == (0, 127)
    (result,) = qb.evaluate(graph, {"x": np.array([-9, 0, 61.9, 900], np.float32)}).values()
    assert result.tolist() == [-1.5, 0, 62, 62]


def test_missing_zero_points_are_zeros() -> None:
    def network(importer: Any) -> Any:
        importer.env["w"] = relax.const(ints((3, 4)))
        args = ("w", "scales", None, 0, -128, 127, "torch.int8")
        w = convert(importer, "dequantize_per_channel.default", *args)
        return importer.block_builder.emit(relax.op.add(w, importer.env["x"]))

    graph = qb.from_relax(module(network, 3, 4))
    (result,) = qb.evaluate(graph, {"x": np.zeros((3, 4), np.float32)}).values()
    assert np.array_equal(result, ints((3, 4)) * SCALES[:, None].astype(np.float32))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((0.5, 0, 0, 15, "torch.int32"), "integers are torch.int32"),
        ((SimpleNamespace(name="computed"), 0, 0, 255, "torch.uint8"), "scale is computed"),
    ],
)
def test_what_cannot_be_read_is_refused(args: tuple[Any, ...], why: str) -> None:
    made = node("quantize_per_tensor.tensor", "x", *args)
    with pytest.raises(UnsupportedQuantization) as error:
        converters({})["quantize_per_tensor.tensor"](made, SimpleNamespace(env={}))
    assert why.replace("torch.", "") in error.value.why


def test_a_missing_library_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="needs no_such_library") as error:
        imported("no_such_library.part", "from_torch", "no-such-library")
    assert "pip install no-such-library" in error.value.fix


# ---- operators as the frontend writes them -----------------------------------------------------


def normed(**options: Any) -> Make:
    batch_norm: Any = relax.op.nn.batch_norm

    def make(importer: Any) -> Any:
        numbers = (np.arange(1, 4, dtype=np.float32) + i for i in range(4))
        vectors = [relax.const(vector) for vector in numbers]
        emit = importer.block_builder.emit
        return emit(emit(batch_norm(importer.env["x"], *vectors, **options))[0])

    return make


def test_batch_norms_of_training_are_refused() -> None:
    """TVM's frontend makes them of undecomposed batch norms, with the epsilon of the momentum."""
    with pytest.raises(UnsupportedModelError) as error:
        qb.from_relax(module(normed(axis=1, training=True), 2, 3, 4, 4))
    assert "statistics of the batch" in error.value.why


@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False}])
@pytest.mark.parametrize("axis", [1, 3])
def test_batch_norms_of_inference(axis: int, options: dict[str, bool]) -> None:
    shape = (2, 3, 4, 3)
    graph = qb.from_relax(module(normed(axis=axis, training=False, **options), *shape))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (found,) = qb.evaluate(graph, {"x": x}).values()
    column = [3 if i == axis else 1 for i in range(4)]
    gamma, beta, mean, var = (np.arange(1, 4.0).reshape(column) + i for i in range(4))
    gamma = gamma if options.get("scale", True) else 1
    beta = beta if options.get("center", True) else 0
    wanted = (x - mean) / np.sqrt(var + 1e-5) * gamma + beta
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)  # float32 against float64


BATCH: Any = tirx.Var("batch", "int64")


def joined_token(importer: Any) -> Any:
    """``cat([token.expand(batch, 1, 3), x])``, a transformer's class token."""
    emit, x = importer.block_builder.emit, importer.env["x"]
    token = relax.const(np.array([[[1, 2, 3]]], np.float32))
    return emit(relax.op.concat([emit(op.broadcast_to(token, (BATCH, 1, 3))), x], axis=1))


def masked(importer: Any) -> Any:
    """``where(x == -inf, full_like(x, 0), x)``, of a decomposed attention."""
    emit, x = importer.block_builder.emit, importer.env["x"]
    zeros = emit(relax.op.full_like(x, relax.const(0.0)))
    return emit(relax.op.where(relax.op.equal(x, relax.const(-np.inf, "float32")), zeros, x))


def test_extents_that_are_known_at_run_time() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    (result,) = qb.evaluate(
        qb.from_relax(module(joined_token, BATCH, 2, 3)), {"x": x}
    ).values()  # fmt: skip
    token = np.broadcast_to(np.array([1, 2, 3], np.float32), (2, 1, 3))
    assert np.array_equal(result, np.concatenate([token, x], axis=1))
    x[0, 0] = -np.inf
    (result,) = qb.evaluate(qb.from_relax(module(masked, BATCH, 2, 3)), {"x": x}).values()
    assert np.array_equal(result, np.where(np.isinf(x), 0, x))


def test_reshapes_beside_a_shape_of_run_time() -> None:
    def network(importer: Any) -> Any:
        emit = importer.block_builder.emit
        x = emit(op.reshape(joined_token(importer), (BATCH, 9)))
        return emit(op.reshape(x, (BATCH, 9, 1)))

    graph = qb.from_relax(module(network, BATCH, 2, 3))
    same(read_back(graph), graph)


def test_a_resize_of_any_batch() -> None:
    def network(importer: Any) -> Any:
        attributes = (None, "NCHW", "nearest_neighbor", "half_pixel", "round_prefer_ceil")
        resized = relax.op.image.resize2d(importer.env["x"], (6, 8), *attributes)
        return importer.block_builder.emit(resized)

    graph = qb.from_relax(module(network, BATCH, 2, 3, 4))
    assert ops(graph) == ["Resize"]
    x = np.arange(48, dtype=np.float32).reshape(2, 2, 3, 4)
    (result,) = qb.evaluate(graph, {"x": x}).values()
    assert np.array_equal(result, x.repeat(2, axis=2).repeat(2, axis=3))


def test_constants_in_the_attributes_are_no_parameters() -> None:
    """TVM's TFLite frontend keeps a list of constants that the function holds itself."""
    made = module(lambda i: i.block_builder.emit(relax.op.nn.relu(i.env["x"])), 4)
    constants = [tvm.runtime.tensor(np.ones(3, np.float32)) for _ in range(3)]
    made["main"] = made["main"].with_attrs({"num_input": 1, "params": constants})
    assert [v.name for v in qb.from_relax(made).inputs] == ["x"]


def test_every_value_has_a_name_of_its_own() -> None:
    def network(importer: Any) -> Any:
        emit = importer.block_builder.emit
        parts = emit(relax.op.split(importer.env["x"], 3, axis=0))
        return emit(relax.op.add(emit(parts[0]), emit(relax.op.multiply(emit(parts[1]), parts[2]))))

    graph = qb.from_relax(module(network, 6))
    names = [v.name for n in graph.nodes for v in n.outputs]
    assert all(names)
    assert len(set(names)) == len(names)
