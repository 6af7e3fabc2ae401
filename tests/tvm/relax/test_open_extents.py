"""Open extents on TVM: the interpreter's results, or one refusal for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.app.sources import load_model
from qdqbridge.errors import InputDataError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.options import Kernels
from qdqbridge.tvm.relax.files import write_module
from tests.onnx_models import Array, Builder, canonical, ints
from tests.tvm.relax.open_models import Case, case
from tests.tvm.relax.targets import UNOPTIMIZED

pytestmark = pytest.mark.relax
QUICK = (*range(12), 13, 25, 37, 49, 61, 73, 85, 97, 32, 41, 42, 44, 110)
"""Seeds of the quick subset; ``scripts/sweeps/sweep_open.py`` runs as many as one likes."""


def problems(model: Case, kernels: Kernels) -> list[str]:
    """Returns what differs between TVM and the interpreter on every feeding of a case.

    Raises:
        UnsupportedTargetError: TVM cannot run the model.
    """
    graph = canonical(model.model)
    built, found = qb.compile(graph, kernels=kernels), list[str]()
    for extents in model.feeds:
        inputs = model.inputs(extents)
        try:
            expected = qb.evaluate(graph, inputs)
        except QdqBridgeError:
            expected = None
        try:
            given = built.run(inputs)
        except InputDataError:
            given = None
        if expected is None or given is None:
            if (expected is None) != (given is None):
                found.append(f"{extents}: only one of both computes")
            continue
        found += [
            f"{extents}: {name} differs"
            for name in expected
            if not np.array_equal(expected[name], given[name], equal_nan=True)
        ]
    return found


@pytest.mark.parametrize("seed", QUICK)
def test_tvm_computes_what_the_interpreter_does(seed: int) -> None:
    assert problems(case(seed), ("fast", "reference")[seed % 2]) == []


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize("wanted", [(3, 3), (2, 3, 1), ("m", 3)])
def test_an_extent_that_may_be_1_is_repeated(
    wanted: tuple[int | str, ...], kernels: Kernels
) -> None:
    """Rows of a copy that took an open extent for the known one it becomes were those of nobody."""
    b = Builder(17)
    given: tuple[int | str, ...] = ("n", 3) if "m" not in wanted else (1, 3)
    x = b.qdq(b.input("x", [*given]), 0.1, 120)
    shapes: dict[str, tuple[int | str, ...]] = {"x": given}
    if "m" in wanted:
        target, shapes["other"] = b.op("Shape", b.input("other", [*wanted])), wanted
    else:
        target = b.init(np.array(wanted))
    b.output(b.qdq(b.op("Expand", x, target), 0.1, 120), None)
    feeds = tuple({"n": n, "m": n} for n in (0, 1, 2, 3))
    assert problems(Case("expand", b.model(), shapes, feeds, 0), kernels) == []


def _fed(graph: qb.Graph, sizes: Mapping[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {
        value.name: [sizes[e] if isinstance(e, str) else e for e in value.type.shape or ()]
        for value in graph.inputs
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _slope(b: Builder) -> str:
    return b.op("PRelu", b.input("x", ["n", 3]), b.input("y", ["p", 3]))


def _gemm_bias(b: Builder) -> str:
    w = b.weight(ints((3, 5)), 0.01)
    return b.op("Gemm", b.qdq(b.input("x", ["n", 3]), 0.1, 120), w, b.input("y", ["p", 1]))


def _mask(b: Builder) -> str:
    heads = [b.input("x", ["n", 2, 3, 8]), *(b.input(each, ["n", 2, 5, 8]) for each in "kv")]
    return b.op("Attention", *heads, b.input("y", ["p", 1, 3, 5]))


@pytest.mark.parametrize("operator", [_slope, _gemm_bias, _mask])
def test_what_is_added_makes_no_result_larger(operator: Callable[[Builder], str]) -> None:
    """A mask of too few batches gave the last one's numbers for the others."""
    b = Builder(23)
    b.output(operator(b), None)
    graph = canonical(b.model())
    executable = qb.compile(graph, UNOPTIMIZED)
    for n, p in ((3, 3), (3, 1), (1, 1), (1, 3), (1, 0), (3, 2), (2, 3), (3, 0)):
        given = _fed(graph, {"n": n, "p": p})
        if p not in (1, n):
            for run in (executable.run, lambda feeds: qb.evaluate(graph, feeds)):
                with pytest.raises(QdqBridgeError, match=r"broadcast|extent"):
                    run(given)
            continue
        (found,), (wanted,) = executable.run(given).values(), qb.evaluate(graph, given).values()
        # products are added in another order; all else has the same bits
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


_EQUATIONS = (
    ("...ik,...kj->...ij", ["n", 2, "k"], ["m", "k", 3]),
    ("b...k,bk...->b...", ["b", "n", "m", "k"], ["b", "k", "p", "m"]),
    ("...,...->...", ["n", 3], ["m", "r"]),
    ("...i,...i", ["n", 1, "i"], [1, "m", "i"]),
    ("ij,jk", ["n", "k"], ["k", "m"]),
)


def test_an_einsum_repeats_what_an_ellipsis_stands_for() -> None:
    """By NumPy. TVM's operator reads beyond what has one element; onnxruntime ends on nothing."""
    b = Builder(21)
    for index, (equation, *shapes) in enumerate(_EQUATIONS):
        names = (b.input(f"{'xy'[side]}{index}", s) for side, s in enumerate(shapes))
        b.output(b.op("Einsum", *names, equation=equation), None)
    graph = canonical(b.model())
    executable = qb.compile(graph, UNOPTIMIZED)
    for n, m, p in ((2, 2, 1), (2, 1, 2), (1, 2, 3), (1, 1, 1), (0, 1, 1), (0, 0, 0), (3, 1, 3)):
        sizes = {"n": n, "m": m, "p": p, "k": 2 * m, "b": 2, "i": 2, "r": 3 if m else 1}
        feeds = _fed(graph, sizes)
        found, wanted = executable.run(feeds), qb.evaluate(graph, feeds)
        for index, ((equation, *_), name) in enumerate(zip(_EQUATIONS, wanted, strict=True)):
            exact = np.einsum(equation, feeds[f"x{index}"], feeds[f"y{index}"])
            for each in (found[name], wanted[name]):  # summed in another order
                np.testing.assert_allclose(each, exact, rtol=1e-5, atol=1e-5)


def test_what_tvm_cannot_run_is_refused_beside_kernels_of_computed_extents() -> None:
    """A kernel whose extent nobody named ended the process before anything was refused."""
    b = Builder(17)
    x = b.input("x", ["n", 3])
    kept = b.op("Compress", x, b.input("kept", ["n"], TensorProto.BOOL), axis=0)
    rows = b.op("Expand", b.qdq(b.input("row", [1, 3]), 0.1, 120), b.op("Shape", kept))
    b.output(b.qdq(b.op("Add", rows, b.qdq(kept, 0.1, 120)), 0.1, 120), None)
    b.output(b.op("Squeeze", kept), None)
    with pytest.raises(UnsupportedTargetError, match="Squeeze"):
        qb.compile(canonical(b.model()))


def two_batches() -> onnx.ModelProto:
    """A convolution of n images, and m others added to its result."""
    b = Builder(17)
    x, other = b.qdq(b.input("x", ["n", 3, 6, 6]), 0.1, 120), b.input("other", ["m", 5, 6, 6])
    y = b.op("Conv", x, b.weight(ints((5, 3, 3, 3)), 0.01), pads=[1, 1, 1, 1])
    total = b.op("Add", b.qdq(y, 0.1, 120), b.qdq(other, 0.1, 120))
    b.output(b.qdq(total, 0.2, 120))
    return b.model()


@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_a_residual_of_another_batch(kernels: Kernels) -> None:
    """A kernel that adds while it writes takes a tensor of its own batch only."""
    feeds = tuple({"n": n, "m": m} for n, m in ((1, 1), (3, 1), (1, 2), (0, 0), (65, 65), (3, 2)))
    shapes = {"x": ("n", 3, 6, 6), "other": ("m", 5, 6, 6)}
    assert problems(Case("residual", two_batches(), shapes, feeds, 0), kernels) == []


def test_a_weight_decides_an_extent_that_the_file_leaves_open() -> None:
    """Kernels would read past the end of rows that are shorter than the weight's."""
    b = Builder(17)
    x = b.qdq(b.input("x", ["n", "k"]), 0.1, 120)
    b.output(b.qdq(b.op("MatMul", x, b.weight(ints((8, 5)), 0.01)), 0.2, 120))
    built = qb.compile(canonical(b.model()))
    assert built.run({"x": np.ones((2, 8), np.float32)})
    with pytest.raises(InputDataError, match="wrong shape"):
        built.run({"x": np.ones((2, 7), np.float32)})


def test_parts_of_a_concat_may_name_an_extent_otherwise() -> None:
    """TVM's operator loses the shape of the result, and is not lowered then."""
    b = Builder(21)
    b.output(b.op("Concat", b.input("x", ["a", 4, 2]), b.input("y", ["b", 3, 2]), axis=1), None)
    graph = canonical(b.model())
    module, _ = qb.to_relax(graph)
    assert qb.from_relax(module).digest == graph.digest
    built = qb.compile(graph, UNOPTIMIZED)
    x, y = np.ones((3, 4, 2), np.float32), np.zeros((3, 3, 2), np.float32)
    (found,) = built.run({"x": x, "y": y}).values()
    np.testing.assert_array_equal(found, np.concatenate([x, y], axis=1))
    with pytest.raises(InputDataError):
        built.run({"x": x, "y": y[:2]})


_BOUNDS = (
    (1, -1, 1), (5, -1, 2), (2, -3, 3), (-3, 2, 1), (-4, 0, 1), (3, 2, 1), (-1, -3, 1),
    (-2, 0, -1), (1, -1, -2), (0, -3, -1), (2, 2**63 - 1, 1), (2**63 - 1, -(2**63), -1),
)  # fmt: skip
"""Start, end and step of slices of which some or all axes leave nothing."""


def test_slices_that_leave_nothing(tmp_path: Path) -> None:
    b = Builder(21)
    x = b.qdq(b.input("x", ["n", 2]), 0.1, 3)
    for start, end, step in _BOUNDS:
        listed = (b.init(np.array([number])) for number in (start, end, 0, step))
        b.output(b.qdq(b.op("Slice", x, *listed), 0.1, 3), None)
    model = b.model()
    graph = canonical(model)
    module, parameters = qb.to_relax(graph)
    assert qb.from_relax(module, parameters).digest == graph.digest
    write_module(module, tmp_path / "slices.json")
    assert load_model(tmp_path / "slices.json").digest == graph.digest
    executable = qb.compile(graph)
    for extent in range(8):
        given = {"x": np.arange(2 * extent, dtype=np.float32).reshape(extent, 2)}
        found, wanted = executable.run(given), qb.evaluate(graph, given)
        for (name, array), bounds in zip(wanted.items(), _BOUNDS, strict=True):
            assert array.shape == (len(range(extent)[slice(*bounds)]), 2)
            np.testing.assert_array_equal(found[name], array, f"{bounds} of {extent}")


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("quantized", [True, False])
def test_a_picture_smaller_than_the_window_of_a_pool(op_type: str, quantized: bool) -> None:
    """ONNX's runtimes have one window of what there is, TVM's operators none."""
    b = Builder(17)
    x = b.input("x", ["n", 2, "h", "w"])
    given = b.qdq(x, 0.02, 120) if quantized else x
    pooled = b.op(op_type, given, kernel_shape=[3, 2], strides=[2, 3])
    b.output(b.qdq(pooled, 0.02, 120) if quantized else pooled, None)
    graph = canonical(b.model())
    module, _ = qb.to_relax(graph)
    assert qb.from_relax(module).digest == graph.digest
    built = qb.compile(graph, UNOPTIMIZED)

    def agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
        (one,), (other,) = found.values(), expected.values()
        assert 0 not in other.shape
        # averages of floats are added in another order; all else has the same bits
        close = 1e-6 if op_type == "AveragePool" and not quantized else 0.0
        np.testing.assert_allclose(one, other, rtol=close, atol=close)

    for height, width in ((2, 1), (2, 5), (7, 1), (3, 2), (9, 9)):
        drawn = np.random.default_rng(0).normal(size=(2, 2, height, width))
        feeds = {"x": drawn.astype(np.float32)}
        expected = qb.evaluate(graph, feeds)
        known = qb.compile(graph, UNOPTIMIZED, extents={"h": height, "w": width})
        agree(known.run(feeds), expected)
        if height < 3 or width < 2:
            with pytest.raises(InputDataError, match=r"an extent is \d where \d is needed"):
                built.run(feeds)
        else:
            agree(built.run(feeds), expected)
