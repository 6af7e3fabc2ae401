"""Operators that no ONNX importer writes: what is read computes what TVM computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax

import qdqbridge as qb
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.relax.dialect import tensor_type
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.frontend_cases import imported
from tests.tvm.relax.read_cases import read_back, same
from tests.tvm.relax.targets import compiled

pytestmark = pytest.mark.relax
R = relax.op
Array = np.ndarray[Any, Any]
Make = Callable[..., Any]
FLOATS = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
SHUFFLED = np.random.default_rng(0).permutation(24).astype(np.float32).reshape(2, 3, 4)
WHOLE = (np.arange(24, dtype=np.int32) - 11).reshape(2, 3, 4)
IMAGE = np.random.default_rng(1).normal(0, 1, (1, 4, 3, 3)).astype(np.float32)
HEADS = np.random.default_rng(2).normal(0, 1, (1, 5, 2, 4)).astype(np.float32)


def const(array: Any, dtype: str = "float32") -> Any:
    return relax.const(np.asarray(array, dtype), dtype)


_COLUMN: Any = [3, 1]
ROWS: Mapping[str, tuple[Make, Array]] = {
    "rsqrt": (lambda x: R.rsqrt(R.square(x)), FLOATS + np.float32(0.1)),
    "trunc": (R.trunc, FLOATS),
    "outer": (lambda x: R.outer(R.flatten(x), const([1, 2, 3])), FLOATS),
    "floor_divide": (lambda x: R.floor_divide(x, const(4, "int32")), WHOLE),
    "floor_divide, floats": (lambda x: R.floor_divide(x, const(0.75)), FLOATS),
    "floor_mod": (lambda x: R.floor_mod(x, const(4, "int32")), WHOLE),
    "floor_mod, floats": (lambda x: R.floor_mod(x, const(0.75)), FLOATS),
    "mod": (lambda x: R.mod(x, const(4, "int32")), WHOLE),
    "variance": (lambda x: R.variance(x, axis=[1], keepdims=True), FLOATS),
    "std": (lambda x: R.std(x, axis=[0, 2]), FLOATS),
    "stack": (lambda x: R.stack([x, R.negative(x)], axis=1), FLOATS),
    "flip": (lambda x: R.flip(x, axis=2), FLOATS),
    "repeat": (lambda x: R.repeat(x, 2, axis=1), FLOATS),
    "sort": (lambda x: R.sort(x, axis=1, descending=True), SHUFFLED),
    "argsort": (lambda x: R.argsort(x, axis=2, dtype="int32"), SHUFFLED),
    "cumsum": (lambda x: R.cumsum(x, axis=2, exclusive=True), WHOLE.astype(np.float32)),
    "prod": (lambda x: R.prod(x, axis=[2]), FLOATS),
    "prod of all, and silu": (lambda x: R.nn.silu(R.prod(x, keepdims=True)), FLOATS),
    "shift of bits": (lambda x: R.left_shift(R.astype(x, "uint8"), const(3, "uint8")), WHOLE),
    "batch_flatten": (R.nn.batch_flatten, FLOATS),
    "silu": (R.nn.silu, FLOATS),
    "selu": (R.nn.selu, FLOATS),
    "softplus": (R.nn.softplus, FLOATS),
    "prelu": (lambda x: R.nn.prelu(x, const([0.25, 0.5, 2]), axis=1), FLOATS),
    "rms_norm": (lambda x: R.nn.rms_norm(x, const([1, 2, 3, 4]), axes=[-1]), FLOATS),
    "isfinite": (R.isfinite, FLOATS),
    "not_equal": (lambda x: R.not_equal(x, const(0, "int32")), WHOLE),
    "triu": (lambda x: R.triu(x, 1), FLOATS),
    "one_hot": (
        lambda x: R.one_hot(R.abs(x), relax.prim_value(1.0), relax.prim_value(0.0), 12, axis=1),
        WHOLE,
    ),
    "zeros_like": (lambda x: R.add(R.ones_like(x), R.zeros_like(x)), FLOATS),
    "arange": (lambda x: R.add(x, R.arange(0, 4, 1, "float32")), FLOATS),
    "full": (lambda x: R.add(x, R.full(_COLUMN, const(1.5), "float32")), FLOATS),
    "topk": (lambda x: R.topk(x, 2, axis=1, ret_type="values"), SHUFFLED),
    "attention": (lambda x: R.nn.attention(x, x, R.negative(x)), HEADS),
    "causal attention": (lambda x: R.nn.attention(x, x, x, causal_mask="TopLeft"), HEADS),
}
_ROUNDED = ("rsqrt", "variance", "std", "prod", "prod of all, and silu", "silu", "selu",
            "softplus", "prelu", "rms_norm", "attention", "causal attention")  # fmt: skip
"""Floats that TVM computes by another formula, or sums in another order."""


def module_of(make: Make, array: Array) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_type(array.shape, str(array.dtype)))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(x)))
        builder.emit_func_output(out)
    return builder.finalize()


def by_tvm(module: Any, array: Array) -> Array:
    cpu: Any = tvm.cpu()
    machine: Any = relax.VirtualMachine(compiled(module), cpu)
    return machine["main"](tvm.runtime.tensor(np.ascontiguousarray(array))).numpy()


@pytest.mark.parametrize("name", ROWS)
def test_rows_compute_what_tvm_computes(name: str) -> None:
    make, array = ROWS[name]
    module = module_of(make, array)
    (ours,) = qb.evaluate(qb.from_relax(module), {"x": array}).values()
    theirs = by_tvm(module, array)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if name in _ROUNDED:
        # Functions and sums that TVM rounds in its own way.
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6)
    else:
        assert np.array_equal(ours, theirs)


NOT_COMPILED: Mapping[str, tuple[Make, Array, Array]] = {
    "pixel_shuffle": (
        lambda x: R.nn.pixel_shuffle(x, 2), IMAGE,
        IMAGE.reshape(1, 1, 2, 2, 3, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 1, 6, 6),
    ),
    "ewise_fma": (
        lambda x: R.ewise_fma(x, const(2 * FLOATS), const(FLOATS)), FLOATS,
        FLOATS * (2 * FLOATS) + FLOATS,
    ),
}  # fmt: skip
"""Operators that TVM 0.27 has and cannot compile, and what they compute."""


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_rows_of_what_tvm_cannot_compile(name: str) -> None:
    make, array, wanted = NOT_COMPILED[name]
    (ours,) = qb.evaluate(qb.from_relax(module_of(make, array)), {"x": array}).values()
    assert np.array_equal(ours, wanted)


REFUSED: Mapping[str, tuple[Make, Array, str]] = {
    "cumprod": (lambda x: R.cumprod(x, axis=0), FLOATS, "cumprod"),
    "long range": (
        lambda x: R.add(R.sum(x), R.arange(0, 1 << 40, 1, "float32")), FLOATS, "more than"
    ),
    "flat cumsum": (R.cumsum, FLOATS, "flattened"),
    "flat argmax": (R.argmax, FLOATS, "all axes at once"),
    "softplus": (lambda x: R.nn.softplus(x, 1.0, 2.0), FLOATS, "linear from 2"),
    "rms_norm": (
        lambda x: R.nn.rms_norm(x, const(np.ones((2, 3))), axes=[0, 1]), FLOATS, "normalizes axes"
    ),
    "window": (
        lambda x: R.nn.attention(x, x, x, causal_mask="BottomRight", window_size=2), HEADS,
        "sliding window",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart_is_refused_with_the_reason(name: str) -> None:
    make, array, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError) as error:
        qb.from_relax(module_of(make, array))
    assert reason in error.value.why


# ---- If ----------------------------------------------------------------------------------------


def conditional() -> Any:
    """A branch that depends on the data: a sum that is positive or not."""
    import onnx
    from onnx import TensorProto, helper

    b = Builder(13)
    x = b.input("x", [2, 3])
    test = b.op("Greater", b.op("ReduceSum", x, keepdims=0), b.init(np.float32(0)))
    branches: list[onnx.GraphProto] = []
    for name in ("Relu", "Neg"):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])
        node = helper.make_node(name, [x], [name])
        branches.append(helper.make_graph([node], name, [], [out]))
    chosen = b.op("If", test, then_branch=branches[0], else_branch=branches[1])
    b.output(b.op("Mul", chosen, b.init(np.float32(2))), [2, 3])
    return b.model()


def test_a_branch_on_data_is_an_if_again() -> None:
    found = conditional()
    graph = canonical(found)
    again = qb.from_relax(imported(found))
    assert [n.op.name for n in again.nodes].count("If") == 1
    for sign in (1, -1):
        x = {"x": sign * np.arange(-2, 4, dtype=np.float32).reshape(2, 3)}
        (ours,), (wanted,) = (qb.evaluate(g, x).values() for g in (again, graph))
        assert np.array_equal(ours, wanted)


def test_a_branch_emitted_by_us_is_the_same() -> None:
    graph = canonical(conditional())
    same(read_back(graph), graph)
