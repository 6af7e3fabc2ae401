"""Data movers from file to machine code, on stored integers: 0 LSB, no conversion left."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from qdqbridge.options import Kernels
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.single_ops import Model, X, call_names, codes, const, equal, params

pytestmark = pytest.mark.relax

S8, U8, S16 = params("int8", 0.5, 3), params("uint8", 0.0371, 131), params("int16", 0.011, -7)


def x(*shape: int, signed: bool = True, **fields: Any) -> X:
    p = S8 if signed else U8
    return X(codes(shape, str(p.storage_dtype), len(shape)), p, **fields)


def ints(*values: Any) -> X:
    return const(values, np.int64)


def only_integers(m: Model) -> None:
    """Runs the model; nothing may be dequantized, and nothing rounded."""
    _, executable = m.check()
    assert not [name for name in call_names(executable.module) if name.startswith("qnn.")]


def test_shapes() -> None:
    m = Model()
    m.add("Reshape", [x(2, 3, 4), ints(4, 6)], S8)
    m.add("Reshape", [x(2, 3, 4), ints(0, -1)], S8, row="Flatten")
    m.add("Reshape", [x(2, 3, 4, signed=False), ints(-1)], U8)
    m.add("Flatten", [x(2, 3, 4)], S8, axis=0, row="Reshape")
    m.add("Flatten", [x(2, 3, 4)], S8, axis=-1, row="Reshape")
    m.add("Transpose", [x(2, 3, 4)], S8, perm=[2, 0, 1])
    m.add("Transpose", [x(2, 3, 4, signed=False)], U8)
    m.add("Squeeze", [x(1, 3, 1), ints(0, -1)], S8)
    m.add("Squeeze", [x(1, 3, 1)], S8)
    m.add("Unsqueeze", [x(3, 4), ints(0, -1)], S8)
    m.add("Identity", [x(3, 4)], S8, row="")
    m.add("Expand", [x(3, 1), ints(2, 1, 4)], S8)
    m.add("Tile", [x(3, 2), ints(2, 3)], S8)
    for mode in ("DCR", "CRD"):
        m.add("DepthToSpace", [x(2, 8, 2, 3)], S8, blocksize=2, mode=mode)
    m.add("SpaceToDepth", [x(2, 3, 4, 6)], S8, blocksize=2)
    only_integers(m)


def test_slices() -> None:
    m = Model()
    data = x(4, 5, 6)
    big = np.iinfo(np.int64).max
    m.add("Slice", [data, ints(1, 0), ints(3, big), ints(0, 2), ints(1, 2)], S8)
    m.add("Slice", [data, ints(-1), ints(-big - 1), ints(1), ints(-1)], S8, label="reversed")
    m.add("Slice", [data, ints(-2, 4), ints(0, -6), ints(1, 0), ints(-2, -3)], S8, label="back")
    m.add("Slice", [data, ints(-3), ints(-1)], S8, label="from the end")
    m.add("Slice", [data, ints(4, 100), ints(-100, 0), ints(2, 1), ints(-1, -1)], S8)
    m.add("Gather", [data, ints(3, 0, -1)], S8, axis=1)
    m.add("Gather", [data, const(-2, np.int32)], S8, axis=2, label="scalar")
    m.add("Gather", [data, const([[0, 1], [-1, -4]], np.int64)], S8, label="matrix")
    m.add("Gather", [data, X(np.array([[4, -5], [0, -1]], np.int64))], S8, axis=1, label="fed")
    m.add("Gather", [data, X(np.array([5, -6], np.int32))], S8, axis=-1, label="fed, int32")
    m.add("Gather", [data, X(np.array(-1, np.int64))], S8, label="fed, scalar")
    m.add("Split", [data, ints(1, 3, 1)], S8, S8, S8, axis=1)
    m.add("Split", [data], S8, S8, axis=0, num_outputs=2)
    m.add("Split", [data], S8, S8, S8, axis=1, num_outputs=3, label="uneven")
    only_integers(m)


def test_pads() -> None:
    m = Model()
    data, image = x(3, 4), x(1, 2, 4, 5, signed=False)
    m.add("Pad", [data, ints(1, 0, 2, 3)], S8, label="zero is the zero point")
    m.add("Pad", [data, ints(1, 0, 2, 3), const(np.float32(-3.5))], S8, label="a value")
    m.add("Pad", [image, ints(0, 0, 1, 2, 0, 0, 3, 1)], U8)
    for mode in ("reflect", "edge", "wrap"):
        m.add("Pad", [image, ints(0, 0, 1, 2, 0, 0, 3, 1)], U8, mode=mode)
    m.add("Pad", [data, ints(1, -1, -1, 2)], S8, label="crops")
    m.add("Pad", [image, ints(0, 0, -1, 2, 0, 0, 3, -2)], U8, mode="edge", label="crops")
    m.add("Pad", [data, ints(1, 2), const(np.float32(0)), ints(-1)], S8, label="axes")
    only_integers(m)


def test_maxima() -> None:
    m = Model()
    image = x(2, 3, 7, 6, signed=False)
    m.add("MaxPool", [image], U8, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1])
    m.add("MaxPool", [x(2, 3, 7, 6)], S8, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    m.add("MaxPool", [image], U8, kernel_shape=[3, 3], ceil_mode=1, strides=[2, 2])
    m.add("MaxPool", [image], U8, kernel_shape=[2, 2], dilations=[2, 3])
    m.add(
        "MaxPool", [x(2, 3, 7, 6)], S8, kernel_shape=[2, 2], auto_pad="SAME_LOWER", strides=[2, 2]
    )
    m.add("MaxPool", [x(1, 2, 9)], S8, kernel_shape=[4], strides=[3])
    m.add("MaxPool", [x(1, 2, 4, 5, 3)], S8, kernel_shape=[2, 3, 2], pads=[1, 1, 0, 0, 1, 1])
    m.add("GlobalMaxPool", [image], U8)
    m.add("ReduceMax", [image, ints(1, -1)], U8)
    m.add("ReduceMin", [x(2, 3, 4), ints(1)], S8, keepdims=0)
    m.add("ReduceMax", [x(2, 3, 4)], S8, label="all axes")
    m.add("MaxPool", [X(codes((1, 2, 4, 4), "int16"), S16)], S16, kernel_shape=[2, 2])
    only_integers(m)


def test_resize_of_the_nearest() -> None:
    m = Model()
    scales = const([1, 1, 2, 3], np.float32)
    m.add("Resize", [x(1, 2, 3, 4), None, scales], S8, mode="nearest")
    m.check()


def test_movers_in_a_new_type() -> None:
    """A mover between different parameters is a mover and one requantize."""
    m = Model()
    m.add("Transpose", [x(3, 4)], U8, whole=False)
    m.add("MaxPool", [x(1, 2, 4, 4)], U8, kernel_shape=[2, 2], whole=False)
    m.add("Split", [x(4, 6)], U8, S8, axis=1, num_outputs=2, whole=False)
    m.add("Pad", [x(3, 4), ints(1, 0, 2, 3)], U8, whole=False)
    _, executable = m.check()
    names = call_names(executable.module)
    assert names.count("qnn.requantize") == 4
    assert not {"qnn.quantize", "qnn.dequantize"} & set(names)


def test_run_time_shapes() -> None:
    """Targets of Reshape and Expand that are fed, or computed from the shape of a value."""
    m = Model()
    m.add("Reshape", [x(2, 3, 4), X(np.array([4, 6], np.int64))], S8, label="fed")
    m.add("Reshape", [x(2, 3, 4), X(np.array([0, 2, -1], np.int64))], S8, label="0 and -1")
    m.add("Reshape", [x(2, 3, 4), X(np.array([-1], np.int64))], S8, label="flat")
    m.add("Reshape", [x(2, 6), X(np.array([2, 0, 1, 1], np.int64))], S8, label="longer")
    m.add("Reshape", [x(2, 6), X(np.array([3, -1], np.int64))], S8, allowzero=1)
    m.add("Expand", [x(3, 1), X(np.array([2, 3, 4], np.int64))], S8, label="fed")
    m.add("Expand", [x(3, 1), X(np.array([1, 4], np.int64))], S8, label="ones")
    m.add("Expand", [x(2, 3, 1), X(np.array([5], np.int64))], S8, label="shorter")
    b = m.builder
    moved = b.op("Reshape", m.operand(x(4, 3)), m.operand(X(np.array([2, -1], np.int64))))
    m.finish(b.op("Transpose", moved, perm=[1, 0]), S8)
    m.check()


def test_run_time_shapes_of_a_symbolic_batch() -> None:
    m = Model()
    b = m.builder
    data = m.operand(x(3, 4, 6, shape=["n", 4, 6]))
    batch = b.op("Slice", b.op("Shape", data), b.init(np.array([0])), b.init(np.array([1])))
    target = b.op("Concat", batch, b.init(np.array([-1])), axis=0)
    m.finish(b.op("Reshape", data, target), S8)
    two = b.op("Concat", batch, b.init(np.array([2, 12])), axis=0)
    m.finish(b.op("Reshape", data, two), S8)
    graph, executable = m.check()
    assert {node.op.name for node in graph.nodes} >= {"Reshape"}
    equal(executable, {name: array[:2] for name, array in m.inputs.items()})


def test_symbolic_batch() -> None:
    m = Model()
    data, image = x(3, 4, 6, shape=["n", 4, 6]), x(3, 4, 6, 6, shape=["n", 4, 6, 6])
    m.add("Reshape", [data, ints(0, 24)], S8, row="Flatten")
    m.add("Reshape", [data, ints(-1, 6)], S8)
    m.add("Flatten", [data], S8)
    m.add("Transpose", [data], S8, perm=[1, 0, 2])
    m.add("Unsqueeze", [data, ints(0)], S8)
    m.add("Slice", [data, ints(1, -2), ints(3, 100), ints(1, 2)], S8)
    m.add("Slice", [data, ints(0), ints(1), ints(0)], S8, label="the batch")
    m.add("Slice", [data, ints(-1), ints(100), ints(0)], S8, label="the batch, from its end")
    m.add("Slice", [data, ints(-1), ints(-1000), ints(0), ints(-1)], S8, label="batch reversed")
    m.add("Gather", [data, ints(0, -1)], S8, axis=1)
    m.add("Gather", [data, ints(0, -1)], S8, axis=0, label="the batch")
    m.add("Gather", [data, X(np.array([0, -1]))], S8, axis=0, label="the batch, fed")
    m.add("Split", [data, ints(1, 3)], S8, S8, axis=1)
    m.add("Pad", [data, ints(0, 1, 0, 0, 0, 2)], S8)
    m.add("Tile", [data, ints(1, 2, 1)], S8)
    m.add("Expand", [data, ints(1, 1, 1)], S8, row="")
    m.add("Expand", [x(3, 1, 6, shape=["n", 1, 6]), ints(1, 4, 1)], S8)
    m.add("DepthToSpace", [image], S8, blocksize=2)
    m.add("SpaceToDepth", [image], S8, blocksize=2)
    m.add("MaxPool", [image], S8, kernel_shape=[3, 3], ceil_mode=1, strides=[2, 2])
    m.add("GlobalMaxPool", [image], S8)
    m.add("ReduceMax", [data, ints(1)], S8)
    _, executable = m.check()
    for count in (1, 2):
        cut = {n: a if a.ndim == 1 else a[:count] for n, a in m.inputs.items()}
        equal(executable, cut)


def clamped_then_padded() -> onnx.ModelProto:
    """Stored numbers clamped to 0 and more, among pads of less."""
    b, scale = Builder(17), (0.1, 0, np.int8)
    ends = [b.init(np.float32(end)) for end in (0, 3)]
    data = b.op("Clip", b.qdq(b.input("x", [2, 5]), *scale), *ends)
    around = [b.init(np.array([0, 2, 0, 1])), b.init(np.float32(-0.3))]
    b.output(b.qdq(b.op("Pad", b.qdq(data, *scale), *around), *scale))
    return b.model()


@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_a_pad_may_lie_outside_the_range_of_what_it_surrounds(kernels: Kernels) -> None:
    graph = canonical(clamped_then_padded())
    data = {"x": np.random.default_rng(0).normal(0, 2, (2, 5)).astype(np.float32)}
    (wanted,) = qb.evaluate(graph, data).values()
    assert wanted.min() < -0.2
    (got,) = qb.compile(graph, kernels=kernels).run(data).values()
    np.testing.assert_array_equal(got, wanted)
    (again,) = qb.evaluate(qb.from_relax(qb.to_relax(graph)[0]), data).values()
    np.testing.assert_array_equal(again, wanted)


@pytest.mark.parametrize("index", [np.array(3), np.array([0, -4]), np.array([[3]])])
def test_an_index_that_an_open_axis_has_not_ends_the_run(index: np.ndarray) -> None:
    b = Builder(17)
    b.output(b.op("Gather", b.input("x", ["n", "m"]), b.init(index), axis=1))
    executable = qb.compile(canonical(b.model()))
    executable.run({"x": np.zeros((2, 4), np.float32)})
    with pytest.raises(InputDataError, match="3 where 4 is needed"):
        executable.run({"x": np.zeros((2, 3), np.float32)})
