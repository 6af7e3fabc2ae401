"""Damaged and senseless TFLite files: a clear error, in little time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, whose cases are damaged")

from flatbuffers import flexbuffers

import qdqbridge as qb
from tests.fuzzing.flatbuffer_mutations import restructured, sites
from tests.fuzzing.measured import run
from tests.fuzzing.target import put_tflite_through, tflite_seeds
from tests.tflite_io.tflite_writer import Model

NETWORK = Path(__file__).parent / "data" / "int8_network.tflite"
FLOAT = "float32"
MANY = 1 << 31
MEMORY = 100 << 20


def put(data: bytes, folder: Path) -> str:
    """Puts a file through everything within little time and memory."""
    found = run(data, folder, put_tflite_through)
    assert not found["finding"], found["finding"]
    assert found["seconds"] < 5
    assert found["bytes"] < MEMORY
    return str(found["result"])


def test_files_cut_anywhere(tmp_path: Path) -> None:
    data = NETWORK.read_bytes()
    put(data, tmp_path)  # imports are not the file's
    for cut in range(0, len(data), 97):
        assert put(data[:cut], tmp_path) == "ModelFileError"


def test_damaged_files(tmp_path: Path) -> None:
    """A quick run of what ``scripts/checks/mutations.py tflite`` does."""
    valid = list(tflite_seeds([]))
    known = [sites(data, tmp_path) for data in valid]
    rng = Random(0)
    for _ in range(3):
        for data, places in zip(valid, known, strict=True):
            put(restructured(data, places, rng), tmp_path)


# ---- files that a writer can write, and that mean nothing ---------------------------------------


def one(
    name: str, options: str, *constants: Any, shape: tuple[int, ...] = (1, 4, 4, 2), **fields: Any
) -> bytes:
    """One operator on an input and constants."""
    m = Model()
    x = m.tensor("x", shape, FLOAT)
    operands = [m.constant("k", np.asarray(k)) for k in constants]
    y = m.operator(name, [x, *operands], m.tensor("y", shape, FLOAT), options, **fields)
    return m.tobytes([x], [y])


def ints(*numbers: Any) -> Any:
    return np.asarray(numbers, np.int32)


def quantized(scale: Any, zero_point: Any = 0, axis: int = 0) -> bytes:
    m = Model()
    x = m.tensor("x", (2, 3), "int8", scale, zero_point, axis)
    y = m.operator("DEQUANTIZE", [x], m.tensor("y", (2, 3), FLOAT), "DequantizeOptions")
    return m.tobytes([x], [y])


def calling(count: int, times: int, index: Callable[[int], int]) -> bytes:
    """Subgraphs that call others by ``index``, ``times`` times each, by composites."""

    def body(place: int) -> tuple[Model, list[int], list[int]]:
        m = Model()
        x = y = m.tensor("x", (2,), FLOAT)
        for _ in range(times):
            y = m.operator(
                "STABLEHLO_COMPOSITE", [x], m.tensor("y", (2,), FLOAT),
                "StableHLOCompositeOptions", Name="c", DecompositionSubgraphIndex=index(place),
            )  # fmt: skip
        return m, [x], [y]

    whole, inputs, outputs = body(0)
    for place in range(1, count):
        whole.subgraph(*body(place))
    return whole.tobytes(inputs, outputs)


def branching(then: int) -> bytes:
    """An IF, whose taken subgraph is an IF again, and so on to one of them."""
    m = Model()
    body = Model()
    for each in (m, body):
        condition, x = each.tensor("c", (1,), "bool"), each.tensor("x", (2,), FLOAT)
        y = each.operator("IF", [condition, x], each.tensor("y", (2,), FLOAT), "IfOptions",
                          ThenSubgraphIndex=then, ElseSubgraphIndex=1)  # fmt: skip
    m.subgraph(body, [condition, x], [y])
    return m.tobytes([condition, x], [y])


def lookup(count: int) -> bytes:
    """``count`` constants of one name, all different."""
    m = Model()
    x = m.tensor("x", (2,), FLOAT)
    for number in range(count):
        k = m.constant("", np.asarray([number, 1], np.float32))
        x = m.operator("ADD", [x, k], m.tensor("", (2,), FLOAT), "AddOptions")
    return m.tobytes([0], [x])


def foreign() -> bytes:
    m = Model()
    x = m.tensor("x", (2, 3), FLOAT)
    y = m.operator("ADD", [x, x], m.tensor("y", (2, 3), FLOAT), "PowOptions")
    return m.tobytes([x], [y])


def lonely(name: str, options: str = "") -> bytes:
    """An operator without operands."""
    m = Model()
    m.tensor("x", (2, 3), FLOAT)
    y = m.operator(name, [], m.tensor("y", (2, 3), FLOAT), options)
    return m.tobytes([0], [y])


def detector(options: Any) -> bytes:
    m = Model()
    x = [m.tensor("b", (1, 6, 4), FLOAT), m.tensor("s", (1, 6, 2), FLOAT)]
    k = m.constant("a", np.ones((6, 4), np.float32))
    y = [m.tensor(f"y{i}", s, FLOAT) for i, s in enumerate([(1, 8, 4), (1, 8), (1, 8), (1,)])]
    m.custom("TFLite_Detection_PostProcess", [*x, k], y, bytes(flexbuffers.Dumps(options)))
    return m.tobytes(x, y)


def packed(nbytes: int) -> bytes:
    m = Model()
    w = m.constant("w", np.zeros(nbytes, np.uint8), 0.1)
    m.tensors[w].dtype, m.tensors[w].shape = "int4", (3, 5)
    x, real = m.tensor("x", (3, 5), FLOAT), m.tensor("r", (3, 5), FLOAT)
    m.operator("DEQUANTIZE", [w], real, "DequantizeOptions")
    y = m.operator("ADD", [x, real], m.tensor("y", (3, 5), FLOAT), "AddOptions")
    return m.tobytes([x], [y])


def sparse(*, data: bool, variable: bool, indices: tuple[int, ...]) -> bytes:
    m = Model()
    w = m.constant("w", np.ones(2, np.float32)) if data else m.tensor("w", (), FLOAT)
    m.tensors[w].shape, m.tensors[w].variable = (4,), variable
    m.tensors[w].sparsity = ((0,), (), [([0, len(indices)], indices)])
    y = m.operator("DENSIFY", [w], m.tensor("y", (4,), FLOAT), "DensifyOptions")
    return m.tobytes([], [y])


def pool(**fields: Any) -> bytes:
    window = {"StrideH": 1, "StrideW": 1, "FilterHeight": 2, "FilterWidth": 2}
    given: dict[str, Any] = {**window, **fields}
    return one("MAX_POOL_2D", "Pool2DOptions", **given)


BIG = (1 << 31) - 1
BROKEN: Mapping[str, Callable[[], bytes]] = {
    "perm out of range": lambda: one("TRANSPOSE", "TransposeOptions", ints(0, 1, 2, 9)),
    "perm twice": lambda: one("TRANSPOSE", "TransposeOptions", ints(0, 1, 1, 3)),
    "perm negative": lambda: one("TRANSPOSE", "TransposeOptions", ints(0, -7, 2, 3)),
    "axis out of range": lambda: one("CONCATENATION", "ConcatenationOptions", Axis=9),
    "mean axis": lambda: one("GATHER", "GatherOptions", ints(0), Axis=-9),
    "split axis": lambda: one("SPLIT_V", "SplitVOptions", ints(4), ints(7)),
    "unpack axis": lambda: one("UNPACK", "UnpackOptions", Axis=-9, Num=1),
    "pack axis": lambda: one("PACK", "PackOptions", Axis=99, ValuesCount=1),
    "zero strides": lambda: pool(StrideH=0),
    "negative strides": lambda: pool(StrideW=-1),
    "zero kernel": lambda: pool(FilterHeight=0),
    "huge kernel": lambda: pool(FilterHeight=BIG, FilterWidth=BIG, Padding=1),
    "huge negative kernel": lambda: pool(FilterHeight=-BIG),
    "slice stride": lambda: one(
        "STRIDED_SLICE", "StridedSliceOptions", ints(0), ints(1), ints(0)
    ),
    "more slices": lambda: one(
        "STRIDED_SLICE", "StridedSliceOptions", *[ints(*[1] * 9)] * 3
    ),
    "negative pads": lambda: one("MIRROR_PAD", "MirrorPadOptions", ints(*[[-1, 0]] * 4), Mode=1),
    "huge mirror": lambda: one("MIRROR_PAD", "MirrorPadOptions", ints(*[[BIG, 0]] * 4), Mode=1),
    "pads of another rank": lambda: one("PAD", "PadOptions", ints([1, 1])),
    "block of nothing": lambda: one("SPACE_TO_DEPTH", "SpaceToDepthOptions", BlockSize=0),
    "block below nothing": lambda: one("DEPTH_TO_SPACE", "DepthToSpaceOptions", BlockSize=-2),
    "batches of nothing": lambda: one(
        "SPACE_TO_BATCH_ND", "SpaceToBatchNDOptions", ints(0, 0), ints([0, 0], [0, 0])
    ),
    "batches": lambda: one(
        "BATCH_TO_SPACE_ND", "BatchToSpaceNDOptions", ints(0, 3), ints([0, 0], [0, 0])
    ),
    "reshape": lambda: one("RESHAPE", "ReshapeOptions", ints(-1, -1)),
    "reshape to more": lambda: one("RESHAPE", "ReshapeOptions", ints(5, BIG)),
    "squeeze": lambda: one("SQUEEZE", "SqueezeOptions", SqueezeDims=ints(1)),
    "other channels": lambda: one(
        "CONV_2D", "Conv2DOptions", np.ones((1, 1, 1, 7), np.float32), StrideH=1, StrideW=1
    ),
    "no channels": lambda: one(
        "CONV_2D", "Conv2DOptions", np.ones((1, 1, 1, 0), np.float32), StrideH=1, StrideW=1
    ),
    "another rank": lambda: one(
        "CONV_2D", "Conv2DOptions", np.ones((1, 1, 1, 2), np.float32), shape=(2,)
    ),
    "upside down": lambda: one(
        "TRANSPOSE_CONV", "TransposeConvOptions", np.ones((1, 2, 2, 2), np.float32), StrideH=0
    ),
    "dense": lambda: one("FULLY_CONNECTED", "FullyConnectedOptions", np.ones(3, np.float32)),
    "resize": lambda: one(
        "RESIZE_BILINEAR", "ResizeBilinearOptions", ints(-1, 3)
    ),
    "options of another": foreign,
    "nothing to add": lambda: lonely("ADD", "AddOptions"),
    "nothing to convolve": lambda: lonely("CONV_2D"),
    "nothing to pack": lambda: lonely("PACK", "PackOptions"),
    "nan scale": lambda: quantized(float("nan")),
    "infinite scale": lambda: quantized(float("inf")),
    "negative scale": lambda: quantized(-0.1),
    "no scale": lambda: quantized(0.0),
    "too many scales": lambda: quantized(np.full(5, 0.1), np.zeros(5)),
    "other zero points": lambda: quantized(np.full(3, 0.1), np.zeros(2), 1),
    "axis of scales": lambda: quantized(np.full(3, 0.1), np.zeros(3), 5),
    "negative axis of scales": lambda: quantized(np.full(3, 0.1), np.zeros(3), -3),
    "far zero point": lambda: quantized(0.1, 1 << 40),
    "int4 too short": lambda: packed(7),
    "int4 too long": lambda: packed(15),
    "sparse nothing": lambda: sparse(data=False, variable=False, indices=(1, 3)),
    "sparse variable": lambda: sparse(data=True, variable=True, indices=(1, 3)),
    "sparse elements outside": lambda: sparse(data=True, variable=False, indices=(1, 4)),
    "sparse elements missing": lambda: sparse(data=True, variable=False, indices=(1,)),
    "calls itself": lambda: calling(1, 1, lambda place: 0),
    "calls in a circle": lambda: calling(3, 2, lambda place: 3 - place if place else 1),
    "calls that multiply": lambda: calling(40, 2, lambda place: place + 1),
    "calls that multiply a little": lambda: calling(30, 3, lambda place: min(place + 1, 29)),
    "calls nobody": lambda: calling(1, 1, lambda place: 9),
    "branches to itself": lambda: branching(0),
    "branches into itself": lambda: branching(1),
    "branches to nobody": lambda: branching(-5),
    "suppresses nothing": lambda: detector({"max_detections": 0}),
    "options are a list": lambda: detector([1, 2]),
    "options of words": lambda: detector({"max_detections": "many", "num_classes": {"a": 1}}),
    "more classes": lambda: detector({"max_detections": 3, "num_classes": 90}),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_senseless_files(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.tflite"
    file.write_bytes(BROKEN[name]())
    with pytest.raises(qb.QdqBridgeError) as error:
        qb.load(file)
    assert "x.tflite" in error.value.where
    put(file.read_bytes(), tmp_path)


HUGE: Mapping[str, Callable[[], bytes]] = {
    "tile": lambda: one("TILE", "TileOptions", ints(1, BIG, BIG, 1)),
    "broadcast": lambda: one("BROADCAST_TO", "BroadcastToOptions", ints(BIG, 4, 4, 2)),
    "pad": lambda: one("PAD", "PadOptions", ints(*[[BIG, BIG]] * 4)),
    "resize": lambda: one("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions",
                          ints(BIG, BIG)),
    "input": lambda: one("ABS", "AbsOptions", shape=(BIG, BIG, 2, 2)),
    "mirror": lambda: one("MIRROR_PAD", "MirrorPadOptions", ints(*[[2, 2]] * 4), Mode=1,
                          shape=(BIG, BIG, 2, 2)),
    "update": lambda: one("DYNAMIC_UPDATE_SLICE", "DynamicUpdateSliceOptions",
                          shape=(BIG, BIG, BIG, 2)),
    "depth": lambda: one("ONE_HOT", "OneHotOptions", ints(), np.float32(1), np.float32(0)),
    "radius": lambda: one("LOCAL_RESPONSE_NORMALIZATION", "LocalResponseNormalizationOptions",
                          Radius=BIG, Alpha=1.0, Beta=0.5, Bias=1.0),
    "names": lambda: lookup(300),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_huge_extents(name: str, tmp_path: Path) -> None:
    """Whatever comes of them: nothing is made that large."""
    put(HUGE[name](), tmp_path)


def test_constants_are_not_made_large(tmp_path: Path) -> None:
    for name, options, operands in (
        ("TILE", "TileOptions", [np.ones(4, np.float32), ints(BIG)]),
        ("BROADCAST_TO", "BroadcastToOptions", [np.ones(1, np.float32), ints(BIG)]),
        ("FILL", "FillOptions", [ints(BIG, 9), np.ones((), np.float32)]),
        ("RANGE", "RangeOptions", [np.float32(n) for n in (0, 3e38, 1e-30)]),
        ("RANGE", "RangeOptions", [np.int32(n) for n in (0, BIG, 1)]),
        ("RANGE", "RangeOptions", [np.int32(n) for n in (0, 3, 0)]),
        ("PAD", "PadOptions", [np.ones(4, np.float32), ints([BIG, BIG])]),
    ):
        m = Model()
        x = m.tensor("x", (1,), FLOAT)
        made = m.tensor("made", (4,), str(np.asarray(operands[-1]).dtype)
                        if name == "RANGE" else FLOAT)  # fmt: skip
        m.operator(name, [m.constant("k", np.asarray(k)) for k in operands], made, options)
        m.operator("ABS", [made], m.tensor("y", (4,), m.tensors[made].dtype))
        put(m.tobytes([x], [len(m.tensors) - 1]), tmp_path)
