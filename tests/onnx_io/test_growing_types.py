"""Types of nodes that come one after the other are those of the whole model, each told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.onnx_io.inference import node_types
from qdqbridge.onnx_io.inference.node_types import GrowingTypes
from qdqbridge.onnx_io.inference.shapes import TypeAndShape, infer
from tests.onnx_models import Builder
from tests.places import MODELS

DIGITS = sorted((MODELS).glob("digits_*.onnx"))


def numbers(found: TypeAndShape) -> tuple[int, list[int | None] | None]:
    element, shape = found
    known = None if shape is None else [e if isinstance(e, int) else None for e in shape]
    return element, known


def grown(model: onnx.ModelProto, step: int) -> GrowingTypes:
    types, nodes = GrowingTypes(model), list(model.graph.node)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for end in range(0, len(nodes) + step, step):
        types.take(nodes[:end], constants)
    return types


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("path", DIGITS, ids=lambda path: path.stem)
def test_models_have_the_types_of_whole_ones(path: Path, step: int) -> None:
    model = onnx.load(path)
    whole, types = infer(model), grown(model, step)
    for name in (name for node in model.graph.node for name in node.output if name):
        assert numbers(types.found[name]) == numbers(whole[name]), name


def shapes_of_shapes() -> tuple[onnx.ModelProto, str, str]:
    """A Reshape to what several nodes make of a shape, and a body that reads from outside."""
    b = Builder(opset=17)
    x = b.input("x", ["n", 6, 4])
    batch = b.op("Gather", b.op("Shape", x), b.init(np.array([0])))
    target = b.op("Concat", batch, b.init(np.array([3, 8])), axis=0)
    z = b.op("Relu", b.op("Reshape", x, target))
    result = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    inside = helper.make_graph([helper.make_node("Neg", [z], ["inner"])], "body", [], result)
    out = b.op("If", b.init(np.array(True)), then_branch=inside, else_branch=inside)
    b.output(out)
    return b.model(), z, out


def test_shapes_are_computed_across_parts() -> None:
    model, z, out = shapes_of_shapes()
    found = grown(model, 1).found
    assert found[z] == found[out] == (TensorProto.FLOAT, ("n", 3, 8))


def test_constants_may_be_listed_as_inputs() -> None:
    b = Builder(opset=11)
    x, target = b.input("x", ["n", 6, 4]), b.init(np.array([-1, 8]))
    b.input(target, [2], TensorProto.INT64)
    y = b.op("Reshape", x, target)
    b.output(y)
    for step in (1, 2):
        assert numbers(grown(b.model(), step).found[y]) == (TensorProto.FLOAT, [None, 8])


def test_values_that_are_no_tensors_have_types_too() -> None:
    b = Builder(opset=17)
    x, place = b.input("x", [2, 3, 4]), b.init(np.array(0))
    parts = b.op("SplitToSequence", x, axis=0, keepdims=0)
    b.op("Neg", x)
    first = b.op("SequenceAt", parts, place)
    listed = b.input("listed", [5])
    b.inputs[-1].CopyFrom(helper.make_tensor_sequence_value_info(listed, TensorProto.FLOAT, [5]))
    second = b.op("SequenceAt", listed, place)
    b.output(first)
    found = grown(b.model(), 1).found
    assert found[first] == (TensorProto.FLOAT, (3, 4))
    assert found[second] == (TensorProto.FLOAT, (5,))


def test_a_body_may_make_a_sequence() -> None:
    b = Builder(opset=17)
    x = b.input("x", [2, 3])
    result = [helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None)]
    inside = helper.make_graph(
        [helper.make_node("SequenceConstruct", [x], ["list"])], "body", [], result
    )
    listed = b.op("If", b.init(np.array(True)), then_branch=inside, else_branch=inside)
    first = b.op("SequenceAt", listed, b.init(np.array(0)))
    b.output(first)
    assert grown(b.model(), 1).found[first] == (TensorProto.FLOAT, (2, 3))


def test_constants_of_floats_tell_extents() -> None:
    b = Builder(opset=17)
    x, scales = b.input("x", [1, 3, 8, 8]), np.array([1, 1, 2, 2], np.float32)
    constant = b.op("Constant", value=numpy_helper.from_array(scales))
    y = b.op("Resize", b.op("Relu", x), "", constant)
    b.output(y)
    assert grown(b.model(), 1).found[y] == (TensorProto.FLOAT, (1, 3, 16, 16))


def test_names_of_a_file_stay() -> None:
    b = Builder(opset=17)
    y = b.op("Relu", b.op("Relu", b.input("x", ["(n)", "?k", "m"])))
    b.output(y)
    model = b.model()
    assert grown(model, 1).found[y] == infer(model)[y]


def test_what_is_taken_back_is_forgotten() -> None:
    b = Builder(opset=17)
    y = b.op("Relu", b.input("x", [3]))
    other = b.op("Cast", "x", to=TensorProto.INT8)
    b.output(y)
    model = b.model()
    types = grown(model, 1)
    types.forget(model.graph.node, 1)
    assert y in types.found
    assert other not in types.found


def test_a_long_chain_of_counters_is_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(monkeypatch)
    b, count = Builder(opset=17), 300
    x = b.op("Shape", b.input("x", ["n"]))
    for _ in range(count):
        x = b.op("Add", x, x)
    b.output(x, elem_type=TensorProto.INT64)
    grown(b.model(), 1)
    assert 200 < max(seen) < count


def test_what_onnx_names_itself_is_no_other_extent() -> None:
    b = Builder(opset=17)
    x = b.input("x", ["n"])
    first, second = b.op("NonZero", x), b.op("NonZero", x)
    b.output(second, elem_type=TensorProto.INT64)
    found = grown(b.model(), 1).found
    extents = [shape[1] for _, shape in (found[first], found[second]) if shape]
    assert len(set(extents)) == 2


def layers(count: int) -> onnx.ModelProto:
    """Products with a bias behind norms that ONNX does not know: each asks for a rank."""
    b, sizes = Builder(opset=21), {"N": 32, "K": 32, "block_size": 32}
    x, packed = b.input("x", ["n", 32]), b.init(np.full((32, 1, 16), 0x88, np.uint8))
    gamma, bias, scale = (b.init(np.ones(32, np.float32)) for _ in range(3))
    for _ in range(count):
        x = b.op("SkipSimplifiedLayerNormalization", x, x, gamma, domain="com.microsoft")
        operands = x, packed, scale, "", "", bias
        x = b.op("MatMulNBits", *operands, domain="com.microsoft", **sizes)
    b.output(x)
    return b.model()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the nodes of every part that is inferred from now on."""
    seen: list[int] = []

    def counting(part: onnx.ModelProto) -> Any:
        seen.append(len(part.graph.node))
        return infer(part)

    monkeypatch.setattr(node_types, "infer", counting)
    return seen


def test_no_node_is_looked_at_for_every_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = counted(monkeypatch)
    onnx.save(layers(60), tmp_path / "layers.onnx")
    graph = qb.load(tmp_path / "layers.onnx")
    assert len(seen) >= 60  # each asks anew
    assert sum(seen) < 3 * len(graph.nodes)
