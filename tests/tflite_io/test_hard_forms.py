"""Rare forms of TFLite files against LiteRT: recurrent layers, detectors, subgraphs, variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, the judge")

from flatbuffers import flexbuffers

import qdqbridge as qb
from tests.tflite_io.test_against_litert import FLOAT, Array, Case, agree, by_litert, litert
from tests.tflite_io.tflite_writer import Model

INT4_SCALES = np.asarray([0.1, 0.07, 0.2], np.float32)


def case(name: str, seed: int = 0, kind: str = FLOAT) -> Case:
    return Case(seed, name, (kind,))


def array(c: Case, values: Any, dtype: Any = np.float32) -> int:
    return c.model.constant("k", np.asarray(values, dtype))


def normal(c: Case, *shape: int, scale: float = 1.0) -> Array:
    return (c.rng.normal(size=shape) * scale).astype(np.float32)


# ---- data movement, shapes, indices -------------------------------------------------------------


def top_k(seed: int) -> Case:
    c = case("top_k", seed, (FLOAT, "int8")[seed % 2])
    x = c.given(2, 3, 8)
    c.made(2, 3, 3, **(c.like(x) if c.quantized else {}))
    c.made(2, 3, 3, dtype="int32")
    c.op("TOPK_V2", [x, array(c, 3, np.int32)], "TopKV2Options")
    return c


def one_hot(seed: int) -> Case:
    c = case("one_hot", seed)
    x, axis = c.given(2, 3, dtype="int32"), (-1, 0, 1, 2)[seed % 4]
    shape = {-1: (2, 3, 5), 0: (5, 2, 3), 1: (2, 5, 3), 2: (2, 3, 5)}[axis]
    c.made(*shape)
    operands = [x, array(c, 5, np.int32), array(c, 2.5), array(c, -1.0)]
    c.op("ONE_HOT", operands, "OneHotOptions", Axis=axis)
    return c


def cumsum(seed: int) -> Case:
    c = case("cumsum", seed)
    dtype = (FLOAT, "int32")[seed % 3 % 2]
    x = c.given(2, 3, 4, dtype=dtype)
    c.made(2, 3, 4, dtype=dtype)
    c.op(
        "CUMSUM", [x, array(c, (1, -1)[seed % 2], np.int32)], "CumsumOptions",
        Exclusive=bool(seed & 1), Reverse=bool(seed & 2),
    )  # fmt: skip
    return c


def where(seed: int) -> Case:
    c = case("where", seed)
    x = c.given(3, 4, dtype=("bool", FLOAT)[seed % 2])
    c.made(12, 2, dtype="int64")
    c.model.tensors[c.outputs[0]].signature = (-1, 2)
    c.op("WHERE", [x], "WhereOptions")
    return c


def number_range(seed: int) -> Case:
    c = case("range", seed)
    if seed % 2:
        operands, dtype = [array(c, n) for n in (0.5, -3.0, -0.7)], FLOAT
    else:
        operands, dtype = [array(c, n, np.int32) for n in (3, 20, 4)], "int32"
    count = 5
    x = c.given(count, dtype=dtype)
    made = c.model.tensor("r", (count,), dtype)
    c.made(count, dtype=dtype)
    c.model.operator("RANGE", operands, made, "RangeOptions")
    c.op("ADD", [x, made], "AddOptions")
    return c


def filled(seed: int) -> Case:
    c = case("fill", seed)
    x, y = c.given(), c.made(2, 3)
    c.model.operator("FILL", [c.numbers(2, 3), x], y, "FillOptions")
    return c


def shape_arithmetic(seed: int) -> Case:
    """RESHAPE to a shape computed from the operand's: SHAPE, STRIDED_SLICE, MUL, PACK."""
    c = case("shape_arithmetic", seed)
    x, m = c.given(2, 3, 4), c.model
    whole = m.tensor("shape", (3,), "int32")
    parts = [m.tensor(f"p{i}", (), "int32") for i in range(2)]
    m.operator("SHAPE", [x], whole, "ShapeOptions", OutType=2)
    for place, part in zip((0, 2), parts, strict=True):
        bounds = [c.numbers(place), c.numbers(place + 1), c.numbers(1)]
        m.operator("STRIDED_SLICE", [whole, *bounds], part, "StridedSliceOptions",
                   ShrinkAxisMask=1)  # fmt: skip
    product, target = m.tensor("product", (), "int32"), m.tensor("target", (2,), "int32")
    m.operator("MUL", parts, product, "MulOptions")
    m.operator("PACK", [product, array(c, -1, np.int32)], target, "PackOptions", ValuesCount=2)
    c.made(8, 3)
    c.op("RESHAPE", [x, target], "ReshapeOptions")
    return c


def reverse_sequence(seed: int) -> Case:
    c = case("reverse_sequence", seed)
    batch, time = ((0, 1), (1, 0))[seed % 2]
    shape = (3, 5, 2) if batch == 0 else (5, 3, 2)
    x = c.given(*shape)
    c.made(*shape)
    operands = [x, array(c, [1, 5, 3], (np.int32, np.int64)[seed // 2 % 2])]
    c.op("REVERSE_SEQUENCE", operands, "ReverseSequenceOptions", SeqDim=time, BatchDim=batch)
    return c


def scatter(seed: int) -> Case:
    c, dtype = case("scatter", seed), (FLOAT, "int32")[seed % 2]
    x = c.given(3, 4, dtype=dtype)
    c.made(5, 4, dtype=dtype)
    places = array(c, [[4], [1], [4]], np.int32)  # twice the same row: a sum
    c.op("SCATTER_ND", [places, x, c.numbers(5, 4)], "ScatterNdOptions")
    return c


def update_slice(seed: int) -> Case:
    c = case("update_slice", seed)
    x, update = c.given(4, 5), c.given(2, 3)
    starts = ((1, 1), (-3, 9), (3, 4), (0, 0))[seed % 4]  # clamped
    c.made(4, 5)
    c.op("DYNAMIC_UPDATE_SLICE", [x, update, c.numbers(*starts)], "DynamicUpdateSliceOptions")
    return c


def space_to_batch(seed: int) -> Case:
    c = case("space_to_batch", seed, (FLOAT, "int8")[seed % 2])
    x = c.given(2, 5, 3)  # one spatial axis
    c.made(6, 2, 3, **(c.like(x) if c.quantized else {}))
    c.op("SPACE_TO_BATCH_ND", [x, c.numbers(3), array(c, [[0, 1]], np.int32)],
         "SpaceToBatchNDOptions")  # fmt: skip
    return c


def dilated_by_batches(seed: int) -> Case:
    """A dilated convolution as converters write it: SPACE_TO_BATCH, CONV_2D, BATCH_TO_SPACE."""
    c = case("dilated_by_batches", seed)
    x, m = c.given(1, 8, 8, 2), c.model
    parts, made = m.tensor("a", (4, 6, 6, 2), FLOAT), m.tensor("b", (4, 4, 4, 3), FLOAT)
    square = array(c, [[2, 2], [2, 2]], np.int32)
    m.operator("SPACE_TO_BATCH_ND", [x, c.numbers(2, 2), square], parts, "SpaceToBatchNDOptions")
    w, b = array(c, normal(c, 3, 3, 3, 2)), array(c, normal(c, 3))
    m.operator("CONV_2D", [parts, w, b], made, "Conv2DOptions", Padding=1, StrideH=1, StrideW=1,
               DilationHFactor=1, DilationWFactor=1)  # fmt: skip
    c.made(1, 8, 8, 3)
    none = array(c, [[0, 0], [0, 0]], np.int32)
    c.op("BATCH_TO_SPACE_ND", [made, c.numbers(2, 2), none], "BatchToSpaceNDOptions")
    return c


def broadcast(seed: int) -> Case:
    c = case("broadcast", seed, (FLOAT, "int8")[seed % 2])
    x = c.given(3, 1)
    c.made(2, 3, 4, **(c.like(x) if c.quantized else {}))
    c.op("BROADCAST_TO", [x, c.numbers(2, 3, 4)], "BroadcastToOptions", version=2)
    return c


def select_rows(seed: int) -> Case:
    c = case("select_rows", seed)
    condition, a, b = c.given(3, dtype="bool"), c.given(3, 2, 2), c.given(3, 2, 2)
    c.made(3, 2, 2)
    c.op("SELECT", [condition, a, b], "SelectOptions")
    return c


def batched_gather(seed: int) -> Case:
    c = case("batched_gather", seed, (FLOAT, "int8")[seed % 2])
    x, axis = c.given(2, 3, 5), (1, 2)[seed // 2 % 2]
    rows = array(c, [[2, 0], [1, 1]], np.int32)
    c.made(*((2, 2, 5) if axis == 1 else (2, 3, 2)), **(c.like(x) if c.quantized else {}))
    c.op("GATHER", [x, rows], "GatherOptions", Axis=axis, BatchDims=1)
    return c


def magnitudes(seed: int) -> Case:
    """RFFT2D of a frame (longer, shorter or as long as the transform), and its magnitudes."""
    c = case("magnitudes", seed)
    length = (8, 16, 4, 8)[seed % 4]
    x, m = c.given(3, 1, 8), c.model
    spectrum = m.tensor("spectrum", (3, 1, length // 2 + 1), "complex64")
    m.operator("RFFT2D", [x, c.numbers(1, length)], spectrum, "Rfft2dOptions")
    c.made(3, 1, length // 2 + 1)
    c.op("COMPLEX_ABS", [spectrum])
    return c


def square_transform(seed: int) -> Case:
    c = case("square_transform", seed)
    x, m = c.given(2, 4, 8), c.model
    spectrum = m.tensor("spectrum", (2, 4, 5), "complex64")
    m.operator("RFFT2D", [x, c.numbers(4, 8)], spectrum, "Rfft2dOptions")
    c.made(2, 4, 5)
    c.op(("REAL", "IMAG", "COMPLEX_ABS", "REAL")[seed % 4], [spectrum])
    return c


# ---- weights ------------------------------------------------------------------------------------


def sparse(seed: int) -> Case:
    """FULLY_CONNECTED whose weight lies sparse: rows compressed, behind a DENSIFY."""
    c = case("sparse", seed)
    w = normal(c, 4, 6) * (c.rng.random((4, 6)) < 0.4)
    rows = [np.flatnonzero(row) for row in w]
    segments = np.cumsum([0, *(len(row) for row in rows)])
    x, m = c.given(3, 6), c.model
    stored = m.constant("w", w[w != 0])
    m.tensors[stored].shape = (4, 6)
    m.tensors[stored].sparsity = ((0, 1), (), (4, (segments, np.concatenate(rows))))
    dense, bias = m.tensor("dense", (4, 6), FLOAT), array(c, normal(c, 4))
    m.operator("DENSIFY", [stored], dense, "DensifyOptions")
    c.made(3, 4)
    c.op("FULLY_CONNECTED", [x, dense, bias], "FullyConnectedOptions")
    return c


def four_bits(seed: int) -> Case:
    """A DEQUANTIZE of packed int4: per tensor, or along an axis."""
    c = case("four_bits", seed)
    codes = c.rng.integers(-8, 8, (3, 5))
    flat = np.append(codes.reshape(-1), 0) & 15
    scale = INT4_SCALES if seed % 2 else 0.1
    packed = (flat[::2] | flat[1::2] << 4).astype(np.uint8)
    w = c.model.constant("w", packed, scale)
    c.model.tensors[w].dtype, c.model.tensors[w].shape = "int4", (3, 5)
    x, real = c.given(3, 5), c.model.tensor("real", (3, 5), FLOAT)
    c.model.operator("DEQUANTIZE", [w], real, "DequantizeOptions")
    c.made(3, 5)
    c.op("ADD", [x, real], "AddOptions")
    return c


# ---- recurrence ---------------------------------------------------------------------------------


def lstm(seed: int) -> Case:
    """Batches or steps first; with and without peepholes."""
    return _lstm("lstm", seed, (), major=bool(seed & 1), peepholes=bool(seed & 2))


def coupled_lstm(seed: int) -> Case:
    """An input gate that is what the forget gate leaves."""
    return _lstm("coupled_lstm", seed, (0,), major=bool(seed & 1), peepholes=bool(seed & 2))


def _lstm(
    name: str, seed: int, missing: Sequence[int], *, major: bool, peepholes: bool,
    clip: float = 0.0, act: int = 4,
) -> Case:  # fmt: skip
    c = case(name, seed)
    shape = (4, 2) if major else (2, 4)
    x, gates = c.given(*shape, 3), _gates(c, missing, peepholes=peepholes)
    c.made(*shape, 5)
    c.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", [x, *gates, *_states(c, 2), -1, -1, -1, -1],
        "UnidirectionalSequenceLSTMOptions", FusedActivationFunction=act, TimeMajor=major,
        CellClip=clip,
    )  # fmt: skip
    return c


CLIPS = (0.2, 0.7, 1.0, 3.0, 4.0, 10.0)
"""Cells of four steps reach some of them."""


def clipped_lstm(seed: int) -> Case:
    """Every Keras LSTM clips its cell, at 10: where that can bite and where it cannot."""
    clip, act = CLIPS[seed % len(CLIPS)], (4, 4, 1)[seed // 6 % 3]
    missing = (0,) if seed // 3 & 1 else ()
    return _lstm(
        "clipped_lstm", seed, missing, major=bool(seed & 1), peepholes=bool(seed // 2 & 1),
        clip=clip, act=act,
    )  # fmt: skip


def clipped_bidirectional_lstm(seed: int) -> Case:
    return bidirectional_lstm(seed, CLIPS[seed % len(CLIPS)])


def _gates(c: Case, missing: Sequence[int], *, peepholes: bool) -> list[int]:
    """Weights, recurrent weights, peepholes and biases of five units, and no projection."""
    size, units = 3, 5
    gates = range(4)
    weights = [_given(c, g not in missing, units, size) for g in gates]
    recurrent = [_given(c, g not in missing, units, units) for g in gates]
    peeps = [_given(c, peepholes and g not in missing, units) for g in range(3)]
    biases = [_given(c, g not in missing, units) for g in gates]
    return [*weights, *recurrent, *peeps, *biases, -1, -1]


def _given(c: Case, there: bool, *shape: int) -> int:
    return array(c, normal(c, *shape, scale=0.5)) if there else -1


def _states(c: Case, count: int, batch: int = 2) -> list[int]:
    states = [c.model.tensor(f"s{i}", (batch, 5), FLOAT) for i in range(count)]
    for state in states:
        c.model.tensors[state].variable = True
    return states


def bidirectional_lstm(seed: int, clip: float = 0.0) -> Case:
    """Both directions joined, or an output each.

    With batches first LiteRT 2.3 computes garbage for all but the first, another each time.
    """
    c = case("bidirectional_lstm", seed)
    major, peepholes, merged = bool(seed & 1), bool(seed & 2), seed % 3 != 1
    batch = 2 if major else 1
    shape = (4, 2) if major else (1, 4)
    x = c.given(*shape, 3)
    gates = [*_gates(c, (), peepholes=peepholes), *_gates(c, (), peepholes=peepholes)]
    for _ in range(1 if merged else 2):
        c.made(*shape, 10 if merged else 5)
    c.op(
        "BIDIRECTIONAL_SEQUENCE_LSTM", [x, *gates, *_states(c, 4, batch), *[-1] * 9],
        "BidirectionalSequenceLSTMOptions", FusedActivationFunction=4, TimeMajor=major,
        MergeOutputs=merged, CellClip=clip,
    )  # fmt: skip
    return c


def rnn(seed: int) -> Case:
    c = case("rnn", seed)
    major, units = bool(seed & 1), 5
    shape = (4, 2) if major else (2, 4)
    x = c.given(*shape, 3)
    operands = [
        array(c, normal(c, units, 3, scale=0.5)),
        array(c, normal(c, units, units, scale=0.5)),
        array(c, normal(c, units)),
        c.model.tensor("state", (2, units), FLOAT),
    ]
    c.model.tensors[operands[-1]].variable = True
    c.made(*shape, units)
    c.op(
        "UNIDIRECTIONAL_SEQUENCE_RNN", [x, *operands], "SequenceRNNOptions",
        FusedActivationFunction=(4, 1)[seed // 2 % 2], TimeMajor=major,
    )  # fmt: skip
    return c


# ---- detectors ----------------------------------------------------------------------------------


def detector(seed: int) -> Case:
    """Fast and regular suppression; few or many anchors beside what may be reported."""
    c = case("detector", seed)
    anchors, classes, most = (6, 20)[seed // 2 % 2], 3, 8
    boxes, scores = c.given(1, anchors, 4), c.given(1, anchors, classes + 1)
    centres = c.rng.random((anchors, 2))
    prior = array(c, np.concatenate([centres, np.full((anchors, 2), 0.4)], axis=1))
    for shape in ((1, most, 4), (1, most), (1, most), (1,)):
        c.made(*shape)
    options = {
        "max_detections": most, "max_classes_per_detection": 1, "detections_per_class": 4,
        "use_regular_nms": bool(seed & 1), "nms_score_threshold": 0.1, "nms_iou_threshold": 0.5,
        "num_classes": classes, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
    }  # fmt: skip
    c.model.custom(
        "TFLite_Detection_PostProcess", [boxes, scores, prior], c.outputs,
        bytes(flexbuffers.Dumps(options)),
    )  # fmt: skip
    return c


def suppression(seed: int) -> Case:
    c = case("suppression", seed)
    count, most = 12, (5, 12)[seed % 2]
    corners = c.rng.random((count, 2))
    boxes = array(c, np.concatenate([corners, corners + 0.4], axis=1))
    scores = c.given(count)
    c.made(most, dtype="int32")
    c.made(dtype="int32")
    operands = [boxes, scores, array(c, most, np.int32), array(c, 0.4), array(c, -0.5)]
    c.op("NON_MAX_SUPPRESSION_V4", operands, "NonMaxSuppressionV4Options")
    return c


# ---- subgraphs ----------------------------------------------------------------------------------


def scaled(by: float) -> tuple[Model, list[int], list[int]]:
    """A subgraph: ``x · by``."""
    body = Model()
    x, factor = body.tensor("x", (2, 3), FLOAT), body.constant("f", np.array([by], np.float32))
    y = body.operator("MUL", [x, factor], body.tensor("y", (2, 3), FLOAT), "MulOptions")
    return body, [x], [y]


def branch(seed: int) -> Case:
    c = case("branch", seed)
    condition, x = c.given(1, dtype="bool"), c.given(2, 3)
    c.made(2, 3)
    then, other = (c.model.subgraph(*scaled(by)) for by in (2.0, -3.0))
    c.op("IF", [condition, x], "IfOptions", ThenSubgraphIndex=then, ElseSubgraphIndex=other)
    return c


def composite(seed: int) -> Case:
    c = case("composite", seed)
    x = c.given(2, 3)
    c.made(2, 3)
    c.op(
        "STABLEHLO_COMPOSITE", [x], "StableHLOCompositeOptions", Name="odml.scaled",
        CompositeAttributes=np.frombuffer(flexbuffers.Dumps({"by": 2.5}), np.uint8),
        DecompositionSubgraphIndex=c.model.subgraph(*scaled(2.5)),
    )  # fmt: skip
    return c


CASES: Mapping[str, Callable[[int], Case]] = {
    "top_k": top_k, "one_hot": one_hot, "cumsum": cumsum, "where": where, "range": number_range,
    "fill": filled, "shape_arithmetic": shape_arithmetic, "reverse_sequence": reverse_sequence,
    "scatter": scatter, "update_slice": update_slice, "space_to_batch": space_to_batch,
    "dilated_by_batches": dilated_by_batches, "broadcast": broadcast, "select_rows": select_rows,
    "batched_gather": batched_gather, "magnitudes": magnitudes,
    "square_transform": square_transform, "sparse": sparse, "four_bits": four_bits, "lstm": lstm,
    "coupled_lstm": coupled_lstm, "bidirectional_lstm": bidirectional_lstm, "rnn": rnn,
    "suppression": suppression, "branch": branch, "composite": composite,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forms(name: str, tmp_path: Path) -> None:
    for seed in range(4):
        # Loops and norms: some float32 roundings behind one another.
        agree(CASES[name](seed), tmp_path / f"{seed}.tflite", f"{name} {seed}", apart=1e-5)


def test_clipped_cells(tmp_path: Path) -> None:
    for seed in range(54):
        agree(clipped_lstm(seed), tmp_path / "x.tflite", f"lstm {seed}", apart=1e-5)  # as above
    for seed in range(12):
        made = clipped_bidirectional_lstm(seed)
        agree(made, tmp_path / "x.tflite", f"bidirectional {seed}", apart=1e-5)


@pytest.mark.parametrize(("clip", "op_type"), [(10.0, "LSTM"), (3.0, "Scan")])
def test_a_clip_that_cannot_bite_is_left_out(clip: float, op_type: str, tmp_path: Path) -> None:
    c = _lstm("clip", 0, (), major=True, peepholes=False, clip=clip)
    path = tmp_path / "x.tflite"
    path.write_bytes(c.model.tobytes(c.inputs, c.outputs))
    names = {node.op.name for node in qb.load(path).nodes}
    assert ("LSTM" in names) == (op_type == "LSTM"), names


def svdf(seed: int) -> Case:
    """Ranks 1 and 2, with and without a bias and a Relu, floats and integers."""
    c = case("svdf", seed, (FLOAT, "int8")[seed % 2])
    rank, memory, units, size = 1 + seed // 2 % 2, (1, 3, 5)[seed % 3], 3, 4
    features, batch = rank * units, 1 + seed // 4 % 2
    biased, relu = bool(seed // 3 & 1), c.quantized or bool(seed & 4)
    m = c.model
    if c.quantized:
        x = c.given(batch, size, scale=0.02, zero_point=int(c.rng.integers(-30, 30)))
        codes = c.rng.integers(-127, 128, (features, size)).astype(np.int8)
        w = m.constant("w", codes, 0.01)
        codes = c.rng.integers(-32767, 32768, (features, memory)).astype(np.int16)
        t = m.constant("t", codes, 2e-5)
        kept = m.tensor("kept", (batch, features * memory), "int16", scale=0.0002, zero_point=0)
        codes = c.rng.integers(-(10**8), 10**8, units).astype(np.int32)
        b = m.constant("b", codes, np.float32(0.0002) * np.float32(2e-5))
        c.made(batch, units, scale=0.01, zero_point=-128)
    else:
        x, w = c.given(batch, size), array(c, normal(c, features, size))
        t, b = array(c, normal(c, features, memory)), array(c, normal(c, units))
        kept = m.tensor("kept", (batch, features * memory), FLOAT)
        c.made(batch, units)
    m.tensors[kept].variable = True
    c.op(
        "SVDF", [x, w, t, b if biased else -1, kept], "SVDFOptions", Rank=rank,
        FusedActivationFunction=int(relu),
    )  # fmt: skip
    return c


def test_memories_of_features(tmp_path: Path) -> None:
    """SVDF's state is fed back by hand here, and kept by LiteRT; integers may be a step apart."""
    for seed in range(36):
        c, path = svdf(seed), tmp_path / "x.tflite"
        path.write_bytes(c.model.tobytes(c.inputs, c.outputs))
        graph = qb.load(path)
        assert list(graph.output_names) == ["y0", "kept:next"]
        interpreter: Any = litert.Interpreter(str(path))
        interpreter.allocate_tensors()
        state = graph.inputs[1]
        kept = np.zeros([int(n) for n in state.type.shape or ()], state.type.dtype.numpy)
        for _ in range(4):
            feed = c.feed()
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], feed["x0"])
            interpreter.invoke()
            found = qb.evaluate(graph, {**feed, "kept": kept})
            wanted = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
            if c.quantized:
                off = np.abs(found["y0"].astype(int) - wanted.astype(int))
                assert off.max() <= 1, (seed, off)
            else:  # float32 sums in another order
                np.testing.assert_allclose(found["y0"], wanted, rtol=1e-5, atol=1e-5)
            kept = found["kept:next"]


def test_detectors(tmp_path: Path) -> None:
    """LiteRT leaves what lies behind the last detection as its memory was; ours are zeros."""
    for seed in range(4):
        path, case = tmp_path / f"{seed}.tflite", detector(seed)
        path.write_bytes(case.model.tobytes(case.inputs, case.outputs))
        feed = case.feed()
        wanted = by_litert(path, feed)
        found = list(qb.evaluate(qb.load(path), feed).values())
        count = int(wanted[3][0])
        assert int(found[3][0]) == count
        for ours, theirs in zip(found[:3], wanted[:3], strict=True):
            assert ours.shape == theirs.shape
            # Corners are an exponential times an extent, plus a centre: float32, ulps of either.
            np.testing.assert_allclose(ours[:, :count], theirs[:, :count], rtol=1e-5, atol=1e-5)
            assert not ours[:, count:].any()


# ---- quantized in rare ways ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D"])
def test_hybrid_operators(name: str, tmp_path: Path) -> None:
    """LiteRT quantizes float activations while it runs: close, and a note says so."""
    c = case(name)
    shape = {"FULLY_CONNECTED": (4, 8), "CONV_2D": (4, 3, 3, 8), "DEPTHWISE_CONV_2D": (1, 3, 3, 8)}
    x = c.given(*((2, 8) if name == "FULLY_CONNECTED" else (1, 6, 6, 8)))
    codes = c.rng.integers(-127, 128, shape[name]).astype(np.int8)
    axis, count = (3, 8) if name == "DEPTHWISE_CONV_2D" else (0, 4)
    per_axis = c.rng.uniform(0.002, 0.004, count).astype(np.float32)
    scale = 0.003 if name == "FULLY_CONNECTED" else per_axis
    w, b = c.model.constant("w", codes, scale, axis), array(c, normal(c, count))
    c.made(*((2, 4) if name == "FULLY_CONNECTED" else (1, 6, 6, count)))
    options = {
        "FULLY_CONNECTED": ("FullyConnectedOptions", {}),
        "CONV_2D": ("Conv2DOptions", {"StrideH": 1, "StrideW": 1}),
        "DEPTHWISE_CONV_2D": (
            "DepthwiseConv2DOptions", {"StrideH": 1, "StrideW": 1, "DepthMultiplier": 1}
        ),
    }[name]  # fmt: skip
    dilations = {} if name == "FULLY_CONNECTED" else {"DilationHFactor": 1, "DilationWFactor": 1}
    c.op(name, [x, w, b], options[0], **options[1], **dilations)
    # A step of the activations (of up to 3, 127 codes) in each of some ten products with 0.4.
    graph = agree(c, tmp_path / "x.tflite", name, apart=0.05)
    assert [note.rule for note in qb.explain(graph)].count("hybrid-operator") == 1


def test_zero_points_along_an_axis(tmp_path: Path) -> None:
    """LiteRT dequantizes along an axis with each index's own zero point."""
    c = case("zero_points")
    scale, zero = np.asarray([0.1, 0.02, 0.5], np.float32), np.asarray([3, -7, 100])
    codes = c.rng.integers(-128, 128, (3, 5)).astype(np.int8)
    w = c.model.constant("w", codes, scale, 0, zero)
    x, real = c.given(3, 5), c.model.tensor("real", (3, 5), FLOAT)
    c.model.operator("DEQUANTIZE", [w], real, "DequantizeOptions")
    c.made(3, 5)
    c.op("ADD", [x, real], "AddOptions")
    agree(c, tmp_path / "x.tflite", "zero points")


# ---- state, names, open extents -----------------------------------------------------------------


def test_variables_are_inputs_and_outputs(tmp_path: Path) -> None:
    """A running sum: fed back by hand here, kept by LiteRT."""
    c, m = case("variables"), Model()
    c.model = m
    x = c.given(2, 3)
    start = Model()
    first = start.tensor("h", (), "resource")
    start.operator("VAR_HANDLE", [], first, "VarHandleOptions", Container="", SharedName="total")
    zeros = start.constant("z", np.zeros((2, 3), np.float32))
    start.operator("ASSIGN_VARIABLE", [first, zeros], [], "AssignVariableOptions")
    m.operator("CALL_ONCE", [], [], "CallOnceOptions", InitSubgraphIndex=m.subgraph(start, [], []))
    handle, before = m.tensor("h", (), "resource"), m.tensor("before", (2, 3), FLOAT)
    m.operator("VAR_HANDLE", [], handle, "VarHandleOptions", Container="", SharedName="total")
    m.operator("READ_VARIABLE", [handle], before, "ReadVariableOptions")
    c.made(2, 3)
    m.operator("ADD", [before, x], c.outputs, "AddOptions")
    m.operator("ASSIGN_VARIABLE", [handle, c.outputs[0]], [], "AssignVariableOptions")
    path = tmp_path / "x.tflite"
    path.write_bytes(m.tobytes(c.inputs, c.outputs))
    graph = qb.load(path)
    assert [v.name for v in graph.inputs] == ["x0", "total"]
    assert list(graph.output_names) == ["y0", "total:next"]
    interpreter: Any = litert.Interpreter(str(path))
    interpreter.allocate_tensors()
    kept = np.zeros((2, 3), np.float32)
    for _ in range(3):
        feed = c.feed()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], feed["x0"])
        interpreter.invoke()
        found = qb.evaluate(graph, {**feed, "total": kept})
        wanted = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_allclose(found["y0"], wanted, rtol=1e-6)  # float32 sums: ulps
        kept = found["total:next"]


def test_an_open_batch(tmp_path: Path) -> None:
    c = case("open")
    x = c.given(1, 4)
    c.made(1, 3)
    for index in (x, c.outputs[0]):
        c.model.tensors[index].signature = (-1, c.model.tensors[index].shape[1])
    w, b = array(c, normal(c, 3, 4)), array(c, normal(c, 3))
    c.op("FULLY_CONNECTED", [x, w, b], "FullyConnectedOptions")
    path = tmp_path / "x.tflite"
    path.write_bytes(c.model.tobytes(c.inputs, c.outputs))
    graph = qb.load(path)
    assert graph.inputs[0].type.shape == ("batch", 4)
    data = normal(c, 5, 4)
    (found,) = qb.evaluate(graph, {"x0": data}).values()
    wanted = [by_litert(path, {"x0": row[None]})[0] for row in data]
    # Sums of 4 float32 products, in another order.
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-5, atol=1e-6)


def test_names_of_a_signature(tmp_path: Path) -> None:
    """Tensors without names have those of the signature."""
    m = Model()
    x, y = m.tensor("", (2,), FLOAT), m.tensor("", (2,), FLOAT)
    m.operator("ABS", [x], y, "AbsOptions")
    m.names = {x: "sound", y: "loudness"}
    path = tmp_path / "x.tflite"
    path.write_bytes(m.tobytes([x], [y]))
    graph = qb.load(path)
    assert [v.name for v in graph.inputs] == ["sound"]
    assert list(graph.output_names) == ["loudness"]
