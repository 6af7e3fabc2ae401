"""Operators composed on TVM, and those that ONNX's definitions expand: onnxruntime's results."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.onnx_io.opaque.expansion import expanded
from qdqbridge.options import Kernels
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.random_compositions import MAKERS, PER_MODEL, cases, differing
from tests.tvm.relax.targets import UNOPTIMIZED

pytestmark = pytest.mark.relax


def test_one_of_each() -> None:
    rng = Random(7)
    assert differing([make(rng) for make in dict.fromkeys(MAKERS)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_relatives(seed: int) -> None:
    assert differing(cases(PER_MODEL, seed + 1)) == []


def test_the_deviation_around_a_large_mean() -> None:
    """ONNX's definition takes its square off that of the data, which leaves three digits of it."""
    b = Builder(17)
    y = b.op("LayerNormalization", b.input("x", ["n", 8]), b.init(np.ones(8, np.float32)),
             outputs=3)  # fmt: skip
    for index, extent in enumerate((8, 1, 1)):
        b.output(y if index == 0 else f"{y}:{index}", ["n", extent])
    b.output(b.op("MeanVarianceNormalization", "x", axes=[1]), ["n", 8])
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32) + 1000
    found = list(qb.compile(canonical(b.model()), UNOPTIMIZED).run({"x": x}).values())
    wide = x.astype(np.float64)
    deviation = np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5)
    # A mean of 1000 that float32 holds is off by up to 3e-5, and so is what it is taken from.
    np.testing.assert_allclose(found[0], (wide - wide.mean(axis=1, keepdims=True)) / deviation,
                               atol=2e-4)  # fmt: skip
    np.testing.assert_allclose(found[2], 1 / deviation, rtol=1e-5)
    np.testing.assert_allclose(found[3], found[0], rtol=1e-4)


def _normalized() -> Graph:
    b = Builder(23)
    x = b.input("x", [2, 3, 4, 5])
    b.output(b.op("MeanVarianceNormalization", x, axes=[0, 2, 3]), [2, 3, 4, 5])
    return canonical(b.model())


def test_a_definition_is_a_graph_of_rows() -> None:
    (node,) = _normalized().nodes
    graph = expanded(node)
    assert graph is not None
    assert [value.name for value in graph.inputs] == ["in_0"]
    assert {"ReduceMean", "Sub", "Div"} <= {each.op.name for each in graph.nodes}


def test_a_defined_operator_is_read_back() -> None:
    graph = _normalized()
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    given = {"x": np.random.default_rng(0).normal(3, 2, (2, 3, 4, 5)).astype(np.float32)}
    (found,), (wanted,) = qb.compile(graph).run(given).values(), qb.evaluate(graph, given).values()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)  # some ulps at numbers up to 3


def test_what_has_no_definition_is_not_expanded() -> None:
    b = Builder(21)
    b.output(b.op("Trilu", b.input("x", [3, 3])), [3, 3])
    (node,) = canonical(b.model()).nodes
    assert expanded(node) is None


@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_attention_is_read_back(elem_type: int) -> None:
    """Half floats are computed in float32 inside, as onnxruntime does."""
    b = Builder(23)
    q, k, v = (b.input(name, [1, 2, 4, 8], elem_type) for name in "qkv")
    b.output(b.op("Attention", q, k, v), [1, 2, 4, 8], elem_type)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    dtype = np.float16 if elem_type == TensorProto.FLOAT16 else np.float32
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(1, 2, 4, 8)).astype(dtype) for name in "qkv"}
    (found,), (wanted,) = qb.compile(graph).run(given).values(), qb.evaluate(graph, given).values()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=1e-3)  # an ulp of halves


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("op_type", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="SpaceToDepth has no mode")
def test_both_orders_of_blocks(op_type: str, mode: str, kernels: Kernels) -> None:
    """TVM's importer leaves the mode of SpaceToDepth out; by ONNX's own reference."""
    b, shape = Builder(28), (2, 12, 4, 6)
    b.output(b.op(op_type, b.input("x", ["n", *shape[1:]]), blocksize=2, mode=mode), None)
    model, given = b.model(), np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    graph = canonical(model)
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": given})
    (found,) = qb.compile(graph, kernels=kernels).run({"x": given}).values()
    np.testing.assert_array_equal(found, np.asarray(wanted))
    (found,) = qb.evaluate(graph, {"x": given}).values()
    np.testing.assert_array_equal(found, np.asarray(wanted))


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_of_open_count(mode: str, kernels: Kernels) -> None:
    b = Builder(16)
    x = b.input("x", ["n", 2, 9, 11])
    rois, batch = b.input("rois", ["regions", 4]), b.input("batch", ["regions"], TensorProto.INT64)
    sizes: dict[str, Any] = {"output_height": 3, "output_width": 2, "spatial_scale": 0.7}
    b.output(b.op("RoiAlign", x, rois, batch, mode=mode, **sizes), None)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    regions = [[0, 0, 6, 6], [1.2, 2.1, 8.9, 7.3], [-3, -3, 4, 20], [2, 2, 2.3, 2.3]]
    given = {
        "x": np.random.default_rng(0).normal(size=(2, 2, 9, 11)).astype(np.float32),
        "rois": np.array(regions, np.float32),
        "batch": np.array([0, 1, 1, 0]),
    }
    (found,) = qb.compile(graph, kernels=kernels).run(given).values()
    (wanted,) = qb.evaluate(graph, given).values()
    # Interpolated by float32 arithmetic whose order is TVM's.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


_WINDOWS = np.array([4, 4]), np.array([2, 2])
_OPEN: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Col2Im": ([("n", "c", 9), *_WINDOWS], {}),
    "DFT": ([("n", 1, 2)], {"inverse": 1, "onesided": 1, "axis": 1}),
}
"""By operator its operands, where symbols are of open extent, and its attributes."""
_EXTENTS = {"n": 2, "c": 12}


@pytest.mark.parametrize("op_type", _OPEN)
@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_open_extents(op_type: str, kernels: Kernels) -> None:
    """Those of a matrix, of windows and images; a DFT of no length has no results."""
    operands, attributes = _OPEN[op_type]
    b, given = Builder(19), dict[str, Any]()
    rng, names = np.random.default_rng(0), list[str]()
    for index, operand in enumerate(operands):
        if isinstance(operand, np.ndarray):
            names.append(b.init(operand))
        else:
            shape = [e if isinstance(e, int) else _EXTENTS[e] for e in operand]
            names.append(b.input(f"x{index}", operand))
            given[f"x{index}"] = rng.normal(size=shape).astype(np.float32)
    b.output(b.op(op_type, *names, **attributes), None)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    (found,) = qb.compile(graph, kernels=kernels).run(given).values()
    (wanted,) = qb.evaluate(graph, given).values()
    # Sums of float32 products, in TVM's order.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("onesided", [0, 1])
def test_a_transform_along_an_axis_of_run_time(inverse: int, onesided: int, parts: int) -> None:
    """Of a length that only the run knows as well: as by ONNX's reference."""
    if onesided and parts != 1 + inverse:
        return  # half a spectrum is of real data
    b = Builder(20)
    names = [b.input("x", ["n", 3, "m", parts]), b.input("length", [], TensorProto.INT64),
             b.input("axis", [], TensorProto.INT64)]  # fmt: skip
    b.output(b.op("DFT", *names, inverse=inverse, onesided=onesided), None)
    model = b.model()
    graph, reference = canonical(model), ReferenceEvaluator(model)
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, parts)).astype(np.float32)
    for axis, length in ((0, 2), (1, 5), (2, 4), (-2, 6), (-4, 1)):
        given = {"x": x, "length": np.array(length), "axis": np.array(axis)}
        (found,) = executable.run(given).values()
        (wanted,) = reference.run(None, given)
        # Sums of float32 products, in TVM's order.
        np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=1e-5)


def test_frames_of_run_time() -> None:
    b = Builder(17)
    names = [b.input("x", ["n", "t", 1]), b.input("step", [], TensorProto.INT64),
             b.input("window", ["w"])]  # fmt: skip
    b.output(b.op("STFT", *names), None)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    rng, executable = np.random.default_rng(0), qb.compile(graph)
    for extent, step, width in ((16, 3, 5), (16, 4, 16), (9, 1, 2)):
        x, window = (rng.normal(size=shape).astype(np.float32) for shape in ((2, extent, 1), width))
        given = {"x": x, "step": np.array(step), "window": window}
        (found,), (wanted,) = executable.run(given).values(), qb.evaluate(graph, given).values()
        # Sums of float32 products, in TVM's order.
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize(
    ("op", "elem", "nothing"),
    [
        ("ReduceProd", np.float32, 1), ("ReduceSum", np.float32, 0), ("ReduceSum", np.float16, 0),
        ("ReduceSumSquare", np.int32, 0), ("ReduceL2", np.float32, 0),
        ("ReduceLogSumExp", np.float32, -np.inf), ("ReduceMean", np.float32, np.nan),
        ("ReduceMax", np.float32, -np.inf), ("ReduceMin", np.float16, np.inf),
        ("ReduceMax", np.int32, -(2**31)),
    ],
)  # fmt: skip
def test_reductions_of_nothing(op: str, elem: type, nothing: float, kernels: Kernels) -> None:
    """Loops of no step leave what the memory held before: a first run fills it."""
    b = Builder(18)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(elem))
    y = b.op(op, b.input("x", ["m", "n"], kind), b.init(np.array([-1])), keepdims=0)
    b.output(y, None, kind)
    executable = qb.compile(canonical(b.model()), kernels=kernels)
    one = 9.0 if op == "ReduceSumSquare" else 3.0
    for extent, wanted in ((2, None), (0, nothing), (1, one)):
        (found,) = executable.run({"x": np.full((40, extent), 3, elem)}).values()
        if wanted is not None:
            np.testing.assert_array_equal(found, np.full(40, wanted, elem))


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_truth_values(op: str, kernels: Kernels) -> None:
    """TVM knows no least one of them, and refuses to begin with it."""
    b = Builder(20)
    x = b.input("x", ["m", "n"], TensorProto.BOOL)
    b.output(b.op(op, x, b.init(np.array([1])), keepdims=0), None, TensorProto.BOOL)
    executable = qb.compile(canonical(b.model()), kernels=kernels)
    given = np.array([[0, 0, 1], [1, 1, 1], [0, 0, 0]], bool)
    (found,) = executable.run({"x": given}).values()
    assert found.tolist() == (given.any if op == "ReduceMax" else given.all)(axis=1).tolist()


_OF_NONE = ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceLogSumExp")


@pytest.mark.parametrize("extent", ["n", 0])
def test_reductions_of_nothing_as_in_the_interpreter(extent: int | str) -> None:
    """Of quantized numbers too; an integer mean of nothing is undefined, and ends a run."""
    b = Builder(18)
    x, axes = b.input("x", ["m", extent]), b.init(np.array([1]))
    stored = b.qdq(x, 0.1, 3)
    for op in _OF_NONE:
        b.output(b.op(op, x, axes), None)
        if op in _OF_NONE[:2]:
            b.output(b.qdq(b.op(op, stored, axes), 0.1, 3), None)
    graph, given = canonical(b.model()), {"x": np.zeros((2, 0), np.float32)}
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    found, wanted = qb.compile(graph).run(given), qb.evaluate(graph, given)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)


def test_an_integer_mean_of_nothing_ends_the_run() -> None:
    b = Builder(18)
    x = b.input("x", ["m", "n"], TensorProto.INT32)
    b.output(b.op("ReduceMean", x, b.init(np.array([1]))), None, TensorProto.INT32)
    executable = qb.compile(canonical(b.model()))
    (found,) = executable.run({"x": np.array([[3, 6]], np.int32)}).values()
    assert found.tolist() == [[4]]
    with pytest.raises(InputDataError):
        executable.run({"x": np.zeros((2, 0), np.int32)})


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("k", [None, 2])
def test_the_largest_along_an_open_axis(k: int | None, axis: int) -> None:
    """Of equal ones those in front; more than there are end the run, as in onnxruntime."""
    b = Builder(18)
    x = b.input("x", ["n", "c"])
    count = b.input("k", [1], TensorProto.INT64) if k is None else b.init(np.array([k]))
    for largest in (0, 1):
        y = b.op("TopK", x, count, outputs=2, axis=axis, largest=largest)
        b.output(y, None)
        b.output(f"{y}:1", None, TensorProto.INT64)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable, rng = qb.compile(graph), np.random.default_rng(0)
    for extent, wanted in ((6, 3), (6, 6), (2, 2), (1, 2), (0, 0)):
        shape = (extent, 3) if axis == 0 else (3, extent)
        given = {"x": rng.integers(0, 4, shape).astype(np.float32)}
        given |= {"k": np.array([wanted])} if k is None else {}
        if extent < (wanted if k is None else k):
            with pytest.raises(InputDataError):
                executable.run(given)
            continue
        found = executable.run(given)
        for name, array in qb.evaluate(graph, given).items():
            np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.parametrize("kind", ["int16", "uint16", "uint32", "uint64"])
def test_the_largest_of_types_that_tvm_does_not_pick_from(kind: str) -> None:
    b, element = Builder(24), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    y = b.op("TopK", b.input("x", [5, 2], element), b.init(np.array([2])), axis=0, outputs=2)
    b.output(y, None, element)
    b.output(f"{y}:1", None, TensorProto.INT64)
    x = np.array([[0, 2], [4, np.iinfo(kind).max], [2, 3], [6, 2], [4, 2]], kind)
    graph = canonical(b.model())
    found = qb.compile(graph, UNOPTIMIZED).run({"x": x})
    for name, array in qb.evaluate(graph, {"x": x}).items():
        np.testing.assert_array_equal(found[name], array, name, strict=True)


@pytest.mark.parametrize("axes", [None, [0], [-1]], ids=str)
@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceLogSum"])
@pytest.mark.parametrize("opset", [13, 18])
def test_roots_and_logarithms_of_integers(opset: int, op_type: str, axes: list[int] | None) -> None:
    """Those of float64, cut off; TVM's importer asks for floats."""
    b = Builder(opset)
    x = b.input("x", ["n", 3], TensorProto.INT32)
    operands = [b.init(np.array(axes))] if axes and opset >= 18 else []
    y = b.op(op_type, x, *operands, axes=axes if opset < 18 else None)
    b.output(y, None, TensorProto.INT32)
    graph, given = canonical(b.model()), {"x": np.array([[1, 2, 3], [4, 5, -1]], np.int32)}
    found, wanted = qb.compile(graph, UNOPTIMIZED).run(given)[y], qb.evaluate(graph, given)[y]
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_a_unit_matrix_of_no_columns() -> None:
    b = Builder(18)
    b.output(b.op("EyeLike", b.input("x", ["n", 0])), None)
    (found,) = qb.compile(canonical(b.model())).run({"x": np.ones((2, 0), np.float32)}).values()
    assert found.shape == (2, 0)


def test_dropping_ends_the_run() -> None:
    """A mode of run time: which elements are dropped ONNX leaves to chance."""
    b = Builder(13)
    ratio, training = b.input("ratio", []), b.input("training", [], TensorProto.BOOL)
    y = b.op("Dropout", b.input("x", ["n", 3]), ratio, training, outputs=2)
    b.output(y, None)
    b.output(f"{y}:1", None, TensorProto.BOOL)
    graph, x = canonical(b.model()), np.ones((2, 3), np.float32)
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph)
    for part, mode in ((0.5, False), (0.0, True), (0.0, False)):
        given = {"x": x, "ratio": np.array(part, np.float32), "training": np.array(mode)}
        found, wanted = executable.run(given), qb.evaluate(graph, given)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
    given = {"x": x, "ratio": np.array(0.5, np.float32), "training": np.array(True)}
    with pytest.raises(InputDataError, match="to drop elements"):
        executable.run(given)


def test_the_largest_none() -> None:
    b = Builder(18)
    y = b.op("TopK", b.input("x", ["n", 3]), b.init(np.array([0])), outputs=2)
    b.output(y, None)
    graph, given = canonical(b.model()), {"x": np.ones((2, 3), np.float32)}
    (found,), (wanted,) = qb.compile(graph).run(given).values(), qb.evaluate(graph, given).values()
    assert found.shape == wanted.shape == (2, 0)


@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_dynamic_quantization_at_its_edges(kernels: Kernels) -> None:
    """No extent at all, scales that underflow or overflow, and what is not a number."""
    b = Builder(13)
    y = b.op("DynamicQuantizeLinear", b.input("x", ["n"]), outputs=3)
    for name, kind in ((y, 2), (f"{y}:1", 1), (f"{y}:2", 2)):
        b.output(name, None, kind)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph, kernels=kernels)
    inf, nan = np.inf, np.nan
    rows = [[0, 0], [-0.0], [1e-45, 0], [1e-38, -1e-39], [2, 2], [-1, -2], [3e38, -3e38],
            [nan, 1, 2, nan], [inf, 1], [-inf, 1], [inf, -inf], [nan], [254.5, -0.5]]  # fmt: skip
    for row in rows:
        given = {"x": np.array(row, np.float32)}
        found, wanted = executable.run(given), qb.evaluate(graph, given)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, str(row))


def test_the_opset_of_a_file_is_that_of_every_step(tmp_path: Path) -> None:
    """What comes from TVM has no opset; the oldest one of a chain's operators is not enough."""
    b = Builder(14)
    b.output(b.qdq(b.op("Neg", b.op("HardSwish", b.qdq(b.input("x", [4]), 0.1, 128))), 0.1, 128))
    graph = canonical(b.model())
    assert "Composition" in [node.op.name for node in graph.nodes]
    bare = qb.from_relax(qb.to_relax(graph)[0])
    bare.opset = 13
    qb.save(bare, tmp_path / "chain.onnx")
    written = qb.load(tmp_path / "chain.onnx")
    assert (written.opset, written.digest) == (14, graph.digest)


_REFUSED: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "Det": ("", [(2, 3, 3)], {}),
    "DeformConv": ("", [(1, 4, 5, 6), (3, 4, 2, 2), (1, 8, 4, 5)], {}),
    "Binarizer": ("ai.onnx.ml", [(2, 3)], {"threshold": 1.0}),
}
"""By operator its domain, operands and attributes: what no quantized network has."""


@pytest.mark.parametrize("op_type", _REFUSED)
def test_what_no_quantized_network_has_is_computed_by_onnxruntime_only(op_type: str) -> None:
    domain, shapes, attributes = _REFUSED[op_type]
    b, rng = Builder(21), np.random.default_rng(0)
    names = [b.input(f"x{index}", shape) for index, shape in enumerate(shapes)]
    b.output(b.op(op_type, *names, domain=domain, **attributes), None)
    graph = canonical(b.model())
    given = {n: rng.normal(size=s).astype(np.float32) for n, s in zip(names, shapes, strict=True)}
    assert len(qb.evaluate(graph, given)) == 1
    with pytest.raises(UnsupportedTargetError, match=op_type):
        qb.compile(graph)
