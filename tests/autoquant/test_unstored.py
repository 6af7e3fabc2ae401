"""Weights in blocks, weight-only and dynamic quantization: from the plan to the file's numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.choosers import HQQ, MSE, Context, MinMax
from qdqbridge.autoquant.planning.constants import of_constant
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.plan import format_of, weights_of
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.dynamic import DYNAMIC_CONV, DYNAMIC_DENSE, DynamicAttrs
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from tests.exact_sessions import exact_session
from tests.onnx_models import Builder

LEVELS = (
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
)


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network(path, features=72):
    """Two products with a bias and a Relu between."""
    b = Builder(17)
    x = b.input("x", ["n", 5, features])
    y = b.op("Add", b.op("MatMul", x, b.init(drawn(1, features, 40) / 8)), b.init(drawn(2, 40)))
    y = b.op("Relu", y)
    b.output(b.op("MatMul", y, b.init(drawn(3, 40, 12) / 6)))
    onnx.save(b.model(), path)
    return path


def made(path, **wanted):
    return quantization(path, {"x": drawn(9, 24, 5, 72)}, repair=(), tune=False, **wanted)


def computed(path, level, x, threads=0):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = level
    options.log_severity_level = 4
    return np.asarray(exact_session(path, options).run(None, {"x": x})[0])


def parameters(node):
    """Returns how the weight of a product is stored."""
    quant = node.operand(1).quant
    assert quant is not None
    return quant.params


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("profile", ["ort", "portable"])
@pytest.mark.parametrize(
    ("weights", "block"),
    [("int8", None), ("uint8", 32), ("int4", None), ("int4", 32), ("uint4", 16), ("int2", 16)],
)
def test_files_of_stored_weights_compute_what_the_interpreter_does(
    tmp_path, weights, block, profile
):
    found = made(
        network(tmp_path / "f.onnx"), target="weight-only", weights=weights, block=block
    ).graph
    dense = [node for node in found.nodes if node.op is DENSE]
    params = [parameters(node) for node in dense]
    assert {p.block_size for p in params} == {block} and len(dense) == 2
    assert all(node.operand(0).quant is None for node in dense)
    file = tmp_path / "q.onnx"
    qb.save(found, file, profile)
    assert qb.load(file).digest == found.digest
    packed = profile == "ort" and weights != "int2"
    assert ("MatMulNBits" in operators(file)) == packed
    x = drawn(10, 4, 5, 72)
    (wanted,) = qb.evaluate(found, {"x": x}).values()
    # Only sums of float32 differ. Without MatMulNBits, onnxruntime's optimizations (1.32) round
    # activations to 8 bits behind a dequantized weight: such a file is run without them.
    for level in LEVELS if packed else LEVELS[:1]:
        np.testing.assert_allclose(computed(file, level, x), wanted, rtol=0, atol=2e-5)


def product(path, seed):
    """A float product with one constant matrix, at random; returns rows or a vector for it."""
    random = np.random.default_rng(seed)
    terms, results = int(random.choice([16, 32, 48, 70])), int(random.choice([4, 16]))
    op = str(random.choice(["Gemm", "Gemm", "MatMul"]))
    permuted, biased = op == "Gemm" and random.random() < 0.5, random.random() < 0.5
    shape = [None, None, [2, terms], ["n", terms]][random.integers(4)]
    alpha = 0.5 if random.random() < 0.25 else 1.0
    b = Builder(17)
    rows = () if op == "MatMul" and random.random() < 0.25 else (2,)
    operands = [b.input("x", shape if rows else [terms])]
    operands.append(b.init(drawn(seed, *((results, terms) if permuted else (terms, results)))))
    if op == "Gemm" and biased:
        operands.append(b.init(drawn(seed + 1, results)))
    if op == "Gemm":
        b.output(b.op(op, *operands, transB=int(permuted), alpha=alpha))
    else:
        b.output(b.op(op, *operands))
    onnx.save(b.model(), path)
    return drawn(seed + 2, *rows, terms)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_files_of_random_products_have_the_digest_of_what_was_quantized(tmp_path, first):
    """Also where nobody knows the rank of the activation, which a Gemm says and MatMulNBits not."""
    for seed in range(first, first + 10):
        path, file = tmp_path / f"{seed}.onnx", tmp_path / f"{seed}_quantized.onnx"
        x = product(path, seed)
        weights, block = ["int4", "uint4", "int8", "uint8"][seed % 4], [None, 16, 32][seed % 3]
        found = quantization(
            path,
            {"x": x},
            target="weight-only",
            weights=weights,
            block=block,
            repair=(),
            tune=False,
        ).graph
        qb.save(found, file)
        assert qb.load(file).digest == found.digest, seed
        (wanted,) = qb.evaluate(found, {"x": x}).values()
        for level in LEVELS:  # only sums of float32 differ
            np.testing.assert_allclose(computed(file, level, x), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("shape", [None, [None, None], ["k", "n"], [16, "n"]])
@pytest.mark.parametrize("between", [None, "Relu"])
@pytest.mark.parametrize("permuted", [0, 1])
@pytest.mark.parametrize("target", ["weight-only", "ort"])
def test_data_of_a_transposed_gemm_is_cut_where_its_sums_end(
    tmp_path, target, permuted, between, shape
):
    """Axis 0 numbers the terms of a sum, which the weight tells where the input does not."""
    b, path, file = Builder(17), tmp_path / "f.onnx", tmp_path / "q.onnx"
    x = b.input("x", shape)
    weight = b.init(drawn(1, 4, 16) if permuted else drawn(1, 16, 4))
    rows = b.op(between, x) if between else x
    b.output(b.op("Gemm", rows, weight, transA=1, transB=permuted))
    onnx.save(b.model(), path)
    data = {"x": drawn(2, 48, 3)}  # three samples
    found = quantization(path, data, target=target, repair=(), tune=False).graph
    qb.save(found, file)
    assert qb.load(file).digest == found.digest
    x = drawn(2, 48, 3)[:16]
    (wanted,) = qb.evaluate(found, {"x": x}).values()
    assert wanted.shape == (3, 4) and any(node.op is DENSE for node in found.nodes)
    # only sums of float32 differ
    np.testing.assert_allclose(computed(file, LEVELS[0], x), wanted, rtol=0, atol=2e-5)
    with pytest.raises(InputDataError, match="takes 16 examples at once and 8 are left over"):
        quantization(path, {"x": drawn(2, 40, 3)}, target=target)


@pytest.mark.parametrize("wished", [{}, {"repair": (), "tune": False}])
def test_a_model_that_cannot_run_one_example_is_told_how_data_is_cut(tmp_path, wished):
    b = Builder(17)
    x = b.op("Transpose", b.input("x", ["k", "n"]), perm=[1, 0])
    b.output(b.op("MatMul", x, b.init(drawn(1, 16, 4))))
    onnx.save(b.model(), path := tmp_path / "f.onnx")
    with pytest.raises(UnsupportedTargetError, match="cannot run") as told:
        quantization(path, {"x": drawn(2, 16, 3)}, target="ort", **wished)
    assert "fix axis 0 of 'x'" in told.value.fix


@pytest.mark.parametrize(("target", "rows"), [("dynamic", False), ("dynamic-rows", True)])
def test_dynamic_products_have_onnxruntimes_bits(tmp_path, target, rows):
    b = Builder(17)
    x = b.input("x", ["n", 5, 72])
    y = b.op("MatMul", x, b.init(drawn(1, 72, 40) / 8))
    b.output(b.op("Add", y, b.init(drawn(2, 40))))
    onnx.save(b.model(), tmp_path / "f.onnx")
    found = made(tmp_path / "f.onnx", target=target).graph
    attributes = [DYNAMIC_DENSE.of(node) for node in found.nodes if node.op is DYNAMIC_DENSE]
    assert attributes == [DynamicAttrs(rows)]
    file = tmp_path / "q.onnx"
    qb.save(found, file)
    x = np.stack([drawn(10, 5, 72), 100 * drawn(11, 5, 72), np.zeros((5, 72), np.float32)])
    (wanted,) = qb.evaluate(found, {"x": x}).values()
    for level in LEVELS:
        np.testing.assert_array_equal(computed(file, level, x), wanted)
    assert qb.load(file).digest == found.digest


def test_formats_are_mixed_by_name(tmp_path):
    found = made(
        network(tmp_path / "f.onnx"),
        formats={"MatMul": Unstored.FLOAT},
        weight_formats={"MatMul": Format(DType.UINT4, axis=0, block=32)},
    ).graph
    dense = [node for node in found.nodes if node.op is DENSE]
    assert {str(parameters(node).storage_dtype) for node in dense} == {"int4"}
    assert {parameters(node).block_size for node in dense} == {32}


def test_integers_and_stored_weights_meet_in_one_graph(tmp_path):
    path = network(tmp_path / "f.onnx")
    names = [node.name for node in qb.load(path).nodes if node.op.name == "MatMul"]
    found = made(path, formats={names[1]: Unstored.FLOAT})
    first, second = (node for node in found.graph.nodes if node.op is DENSE)
    assert first.operand(0).quant is not None and second.operand(0).quant is None
    qb.save(found.graph, tmp_path / "q.onnx")
    x = drawn(10, 4, 5, 72)
    (wanted,) = qb.evaluate(found.graph, {"x": x}).values()
    # float32 sums in another order
    np.testing.assert_allclose(
        computed(tmp_path / "q.onnx", LEVELS[0], x), wanted, rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("chooser", [MinMax(), MSE(), HQQ()])
@pytest.mark.parametrize(("columns", "block"), [(64, 32), (70, 32), (48, 16)])
@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "int2"])
def test_blocks_are_never_worse_than_extremes(name, columns, block, chooser):
    weight = drawn(columns, 6, columns)
    weight[0, :block] = 0
    value = Value(TensorType(DType.FLOAT32, weight.shape), "w", constant=Constant.of(weight))
    format = Format(**{k: getattr(weights_of(f"{name}/{block}"), k) for k in _FIELDS}, axis=1)
    params = of_constant(value, format, chooser, Context())
    assert params.scale.shape == (6, -(-columns // block)) and params.block_size == block
    plain = of_constant(value, format, MinMax(), Context())
    power = chooser.power if isinstance(chooser, HQQ) else 2.0

    def lost(p):
        return float((np.abs(dequantize(quantize(weight, p), p) - weight) ** power).sum())

    assert lost(params) <= lost(plain) * (1 + 1e-5)  # float32 sums
    assert isinstance(chooser, MinMax) or lost(params) < lost(plain)


_FIELDS = ("storage", "symmetric", "restricted", "block")


def test_convolutions_are_dynamic_and_have_onnxruntimes_bits(tmp_path):
    chance = np.random.default_rng(3)
    net = Builder(17)
    x = net.input("x", ["batch", 4, 6, 6])
    kernels = [chance.normal(size=(8, c, 3, 3)).astype(np.float32) for c in (4, 8)]
    bias = net.init(chance.normal(size=8).astype(np.float32))
    y = net.op("Relu", net.op("Conv", x, net.init(kernels[0]), bias, pads=[1, 1, 1, 1]))
    net.output(net.op("Conv", y, net.init(kernels[1]), strides=[2, 2]), ["batch", 8, 2, 2])
    onnx.save(net.model(), tmp_path / "f.onnx")
    graph, data = qb.load(tmp_path / "f.onnx"), {"x": drawn(1, 5, 4, 6, 6)}
    found = qb.quantize(graph, data, target="dynamic")
    assert [node.op for node in found.nodes if node.op is DYNAMIC_CONV] == [DYNAMIC_CONV] * 2
    qb.save(found, tmp_path / "q.onnx")
    written = onnx.load(tmp_path / "q.onnx").graph
    assert sum(node.op_type == "ConvInteger" for node in written.node) == 2
    read = {name for node in written.node for name in node.input}
    assert read >= {tensor.name for tensor in written.initializer}
    (wanted,) = qb.evaluate(found, data).values()
    np.testing.assert_array_equal(computed(tmp_path / "q.onnx", LEVELS[0], data["x"]), wanted)
    (float_,) = qb.evaluate(graph, data).values()
    assert np.abs(wanted - float_).max() < 0.05 * np.abs(float_).max()


def test_names_of_formats():
    assert weights_of("int4/32").block == 32 and weights_of("int8").block is None
    assert format_of("dynamic-rows") is Unstored.DYNAMIC_ROWS
    for text in ("int5", "int4/x", "int4/1"):
        with pytest.raises(UnsupportedTargetError):
            weights_of(text)
    with pytest.raises(UnsupportedTargetError):
        format_of("uint7")


def test_what_cannot_be_is_refused_by_name(tmp_path):
    path = network(tmp_path / "f.onnx")
    with pytest.raises(UnsupportedTargetError, match="meet weights of int4"):
        made(path, target="dynamic", weights="int4")
    with pytest.raises(UnsupportedTargetError, match="no blocks of 1"):
        made(path, block=1)


RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Operators, and how many gates they have."""


@pytest.mark.parametrize("op", RECURRENT)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("target", ["weight-only", "dynamic", "ort"])
def test_recurrent_weights_have_a_scale_per_element_of_a_gate(tmp_path, op, directions, target):
    path, rows = tmp_path / "f.onnx", 6 * RECURRENT[op]
    b = Builder(17)
    x = b.op("Transpose", b.input("x", ["n", 5, 72]), perm=[1, 0, 2])
    w, r = drawn(1, directions, rows, 72) / 8, drawn(2, directions, rows, 6) / 3
    w[:, ::2] *= 20  # one scale for all would lose the small rows
    how = "bidirectional" if directions == 2 else "forward"
    b.output(b.op(op, x, b.init(w), b.init(r), hidden_size=6, direction=how))
    onnx.save(b.model(), path)
    wished = {"formats": {op: Unstored.FLOAT}} if target != "weight-only" else {}
    found = made(path, target=target, **wished)
    qb.save(found.graph, out := tmp_path / "q.onnx")
    stored = {tuple(i.dims): i.data_type for i in onnx.load(out).graph.initializer}
    assert stored[w.shape] == stored[r.shape] == onnx.TensorProto.INT8
    (node,) = (node for node in found.graph.nodes if node.op.name == op)
    for index in (1, 2):  # it reads real numbers, which stored ones are made into
        made_real = node.operand(index).producer
        quant = None if made_real is None else made_real.operand(0).quant
        assert quant is not None
        assert quant.params.axis == 1 and quant.params.scale.shape == (rows,)
    unseen = drawn(10, 8, 5, 72)
    wanted = computed(path, LEVELS[0], unseen)
    for level in LEVELS:
        got = computed(out, level, unseen)
        assert 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - got) ** 2)) > 30


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("target", ["dynamic", "dynamic-rows", "ort"])
def test_an_lstm_that_quantizes_while_it_runs(tmp_path, directions, target):
    b = Builder(17)
    x = b.op("Transpose", b.input("x", ["n", 5, 72]), perm=[1, 0, 2])
    w, r = drawn(1, directions, 24, 72) / 8, drawn(2, directions, 24, 6) / 3
    how = "bidirectional" if directions == 2 else "forward"
    bias = b.init(drawn(3, directions, 48) / 4)
    b.output(b.op("LSTM", x, b.init(w), b.init(r), bias, hidden_size=6, direction=how))
    onnx.save(b.model(), path := tmp_path / "f.onnx")
    wished = {"formats": {"LSTM": Unstored.DYNAMIC}} if target == "ort" else {}
    found = made(path, target=target, **wished)
    qb.save(found.graph, out := tmp_path / "q.onnx")
    (node,) = (n for n in onnx.load(out).graph.node if "LSTM" in n.op_type)
    assert (node.domain, node.op_type) == ("com.microsoft", "DynamicQuantizeLSTM")
    shapes = {t.name: tuple(t.dims) for t in onnx.load(out).graph.initializer}
    assert [shapes[node.input[i]] for i in (1, 8, 9)] == [
        (directions, 72, 24), (directions, 24), (directions, 24),
    ]  # fmt: skip
    assert qb.load(out).digest == found.graph.digest
    unseen = drawn(10, 24, 5, 72)
    wanted = computed(path, LEVELS[0], unseen)
    (ours,) = qb.evaluate(found.graph, {"x": unseen}).values()
    for level in LEVELS:
        got = computed(out, level, unseen, threads=1)  # each thread rounds its own part of a batch
        assert np.array_equal(got, ours)
        assert 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - got) ** 2)) > 30


def test_there_is_no_gru_that_quantizes_while_it_runs(tmp_path):
    b = Builder(17)
    x = b.op("Transpose", b.input("x", ["n", 5, 72]), perm=[1, 0, 2])
    y = b.op("GRU", x, b.init(drawn(1, 1, 18, 72)), b.init(drawn(2, 1, 18, 6)), hidden_size=6)
    b.output(b.op("MatMul", y, b.init(drawn(3, 6, 4))))
    onnx.save(b.model(), path := tmp_path / "f.onnx")
    plan = made(path, formats={"GRU": Unstored.DYNAMIC}).made.decision.plan
    told = {node.op.name: why for node, why in plan.floats.items()}
    assert told["GRU"] == "there is no dynamically quantized GRU"


@pytest.mark.parametrize("op", RECURRENT)
def test_onnxruntime_s_target_leaves_recurrent_operators_float_and_says_why(tmp_path, op):
    rows = 6 * RECURRENT[op]
    b = Builder(17)
    x = b.op("Transpose", b.input("x", ["n", 5, 8]), perm=[1, 0, 2])
    y = b.op(op, x, b.init(drawn(1, 1, rows, 8)), b.init(drawn(2, 1, rows, 6)), hidden_size=6)
    b.output(b.op("MatMul", b.op("Squeeze", y, b.init(np.array([1]))), b.init(drawn(3, 6, 4))))
    onnx.save(b.model(), path := tmp_path / "f.onnx")
    found = quantization(path, {"x": drawn(4, 16, 5, 8)}, repair=(), tune=False)
    told = {node.op.name: why for node, why in found.made.decision.plan.floats.items()}
    assert told[op].startswith("onnxruntime has no static integer kernel of it")


def test_recurrent_weights_that_are_computed_stay(tmp_path):
    b = Builder(17)
    x = b.input("x", [5, 1, 8])
    w = b.op("Mul", b.init(drawn(1, 1, 24, 8)), b.op("ReduceMean", x, keepdims=0))
    y = b.op("LSTM", x, w, b.init(drawn(2, 1, 24, 6)), hidden_size=6)
    b.output(b.op("MatMul", b.op("Squeeze", y, b.init(np.array([1]))), b.init(drawn(3, 6, 4))))
    onnx.save(b.model(), path := tmp_path / "f.onnx")
    plan = quantization(path, {"x": drawn(4, 5 * 16, 1, 8)}, target="weight-only", repair=())
    floats = plan.made.decision.plan.floats
    told = {node.op.name: reason for node, reason in floats.items()}
    assert told["LSTM"] == "its weights are computed"


@pytest.mark.parametrize("target", ["ort", "weight-only", "dynamic", "dynamic-rows"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_data_that_make_no_numbers_are_refused_though_no_range_is_needed(target, number, tmp_path):
    path = tmp_path / "m.onnx"
    network(path)
    x = drawn(1, 8, 5, 72)
    x[3, 4, 5] = number
    with pytest.raises(InputDataError, match="computes NaN"):
        qb.quantize(path, {"x": x}, target=target)
