"""Files of encodings: each makes of a float model what its QDQ model is, or says why not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import (
    CalibrationMethod,
    TensorsData,
    save_tensors_data,
)
from onnxruntime.quantization.quant_utils import (
    compute_scale_zp,
    get_qmin_qmax_for_qType,
    write_calibration_table,
)

import qdqbridge as qb
from qdqbridge.core.graph.diff import diff
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.targets.encodings.encoding import of_range
from tests.targets.encodings.networks import random_network, said

AIMET = Path(__file__).parent / "aimet"
VERSIONS = ("0.6.1", "1.0.0", "2.0.0")


@pytest.mark.parametrize("kind", ["w8a8", "w4a16"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_aimet_exports_is_its_own_qdq_model(kind: str, version: str) -> None:
    """The files are aimet-onnx 2.42's: ``export`` and ``to_onnx_qdq`` of one simulation."""
    found = qb.load(AIMET / "float.onnx", encodings=AIMET / f"{kind}-{version}.json")
    assert found.digest == qb.load(AIMET / f"{kind}.qdq.onnx").digest


def test_scales_that_are_quantized_themselves_are_those_of_aimets_qdq_model(tmp_path: Path) -> None:
    """LPBQ as version 2.0.0 writes it, and as AIMET turns that into version 2.1.0."""
    wanted = qb.load(AIMET / "lpbq.qdq.onnx").digest
    file = AIMET / "lpbq-2.0.0.json"
    assert qb.load(AIMET / "float.onnx", encodings=file).digest == wanted
    record = json.loads(file.read_text())
    quantized = [entry for entry in record["encodings"] if "per_block_int_scale" in entry]
    assert quantized
    for entry in quantized:
        steps = np.asarray(entry.pop("per_channel_float_scale")).reshape(-1).tolist()
        axis = 0 if entry["axis"] == 1 else 1
        entry["y_scale"] = {"x": entry.pop("per_block_int_scale"), "x_scale": steps, "axis": axis}
    newer = tmp_path / "newer.json"
    newer.write_text(json.dumps({**record, "version": "2.1.0"}))
    assert qb.load(AIMET / "float.onnx", encodings=newer).digest == wanted
    for key, value, reason in (
        ("x_scale", [1.0, 2.0, 3.0], "3 scales of their own"),
        ("block_size", 2, "in blocks of their own"),
    ):
        wrong = {**quantized[0], "y_scale": {**quantized[0]["y_scale"], key: value}}
        newer.write_text(json.dumps({"version": "2.1.0", "encodings": [wrong]}))
        with pytest.raises(qb.QdqBridgeError) as caught:
            qb.load(AIMET / "float.onnx", encodings=newer)
        assert reason in caught.value.why and f"'{quantized[0]['name']}'" in caught.value.why


FORMS = (*(f"aimet-{version}" for version in VERSIONS), "ort-overrides", "tensorrt")


@pytest.mark.parametrize("form", FORMS)
def test_random_networks_are_their_qdq_models(form: str, tmp_path: Path) -> None:
    for seed in range(20):
        network = random_network(seed, symmetric=form == "tensorrt")
        model = network.write(tmp_path / "f.onnx", quantized=False)
        file = tmp_path / "encodings"
        file.write_text(said(network.params, form))
        qdq = qb.load(network.write(tmp_path / "q.onnx", quantized=True))
        found = qb.load(model, encodings=file)
        assert found.digest == qdq.digest, (seed, diff(found, qdq))


def model_of(tmp_path: Path) -> Path:
    """Returns ``y = Relu(x) @ w``, with an Identity, a dead node and an integer input."""
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Relu", ["same"], ["r"]),
            helper.make_node("Neg", ["r"], ["dead"]),
            helper.make_node("MatMul", ["r", "w"], ["m"]),
            helper.make_node("Gather", ["m", "i"], ["y"]),
        ],
        "small",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4) - 5, "w")],
    )
    path = tmp_path / "small.onnx"
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def loaded(tmp_path: Path, content: Any) -> Graph:
    file = tmp_path / "encodings.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return qb.load(model_of(tmp_path), encodings=file, canonical=False)


def params_of(graph: Graph, name: str) -> QuantParams:
    """Returns what a tensor is quantized to."""
    value = next(value for value in graph.values() if value.name == name)
    types = [node.output.quant for node, _ in value.users if node.output.quant is not None]
    assert len(types) == 1
    assert types[0] is not None
    return types[0].params


def test_a_cache_holds_bits_of_scales(tmp_path: Path) -> None:
    lines = ("x: 3c010a14", "r: 3d800000", "(Unnamed Layer* 3) [Fully]: 3f000000")
    found = loaded(tmp_path, "\n".join(("TRT-8601-MinMaxCalibration", *lines)))
    assert params_of(found, "x").storage_dtype is DType.INT8
    assert params_of(found, "x").scale.tobytes() == bytes.fromhex("3c010a14")[::-1]
    assert float(params_of(found, "r").scale) == 0.0625
    weight = params_of(found, "w")
    assert weight.axis == 1
    assert np.array_equal(weight.scale, np.array([5, 4, 5, 6], np.float32) / np.float32(127))
    assert ["int8 per channel" in note.reason for note in found.notes] == [True]


def test_offsets_are_counted_from_zero(tmp_path: Path) -> None:
    entry = {"bitwidth": 8, "scale": 0.1, "offset": -28.0, "is_symmetric": "False", "dtype": "int"}
    signed = {**entry, "offset": -128, "is_symmetric": "True"}
    record = {"version": "0.6.1", "activation_encodings": {"x": [entry]}}
    found = loaded(tmp_path, {**record, "param_encodings": {"w": [signed] * 4}})
    x, w = params_of(found, "x"), params_of(found, "w")
    assert (x.storage_dtype, int(x.zero_point)) == (DType.UINT8, 28)
    assert float(x.scale) == np.float32(0.1)
    assert (w.storage_dtype, w.axis, w.zero_point.tolist()) == (DType.INT8, 1, [0] * 4)


def test_blocks_lie_as_in_quantize_linear(tmp_path: Path) -> None:
    scales = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]
    entry = {"name": "w", "output_dtype": "int4", "y_scale": scales, "axis": 0, "block_size": 2}
    found = params_of(loaded(tmp_path, {"version": "2.0.0", "encodings": [entry]}), "w")
    assert (found.storage_dtype, found.axis, found.block_size) == (DType.INT4, 0, 2)
    assert np.array_equal(found.scale, np.array(scales, np.float32))


def test_tensors_that_are_no_values_are_told(tmp_path: Path) -> None:
    one = {"output_dtype": "uint8", "y_scale": 0.5}
    names = ("x", "same", "dead")
    found = loaded(tmp_path, {"version": "2.0.0", "encodings": [{"name": n, **one} for n in names]})
    assert [note.culprits for note in found.notes] == [("same", "dead")]
    assert float(params_of(found, "x").scale) == 0.5


TENSORS = [
    ([{"quant_type": "QInt8", "scale": "0.5", "zero_point": 0}], "no number"),
    ([{"quant_type": "QInt8", "scale": float("nan"), "zero_point": 0}], "scale is nan"),
    ([{"quant_type": "QInt8", "scale": -1.0, "zero_point": 0}], "scale is -1"),
    ([{"quant_type": "QInt8", "scale": 1e-50, "zero_point": 0}], "scale is 1e-50"),
    ([{"quant_type": "QInt8", "scale": 1e39, "zero_point": 0}], "scale is 1e+39"),
    ([{"quant_type": "QInt8", "scale": True, "zero_point": 0}], "no number"),
    ([{"quant_type": "QUInt8", "scale": 1, "zero_point": 256}], "zero point is 256"),
    ([{"quant_type": "QUInt8", "scale": 1, "zero_point": 0.5}], "zero point is 0.5"),
    ([{"quant_type": "QUInt8", "scale": 1}], "no 'zero_point'"),
    ([{"quant_type": "QInt5", "scale": 1, "zero_point": 0}], "no type 'QInt5'"),
    ([{"quant_type": "QInt8", "symmetric": True}], "neither a scale nor a range"),
    ([{"quant_type": "QInt8", "rmin": 1, "rmax": -1}], "its range is 1 to -1"),
    ([{"scale": 1, "zero_point": 0}], "no quant_type"),
    ([{"quant_type": "QInt8", "convert": {}}], "several types"),
    ([{"quant_type": "QInt8", "scale": 1, "zero_point": 0, "axis": 0}] * 3, "asks for (2,)"),
    ([{"quant_type": "QInt8", "scale": 1, "zero_point": 0, "axis": 2}] * 2, "no axis 2"),
    ([{"quant_type": "QInt8", "scale": 1, "zero_point": 0}] * 2, "no product says"),
]


@pytest.mark.parametrize(("entries", "reason"), TENSORS, ids=[reason for _, reason in TENSORS])
def test_what_does_not_fit_is_told_by_name(entries: Any, reason: str, tmp_path: Path) -> None:
    fine = [{"quant_type": "QInt8", "scale": 0.5, "zero_point": 0}]
    with pytest.raises(qb.QdqBridgeError) as caught:
        loaded(tmp_path, {"r": fine, "x": entries})
    assert "'x': " in caught.value.why
    assert reason in caught.value.why
    assert "'r'" not in caught.value.why


VERSION_1 = {
    "name": "x", "dtype": "INT", "enc_type": "PER_TENSOR", "bw": 8, "is_sym": False, "scale": [1],
    "offset": [0],
}  # fmt: skip
ENTRIES = [
    ("1.0.0", {**VERSION_1, "bw": 5}, "5 bits"),
    ("1.0.0", {**VERSION_1, "bw": 32, "is_sym": True, "offset": [-(2**31)]}, "only constants"),
    ("1.0.0", {**VERSION_1, "enc_type": "LPBQ"}, "LPBQ"),
    ("1.0.0", {**VERSION_1, "enc_type": "PER_BLOCK"}, "PER_BLOCK"),
    ("1.0.0", {**VERSION_1, "zero_point_shift": [0.5]}, "between two integers"),
    ("1.0.0", {**VERSION_1, "offset": [3]}, "zero point is -3"),
    ("1.0.0", {**VERSION_1, "name": "z"}, "'z': the model has no such tensor"),
    ("1.0.0", {**VERSION_1, "name": "i"}, "'i': its elements are int64"),
    (
        "2.0.0",
        {"name": "w", "output_dtype": "int4", "per_block_int_scale": [1]},
        "no 'per_channel_",
    ),
    ("2.0.0", {"name": "w", "output_dtype": "int4", "y_scale": {"x": [1]}}, "no 'x_scale'"),
    ("2.0.0", {"name": "w", "output_dtype": "int3", "y_scale": 1}, "no type 'int3'"),
    ("2.0.0", {"name": "w", "output_dtype": "int8", "y_scale": [[1, 2], [3]]}, "no array"),
    ("2.0.0", {"name": "w", "output_dtype": "int8"}, "no 'y_scale'"),
]


@pytest.mark.parametrize(("version", "entry", "reason"), ENTRIES, ids=[e[2] for e in ENTRIES])
def test_what_aimet_says_and_onnx_has_not(
    version: str, entry: Any, reason: str, tmp_path: Path
) -> None:
    part = "activation_encodings" if version == "1.0.0" else "encodings"
    with pytest.raises(qb.QdqBridgeError) as caught:
        loaded(tmp_path, {"version": version, part: [entry]})
    assert reason in caught.value.why


FILES: list[tuple[str | bytes, str]] = [
    ('{"version": "1.0.0", "activation_enc', "it is not JSON"),
    ("", "it is not JSON"),
    ("[" * 100_000, "it is not JSON"),
    ("[1, 2]", "its content is that of none"),
    ('{"x": 1}', "its content is that of none"),
    ('{"version": "3.0.0", "encodings": []}', "its version is 3.0.0"),
    ('{"version": "1.0.0", "activation_encodings": [3]}', "fields"),
    ('{"version": "1.0.0", "activation_encodings": [{}]}', "no 'name'"),
    ('{"version": "0.6.1", "activation_encodings": []}', "fields"),
    ('{"schema": "qdqbridge-profile 1"}', "its schema is 'qdqbridge-profile 1'"),
    ("x 1.5\ny 2.5\n", "it is not JSON"),
    (b"\x10\x00\x00\x00\xff\xfe", "it is no text"),
]


@pytest.mark.parametrize(("content", "reason"), FILES, ids=[str(f[0][:25]) for f in FILES])
def test_other_files_are_refused(content: str | bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "encodings"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(qb.QdqBridgeError) as caught:
        qb.load(model_of(tmp_path), encodings=file)
    assert reason in caught.value.why
    assert caught.value.fix
    assert str(file) in caught.value.where


def test_a_name_stands_once(tmp_path: Path) -> None:
    one = {"name": "x", "output_dtype": "int8"}
    entries = [{**one, "y_scale": 1}, {**one, "y_scale": 2}]
    with pytest.raises(qb.QdqBridgeError, match="do not fit") as caught:
        loaded(tmp_path, {"version": "2.0.0", "encodings": entries})
    assert "'x': it stands there twice" in caught.value.why


def test_many_strangers_are_counted(tmp_path: Path) -> None:
    lines = "\n".join(f"t{i}: 3c010a14" for i in range(10_000))
    begin = time.process_time()
    with pytest.raises(qb.QdqBridgeError) as caught:
        loaded(tmp_path, f"TRT-1\n{lines}")
    assert "(10000 of 10000 tensors)" in caught.value.what
    assert caught.value.why.endswith("and 9980 more")
    assert time.process_time() - begin < 10


QUANT_TYPES = {
    DType.INT8: QuantType.QInt8, DType.UINT8: QuantType.QUInt8, DType.INT16: QuantType.QInt16,
    DType.UINT16: QuantType.QUInt16, DType.INT4: QuantType.QInt4, DType.UINT4: QuantType.QUInt4,
}  # fmt: skip


@pytest.mark.parametrize("dtype", QUANT_TYPES, ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
def test_ranges_become_what_onnxruntime_makes_of_them(dtype: DType, symmetric: bool) -> None:
    rng = np.random.default_rng(5)
    low, high = get_qmin_qmax_for_qType(QUANT_TYPES[dtype].tensor_type, symmetric=symmetric)
    ends = np.sort(rng.normal(0, 10 ** rng.uniform(-6, 3, (100, 1)), (100, 2)).astype(np.float32))
    for rmin, rmax in [*ends, *np.array([[0, 0], [1, 2], [1e-42, 1e-41]], np.float32)]:
        zero_point, scale = compute_scale_zp(rmin, rmax, low, high, symmetric=symmetric)
        found = of_range("x", float(rmin), float(rmax), dtype, symmetric=symmetric)
        assert found.scale.tobytes() == np.float32(scale).tobytes()
        assert int(found.zero_point) == int(zero_point)


def saved(data: TensorsData, folder: Path) -> Path:
    save_tensors_data(data, folder / "saved.json")
    return folder / "saved.json"


def written(data: TensorsData, folder: Path) -> Path:
    write_calibration_table(data.data, str(folder))
    return folder / "calibration.json"


@pytest.mark.parametrize("table", [saved, written])
def test_tables_that_onnxruntime_writes(
    table: Callable[[TensorsData, Path], Path], tmp_path: Path
) -> None:
    ends = np.array([[0], [2.5]], np.float32)
    ranges: dict[str, Any] = {"x": (np.float32(-1), np.float32(3)), "r": (ends[0], ends[1])}
    file = table(TensorsData(CalibrationMethod.MinMax, ranges), tmp_path)
    found = qb.load(model_of(tmp_path), encodings=file, canonical=False)
    x, r = params_of(found, "x"), params_of(found, "r")
    assert (float(x.scale), int(x.zero_point)) == (np.float32(4 / 255), -64)
    assert (float(r.scale), int(r.zero_point)) == (np.float32(2.5 / 255), -128)
    assert params_of(found, "w").axis == 1
    for flat in ("calibration.flatbuffers", "calibration.cache"):
        if (tmp_path / flat).exists():
            with pytest.raises(qb.QdqBridgeError):
                qb.load(model_of(tmp_path), encodings=tmp_path / flat)
