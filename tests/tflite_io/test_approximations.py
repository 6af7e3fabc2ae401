"""LiteRT's kernels that approximate: tables of 16 bits, and places between elements."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, the judge")

import qdqbridge as qb
from qdqbridge.targets.comparison.causes import UNEXPLAINED
from qdqbridge.tflite_io.arithmetic import approximated
from qdqbridge.tflite_io.litert import APPROXIMATION, Kernels, LiteRTEngine, recorded_tensors
from qdqbridge.tflite_io.writer import converted

EVERY = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
RESULT = "quant<int16, 0.000030517578125, 0>"


def theirs_and_ours(text: str, x: np.ndarray, kernels: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """Returns LiteRT's result of the only node of a graph and ours that are like it."""
    made = converted(qb.parse(f"qnn-raw 1\n{text}\noutput %y\n"))
    node = next(n for n in made.graph.nodes if n.op.name in ("Tanh", "Sigmoid", "Softmax"))
    index, _ = made.tensors[node.output]
    found = recorded_tensors(made, {"x": x}, kernels)[index]
    (ours,) = approximated(node, x, x.ndim)
    return found, ours


@pytest.mark.parametrize("scale", [0.00031, 0.0001, 0.000017, 0.003])
@pytest.mark.parametrize("name", ["Tanh", "Sigmoid"])
@pytest.mark.parametrize("kernels", Kernels)
def test_every_16_bit_number_of_a_table(name: str, scale: float, kernels: Kernels) -> None:
    text = f"input %x: quant<int16, {scale}, 0>[65536]\n%y = {name}(%x): {RESULT}[65536]"
    theirs, ours = theirs_and_ours(text, EVERY, kernels)
    np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("scale", [0.0005, 0.0001, 0.003, 2.0**-12])
def test_a_softmax_of_16_bits(scale: float) -> None:
    x = np.random.default_rng(1).integers(-(1 << 15), 1 << 15, (256, 20)).astype(np.int16)
    x[::2] //= 64
    text = f"input %x: quant<int16, {scale}, 0>[256,20]\n%y = Softmax(%x) {{axes=[1]}}: " + RESULT
    theirs, ours = theirs_and_ours(f"{text}[256,20]", x, Kernels.REFERENCE)
    np.testing.assert_array_equal(theirs, ours)


def softmax(kind: str, scale: float, row: int) -> tuple[qb.Graph, dict[str, np.ndarray]]:
    """Returns a Softmax of integers, and rows of few large and many small numbers."""
    graph = qb.parse(
        f"qnn-raw 1\ninput %x: quant<{kind}, {0.05 if kind == 'int8' else 0.0003}, 0>[32,{row}]\n"
        f"%y = Softmax(%x) {{axes=[1]}}: quant<{kind}, {scale}, 0>[32,{row}]\noutput %y\n"
    )
    info = np.iinfo(kind)
    x = np.random.default_rng(3).integers(info.min, info.max + 1, (32, row)).astype(kind)
    x[::2, 1:] = info.min
    return graph, {"x": x}


@pytest.mark.parametrize("kernels", Kernels)
@pytest.mark.parametrize("row", [2, 16, 300])
@pytest.mark.parametrize(
    ("kind", "scale"), [("int8", 1 / 2000), ("int16", 1.5e-5), ("int16", 1e-4)]
)
def test_floats_give_what_integer_kernels_are_too_rough_for(
    kind: str, scale: float, row: int, kernels: Kernels
) -> None:
    graph, data = softmax(kind, scale, row)
    made = converted(graph)
    assert [note.rule for note in made.notes] == ["float-region"]
    (theirs,) = LiteRTEngine(made, kernels).run(data, graph.output_names).values()
    (ours,) = qb.evaluate(graph, data).values()
    off = np.abs(theirs.astype(int) - ours.astype(int))
    # float32 sums of 300 numbers, rounded in another order, lie on the other side of a tie
    assert off.max() <= 1 and np.mean(off > 0) < 1e-3


@pytest.mark.parametrize("row", [2, 16, 300, 5000])
def test_a_note_says_how_far_a_table_is_off(row: int) -> None:
    graph, data = softmax("int16", 2.0**-15, row)
    made = converted(graph)
    (note,) = made.notes
    told = int(re.findall(r"up to (\d+) steps", note.reason)[0])
    (theirs,) = LiteRTEngine(made).run(data, graph.output_names).values()
    (ours,) = qb.evaluate(graph, data).values()
    off = np.abs(theirs.astype(int) - ours.astype(int)).max()
    assert note.rule == "tabulated" and 0.9 * told - 2 <= off <= told


@pytest.mark.parametrize("kernels", Kernels)
@pytest.mark.parametrize("kind", ["int8", "int16"])
@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
def test_compare_names_the_cause_of_a_resize(mode: str, kind: str, kernels: Kernels) -> None:
    graph = qb.parse(
        f"qnn-raw 1\ninput %x: quant<{kind}, 0.05, 0>[2,3,11,7]\n"
        "%y = Resize(%x) {mode='linear', nearest_mode='round_prefer_floor', "
        f"coordinate_transformation_mode='{mode}', scales=[1 1 5 3], sizes=None}}"
        f": quant<{kind}, 0.05, 0>[2,3,55,21]\noutput %y\n"
    )
    info = np.iinfo(kind)
    rng = np.random.default_rng(2)
    x = rng.integers(info.min, info.max + 1, (2, 3, 11, 7)).astype(kind)
    made = converted(graph)
    found = qb.compare(made.graph, LiteRTEngine(made, kernels), {"x": x}, local=True)
    causes = {cause for value in found.values for cause in value.causes}
    assert APPROXIMATION in causes
    assert UNEXPLAINED not in causes
