"""If on TVM: what the branch that is taken computes, of any extents, on our kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relax.kernel_times import kernel_times
from tests.onnx_io.random_branches import random_branches

_X = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)


def _both(
    model: onnx.ModelProto, folder: Path
) -> tuple[qb.Executable, onnxruntime.InferenceSession]:
    data = model.SerializeToString()
    (folder / "model.onnx").write_bytes(data)
    return qb.compile(qb.load(folder / "model.onnx")), onnxruntime.InferenceSession(data)


def _model(nodes: str, inputs: str, constants: str = "") -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["": 21]>'
    return onnx.parser.parse_model(
        f"{head} g ({inputs}) => (float[a,b] y) {constants} {{ {nodes} }}"
    )


def _same(
    executable: qb.Executable, session: onnxruntime.InferenceSession, **feeds: object
) -> None:
    wanted = session.run(None, feeds)[0]
    np.testing.assert_array_equal(executable.run(feeds)["y"], wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [9, 12, 21, 31])
def test_random_branches(seed: int, tmp_path: Path) -> None:
    model = random_branches(seed)
    assert any(node.op_type == "If" for node in model.graph.node)
    executable, session = _both(model, tmp_path)
    wanted = {value.name for value in session.get_inputs()}
    for condition in (True, False):
        feeds = {"x": _X, "b": np.array(condition)}
        _same(executable, session, **{name: feeds[name] for name in wanted})


def test_branches_of_other_extents(tmp_path: Path) -> None:
    """The cache of a merged decoder: the prompt's rows, or the past's and these."""
    model = _model(
        "p = If(c) <then_branch = t () => (float[a,b] u) { u = Concat<axis = 0>(past, x) }, "
        "else_branch = e () => (float[a,b] v) { v = Identity(x) }> y = Neg(p)",
        "float[n,2] x, float[m,2] past, bool[1] c",
    )
    executable, session = _both(model, tmp_path)
    for condition in (True, False):
        for past in (0, 3):
            feeds = {"x": _X[:4], "past": _X[:past], "c": np.array([condition])}
            _same(executable, session, **feeds)


def test_declared_extents_of_one_branch(tmp_path: Path) -> None:
    """Merged decoders of optimum give an empty tensor where another one is declared."""
    model = _model(
        "y = If(c) <then_branch = t () => (float[a,b] u) { u = Neg(x) }, "
        "else_branch = e () => (float[a,b] v) { v = Identity(empty) }>",
        "float[n,2] x, bool c",
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((0, 2), "f"), "empty"))
    for dim, name in zip(model.graph.output[0].type.tensor_type.shape.dim, ("n", "m"), strict=True):
        dim.dim_param = name
    executable, session = _both(model, tmp_path)
    for condition in (True, False):
        _same(executable, session, x=_X[:3], c=np.array(condition))


def test_extents_that_one_branch_wants_equal(tmp_path: Path) -> None:
    model = _model(
        "y = If(c) <then_branch = t () => (float[a,b] u) { u = MatMul(x, z) }, "
        "else_branch = e () => (float[a,b] v) { v = Concat<axis = 0>(x, z) }>",
        "float[n,m] x, float[k,m] z, bool c",
    )
    executable, session = _both(model, tmp_path)
    _same(executable, session, x=_X[:3], z=_X[:2], c=np.array(True))
    _same(executable, session, x=_X[:3], z=_X[:4], c=np.array(False))


def test_a_product_in_a_branch_has_a_kernel(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=(2, 32)).astype(np.float32)
    model = _model(
        "y = If(c) <then_branch = t () => (float[a,b] u) { u = MatMul(x, w) }, "
        "else_branch = e () => (float[a,b] v) { v = Exp(x) }>",
        "float[n,2] x, bool c",
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    executable, _ = _both(model, tmp_path)
    feeds = {"x": _X, "c": np.array(True)}
    np.testing.assert_allclose(executable.run(feeds)["y"], _X @ weight, rtol=1e-5)  # sums' order
    assert any(entry.rate for entry in kernel_times(executable, feeds, repeats=1))
    feeds["c"] = np.array(False)
    assert not any(entry.rate for entry in kernel_times(executable, feeds, repeats=1))


def test_results_of_other_ranks_are_refused_where_they_are_used(tmp_path: Path) -> None:
    model = _model(
        "p = If(c) <then_branch = t () => (float[a] u) { u = ReduceSum<keepdims = 0>(x, i) }, "
        "else_branch = e () => (float[a,b] v) { v = Abs(x) }> y = Neg(p)",
        "float[n,2] x, bool c",
        "<int64[1] i = {1}>",
    )
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedTargetError, match="different ranks"):
        qb.compile(qb.load(tmp_path / "model.onnx"))


def _squeezing(*, nested: bool) -> onnx.ModelProto:
    """The If that torch writes for ``squeeze(dim)``, alone or in the branch of another one."""
    choice = (
        "z = Shape(x) t = Constant<value_ints = [2]>() e = Constant<value_ints = [1]>() "
        "d = Gather(z, t) k = Equal(d, e) "
        "o = If(k) <then_branch = a () => (float[l,m] u) { u = Squeeze(x, t) }, "
        "else_branch = b () => (float[l,m,q] v) { v = Identity(x) }> r = Relu(o)"
    )
    if nested:
        choice = (
            f"y = If(c) <then_branch = f () => (float r) {{ {choice} }}, "
            "else_branch = g () => (float w) { w = Neg(x) }>"
        )
    else:
        choice = f"{choice} y = Neg(r)"
    model = _model(choice, "float[n,3,time] x" + ", bool c" * nested)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for node in model.graph.node:
        for attribute in node.attribute:
            for value in attribute.g.output:
                value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("nested", [False, True])
def test_extents_decide_which_rank_a_branch_gives(time: int, nested: bool, tmp_path: Path) -> None:
    onnx.save(model := _squeezing(nested=nested), tmp_path / "model.onnx")
    graph = qb.load(tmp_path / "model.onnx")
    feeds: dict[str, Any] = {"x": _X[:6].reshape(2, 3, 2)[..., :1].repeat(time, 2)}
    feeds |= {"c": np.array(True)} if nested else {}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = qb.compile(graph, extents={"n": 2, "time": time}).run(feeds).values()
    np.testing.assert_array_equal(found, wanted)
