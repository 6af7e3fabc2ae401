"""Engines on the conformance cases, which one process of each takes."""

from __future__ import annotations

from collections import Counter

import pytest

from qdqbridge.app.conforming import conform, engine_version

pytest.importorskip("ai_edge_litert")


def outcomes(engine: str, only: str) -> Counter[str]:
    return Counter(result.outcome for result in conform(engine, only))


def test_int32_is_made_a_float_before_litert_quantizes_it():
    assert outcomes("litert", "quantize_int32_int8_*") == {"equal": 3}


def test_integers_with_scales_of_channels_are_right_or_refused_for_litert():
    found = outcomes("litert", "dequantize_per_axis_*")
    assert found["equal"] >= 13 and not found["wrong"] and not found["crashed"]


def test_ranges_of_channels_that_tflite_cannot_clamp_to_are_refused():
    assert outcomes("litert", "quantize_per_axis_int4_*") == {"refused": 1}


def test_openvino_adds_the_zero_point_before_it_rounds():
    """A fault of OpenVINO 2026.4: an entry of scripts/generators/conformance_faults.py."""
    assert engine_version("openvino").startswith("OpenVINO 2026.4")
    assert outcomes("openvino", "quantize_rounds_before_zero_point_uint8_low") == {"wrong": 1}
