"""The conformance cases: the interpreter on all of them, and the folder read by onnx alone."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqbridge.app.conforming import judged, outputs_of
from qdqbridge.targets.conformance.exact import nearest
from qdqbridge.targets.conformance.folders import write_cases
from qdqbridge.targets.conformance.situations import SITUATIONS, cases
from tests.places import ROOT

HALVES = (
    "quantize_float16_scale", "quantize_mixed_types", "quantize_precision",
    "quantize_bfloat16_scale", "quantize_float32_by_float16",
)  # fmt: skip
"""Situations some cases of which divide in another type than float32: docs/support.md says so."""
ROWS = "matmulinteger_two_axes_{}_rows_and_columns"
SAMPLE = (
    "quantize_int32_int8_2_25", "quantize_int32_int16_0_5", "quantize_division_int8_0_1",
    "conv_qdq_padded_uint8_int8", "function_int8_axis_of_the_call",
    "qlinearmatmul_batches_int8_int8",
)  # fmt: skip
REFUSED = {ROWS.format("uint8_int8"), ROWS.format("uint8_uint8")}
"""onnxruntime, which computes MatMulInteger here, takes no zero point per row."""


def outcome(engine: str, case: Any) -> Any:
    model, inputs = case.body.model.SerializeToString(), dict(case.body.inputs)
    return judged(case, outputs_of(engine, model, inputs, case.body.output_names))


def test_there_are_hundreds_of_cases_and_each_is_a_model():
    names = [case.name for case in cases()]
    assert len(names) >= 300 and len(set(names)) == len(names)
    for case in cases():
        onnx.checker.check_model(case.body.model, full_check=True)
        readings = [tuple(a.tobytes() for a in arrays) for _, arrays in case.body.allowed]
        assert len(set(readings)) > 1 or not case.is_open, case.name


@pytest.mark.filterwarnings("ignore")
def test_the_interpreter_computes_what_the_text_says():
    results = [outcome("interpreter", case) for case in cases()]
    bad = {r.name: r for r in results if r.outcome in ("wrong", "refused")}
    assert {n: r for n, r in bad.items() if r.situation not in HALVES and n not in REFUSED} == {}
    assert set(bad) >= REFUSED
    assert {r.situation for n, r in bad.items() if n not in REFUSED} == set(HALVES)
    assert len(bad) == 19


def test_what_numpy_rounds_is_rounded_so_in_fractions():
    rng = np.random.default_rng(3)
    for value in rng.standard_normal(300) * 10.0 ** rng.integers(-7, 4, 300):
        for name in ("float32", "float16"):
            wanted = float(np.dtype(name).type(value))
            assert float(nearest(Fraction(float(value)), name)) == wanted


def test_a_wrong_value_is_found():
    case = cases()[0]
    wrong = [case.body.allowed[0][1][0] + np.uint8(1)]
    found = judged(case, wrong)
    assert found.outcome == "wrong" and "expected" in found.cause
    assert judged(case, None).outcome == "crashed" and judged(case, "no").outcome == "refused"


def test_the_folder_needs_nothing_of_ours(tmp_path: Path):
    """Onnx reads it, and onnxruntime equals on what it has a kernel for."""
    write_cases(tmp_path, cases())
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    strict = sorted((tmp_path / "strict").iterdir())
    assert len(strict) == sum(not case.is_open for case in cases())
    equal = 0
    for folder in strict:
        told = json.loads((folder / "data.json").read_text("utf-8"))
        assert (told["rtol"], told["atol"]) == (0, 0)
        model, data = onnx.load(folder / "model.onnx"), folder / "test_data_set_0"
        inputs = _tensors(data, "input", len(model.graph.input))
        outputs = _tensors(data, "output", len(model.graph.output))
        feeds = dict(zip((i.name for i in model.graph.input), inputs, strict=True))
        try:
            session = ort.InferenceSession(str(folder / "model.onnx"), options)
            found = session.run(None, feeds)
        except Exception:  # what it has no kernel for
            continue
        equal += all(map(np.array_equal, found, outputs))
    assert equal > 0.9 * len(strict)
    assert "SPDX-License-Identifier: Apache-2.0" in (tmp_path / "README.md").read_text("utf-8")
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert all(f"`{each.name}`" in readme for each in SITUATIONS)


def _tensors(folder: Path, kind: str, count: int) -> list[Any]:
    found: list[Any] = []
    for index in range(count):
        tensor = onnx.TensorProto()
        tensor.ParseFromString((folder / f"{kind}_{index}.pb").read_bytes())
        found.append(numpy_helper.to_array(tensor))
    return found


def test_the_open_folder_has_every_reading(tmp_path: Path):
    chosen = tuple(case for case in cases() if case.is_open)
    write_cases(tmp_path, chosen)
    for case in chosen:
        folder = tmp_path / "open" / case.name
        told = json.loads((folder / "data.json").read_text("utf-8"))
        assert len(told["allowed"]) == len(list(folder.glob("allowed_*"))) == len(case.body.allowed)


def test_the_writer_loads_no_engine(tmp_path: Path):
    code = (
        "import sys; from scripts.generators import conformance; conformance.main(); "
        "print([m for m in ('onnxruntime', 'tvm', 'rich', 'cyclopts') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "new")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=240
    )
    assert done.stdout.endswith("[]\n")
    again = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=240
    )
    assert again.returncode == 2 and "is not empty" in again.stderr


@pytest.mark.relax
@pytest.mark.parametrize("name", SAMPLE)
def test_tvm_computes_a_sample(name: str):
    pytest.importorskip("tvm")
    found = outcome("tvm", next(case for case in cases() if case.name == name))
    assert found.outcome == "equal", found
