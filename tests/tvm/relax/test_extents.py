"""Numbers for symbolic extents: kernels become fast, nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError
from qdqbridge.tvm.relax.kernels.plan import plan
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.kernels.kernel_cases import HOST

pytestmark = pytest.mark.relax


def tokens() -> Graph:
    """(batch, seq, 8) -> two heads of 4 channels, scores of every pair of tokens."""
    b = Builder(opset=17)
    x = b.qdq(b.input("x", ["batch", "seq", 8], 1), 0.02, 128, np.uint8)
    heads = b.op("Reshape", x, b.init(np.array([0, 0, 2, 4])))
    q = b.qdq(b.op("Transpose", heads, perm=[0, 2, 1, 3]), 0.02, 128, np.uint8)
    k = b.qdq(b.op("Transpose", heads, perm=[0, 2, 3, 1]), 0.02, 128, np.uint8)
    scores = b.qdq(b.op("MatMul", q, k), 0.03, 120, np.uint8)
    y = b.qdq(b.op("Softmax", scores, axis=-1), 1 / 256, 0, np.uint8)
    b.output(y, ["batch", 2, "seq", "seq"])
    return canonical(b.model())


def test_numbers_make_kernels_of_their_extents() -> None:
    graph = tokens()
    assert symbolic_extents(graph) == ("batch", "seq")
    known = with_numbers(graph, {"seq": 6})
    assert symbolic_extents(known) == ("batch",)
    assert symbolic_extents(graph) == ("batch", "seq")  # it is a graph of its own
    kernels = [{k.name for k in plan(g, HOST).kernels.values()} for g in (graph, known)]
    assert [name for name in kernels[1] - kernels[0] if name.startswith("matmul_6")]
    executable = qb.compile(graph, extents={"seq": 6})
    for batch in (1, 3):
        data = {"x": np.random.default_rng(batch).normal(size=(batch, 6, 8)).astype(np.float32)}
        meant = qb.evaluate(graph, data)
        for name, got in executable.run(data).items():
            np.testing.assert_array_equal(got, meant[name])
    with pytest.raises(InputDataError, match="6"):
        executable.run({"x": np.zeros((1, 5, 8), np.float32)})


@pytest.mark.parametrize("extents", [{"rows": 3}, {"seq": 0}, {"seq": 2.5}, ["seq"]])
def test_numbers_that_do_not_fit_are_refused(extents: object) -> None:
    with pytest.raises(InputDataError):
        qb.compile(tokens(), extents=extents)  # type: ignore[arg-type]


def test_the_command_line_says_what_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from qdqbridge.app.cli.failures import run

    qb.save(tokens(), tmp_path / "m.onnx")
    data = tmp_path / "x.npz"
    np.savez(data, x=np.zeros((1, 6, 8), np.float32))
    assert run(["run", str(tmp_path / "m.onnx"), "--data", str(data)]) == 0
    assert "--extent seq=" in capsys.readouterr().err
    numbers = ["--extent", "seq=6", "--threads", "2"]
    assert run(["run", str(tmp_path / "m.onnx"), "--data", str(data), *numbers]) == 0
    assert "--extent" not in capsys.readouterr().err
