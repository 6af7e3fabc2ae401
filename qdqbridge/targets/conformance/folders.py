"""The cases in ONNX's own layout of test data, which runners of any engine read."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import numpy_helper

from qdqbridge.targets.conformance.case import ConformanceCase
from qdqbridge.targets.conformance.exact import Array

STRICT, OPEN = "strict", "open"
"""The folder of cases with one result, and that of cases in which the text leaves a choice."""
RUNNER = Path(__file__).with_name("run.py")
"""ONNX's own runner on a folder; it is copied there, since it needs nothing of this package."""
LICENCE = "SPDX-License-Identifier: Apache-2.0"


def write_cases(folder: Path, cases: tuple[ConformanceCase, ...]) -> None:
    """Writes every case into a folder of its own, and a page that says what they are.

    Args:
        folder: What holds the two folders of cases.
        cases: What is written.
    """
    for case in cases:
        where = folder / (OPEN if case.is_open else STRICT) / f"test_{case.name}"
        where.mkdir(parents=True, exist_ok=True)
        (where / "model.onnx").write_bytes(case.body.model.SerializeToString(deterministic=True))
        for number, (_, outputs) in enumerate(case.body.allowed):
            # a runner that knows nothing of alternatives reads the first folder of a name it knows
            data = where / (f"allowed_{number}" if case.is_open else "test_data_set_0")
            data.mkdir(exist_ok=True)
            graph = case.body.model.graph
            for index, (name, values) in enumerate(case.body.inputs.items()):
                _write(data / f"input_{index}.pb", name, values)
            for index, (info, values) in enumerate(zip(graph.output, outputs, strict=True)):
                _write(data / f"output_{index}.pb", info.name, values)
        manifest: dict[str, object] = {
            "model_name": case.name,
            "rtol": 0,
            "atol": 0,
            "situation": case.situation.name,
            "section": case.situation.section,
            "says": case.situation.says,
        }
        if case.is_open:
            manifest["allowed"] = [reading for reading, _ in case.body.allowed]
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (where / "data.json").write_text(text, "utf-8")
    (folder / "README.md").write_text(page(cases), "utf-8")
    (folder / RUNNER.name).write_text(f"# {LICENCE}\n{RUNNER.read_text('utf-8')}", "utf-8")


def _write(path: Path, name: str, values: Array) -> None:
    tensor: onnx.TensorProto = numpy_helper.from_array(values, name)
    path.write_bytes(tensor.SerializeToString(deterministic=True))


def page(cases: tuple[ConformanceCase, ...]) -> str:
    """Returns the README of the folder."""
    counts: dict[str, int] = {}
    for case in cases:
        counts[case.situation.name] = counts.get(case.situation.name, 0) + 1
    situations = {case.situation.name: case.situation for case in cases}
    rows = "\n".join(
        f"| `{name}` | {counts[name]} | {each.section} | {each.says} |"
        for name, each in situations.items()
    )
    opened = sum(case.is_open for case in cases)
    return f"""\
<!-- {LICENCE} -->
# What ONNX's text says of quantized models, in {len(cases)} small models

`{STRICT}/` ({len(cases) - opened} cases) has ONNX's layout of test data: `test_CASE/model.onnx`,
`test_CASE/test_data_set_0/input_N.pb` and `output_N.pb`, and `data.json` with `rtol` and `atol` 0.
Every output was computed in integers and fractions, and one value is right. `{OPEN}/`
({opened} cases) has what the text leaves open: each `test_CASE/allowed_N` has the same inputs and
the outputs of one reading, which `data.json` names.

`python {RUNNER.name} onnxruntime` gives the strict cases to ONNX's runner (`onnx.backend.test`).
So it does with `onnx.reference`, and with any module that is an `onnx.backend.base.Backend`.

The files are licensed under Apache-2.0.

| situation | cases | section | the text |
|---|---|---|---|
{rows}
"""
