"""The rules of the profiles against the tables of executed patterns."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from qdqbridge.app.pipeline import check
from qdqbridge.options import AnyProfileName
from tests.places import ROOT

TABLES = Path(__file__).parent
LIMIT, FLOATS = 2, "whole-node-unit"
MEASURED = 123_680
LEAST = {"qnn": 1724, "qnn-v73": 1724, "openvino": 500}
KNOWN = {"qnn": (0, 0), "qnn-v73": (0, 0), "openvino": (0, 0)}
"""Rows as written whose rules are falsely kept, and falsely broken: by their number."""


@pytest.fixture(scope="module")
def models() -> Iterator[ModuleType]:
    """``scripts/engines/pattern_models.py``, which makes the files of the tables."""
    spec = spec_from_file_location(
        "pattern_models", ROOT / "scripts" / "engines" / "pattern_models.py"
    )
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["pattern_models"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pattern_models"]


def rows(engine: str) -> list[dict[str, str]]:
    lines = (TABLES / f"patterns_{engine}.csv").read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "profile"),
    [("qnn-htp", "qnn"), ("qnn-htp-v73", "qnn-v73"), ("openvino", "openvino")],
)
def test_the_rules_say_what_the_engine_does(
    engine: str, profile: AnyProfileName, models: ModuleType, tmp_path: Path
) -> None:
    path, kept, alarms = tmp_path / "pattern.onnx", [], []
    table = rows(engine)
    assert len(table) >= LEAST[profile]
    for row in table:
        pattern = models.Pattern(*(row[name] for name in models.FIELDS))
        onnx.save(models.model(pattern), path)
        found = check(path, profile)
        taken = row["taken"] == "yes"
        steps = int(row["lsb"] or 0)
        right = taken and steps <= LIMIT
        rules = {finding.rule: finding.steps for finding in found}
        rules.pop(FLOATS, None)  # it says that floats are computed, not refused or wrong
        if rules and all(rules.values()):  # they say how far results may be off
            most = max(finding.steps for finding in found)
            kept += [pattern.key] * (not taken or steps > most)
        elif right:
            alarms += [pattern.key] * bool(rules)
        else:
            kept += [pattern.key] * (not rules)
    assert (len(kept), len(alarms)) == KNOWN[profile], (kept, alarms)


@pytest.mark.parametrize("operator", ["Conv", "ConvDepthwise", "ConvTranspose", "Gemm", "MatMul"])
def test_products_of_8_bits_are_right_on_hexagon_as_the_profile_writes_them(operator: str) -> None:
    exported = [
        row
        for row in rows("qnn-htp")
        if row["operator"] == operator and row["dtype"] in ("u8", "s8")
    ]
    assert len(exported) >= 30
    assert all(row["export_taken"] == "yes" and int(row["export_lsb"]) <= 1 for row in exported)


def test_litert_takes_and_computes_what_is_written_for_it() -> None:
    table = rows("litert")
    assert len(table) >= 500
    written = [row for row in table if row["export_taken"] != "refused"]
    assert len(written) > 400
    assert all(row["export_taken"] == "yes" for row in written)
    for row in written:
        # LiteRT's 16-bit Softmax interpolates in tables of its own (docs/tflite.md)
        limit = 4 if (row["operator"], row["dtype"]) == ("Softmax", "s16") else LIMIT
        assert int(row["export_lsb"]) <= limit, row
    refused = [row for row in table if row["export_taken"] == "refused"]
    assert {row["dtype"] for row in refused} == {"u16", "s16"}


def test_onnxruntime_with_its_optimizations_computes_what_is_written_for_it() -> None:
    table = rows("onnxruntime-optimized")
    assert len(table) >= 500
    assert all(int(row["export_lsb"]) <= 1 for row in table)
    wrong = [row for row in table if int(row["lsb"]) > LIMIT]
    assert len(wrong) > 40
    assert all("rounded-activation" in row["rules"] for row in wrong)


def test_what_is_wrong_without_vnni_has_the_rule_about_pairs() -> None:
    table = rows("onnxruntime-avx2")
    assert len(table) >= 800
    for prefix in ("", "export_"):
        wrong = [row for row in table if int(row[f"{prefix}lsb"]) > LIMIT]
        assert len(wrong) > 40
        names = [set(row[f"{prefix}rules"].split()) for row in wrong]
        assert all({"pairs-fit", "rounded-activation"} & each for each in names)


def test_onnxruntime_on_arm_takes_int8_as_well() -> None:
    x86, arm = rows("onnxruntime-optimized"), rows("onnxruntime-arm")
    assert all(int(row["export_lsb"]) <= 1 for row in arm)
    pairs = list(zip(x86, arm, strict=True))
    more = [b for a, b in pairs if a["export_taken"] != b["export_taken"]]
    assert len(more) > 20
    assert all(row["dtype"] == "s8" and row["export_taken"] == "yes" for row in more)


def test_rules_say_what_was_measured_or_what_the_host_build_does() -> None:
    """Of the tables of winml-cli: all rows, each disagreement put to the host build."""
    lines = (TABLES / "winml_qnn-htp-v73.csv").read_text("utf-8").splitlines()
    found = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    whole = sum(int(row["rows"]) for row in found)
    assert whole == MEASURED
    assert sum(int(row["not asked"]) for row in found) == 0
    assert sum(int(row["rules"]) for row in found) <= whole / 200
