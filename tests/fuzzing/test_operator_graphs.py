"""Random graphs of ONNX's operators, a few; and what many found, each as its smallest model.

``scripts/sweeps/sweep_operators`` runs thousands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from tests.fuzzing.operator_stages import STAGES, case_of, outcomes
from tests.onnx_io.digest_trips import HOSTED, hosted, saved
from tests.onnx_models import Array, Builder, canonical, load, run
from tests.tvm.relax.targets import UNOPTIMIZED

SEEDS = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
INT64, INT8 = TensorProto.INT64, TensorProto.INT8


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_mean_what_their_nodes_do(seed: int) -> None:
    found = outcomes(case_of(f"test/{seed}"), STAGES[: STAGES.index("relax")])
    assert {o.outcome for o in found.values()} <= {"pass", "unjudged"}, found


@pytest.mark.relax
@pytest.mark.parametrize("seed", range(2))
def test_random_graphs_on_tvm(seed: int) -> None:
    found = outcomes(case_of(f"test/{seed}"), ("relax", "tvm"))
    assert found["tvm"].outcome == "pass", found
    assert found["relax"].outcome in ("pass", "refused"), found


def everywhere(graph: Graph, feeds: dict[str, Array]) -> Array:
    """Returns the only result, which the interpreter and TVM have to agree on."""
    (meant,) = run(graph, feeds)
    (got,) = qb.compile(graph, UNOPTIMIZED, threads=1).run(feeds).values()
    np.testing.assert_array_equal(got, meant)
    return meant


@pytest.mark.relax
@pytest.mark.parametrize(
    ("pads", "meant"), [((1, -3), []), ((2, -3), [7]), ((-3, 2), [7]), ((-1, -1), [])]
)
def test_pads_crop_what_the_other_end_adds(pads: tuple[int, int], meant: list[int]) -> None:
    """2 elements and one more cropped: a slice to -1 had kept the first, a verifier refused."""
    b = Builder(17)
    b.output(b.op("Pad", b.input("x", [2]), b.init(np.array(pads)), b.init(np.float32(7))))
    assert everywhere(canonical(b.model()), {"x": np.ones(2, np.float32)}).tolist() == meant


def test_pads_crop_an_open_axis() -> None:
    b = Builder(17)
    b.output(b.op("Pad", b.input("x", ["n"]), b.init(np.array([1, -1])), b.init(np.float32(7))))
    graph = canonical(b.model())
    for count, meant in ((0, []), (1, [7.0]), (2, [7.0, 1.0])):
        assert run(graph, {"x": np.ones(count, np.float32)})[0].tolist() == meant


@pytest.mark.relax
def test_broken_factors_of_an_integer_gemm_are_no_zeros() -> None:
    b = Builder(15)
    x = b.input("x", [1, 2], INT64)
    bias = b.init(np.array([[-4, 7, 9]]))
    b.output(b.op("Gemm", x, b.init(np.ones((2, 3), np.int64)), bias, alpha=1.5, beta=0.5), None,
             INT64)  # fmt: skip
    found = everywhere(canonical(b.model()), {"x": np.array([[1, 2]])})
    assert found.tolist() == [[2, 8, 9]]  # 4.5 and -2, 3.5, 4.5, cut as a Cast does


def test_a_scalar_that_follows_from_others_stays_one() -> None:
    """ONNX infers no shape of a scalar's Transpose: the difference had become a vector."""
    b = Builder(9)
    one = b.init(np.int64(432))
    b.output(b.op("Sub", b.op("Transpose", one), one), None, INT64)
    for graph in (load(b.model()), canonical(b.model())):
        (found,) = run(graph, {})
        assert found.shape == ()
        assert int(found) == 0


def test_extents_are_sliced_backwards_from_before_their_first() -> None:
    b = Builder(17)
    extents = b.op("Shape", b.input("x", [2, 3]))
    bounds = [b.init(np.array([n])) for n in (-9, -(1 << 40), 0, -1)]
    b.output(b.op("Slice", extents, *bounds), None, INT64)
    (found,) = run(canonical(b.model()), {"x": np.ones((2, 3), np.float32)})
    assert found.tolist() == [2]


def test_an_integer_product_of_no_terms_is_zero() -> None:
    """onnxruntime 1.32 gives what its memory held."""
    b = Builder(14)
    x = b.input("x", [1, "n"], INT8)
    b.output(b.op("MatMulInteger", x, b.input("y", ["n", 3], INT8)), None, TensorProto.INT32)
    feeds: dict[str, Any] = {"x": np.ones((1, 0), np.int8), "y": np.ones((0, 3), np.int8)}
    assert run(canonical(b.model()), feeds)[0].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_softmax_of_nothing_is_nothing(op: str) -> None:
    b = Builder(17)
    b.output(b.op(op, b.input("x", [2, "n"]), axis=1))
    (found,) = run(canonical(b.model()), {"x": np.ones((2, 0), np.float32)})
    assert found.shape == (2, 0)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_nothing_is_split_into_equal_parts(opset: int) -> None:
    b = Builder(opset)
    count = 2 if opset >= 18 else None
    first = b.op("Split", b.input("x", [0, 3]), axis=0, outputs=2, num_outputs=count)
    b.output(first)
    b.output(f"{first}:1")
    parts = run(canonical(b.model()), {"x": np.ones((0, 3), np.float32)})
    assert [part.shape for part in parts] == [(0, 3), (0, 3)]


def test_a_weight_of_no_columns_is_no_python_error() -> None:
    b = Builder(15)
    x = b.qdq(b.input("x", [5, 1]), 0.1, 8)
    b.output(b.op("MatMul", x, b.init(np.zeros((1, 0), np.float32))))
    (found,) = run(canonical(b.model()), {"x": np.ones((5, 1), np.float32)})
    assert found.shape == (5, 0)


@pytest.mark.parametrize("op", ["EyeLike", "RegexFullMatch"])
def test_operands_of_unknown_type_do_not_end_the_process(op: str) -> None:
    """ONNX's inference (1.23) reads the type of an operand that a node of anybody's own gives."""
    b = Builder(20)
    b.opsets["own"] = 1
    given: dict[str, Any] = {"dtype": TensorProto.FLOAT} if op == "EyeLike" else {"pattern": "a"}
    kind = TensorProto.FLOAT if op == "EyeLike" else TensorProto.BOOL
    b.output(b.op(op, b.op("Mystery", b.input("x", [2, 2]), domain="own"), **given), None, kind)
    assert [node.op.name for node in canonical(b.model()).nodes] == ["own::Mystery", op]


@pytest.mark.relax
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("last", [0, 1])
def test_extremes_of_integers_are_found_on_tvm(op: str, dtype: str, last: int) -> None:
    """A row of nothing but the least number had its greatest at -1."""
    b = Builder(13)
    x = np.array([[0, 0, 0], [5, 9, 9], [3, 1, 1], [127, 127, 0]], dtype)
    name = b.input("x", [4, 3], helper.np_dtype_to_tensor_dtype(x.dtype))
    b.output(b.op(op, name, axis=1, select_last_index=last), None, INT64)
    everywhere(canonical(b.model()), {"x": x})


@pytest.mark.relax
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("opened", [False, True])
def test_fewer_updates_than_data(reduction: str, axis: int, opened: bool) -> None:
    """TVM's own takes the updates for as wide as the data along the other axes."""
    b, random = Builder(18), np.random.default_rng(0)
    feeds: dict[str, Any] = {
        "x": random.standard_normal((4, 3, 5)).astype(np.float32),
        "i": np.array([[[0, -1, 1], [1, 0, 2]]]),
        "u": random.standard_normal((1, 2, 3)).astype(np.float32),
    }
    kinds = (TensorProto.FLOAT, INT64, TensorProto.FLOAT)
    names = [
        b.input(n, ["n", *a.shape[1:]] if opened and n == "x" else a.shape, kind)
        for (n, a), kind in zip(feeds.items(), kinds, strict=True)
    ]
    b.output(b.op("ScatterElements", *names, axis=axis, reduction=reduction))
    everywhere(canonical(b.model()), feeds)


@pytest.mark.relax
def test_elements_are_gathered_of_an_open_extent() -> None:
    b = Builder(18)
    b.output(b.op("GatherElements", b.input("x", ["n", 3]), b.init(np.array([[0, -1], [1, 0]]))))
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
    assert everywhere(canonical(b.model()), feeds).tolist() == [[0, 10], [3, 1]]


@pytest.mark.relax
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_integers_are_interpolated_with_broken_weights(mode: str, dtype: str) -> None:
    """Weights had been cut to whole numbers: what lay between two elements was 0."""
    b = Builder(18)
    x = np.array([[-25, 38], [32, 28], [-10, 30], [28, 10]], dtype).reshape(1, 1, 4, 2)
    name = b.input("x", x.shape, helper.np_dtype_to_tensor_dtype(x.dtype))
    scales = b.init(np.array([1, 1, 2, 2], np.float32))
    resized = b.op("Resize", name, "", scales, mode=mode,
                   coordinate_transformation_mode="asymmetric")  # fmt: skip
    b.output(resized, None, helper.np_dtype_to_tensor_dtype(x.dtype))
    assert everywhere(canonical(b.model()), {"x": x}).any()


PRODUCTS_OF_NOTHING: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "MatMul": ([(2, 0), (0, 3)], {}),
    "Gemm": ([(2, 0), (0, 3), (3,)], {}),
    "Conv": ([(1, 0, 3, 3), (2, 0, 2, 2), (2,)], {"kernel_shape": [2, 2]}),
    "ConvTranspose": ([(1, 0, 3, 3), (0, 2, 2, 2), (2,)], {"kernel_shape": [2, 2]}),
    "Einsum": ([(2, 0), (2, 0)], {"equation": "ab,ab->a"}),
}


@pytest.mark.relax
@pytest.mark.parametrize("op", PRODUCTS_OF_NOTHING)
@pytest.mark.parametrize("opened", [False, True])
def test_products_of_nothing_are_zero_on_tvm(op: str, opened: bool) -> None:
    """They gave what the memory held."""
    (shapes, attributes), b = PRODUCTS_OF_NOTHING[op], Builder(17)
    feeds = {f"x{i}": np.ones(shape, np.float32) for i, shape in enumerate(shapes)}
    fixed = 1 if op.startswith("Conv") else len(feeds)  # weights are constants
    names = [
        b.input(n, [f"{n}_{i}" if opened else e for i, e in enumerate(a.shape)])
        if at < fixed
        else b.init(a)
        for at, (n, a) in enumerate(feeds.items())
    ]
    b.output(b.op(op, *names, **attributes))
    everywhere(canonical(b.model()), dict([*feeds.items()][:fixed]))


@pytest.mark.relax
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_an_open_integer_product_of_nothing_is_zero_on_tvm(dtype: str) -> None:
    b, kind = Builder(17), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    b.output(b.op("MatMul", b.input("x", [2, "k"], kind), b.input("y", ["k", 3], kind)), None, kind)
    feeds: dict[str, Any] = {"x": np.ones((2, 0), dtype), "y": np.ones((0, 3), dtype)}
    assert not everywhere(canonical(b.model()), feeds).any()


@pytest.mark.relax
def test_nothing_is_padded_by_pads_of_the_run() -> None:
    b = Builder(13)
    x, pads = b.input("x", [0]), b.input("p", [2], INT64)
    b.output(b.op("Pad", x, pads, b.init(np.float32(7))))
    feeds: dict[str, Any] = {"x": np.ones(0, np.float32), "p": np.array([2, 1])}
    assert everywhere(canonical(b.model()), feeds).tolist() == [7, 7, 7]


@pytest.mark.relax
@pytest.mark.parametrize(("start", "end"), [(-5, -5), (-5, -9), (-5, -3), (-2, -4), (-5, 0)])
def test_slices_go_backwards_from_the_first_element_on(start: int, end: int) -> None:
    b = Builder(17)
    bounds = [b.init(np.array([n])) for n in (start, end, 0, -1)]
    b.output(b.op("Slice", b.input("x", ["n"]), *bounds))
    graph = canonical(b.model())
    executable = qb.compile(graph, UNOPTIMIZED, threads=1)
    for count in (0, 1, 2, 4, 5, 7):
        feeds = {"x": np.arange(count, dtype=np.float32)}
        (meant,), (found,) = run(graph, feeds), executable.run(feeds).values()
        np.testing.assert_array_equal(found, meant)
        fixed = Builder(17)
        bounds = [fixed.init(np.array([n])) for n in (start, end, 0, -1)]
        fixed.output(fixed.op("Slice", fixed.input("x", [count]), *bounds))
        np.testing.assert_array_equal(everywhere(canonical(fixed.model()), feeds), meant)


@pytest.mark.relax
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_flat_softmax_of_nothing_is_no_python_error_on_tvm(op: str) -> None:
    b = Builder(8)
    b.output(b.op(op, b.input("x", [4, 0]), axis=0))
    assert everywhere(canonical(b.model()), {"x": np.ones((4, 0), np.float32)}).shape == (4, 0)


@pytest.mark.relax
def test_a_resize_of_nothing_is_no_python_error_on_tvm() -> None:
    b = Builder(18)
    scales = b.init(np.array([1, 2, 0.6], np.float32))
    b.output(b.op("Resize", b.input("x", [3, 0, 5]), "", scales, mode="linear"))
    found = everywhere(canonical(b.model()), {"x": np.ones((3, 0, 5), np.float32)})
    assert found.shape == (3, 0, 3)


@pytest.mark.relax
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("low", "high"), [(None, 0), (-1, None), (None, None), (-np.inf, 0)])
def test_a_bound_that_a_clip_leaves_out_is_the_last_finite_number(
    dtype: str, low: float | None, high: float | None
) -> None:
    b, kind = Builder(13), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    bounds = ["" if end is None else b.init(np.array(end, dtype)) for end in (low, high)]
    b.output(b.op("Clip", b.input("x", ["n"], kind), *bounds), None, kind)
    graph, limits = canonical(b.model()), np.finfo(dtype)
    found = everywhere(graph, {"x": np.array([-np.inf, np.inf, np.nan, 2, -3], dtype)})
    wanted = [
        max(-np.inf, float(limits.min) if low is None else low),
        min(np.inf, float(limits.max) if high is None else high),
        np.nan,
        2 if high is None else high,
        -1 if low == -1 else -3,
    ]
    np.testing.assert_array_equal(found, np.array(wanted, dtype))
    assert saved(graph).digest == graph.digest


@pytest.mark.relax
def test_an_extreme_with_a_number_clips_no_infinity() -> None:
    b = Builder(13)
    b.output(b.op("Max", b.input("x", ["n"]), b.init(np.float32(-1))))
    graph = canonical(b.model())
    found = everywhere(graph, {"x": np.array([-np.inf, np.inf], np.float32)})
    np.testing.assert_array_equal(found, [-1, np.inf])
    assert saved(graph).digest == graph.digest


def test_what_is_dequantized_has_no_infinity_to_clip() -> None:
    """ONNX's left-out bound and none are one there, but not where float16 may overflow."""
    for scale, dtype, same in ((0.1, np.float32, True), (2000.0, np.float16, False)):
        texts: list[str] = []
        for op in ("Clip", "Max"):
            b, kind = Builder(19), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            x = b.dq(b.input("x", ["n"], INT8), dtype(scale), 0, np.int8)
            b.output(b.op(op, x, b.init(dtype(-1))), None, kind)
            texts.append(canonical(b.model()).text())
        assert (texts[0] == texts[1]) is same


@pytest.mark.relax
def test_a_negative_factor_of_unsigned_integers_wraps_around() -> None:
    b, kind = Builder(13), TensorProto.UINT32
    names = [b.input(n, s, kind) for n, s in (("x", [1, 2]), ("y", [2, 2]), ("z", [1]))]
    b.output(b.op("Gemm", *names, beta=-1.0), None, kind)
    feeds: dict[str, Any] = {
        "x": np.array([[1, 2]], np.uint32),
        "y": np.array([[3, 0], [5, 1]], np.uint32),
        "z": np.array([4], np.uint32),
    }
    assert everywhere(canonical(b.model()), feeds).tolist() == [[9, (1 << 32) - 2]]


@pytest.mark.relax
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_open_channels_may_be_none(op: str) -> None:
    b = Builder(13)
    shape = [3, "n", 1, 1] if op == "Conv" else ["n", 3, 1, 1]
    b.output(b.op(op, b.input("x", [1, "n", 5, 5]), b.input("w", shape)), None)
    graph = canonical(b.model())
    executable = qb.compile(graph, UNOPTIMIZED, threads=1)
    for count in (0, 2):
        sizes = [count if extent == "n" else int(extent) for extent in shape]
        feeds = {"x": np.ones((1, count, 5, 5), np.float32), "w": np.ones(sizes, np.float32)}
        (found,) = executable.run(feeds).values()
        np.testing.assert_array_equal(found, np.full((1, 3, 5, 5), count, np.float32))


INFINITE_TRANSPOSED: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "strides": ([1, 2, 3, 3], [2, 4, 3, 3], {"strides": [2, 2], "output_padding": [1, 1]}),
    "groups": ([1, 4, 3, 3], [4, 2, 2, 2], {"group": 2, "pads": [1, 0, 0, 1]}),
    "dilations": ([2, 2, 4], [2, 3, 2], {"dilations": [3], "strides": [2]}),
    "volume": ([1, 2, 2, 3, 2], [2, 2, 2, 1, 2], {"strides": [2, 1, 2]}),
    "taps apart": ([1, 1, 3, 3], [1, 1, 1, 1], {"strides": [3, 3]}),
}


@pytest.mark.relax
@pytest.mark.parametrize("case", INFINITE_TRANSPOSED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("constant", [False, True])
def test_nothing_is_multiplied_between_what_is_transposed(
    case: str, dtype: str, constant: bool
) -> None:
    """TVM's zeros between elements times an infinite weight were NaN; dilated kernels have some."""
    (x_shape, w_shape, attributes), b = INFINITE_TRANSPOSED[case], Builder(13)
    kind, rng = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.random.default_rng(0)
    feeds = {n: rng.integers(1, 5, s).astype(dtype) for n, s in (("x", x_shape), ("w", w_shape))}
    for array in feeds.values():
        array.reshape(-1)[0] = np.inf
    x = b.input("x", x_shape, kind)
    w = b.init(feeds.pop("w")) if constant else b.input("w", w_shape, kind)
    b.output(b.op("ConvTranspose", x, w, **attributes), None, kind)
    found = everywhere(canonical(b.model()), feeds)
    assert np.isinf(found).any()
    assert not np.isnan(found).any()


@pytest.mark.relax
@pytest.mark.parametrize("sizes", [(2, 0, 3), (0, 5), (5, 0), (0, 0, 5)])
@pytest.mark.parametrize("extent", [2, "n"])
def test_parts_of_a_split_may_be_nothing(sizes: tuple[int, ...], extent: int | str) -> None:
    b = Builder(13)
    name = b.op("Split", b.input("x", [5, extent]), b.init(np.array(sizes)), outputs=len(sizes))
    for index in range(len(sizes)):
        b.output(f"{name}:{index}" if index else name, None)
    graph, feeds = canonical(b.model()), {"x": np.arange(10, dtype=np.float32).reshape(5, 2)}
    found = qb.compile(graph, UNOPTIMIZED, threads=1).run(feeds)
    for meant, got in zip(run(graph, feeds), found.values(), strict=True):
        np.testing.assert_array_equal(got, meant)


@pytest.mark.relax
def test_a_reshape_of_nothing_to_numbers_keeps_them() -> None:
    b = Builder(21)
    b.output(b.op("Reshape", b.input("x", ["m", "m", "m", "k"]), b.init(np.array([5, 5, 0, 3]))))
    feeds = {"x": np.ones((0, 0, 0, 2), np.float32)}
    assert everywhere(canonical(b.model()), feeds).shape == (5, 5, 0, 3)


def test_a_reshape_that_copies_nothing_keeps_its_numbers() -> None:
    """The only extent that fits is 0; what is left of nothing is 0 too, and was the last one."""
    b = Builder(21)
    kept = b.op("Compress", b.input("x", [1]), b.input("keep", [1], TensorProto.BOOL), axis=0)
    b.output(b.op("Reshape", kept, b.init(np.array([0, 3, 1, 1]))), None)
    graph = canonical(b.model())
    feeds: dict[str, Any] = {"x": np.ones(1, np.float32), "keep": np.array([False])}
    assert run(graph, feeds)[0].shape == (0, 3, 1, 1)
    assert saved(graph).digest == graph.digest


def test_a_resize_by_one_is_what_it_resizes() -> None:
    """0 times the infinite neighbour was NaN."""
    b = Builder(7)
    b.output(b.op("Upsample", b.input("x", [2, 1, 3]), mode="linear", scales=[1.0, 1.0, 1.0]))
    x = np.array([[[1, 2, 3]], [[np.inf, -1, np.nan]]], np.float32)
    graph = load(b.model())
    assert graph.nodes
    np.testing.assert_array_equal(run(graph, {"x": x})[0], x)


def test_axes_of_an_old_squeeze_have_any_order() -> None:
    b = Builder(10)
    b.output(b.op("Squeeze", b.input("x", [1, 1, 5, 1]), axes=[3, 0, 1]))
    assert run(canonical(b.model()), {"x": np.ones((1, 1, 5, 1), np.float32)})[0].shape == (5,)


def test_a_place_is_an_integer_also_where_its_axis_is_none() -> None:
    """onnxruntime takes axis 0 of a scalar; ONNX's inference stops, and the guess was float64."""
    b = Builder(7)
    place = b.op("ArgMin", b.input("x", [], TensorProto.DOUBLE), axis=0, keepdims=1)
    b.output(b.op("ReduceL1", place, keepdims=0), None, INT64)
    assert run(canonical(b.model()), {"x": np.array(-0.5)}) == [0]


@pytest.mark.parametrize("shape", [[0, 1, 0], ["a", 1, "b"], ["a", "b", "c"]])
def test_a_flat_hardmax_of_nothing_has_the_shape_of_its_input(shape: list[int | str]) -> None:
    b = Builder(12)
    b.output(b.op("Hardmax", b.input("x", shape), axis=1), None)
    found = run(canonical(b.model()), {"x": np.ones((0, 1, 0), np.float32)})
    assert found[0].shape == (0, 1, 0)


@pytest.mark.relax
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pads_of_nothing_by_its_own_elements(mode: str) -> None:
    b = Builder(19)
    b.output(b.op("Pad", b.input("x", [0]), b.init(np.array([-1, 1])), mode=mode), None)
    assert everywhere(canonical(b.model()), {"x": np.ones(0, np.float32)}).shape == (0,)


def test_a_resize_of_nothing_that_keeps_a_ratio() -> None:
    b = Builder(19)
    b.output(b.op("Resize", b.input("x", [1, 1, 0]), "", "", b.init(np.array([3])), mode="linear",
                  axes=[0], keep_aspect_ratio_policy="not_smaller"), None)  # fmt: skip
    assert run(canonical(b.model()), {"x": np.ones((1, 1, 0), np.float32)})[0].shape == (3, 1, 0)


def test_a_flat_softmax_of_nothing_is_saved() -> None:
    b = Builder(8)
    b.output(b.op("Softmax", b.input("x", [0, 4, 5]), axis=0), None)
    graph = canonical(b.model())
    assert saved(graph).digest == graph.digest


@pytest.mark.parametrize("low", ["low", ""])
def test_stored_integers_may_be_clipped_by_what_the_run_knows(low: str) -> None:
    b, kind = Builder(17), TensorProto.UINT8
    codes = b.op("QuantizeLinear", b.input("x", [2]), b.init(np.float32(0.5)), b.init(np.uint8(7)))
    bounds = [b.input(name, [], kind) if name else "" for name in (low, "high")]
    b.output(b.op("Clip", codes, *bounds), None, kind)
    graph = canonical(b.model())
    feeds: dict[str, Any] = {"x": np.array([-2, 1], np.float32), "high": np.array(8, np.uint8)}
    (found,) = run(graph, feeds | ({"low": np.array(5, np.uint8)} if low else {}))
    assert found.tolist() == [5 if low else 3, 8]
    assert saved(graph).digest == graph.digest


def test_int32_codes_that_are_moved_are_an_output_too() -> None:
    """No Q gives int32."""
    b, kind = Builder(18), TensorProto.INT32
    tiled = b.op("Tile", b.input("x", [2, 3], kind), b.init(np.array([1, 2])))
    turned = b.op("Transpose", tiled, perm=[1, 0])
    b.output(turned, None, kind)
    b.output(b.op("Neg", b.op("DequantizeLinear", turned, b.init(np.float32(0.1)))), None)
    graph = canonical(b.model())
    back = saved(graph)
    assert back.digest == graph.digest
    feeds: dict[str, Any] = {"x": np.array([[2**31 - 1, 5, -6], [0, 1, -(2**31)]], np.int32)}
    for meant, found in zip(run(graph, feeds), run(back, feeds), strict=True):
        np.testing.assert_array_equal(found, meant)


def test_branches_that_constants_make_equal_are_one_at_once() -> None:
    """What the constants come to was known when the saved file was read."""
    b = Builder(13)
    number = b.op("Cast", b.op("Neg", b.init(np.float32(0.25))), to=TensorProto.FLOAT)
    branches: dict[str, Any] = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [])
        node = helper.make_node(op, [number], [name])
        branches[name] = helper.make_graph([node], name, [], [out])
    b.output(b.op("If", b.input("c", [], TensorProto.BOOL), **branches), None)
    graph = canonical(b.model())
    assert not graph.nodes
    assert saved(graph).digest == graph.digest


@pytest.mark.relax
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize(
    ("shape", "axis"), [(["n"], 0), (["n", "m"], 0), (["n", "m"], 1), ([2, 3], 1)]
)
def test_a_hardmax_over_open_axes(opset: int, shape: list[Any], axis: int) -> None:
    b = Builder(opset)
    b.output(b.op("Hardmax", b.input("x", shape), axis=axis), None)
    x = np.array([[1, 3, 3], [2, -1, 0]], np.float32)
    found = everywhere(canonical(b.model()), {"x": x if len(shape) > 1 else x[0]})
    assert found.sum() == (1 if len(shape) == 1 or (opset, axis) == (11, 0) else x.shape[1 - axis])


@pytest.mark.relax
@pytest.mark.parametrize(("number", "count"), [(2.0, 1), (0.0, 0)])
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_the_place_of_a_scalar_has_no_axes(number: float, count: int, dtype: str) -> None:
    """ONNX's text says so; onnxruntime gives it one."""
    b, kind = Builder(13), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    b.output(b.op("NonZero", b.input("x", [], kind)), None, INT64)
    assert everywhere(canonical(b.model()), {"x": np.array(number, dtype)}).shape == (0, count)


@pytest.mark.relax
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_the_extreme_of_a_scalar_is_at_0(op: str) -> None:
    b = Builder(7)
    b.output(b.op(op, b.input("x", []), axis=0), None, INT64)
    assert everywhere(canonical(b.model()), {"x": np.array(2, np.float32)}) == 0


@pytest.mark.relax
def test_what_only_float32_has_is_rounded_once_to_float16() -> None:
    b, kind = Builder(13), TensorProto.FLOAT16
    b.output(b.op("MeanVarianceNormalization", b.input("x", [1, 2, 2, 2], kind)), None, kind)
    x = np.array([1, 2, 3, 4, 0, 0, 1, 1], np.float16).reshape(1, 2, 2, 2)
    found = everywhere(canonical(b.model()), {"x": x}).reshape(2, 4)
    deviation = np.sqrt(1.25)
    meant = [[-1.5 / deviation, -0.5 / deviation, 0.5 / deviation, 1.5 / deviation], [-1, -1, 1, 1]]
    np.testing.assert_array_equal(found, np.array(meant, np.float16))


@pytest.mark.relax
@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_an_image_of_no_rows_is_resized(kernels: Any) -> None:
    b = Builder(9)
    scales = b.init(np.array([1, 1, 2, 2], np.float32))
    b.output(b.op("Upsample", b.input("x", [1, 1, 0, 3]), scales, mode="nearest"), None)
    executable = qb.compile(canonical(b.model()), UNOPTIMIZED, threads=1, kernels=kernels)
    (found,) = executable.run({"x": np.ones((1, 1, 0, 3), np.float32)}).values()
    assert found.shape == (1, 1, 0, 6)


def test_bodies_without_bytes_have_the_oldest_opset() -> None:
    """Sub takes uint8 from opset 14 on, and nothing inside of the body makes any."""
    digests: set[str] = set()
    for opset in (13, 14, 17):
        b = Builder(opset)
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]),
             helper.make_node("Sub", ["state", "x"], ["next"])], "body",
            [helper.make_tensor_value_info("i", INT64, []),
             helper.make_tensor_value_info("go", TensorProto.BOOL, []),
             helper.make_tensor_value_info("state", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
             helper.make_tensor_value_info("next", TensorProto.FLOAT, [2])],
        )  # fmt: skip
        count, x = b.input("n", [], INT64), b.input("x", [2])
        b.output(b.op("Loop", count, b.init(np.array(True)), x, body=body), None)
        digests.add(canonical(b.model()).digest)
    assert len(digests) == 1


@pytest.mark.relax
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("reverse", [0, 1])
def test_an_exclusive_sum_of_nothing_is_nothing(op: str, reverse: int) -> None:
    b = Builder(17 if op == "CumSum" else 26)
    x, axis = b.input("x", ["n", 2]), b.init(np.array(0))
    b.output(b.op(op, x, axis, exclusive=1, reverse=reverse), None)
    graph = canonical(b.model())
    executable = qb.compile(graph, UNOPTIMIZED, threads=1)
    for count in (0, 1, 3):
        feeds = {"x": np.arange(2 * count, dtype=np.float32).reshape(count, 2) + 2}
        (found,) = executable.run(feeds).values()
        np.testing.assert_array_equal(found, run(graph, feeds)[0])


@pytest.mark.relax
def test_bounds_of_run_time_leave_nan() -> None:
    b = Builder(13)
    b.output(b.op("Clip", b.input("x", ["n"]), b.input("low", []), b.init(np.float32(6))), ["n"])
    feeds: dict[str, Array] = {
        "x": np.array([np.nan, 0, 9], np.float32), "low": np.array(1, np.float32)
    }  # fmt: skip
    np.testing.assert_array_equal(everywhere(canonical(b.model()), feeds), [np.nan, 1, 6])


def drawn_window(seed: int) -> Graph:
    """A pool, of a constant at times, or a pad that goes around; one axis may be open."""
    rng = np.random.default_rng(seed)
    b, sizes = Builder(19), [int(size) for size in rng.integers(3, 8, 2)]
    shape: list[Any] = ["n", 2, *sizes]
    if rng.random() < 0.5:
        shape[int(rng.integers(2, 4))] = "m"
    fixed = seed % 5 == 0
    data = rng.normal(size=(1, 2, *sizes)).astype(np.float32)
    x = b.init(data) if fixed else b.input("x", shape)
    if fixed:
        b.input("unread", [2])
    if seed % 5 == 4:
        x = b.input("p", [2, 1, int(rng.integers(1, 3))])
        pads = rng.integers(0, 4, 6)
        b.output(b.op("Pad", x, b.init(pads), mode="wrap"), None)
        return canonical(b.model())
    kernel, strides = rng.integers(1, 4, 2), rng.integers(1, 4, 2)
    pads = [*rng.integers(0, kernel), *rng.integers(0, kernel)]
    op = ("AveragePool", "MaxPool")[seed % 2]
    more: dict[str, Any] = {"count_include_pad": int(rng.integers(0, 2))} if not seed % 2 else {}
    b.output(b.op(op, x, kernel_shape=kernel.tolist(), strides=strides.tolist(), ceil_mode=1,
                  pads=[int(pad) for pad in pads], **more), None)  # fmt: skip
    return canonical(b.model())


@pytest.mark.relax
def test_windows_come_back_as_they_were_said() -> None:
    told = 0
    for seed in range(100):
        graph = drawn_window(seed)
        for variant in HOSTED:
            try:
                back = hosted(graph, variant)
            except UnsupportedTargetError:  # a last window that may start in the padding
                continue
            told += 1
            assert back.text() == graph.text(), seed
    assert told > 150


@pytest.mark.relax
@pytest.mark.parametrize(
    "factors", [{"beta": -1.0}, {"alpha": -1.0}, {"alpha": -1.0, "beta": -2.0}]
)
def test_negative_factors_of_unsigned_numbers_come_back(factors: dict[str, Any]) -> None:
    kind = TensorProto.UINT32
    b = Builder(13)
    w, bias = (b.init(np.arange(n, dtype=np.uint32).reshape(s)) for n, s in ((6, (2, 3)), (3, 3)))
    b.output(b.op("Gemm", b.input("x", ["n", 2], kind), w, bias, **factors), None, kind)
    graph = canonical(b.model())
    assert hosted(graph, "qnn").text() == graph.text()


def _int8(b: Builder, op: str, x: str, scale: float) -> str:
    return b.op(op, x, b.init(np.float32(scale)), b.init(np.int8(0)))


def _stays(b: Builder) -> Graph:
    """Returns a model's graph, whose digest is that of the saved file and of both modules."""
    graph = canonical(b.model())
    assert saved(graph).digest == graph.digest
    for variant in HOSTED:
        assert hosted(graph, variant).digest == graph.digest
    return graph


@pytest.mark.relax
def test_a_loop_of_no_steps_stacks_rows_of_a_rank() -> None:
    """It was one axis; behind it were other operators on TVM, which knows how many there are."""
    b, info = Builder(17), helper.make_tensor_value_info
    kind = TensorProto.FLOAT
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "state"], ["next"]),
         helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["next"], ["row"])],
        "body",
        [info("i", INT64, []), info("go", TensorProto.BOOL, []), info("state", kind, [None])],
        [info("on", TensorProto.BOOL, []), info("next", kind, [None]), info("row", kind, [None])],
    )  # fmt: skip
    steps = b.input("steps", [], INT64)
    rows = b.op("Loop", steps, b.init(np.array(True)), b.input("x", [3]), outputs=2, body=body)
    b.output(f"{rows}:1", None)
    b.output(b.op("MatMul", f"{rows}:1", b.init(np.ones((3, 2), np.float32))), None)
    graph = _stays(b)
    assert [node.op.name for node in graph.nodes] == ["Loop", "Gemm"]
    x = np.ones(3, np.float32)
    assert run(graph, {"steps": np.array(2), "x": x})[1].shape == (2, 2)
    del graph.outputs[1:], graph.output_names[1:]
    assert run(saved(graph), {"steps": np.array(0), "x": x})[0].shape == (0, 0)


@pytest.mark.relax
@pytest.mark.parametrize("kind", ["codes", "read", "moved", "joined", "joined as others"])
def test_integers_that_leave_are_those_that_were_made(kind: str) -> None:
    """What else their readers take them for is not in a file, nor in a module."""
    b = Builder(17)
    made = _int8(b, "QuantizeLinear", b.input("x", [2, 3]), 0.02)
    if kind.startswith("joined"):
        made = b.op("Concat", made, b.input("codes", [2, 3], INT8), axis=0)
    other = _int8(b, "DequantizeLinear", made, 0.5)
    if kind != "joined":
        b.output(other)
    if kind == "moved":
        shape = b.init(np.array([3, 2]))
        made = b.op("Reshape", _int8(b, "QuantizeLinear", other, 0.5), shape)
    elif not kind.startswith("joined"):
        made = _int8(b, "QuantizeLinear", other, 0.5)
    b.output(made, None, INT8)
    _stays(b)


@pytest.mark.relax
@pytest.mark.parametrize("scales", [[2, 3, 1, 1], [1.5, 1, 1, 1]])
@pytest.mark.parametrize("shape", [[5, 1, 1, 0], [0, 1, 2, 1]])
def test_a_resize_of_no_codes(shape: list[int], scales: list[float]) -> None:
    """A sample without elements had proven that a quantize is the Resize as well."""
    b = Builder(11)
    x = b.op("DequantizeLinear", b.input("x", shape, INT8), b.init(np.float32(0.5)))
    factors = b.init(np.array(scales, np.float32))
    nothing = b.init(np.zeros(0, np.float32))
    b.output(b.op("Resize", x, nothing, factors, mode="nearest", nearest_mode="ceil"), None)
    graph = _stays(b)
    resized = any(node.op.name == "Resize" for node in graph.nodes)
    assert resized == (graph.outputs[0].type.shape != tuple(shape))
