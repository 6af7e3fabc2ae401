"""Pairs of products that saturate: what onnxruntime gives on x86 without VNNI, predicted."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.pipeline import check
from qdqbridge.autoquant.hardware.arithmetic import PAIRS, is_paired, outputs_in_pairs
from qdqbridge.autoquant.hardware.products import accumulators
from qdqbridge.core.ops.accumulator import simulated
from qdqbridge.onnx_io.runtime.products import (
    MARKS,
    PRODUCTS_OF_BYTES,
    lost,
    optimized,
    saturates,
    saturating_products,
)
from qdqbridge.onnx_io.runtime.session import PreparedModel
from qdqbridge.targets.engines.processors import QEMU
from qdqbridge.targets.profiles import Effect
from tests.autoquant.byte_operators import relatives
from tests.exact_sessions import exact_session
from tests.onnx_io.writer_models import S8, U8, Net

SUCH_A_PROCESSOR = pytest.mark.skipif(
    not (saturates() or which(QEMU)), reason="needs qemu-user, or x86 without VNNI"
)
COUNT = 100


def test_what_is_lost_is_what_a_loop_of_saturating_additions_loses() -> None:
    chance = np.random.default_rng(0)
    for terms in (1, 2, 3, 8, 17):
        codes = chance.integers(0, 256, (2, 3, terms))
        weights = chance.integers(-128, 128, (2, terms, 4))
        found = lost(codes, weights)
        for index in np.ndindex(2, 3, 4):
            row, column = codes[index[:2]], weights[index[0], :, index[2]]
            sums = [int(row[i : i + 2] @ column[i : i + 2]) for i in range(0, terms, 2)]
            wanted = sum(min(max(each, -(1 << 15)), (1 << 15) - 1) - each for each in sums)
            assert found[index] == wanted
        np.testing.assert_array_equal(lost(codes, weights[0])[1], lost(codes[1], weights[0]))


def drawn_weight(
    net: Net, chance: np.random.Generator, shape: tuple[int, ...], axis: int, *, moved: bool
) -> str:
    """Weights of all sizes, in a scale for all of them or one for each channel.

    Args:
        net: The model.
        chance: What is drawn.
        shape: Theirs.
        axis: That of the channels.
        moved: int8 weights that are stored in another form than the canonical one: with a zero
            point, with negative scales.
    """
    if moved and chance.random() < 0.6:
        wide = int(chance.choice([100, 120, 127]))
        stored = net.constant(chance.integers(-wide, wide + 1, shape).astype(np.int8))
        zero = int(chance.integers(wide - 128, 129 - wide)) if chance.random() < 0.7 else 0
        signs = chance.choice([-1.0, 1.0], shape[axis])
        if chance.random() < 0.5:
            return net.dq(stored, 0.005 * signs, zero, S8, axis=axis)
        return net.dq(stored, 0.005 * signs[0], zero, S8)
    dtype = S8 if chance.random() < 0.8 else U8
    zero = 0 if dtype is S8 else int(chance.choice([128, 131]))
    spread = int(chance.choice([80, 127]))
    middle = 0 if dtype is S8 else 128
    codes = chance.integers(-spread, spread + 1, shape) + middle
    stored = net.constant(np.clip(codes, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype))
    if dtype is S8 and chance.random() < 0.5:
        scales = chance.uniform(0.002, 0.01, shape[axis])
        return net.dq(stored, scales, 0, dtype, axis=axis)
    return net.dq(stored, 0.007, zero, dtype)


def drawn_product(net: Net, chance: np.random.Generator, *, moved: bool) -> str:
    """Returns one product of the input, of 2 images with 8 channels of 6 by 6."""
    dtype = S8 if chance.random() < 0.3 else U8
    info = np.iinfo(dtype)
    x = float(chance.uniform(0.01, 0.03)), int(chance.integers(info.min, info.max + 1)), dtype
    if chance.random() < 0.6:
        group = int(chance.choice([1, 1, 2, 4, 8]))
        many = group * int(chance.choice([1, 2, 3, 16]))
        kernel = [(1, 1), (3, 3), (2, 3)][int(chance.integers(3))]
        window: dict[str, Any] = {
            "group": group, "strides": [int(chance.integers(1, 3))] * 2,
            "pads": [int(pad) for pad in chance.integers(0, 2, 4)],
            "dilations": [int(chance.integers(1, 3)), 1],
        }  # fmt: skip
        operands = [
            net.fake("x", *x),
            drawn_weight(net, chance, (many, 8 // group, *kernel), 0, moved=moved),
        ]
        operands += [net.floats(many)] if chance.random() < 0.5 else []
        return net.op("Conv", *operands, **window)
    rows = int(chance.choice([1, 2, 4, 9]))
    flat = net.op("Reshape", "x", net.constant(np.array([rows, 576 // rows])))
    cut = int(chance.integers(3, 65))
    ends = [net.constant(np.array([end])) for end in (0, cut, 1)]
    terms, many = net.op("Slice", flat, *ends), int(chance.choice([1, 3, 8, 40]))
    operands = [net.fake(terms, *x), drawn_weight(net, chance, (cut, many), 1, moved=moved)]
    if chance.random() < 0.5:
        return net.op("MatMul", *operands)
    return net.op("Gemm", *operands, *([net.floats(many)] if chance.random() < 0.5 else []))


def hundred(folder: Path, *, moved: bool = False) -> tuple[Path, dict[str, Any]]:
    """Returns a model of as many products of its input, and data for it."""
    net, chance = Net(21), np.random.default_rng(11)
    drawn = [drawn_product(net, chance, moved=moved) for _ in range(COUNT)]
    outputs = [net.fake(each, 0.2, 128) for each in drawn]
    onnx.save(net.model(outputs, [2, 8, 6, 6]), folder / "hundred.onnx")
    data = chance.normal(scale=2, size=(2, 8, 6, 6)).astype(np.float32)
    return folder / "hundred.onnx", {"x": data}


def test_the_rule_names_the_products_whose_pairs_can_saturate(tmp_path: Path) -> None:
    path, _ = hundred(tmp_path)
    found = check(path, "ort")
    assert {each.effect for each in found} == {Effect.PROCESSOR}
    theirs, rows = saturating_products(path), accumulators(qb.load(path))
    can = {row.node: int(row.saturating_pairs.sum()) for row in rows if row.node in theirs}
    told = {each.node: int(each.reason.partition(" ")[0]) for each in found}
    assert told == {node: count for node, count in can.items() if count}
    assert COUNT // 3 < len(told) < len(can)


def pairs_by_loop(node: onnx.NodeProto, constants: dict[str, Any]) -> int | None:
    """Returns how many pairs leave 16 bits at the ends of the codes; None of computed factors."""
    operands, can = PRODUCTS_OF_BYTES[node.op_type], 0
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    for index, _ in operands.signed:
        ends, held = (0, 255), constants.get(node.input[index])
        if held is None and operands.unsigned is not None:
            ends, held = (-128, 127), constants.get(node.input[operands.unsigned[0]])
        if held is None:
            return None
        if node.op_type == "QLinearConv":
            if held.shape[:2] == (given.get("group", 1), 1):
                continue
            held = held.transpose(0, *range(2, held.ndim), 1)
        if (held.ndim > 2 and "Conv" in node.op_type) or ends[0]:
            rows = held.reshape(-1, held.shape[-1]) if "MatMul" in node.op_type else held
            rows = rows.reshape(len(rows), -1)
        else:
            rows = held if given.get("transB") else np.swapaxes(held, -1, -2)
            rows = rows.reshape(-1, rows.shape[-1])
        for row in rows.tolist():
            for first, second in zip(row[::2], row[1::2], strict=False):
                sums = [a * first + b * second for a in ends for b in ends]
                can += not -(1 << 15) <= min(sums) <= max(sums) < 1 << 15
    return can


def assert_the_rule_tells(path: Path) -> Counter[str]:
    """Counts by operator what is told, which has to be what onnxruntime makes of a file."""
    told = {each.node: each.reason for each in check(path) if each.effect is Effect.PROCESSOR}
    theirs, model = saturating_products(path), optimized(path)
    assert model is not None
    held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path)).graph.value_info
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred}
    single = {name for name, shape in shapes.items() if shape[-2:-1] == [1]}  # terms of sums
    found: Counter[str] = Counter()
    for node in model.graph.node:
        if node.op_type not in PRODUCTS_OF_BYTES:
            continue
        name = MARKS.sub("", node.name)
        count = pairs_by_loop(node, held) if name in theirs else 0
        second = node.input[PRODUCTS_OF_BYTES[node.op_type].signed[0][0]]
        if count is None and second in single and "Conv" not in node.op_type:
            count = 0
        reason = told.pop(name.partition("/")[0], "")
        if count is None:
            assert "are computed" in reason, node
        else:
            assert reason.startswith(f"{count} of the ") if count else not reason, (node, reason)
        found[node.op_type] += bool(reason)
    assert not told, told
    return found


def test_the_rule_tells_of_operators_on_bytes(tmp_path: Path) -> None:
    path, _ = relatives(4, COUNT // 8).write(tmp_path)
    found = assert_the_rule_tells(path)
    assert set(found) == set(PRODUCTS_OF_BYTES) and min(found.values()) > 0


def test_the_rule_tells_of_factors_that_are_no_constant_bytes(tmp_path: Path) -> None:
    """Computed ones, which may stay int8, first ones, moved ones, floats that become int8."""
    net, chance = Net(21), np.random.default_rng(5)
    results: list[str] = []
    for index in range(COUNT):
        rows, terms, columns = (int(chance.choice([2, 3, 8])) for _ in range(3))
        kinds = [U8 if chance.random() < 0.6 else S8, S8 if chance.random() < 0.8 else U8]
        shapes, turned = [(rows, terms), (terms, columns)], index % 2 and chance.random() < 0.5
        ends = [net.constant(np.array([each])) for each in (0, rows * terms)]
        flat = net.op("Slice", net.op("Reshape", "x", net.constant(np.array([-1]))), *ends)
        first = net.fake(net.op("Reshape", flat, net.constant(np.array(shapes[0]))), 0.02,
                         int(chance.integers(0, 100)), kinds[0])  # fmt: skip
        shape = shapes[1][::-1] if turned else shapes[1]
        drawn = chance.normal(size=shape).astype(np.float32)
        case = index % 5
        if case == 0:  # computed, read once or twice
            ends = [net.constant(np.array([each])) for each in (0, terms * columns)]
            flat = net.op("Slice", net.op("Reshape", "x", net.constant(np.array([-1]))), *ends)
            second = net.op("Reshape", flat, net.constant(np.array(shape)))
            second = net.fake(second, 0.03, 5, kinds[1])
            if chance.random() < 0.5:
                results.append(second)
        elif case == 1:
            second = net.constant(drawn)
        else:
            codes = np.clip(np.rint(drawn * 60), -128, 127).astype(np.int8)
            second = net.dq(net.constant(codes), 0.02, 0, S8)
        if turned and case:
            second = net.op("Transpose", second)
        if case == 4 and not turned:
            codes = chance.integers(0, 256, shapes[0]).astype(np.uint8)
            first, second = net.dq(net.constant(codes), 0.02, 3, U8), net.op("Relu", second)
            second = net.fake(second, 0.03, -9, S8)
        operator = "Gemm" if chance.random() < 0.5 else "MatMul"
        gemm = {"transB": 1} if turned and not case else {}
        results.append(net.op("Gemm" if gemm else operator, first, second, **gemm))
    quantized = [net.fake(each, 0.2, 128) for each in results]
    onnx.save(net.model(quantized, [8, 8]), tmp_path / "factors.onnx")
    found = assert_the_rule_tells(tmp_path / "factors.onnx")
    assert min(found["QGemm"], found["QLinearMatMul"]) > COUNT // 10


def test_a_check_tells_of_pairs_and_fails_for_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(hundred(tmp_path)[0]), "--check", "--profile", "ort"]) == 0
    assert "on some processors" in capfd.readouterr().out
    assert run(["explain", str(tmp_path / "hundred.onnx")]) == 0
    assert "can saturate in" in capfd.readouterr().err


def test_a_check_with_data_says_what_pairs_cost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, data = hundred(tmp_path)
    np.savez(tmp_path / "data.npz", **data)
    asked = ["export", str(path), "--check", "--profile", "ort", "--data"]
    assert run([*asked, str(tmp_path / "data.npz"), "--json"]) == 0
    told = re.findall(r"have ([-.0-9]+) dB", capfd.readouterr().out)
    graph = qb.load(path)
    exact = qb.evaluate(graph, data)
    paired = outputs_in_pairs(graph, data, saturating_products(path))
    shares = [
        np.square(paired[name] - exact[name]).sum() / np.square(exact[name]).sum()
        for name in graph.output_names
    ]
    # decibels are printed with one decimal
    assert [float(each) for each in told] == [
        pytest.approx(-10 * np.log10(np.mean(shares)), abs=0.06)
    ]


@pytest.mark.parametrize("large", [True, False])
def test_blame_says_what_pairs_cost(
    large: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chance = np.random.default_rng(3)
    weight = chance.normal(size=(64, 8)).astype(np.float32)
    limit = 127 if large else 60
    scale = float(np.abs(weight).max() / limit)
    codes = np.rint(weight / scale).astype(np.int8)
    floats, net = Net(21), Net(21)
    onnx.save(floats.model([floats.op("MatMul", "x", floats.constant(weight))], [9, 64]),
              tmp_path / "float.onnx")  # fmt: skip
    product = net.op("MatMul", net.fake("x", 1 / 255, 0), net.dq(net.constant(codes), scale, 0, S8))
    onnx.save(net.model([net.fake(product, 0.1, 128)], [9, 64]), tmp_path / "quantized.onnx")
    x = chance.uniform(size=(9, 64)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    files = [str(tmp_path / f"{name}.onnx") for name in ("float", "quantized")]
    asked = ["blame", *files, "--data", str(tmp_path / "data.npz")]
    assert run([*asked, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    paired = next(iter(qb.evaluate(qb.load(files[1]), {"x": x}, pairs=True).values()))
    clean = x @ weight
    wanted = 10 * np.log10(np.square(clean).sum() / np.square(paired - clean).sum())
    # noise that is left of float32 sums which nearly cancel
    assert found["paired_db"] == pytest.approx(wanted, abs=0.01)
    assert (found["quantized_db"] - found["paired_db"] > 0.5) == large
    assert run(asked) == 0
    assert ("pairs of products saturate" in capfd.readouterr().out) == large


@SUCH_A_PROCESSOR
def test_every_value_of_a_hundred_products_is_predicted(tmp_path: Path) -> None:
    """QLinearConv, QGemm and QLinearMatMul, their rows, groups, tails, signs and zero points."""
    path, data = hundred(tmp_path, moved=True)
    graph = qb.load(path)
    with qb.open_engine("onnxruntime-avx2", path) as engine:
        found = qb.compare(graph, engine, data, local=True)
    assert len(found.outputs) == COUNT
    assert found.unexplained == 0
    told = sum(value.causes.get(PAIRS, 0) for value in found.values)
    assert told == sum(value.mismatches for value in found.values) > 1000
    touched = sum(bool(value.causes.get(PAIRS)) for value in found.values)
    paired = sum(is_paired(node) for node in graph.nodes)  # also those that the file has unsigned
    assert COUNT > paired > touched > COUNT // 4


def test_sums_that_lose_nothing_are_those_of_onnxruntime(tmp_path: Path) -> None:
    """What is put together for operators without a row is what their kernels compute."""
    net = relatives(1, COUNT // 8)
    path, data = net.write(tmp_path)
    asked = 0

    def nothing(codes: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> Any:
        nonlocal asked
        asked += 1
        return np.zeros_like(np.matmul(codes.astype(np.int64), weights.astype(np.int64)))

    with simulated(nothing):
        found = qb.evaluate(qb.load(path), data)
    assert asked > COUNT // 2
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    names = list(net.results)
    for name, theirs in zip(names, exact_session(path, options).run(names, data), strict=True):
        np.testing.assert_array_equal(found[name], np.asarray(theirs), f"{name}")


@SUCH_A_PROCESSOR
def test_every_value_of_operators_on_bytes_is_predicted(tmp_path: Path) -> None:
    """Every operator that multiplies bytes, of all signs, by constants and by what is computed."""
    net = relatives(2, COUNT // 8)
    path, data = net.write(tmp_path)
    graph = qb.load(path)
    with qb.open_engine("onnxruntime-avx2", path) as engine:
        found = qb.compare(graph, engine, data, local=True)
    assert found.unexplained == 0
    told = {value.name: value.causes.get(PAIRS, 0) for value in found.outputs}
    assert told.keys() == net.results.keys()
    exact = qb.evaluate(graph, data)
    paired = outputs_in_pairs(graph, data, saturating_products(path))
    touched: Counter[str] = Counter()
    for name, op_type in net.results.items():
        touched[op_type] += told[name] > 0
        assert told[name] == np.count_nonzero(exact[name] != paired[name]), name
    assert set(touched) == set(PRODUCTS_OF_BYTES) and min(touched.values()) > 0


def test_pairs_inside_of_a_body_are_those_of_its_products(tmp_path: Path) -> None:
    net, chance = Net(21), np.random.default_rng(9)
    codes = net.constant(np.asarray(chance.choice([-128, 127], (8, 4)), np.int8))
    result = net.fake(net.op("MatMul", net.fake("x", 1 / 255, 0), net.dq(codes, 0.01, 0, S8)),
                      0.1, 128)  # fmt: skip
    plain, held = net.model([result], [3, 8]), onnx.ModelProto()
    held.CopyFrom(plain)
    body = onnx.GraphProto(name="body", node=plain.graph.node, output=plain.graph.output)
    del held.graph.node[:]
    held.graph.node.extend([
        onnx.helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        onnx.helper.make_node("Cast", ["sum"], ["some"], to=onnx.TensorProto.BOOL),
        onnx.helper.make_node("If", ["some"], ["chosen"], "if", then_branch=body, else_branch=body),
    ])  # fmt: skip
    held.graph.output[0].name = "chosen"
    found: list[Any] = []
    for name, model in (("plain", plain), ("held", held)):
        onnx.save(model, path := tmp_path / f"{name}.onnx")
        data = {"x": np.full((3, 8), 0.9, np.float32)}
        stored = saturating_products(path)
        found += outputs_in_pairs(qb.load(path), data, stored).values()
        assert np.any(found[-1] != next(iter(qb.evaluate(qb.load(path), data).values())))
    assert "if" in stored
    np.testing.assert_array_equal(*found)


SIGNED = Path(__file__).parents[2] / "models" / "digits_cnn_s8s8_per_tensor.onnx"


def test_what_is_shown_stays_signed_and_exact() -> None:
    """onnxruntime makes int8 activations uint8 where one node reads them."""
    shown = PreparedModel(SIGNED, {})
    exact = (
        saturating_products(SIGNED).keys() - saturating_products(shown.showing(shown.stored)).keys()
    )
    nodes = {node.name for node in qb.load(SIGNED).nodes if is_paired(node)}
    assert len(nodes & exact) > 2


def test_names_that_onnxruntime_has_written_are_those_of_their_nodes(tmp_path: Path) -> None:
    model = optimized(SIGNED, layouts=False)
    assert model is not None
    onnx.save(model, path := tmp_path / "written.onnx")
    found = saturating_products(path)
    made_by = {name: node.op_type for node in model.graph.node for name in node.output}
    assert any(name != MARKS.sub("", name) for name in made_by)
    told = {made_by[name] for name in found if name in made_by}
    assert told and told <= set(PRODUCTS_OF_BYTES)
