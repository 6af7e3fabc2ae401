"""Targets against the rules of the profiles that they are written for: one source for both."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from qdqbridge.app.cli.failures import run
from qdqbridge.app.pipeline import check
from qdqbridge.app.sources import load_model
from qdqbridge.autoquant.planning.plan import plan
from qdqbridge.autoquant.planning.targets import TARGETS
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.targets.profiles.finding import Effect
from tests.autoquant.float_models import quantize_plainly
from tests.targets.engines.target_networks import MODELS, NETWORKS, samples

NEVER = {
    "tensorrt": set(Effect),
    "openvino": set(Effect) - {Effect.NO_KERNEL},
    "qnn": {Effect.REFUSED, Effect.OTHER},
    "ort": {Effect.REFUSED, Effect.FLOAT},
}
"""Effects of rules that no file of a target breaks. For ``qnn`` the rules do not know that
onnxruntime makes one product of a MatMul of three axes and the Add of its bias (it is taken whole:
``tests/targets/engines/test_real_targets.py``)."""


@cache
def made(target: str, name: str) -> Quantized:
    graph = NETWORKS[name]()
    return quantize_plainly(graph, samples(name, graph), target)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("target", NEVER)
def test_no_file_of_a_target_breaks_the_rules_of_its_profile(target: str, name: str) -> None:
    graph = made(target, name).graph
    graph = with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 1))
    found = check(graph, TARGETS[target].profile)
    assert [each for each in found if each.effect in NEVER[target]] == []


def test_products_of_activations_suit_openvino() -> None:
    """Zero points of 0, int8 for the second; the result of a Softmax keeps its 8 bits."""
    products = [
        node for node in made("openvino", "transformer").graph.nodes
        if node.op.name == "MatMul" and not node.operand(1).is_constant
    ]  # fmt: skip
    assert len(products) == 2
    for node in products:
        pair = [value.quant.params for value in (node.operand(0), node.operand(1)) if value.quant]
        assert [int(params.zero_point) for params in pair] == [0, 0]
        assert str(pair[1].storage_dtype) == "int8"
    stored = {str(node.operand(0).type.dtype) for node in products}
    assert stored == {"int8", "uint8"}  # queries; what a Softmax gives


def test_every_operator_is_rounded_where_an_engine_has_no_functions_of_several() -> None:
    graph = NETWORKS["gated"]()
    for target, inside in (("ort", True), ("qnn", False), ("tflite", False)):
        planned = plan(graph, TARGETS[target])
        clipped = next(n for n in graph.nodes if n.op.name in ("Clip", "Max"))
        assert (clipped.output not in planned.specs) == inside


def test_operators_that_tflite_has_on_floats_only_stay_float() -> None:
    floats = {node.op.name for node in made("tflite", "transformer").decision.plan.floats}
    assert floats == {"LayerNormalization", "Div"}


def test_a_tflite_file_is_written_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out.tflite"
    arguments = [
        "quantize", str(MODELS / "digits_cnn_float.onnx"), "-o", str(out), "--target", "tflite",
        "--data", str(_images(tmp_path)), "--repair", "none", "--chooser", "minmax",
        "--extent", "batch=1",
    ]  # fmt: skip
    assert run(arguments) == 0
    counted = [value.quant.params.storage_dtype for value in load_model(out).values()
               if value.quant and not value.is_constant]  # fmt: skip
    assert {str(dtype) for dtype in counted} == {"int8"}


def _images(folder: Path) -> Path:
    file = folder / "images.npz"
    np.savez(file, input=np.load(MODELS / "digits_test.npz")["x"][:16])
    return file
