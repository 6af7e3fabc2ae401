"""The conformance cases: the interpreter on all of them, and the folder read by onnx alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.app import pipeline
from qdqbridge.app.conforming import OUTCOMES, judged, outputs_of
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.ops.attributes import QuantizeAttrs
from qdqbridge.targets.conformance.case import ConformanceCase, const
from qdqbridge.targets.conformance.exact import nearest
from qdqbridge.targets.conformance.folders import write_cases
from qdqbridge.targets.conformance.quantize_rows import quantizing
from qdqbridge.targets.conformance.situations import SITUATIONS, cases
from scripts.generators.conformance_causes import cause_of
from scripts.generators.conformance_page import kept_column
from tests.places import ROOT

SAMPLE = (
    "quantize_int32_int8_2_25", "quantize_int32_int16_0_5", "quantize_division_int8_0_1",
    "conv_qdq_padded_uint8_int8", "function_int8_axis_of_the_call",
    "qlinearmatmul_batches_int8_int8",
)  # fmt: skip


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
    assert [r for r in results if r.outcome not in OUTCOMES[:2]] == []


def halves(seed: int) -> Any:
    """Returns a QuantizeLinear whose division is in a type that is drawn."""
    rng = np.random.default_rng(seed)
    data, own = (str(rng.choice(["float32", "float16"])) for _ in range(2))
    to = str(rng.choice(["uint8", "int8", "int16", "int4"]))
    precision = str(rng.choice(["", "float32", "float16", "bfloat16"]))
    shape = (2, 3, 4)
    axis, block = ((None, 0), (1, 0), (2, 2))[int(rng.integers(3))]
    sizes = {None: (), 1: (3,), 2: (2, 3, 2)}[axis]
    scale = const(const(rng.uniform(0.05, 1.5, sizes), "bfloat16").astype(np.float32), own)
    zero = const(rng.integers(-4, 5, sizes), to) if to != "uint8" else const(np.full(sizes, 9), to)
    steps = (rng.integers(-40, 40, shape) + 0.5) * float(scale.max())
    # numbers that all of the types have: nothing says when others are rounded
    x = const(const(steps, "bfloat16").astype(np.float32), data)
    return quantizing(
        f"{data}_{own}_{precision}", x, scale, zero, to, opset=25, axis=axis, block=block,
        precision=precision,
    )  # fmt: skip


def drawn(count: int) -> list[ConformanceCase]:
    row = next(each for each in SITUATIONS if each.name == "quantize_precision")
    return [ConformanceCase(row, halves(seed)) for seed in range(count)]


def test_drawn_divisions_are_those_of_fractions_and_of_the_exported_file(tmp_path: Path):
    differing, types = 0, set[str]()
    for number, case in enumerate(drawn(120)):
        assert outcome("interpreter", case).outcome == "equal", case.body.model
        source, exported = tmp_path / f"{number}.onnx", tmp_path / f"{number}_out.onnx"
        onnx.save(case.body.model, source)
        graph = qb.load(source)
        qb.save(graph, exported)
        assert qb.load(exported).digest == graph.digest
        in_float32 = copied(graph).graph
        for node in in_float32.nodes:
            if isinstance(node.attributes, QuantizeAttrs) and node.attributes.precision:
                types.add(str(node.attributes.precision))
                node.attributes = QuantizeAttrs()
        (plain,) = qb.evaluate(in_float32, case.body.inputs).values()
        differing += not np.array_equal(plain, case.body.allowed[0][1][0])
    assert differing > 10 and types == {"float16", "bfloat16"}


def test_int32_is_quantized_by_onnxruntime_as_it_is_exported(tmp_path: Path):
    source, exported = tmp_path / "source.onnx", tmp_path / "exported.onnx"
    for case in (each for each in cases() if each.situation.name == "quantize_int32"):
        onnx.save(case.body.model, source)
        assert {found.rule for found in pipeline.check(source, "ort")} == {"known-types"}
        qb.save(qb.load(source), exported, overwrite=True)
        assert qb.load(exported).digest == qb.load(source).digest
        assert not pipeline.check(exported, "ort")
        model, inputs = exported.read_bytes(), dict(case.body.inputs)
        found = outputs_of("onnxruntime-optimized", model, inputs, case.body.output_names)
        assert judged(case, found).outcome == "equal"


@pytest.mark.relax
def test_tvm_divides_so(tmp_path: Path):
    pytest.importorskip("tvm")
    for case in drawn(24)[::2]:
        assert outcome("tvm", case).outcome == "equal", case.name
    for case in drawn(60):
        onnx.save(case.body.model, tmp_path / "model.onnx")
        graph = qb.load(tmp_path / "model.onnx")
        assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest, case.name


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


def test_the_folder_has_every_case(tmp_path: Path):
    write_cases(tmp_path, cases())
    strict = sorted((tmp_path / "strict").iterdir())
    assert len(strict) == sum(not case.is_open for case in cases())
    for folder in strict:
        told = json.loads((folder / "data.json").read_text("utf-8"))
        assert (told["rtol"], told["atol"]) == (0, 0)
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert "SPDX-License-Identifier: Apache-2.0" in readme
    assert all(f"`{each.name}`" in readme for each in SITUATIONS)


@pytest.mark.parametrize(
    ("engine", "situation", "right"),
    [("onnxruntime", "quantize_far", True), ("onnx.reference", "quantize_halves", True),
     ("onnxruntime", "quantize_constant", False), ("onnx.reference", "quantize_far", False)],
)  # fmt: skip
def test_onnx_runs_the_folder_without_this_package(
    engine: str, situation: str, right: bool, tmp_path: Path
):
    """As docs/conformance.md says; what these versions are known to get wrong fails there too."""
    chosen = tuple(case for case in cases() if case.situation.name == situation)
    write_cases(tmp_path, chosen)
    command = [sys.executable, "-I", "run.py", engine]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert f"Ran {2 * len(chosen)} tests" in done.stderr, done.stderr  # on two devices
    assert last.startswith("OK" if right else f"FAILED (failures={len(chosen)}"), done.stderr
    assert done.returncode == (not right)


def test_the_open_folder_has_every_reading(tmp_path: Path):
    chosen = tuple(case for case in cases() if case.is_open)
    write_cases(tmp_path, chosen)
    for case in chosen:
        folder = tmp_path / "open" / f"test_{case.name}"
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


def test_the_page_says_of_every_wrong_cell_why() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `")]
    wrong = [cell for line in table for cell in line.split("|")[4:] if " wrong" in cell]
    said = [re.search(r"\d wrong \(([a-z, ]+)\)", cell) for cell in wrong]
    assert len(wrong) > 50 and all(said)
    letters = {letter for found in said if found for letter in found[1].split(", ")}
    assert letters == set(re.findall(r"^\| ([a-z]) \|", page, re.MULTILINE))
    head = next(line for line in page.splitlines() if line.startswith("| situation"))
    for engine in (
        "ours on TVM",
        "ours, exported",
        "TOSA",
        "IREE",
        "Arm",
        "TVM's importer",
        "WASM",
        "AVX2",
    ):
        assert f"| {engine} |" in head


def test_the_page_keeps_the_column_of_an_engine_that_is_not_here() -> None:
    kept = kept_column("IREE")
    assert kept is not None and kept.version.startswith("IREE ")
    assert set(kept.cells) >= {"right", *(each.name for each in SITUATIONS)}
    assert {outcome for _, outcome, _ in kept.rows} == {"wrong", "refused"}
    assert kept_column("an engine of nobody") is None


@pytest.mark.filterwarnings("ignore")
def test_causes_are_proven_by_the_bits_that_they_predict() -> None:
    case = next(each for each in cases() if each.name == "quantize_far_uint8")
    engine = "onnx.reference"
    model, inputs = case.body.model.SerializeToString(), dict(case.body.inputs)
    found = judged(case, outputs_of(engine, model, inputs, case.body.output_names))
    assert cause_of(engine, found) == ("q", True)
    (computed,) = found.computed
    other = replace(found, computed=(computed + np.uint8(1),))
    assert cause_of(engine, other) == ("q", False)
