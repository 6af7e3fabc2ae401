"""Operators of old opsets: what they meant, in files of opset 13 and later, with quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.defs
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.app.pipeline import evaluate, load, save, session
from qdqbridge.app.quantizing import quantize
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.onnx_io.reading.operators_known import can_be_moved, carries_over
from qdqbridge.options import TargetName
from tests.onnx_io.old_checks import problem
from tests.onnx_io.old_models import KINDS

FLOAT = TensorProto.FLOAT
CANNOT_RUN = "onnxruntime cannot run the original"


@pytest.mark.parametrize("seed", range(2 * len(KINDS)))
def test_random_models(seed: int, tmp_path: Path) -> None:
    """Every kind at opset 7 and 8; ``python -m tests.onnx_io.old_checks`` runs any number."""
    assert problem(seed, tmp_path) in ("", CANNOT_RUN)


@pytest.mark.parametrize("seed", range(3 * len(KINDS), 6 * len(KINDS)))
def test_random_quantized_models(seed: int, tmp_path: Path) -> None:
    """Every kind at opset 10, 11 and 12, most of them behind Q and DQ."""
    assert problem(seed, tmp_path) in ("", CANNOT_RUN)


def float_model(node: onnx.NodeProto, opset: int, shape: list[int], **constants: object) -> bytes:
    inputs = [helper.make_tensor_value_info("x", FLOAT, shape)]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    outputs = [helper.make_tensor_value_info("y", FLOAT, [None] * len(shape))]
    graph = helper.make_graph([node], "old", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=3).SerializeToString()


@pytest.mark.parametrize(("opset", "target"), [(7, "ort"), (10, "qnn"), (12, "ort")])
@pytest.mark.parametrize("axis", [None, 0, 2, 3, -2])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_an_old_float_file_is_quantized_with_its_meaning(
    op_type: str, opset: int, axis: int | None, target: TargetName, tmp_path: Path
) -> None:
    """Before opset 13, Softmax went over all axes from its own on; its default was 1, not -1."""
    if axis is not None and axis < 0 and opset < 11:
        axis += 4  # opset 11 brought negative ones
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, 2, 3, 3)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])
    model = onnx.ModelProto.FromString(float_model(conv, opset, [1, 2, 6, 6], w=w))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    soft = helper.make_node(op_type, ["c"], ["y"])
    if axis is not None:
        soft.attribute.append(helper.make_attribute("axis", axis))
    model.graph.node.append(soft)
    onnx.save(model, tmp_path / "old.onnx")
    data = {"x": rng.normal(size=(8, 2, 6, 6)).astype(np.float32)}
    # What is held is the meaning of axes: of eight samples tuning may choose ranges in which one
    # element is a whole step of the convolution further off than this allows.
    graph = quantize(
        load(tmp_path / "old.onnx"), data=data, target=target, repair=(), chooser="minmax"
    )
    save(graph, tmp_path / "new.onnx")
    onnx.checker.check_model(str(tmp_path / "new.onnx"))
    one = {"x": data["x"][:1]}
    found = session(tmp_path / "new.onnx").run(one, ["y"])["y"]
    np.testing.assert_array_equal(found, evaluate(graph, one)["y"])
    old = ort.InferenceSession(tmp_path / "old.onnx", providers=["CPUExecutionProvider"])
    meant = np.asarray(old.run(None, one)[0])
    if op_type == "Hardmax":  # rounding may make another element the largest
        assert found.sum() == meant.sum()
    else:
        np.testing.assert_allclose(found, meant, rtol=0, atol=0.05 * np.abs(meant).max())


OLDEST = [
    (helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1), 6, {"b": np.arange(3.0)}),
    (helper.make_node("Mul", ["x", "b"], ["y"], broadcast=1), 6, {"b": np.arange(4.0)}),
    (helper.make_node("PRelu", ["x", "b"], ["y"]), 6, {"b": np.arange(3.0)}),
    (helper.make_node("Clip", ["x"], ["y"], min=-0.5, consumed_inputs=[0]), 1, {}),
    (helper.make_node("Relu", ["x"], ["y"], consumed_inputs=[0]), 1, {}),
    (helper.make_node("Pad", ["x"], ["y"], paddings=[0, 0, 1, 1, 0, 0, 2, 0], value=0.5), 1, {}),
    (helper.make_node("Reshape", ["x"], ["y"], shape=[1, 3, -1, 1]), 1, {}),
    (helper.make_node("Dropout", ["x"], ["y"], is_test=1), 6, {}),
    (helper.make_node("Concat", ["x", "x"], ["y"]), 3, {}),
    (helper.make_node("Upsample", ["x"], ["y"], height_scale=2.0, width_scale=1.0), 1, {}),
    (helper.make_node("Selu", ["x"], ["y"]), 1, {}),
]


@pytest.mark.parametrize(
    ("node", "opset", "constants"), OLDEST, ids=lambda v: getattr(v, "op_type", "")
)
def test_opsets_before_7(
    node: onnx.NodeProto, opset: int, constants: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Expected values are written out: onnxruntime runs few of these."""
    given = {k: v.astype(np.float32) for k, v in constants.items()}
    (tmp_path / "old.onnx").write_bytes(float_model(node, opset, [1, 3, 2, 4], **given))
    x = np.random.default_rng(2).normal(size=(1, 3, 2, 4)).astype(np.float32)
    b = given.get("b", np.zeros(0, np.float32))
    column = b.reshape(-1, 1, 1) if len(b) == 3 else b
    expected = {
        "Add": lambda: x + column,
        "Mul": lambda: x * column,
        "PRelu": lambda: np.where(x < 0, x * column, x),
        "Clip": lambda: np.maximum(x, np.float32(-0.5)),
        "Relu": lambda: np.maximum(x, 0),
        "Pad": lambda: np.pad(x, [(0, 0), (0, 0), (1, 2), (1, 0)], constant_values=0.5),
        "Reshape": lambda: x.reshape(1, 3, 8, 1),
        "Dropout": lambda: x,
        "Concat": lambda: np.concatenate([x, x], 1),
        "Upsample": lambda: np.repeat(x, 2, 2),
        "Selu": lambda: 1.0507 * np.where(x > 0, x, 1.6732 * (np.exp(x) - 1)),
    }[node.op_type]()
    graph = load(tmp_path / "old.onnx")
    # Selu: its constants have five digits above, and exponentials differ by an ulp.
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], expected, 1e-5, 1e-6)
    save(graph, tmp_path / "new.onnx")
    onnx.checker.check_model(str(tmp_path / "new.onnx"))
    found = session(tmp_path / "new.onnx").run({"x": x}, ["y"])["y"]
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)  # as above


@pytest.mark.parametrize("opset", range(1, 7))
def test_ranks_behind_old_operators_are_inferred(opset: int, tmp_path: Path) -> None:
    """ONNX infers nothing of MatMul and Softmax before opset 9 and 11."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["s"]),
        helper.make_node("Add", ["s", "b"], ["y"], broadcast=1, axis=0),
    ]
    ends = [
        helper.make_tensor_value_info(n, FLOAT, s) for n, s in (("x", ["n", 3]), ("y", ["n", 4]))
    ]
    w, b = np.ones((3, 4), np.float32), np.array([0, 10], np.float32)
    held = [numpy_helper.from_array(array, name) for name, array in (("w", w), ("b", b))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    (tmp_path / "old.onnx").write_bytes(made.SerializeToString())
    x = np.ones((2, 3), np.float32)
    found = evaluate(load(tmp_path / "old.onnx"), {"x": x})["y"]
    np.testing.assert_array_equal(found, np.repeat([[0.25], [10.25]], 4, 1).astype(np.float32))


def test_what_has_no_new_form_is_told(tmp_path: Path) -> None:
    node = helper.make_node("Dropout", ["x"], ["y"])
    (tmp_path / "old.onnx").write_bytes(float_model(node, 6, [1, 3, 2, 4]))
    with pytest.raises(UnsupportedModelError, match="no newer form"):
        load(tmp_path / "old.onnx")


def scan_model(*, reverse: bool) -> onnx.ModelProto:
    """Scan of opset 8 works on a batch; here a running sum of two sequences."""
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "x"], ["sum"]),
         helper.make_node("Identity", ["sum"], ["out"])],
        "body",
        [helper.make_tensor_value_info(n, FLOAT, [3]) for n in ("state", "x")],
        [helper.make_tensor_value_info(n, FLOAT, [3]) for n in ("sum", "out")],
    )  # fmt: skip
    node = helper.make_node("Scan", ["", "s", "x"], ["last", "all"], body=body, num_scan_inputs=1)
    if reverse:
        node.attribute.append(helper.make_attribute("directions", [1]))
    inputs = [helper.make_tensor_value_info("s", FLOAT, [2, 3]),
              helper.make_tensor_value_info("x", FLOAT, [2, 4, 3])]  # fmt: skip
    outputs = [helper.make_tensor_value_info("last", FLOAT, [2, 3]),
               helper.make_tensor_value_info("all", FLOAT, [2, 4, 3])]  # fmt: skip
    graph = helper.make_graph([node], "scan", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_over_a_batch(tmp_path: Path, reverse: bool) -> None:
    onnx.save(scan_model(reverse=reverse), tmp_path / "old.onnx")
    rng = np.random.default_rng(3)
    data = {"s": rng.normal(size=(2, 3)).astype(np.float32),
            "x": rng.normal(size=(2, 4, 3)).astype(np.float32)}  # fmt: skip
    wanted = session(tmp_path / "old.onnx").run(data, ["last", "all"])
    graph = load(tmp_path / "old.onnx")
    save(graph, tmp_path / "new.onnx")
    found = session(tmp_path / "new.onnx").run(data, ["last", "all"])
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(evaluate(graph, data)[name], array)


@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceProd", "ReduceLogSumExp"])
def test_reductions_have_one_form_in_every_opset(op_type: str, tmp_path: Path) -> None:
    old = helper.make_node(op_type, ["x"], ["y"], axes=[1, 2])
    new = helper.make_node(op_type, ["x", "axes"], ["y"])
    axes = np.array([1, 2], np.int64)
    digests: set[str] = set()
    for name, data in (("a", float_model(old, 11, [2, 3, 4, 5])),
                       ("b", float_model(new, 18, [2, 3, 4, 5], axes=axes))):  # fmt: skip
        (tmp_path / f"{name}.onnx").write_bytes(data)
        graph = load(tmp_path / f"{name}.onnx")
        save(graph, tmp_path / f"{name}2.onnx")
        digests |= {graph.digest, load(tmp_path / f"{name}2.onnx").digest}
    assert len(digests) == 1


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64])
def test_an_error_function_of_integers(kind: type, tmp_path: Path) -> None:
    """Opset 13 has none: it is one of floats, cut off as ONNX's reference does."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [helper.make_node("Erf", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", element, ["n"])],
        [helper.make_tensor_value_info("y", element, ["n"])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=8)
    onnx.save(model, tmp_path / "old.onnx")
    loaded = load(tmp_path / "old.onnx")
    save(loaded, tmp_path / "new.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "new.onnx"), full_check=True)
    again, x = load(tmp_path / "new.onnx"), np.array([0, 1, 5, 6, 100], kind)
    assert again.digest == loaded.digest
    for each in (loaded, again):
        assert evaluate(each, {"x": x})["y"].tolist() == [0, 0, 0, 1, 1]


def test_versions() -> None:
    assert carries_over("TopK", 10, 13) and carries_over("Loop", 11, 21)
    assert not carries_over("Scatter", 9, 13) and not carries_over("Upsample", 9, 10)
    assert not carries_over("Hardmax", 11, 13) and not carries_over("RoiAlign", 10, 16)
    assert not carries_over("GroupNormalization", 18, 21)
    assert can_be_moved("ReduceL1", 13, 21) and not can_be_moved("ReduceL1", 18, 13)


def test_every_change_before_opset_13_is_known() -> None:
    """Each operator that changed carries over, or has a newer form."""
    from qdqbridge.onnx_io.reading.older_operators import OLDER

    newer = {name for rule in OLDER for name in rule.ops or ()}
    rare = {"Split", "Tile"}  # those of opset 1 have no known user
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.since_version >= 13 or schema.deprecated:
            continue
        if not carries_over(schema.name, schema.since_version, 13) and schema.name not in rare:
            newest = onnx.defs.get_schema(schema.name, 13, "")
            assert schema.name in newer or newest.since_version == schema.since_version, schema.name
