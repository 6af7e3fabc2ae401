"""Model collections beside the checkout: a sample is emitted for Relax and read back."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.tvm.relax.read_cases import kept

pytestmark = [pytest.mark.relax, pytest.mark.corpus]

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "producers"
PARTS = (
    "brevitas_w4a4_qcdq", "brevitas_w8a8_pt_qcdq", "modelopt_int8_fp16", "modelopt_int4_rtn",
    "ort_dynamic_u8", "ort_mnb_b4_asym_qdq", "ort_a16w4_pc_op21", "eq_dec_u8s8pc_decomposed_qdq",
    "ort_fp16_op19", "ort_w8_block8", "float_dynamo_op21",
)  # fmt: skip
"""One configuration for each thing that a module of integers does not show by itself."""


def files() -> list[str]:
    manifest = FOLDER / "manifest.csv"
    if not manifest.exists():
        return []
    with manifest.open(newline="") as file:
        names = [row["file"] for row in csv.DictReader(file)]
    return [name for name in names if name.split("/")[1] in PARTS]


@pytest.mark.parametrize("part", PARTS)
def test_digests_are_kept(part: str) -> None:
    found = [name for name in files() if name.split("/")[1] == part]
    if not found:
        pytest.skip("there is no such collection beside the checkout")
    seen: set[str] = set()
    for name in found:
        graph = qb.load(FOLDER / name)
        if graph.digest not in seen:
            seen.add(graph.digest)
            kept(graph)
