"""The digest through Relax: of random models, and of those where it once moved."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from qdqbridge.errors import QdqBridgeError
from qdqbridge.ops.table import OPERATORS
from tests.onnx_io import digest_trips
from tests.onnx_io.digest_trips import HOSTED, hosted, loaded
from tests.onnx_io.random_models import random_model

FOUND = sorted((Path(digest_trips.__file__).parent / "digest_models").glob("*.onnx"))


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_where_it_once_moved(path: Path, variant: str) -> None:
    graph = loaded(onnx.load(path))
    assert hosted(graph, variant).text() == graph.text()


@pytest.mark.parametrize("variant", HOSTED)
def test_random_models(variant: str) -> None:
    """``scripts/sweep_digests`` makes as many as one likes; some no host can compute."""
    came_back = 0
    for seed in range(40):
        graph = loaded(random_model(seed))
        try:
            back = hosted(graph, variant)
        except QdqBridgeError:
            continue
        came_back += 1
        assert back.text() == graph.text(), seed
    assert came_back >= 36


_HEAD = '<ir_version: 11, opset_import: ["": 24]> g (float[2,3] x) => (float[2,3] y)'
_SUB_BYTE = {
    "quantize": "d = DequantizeLinear(q, s, z) y = Neg(d)",
    "operator": "d = DequantizeLinear(q, s, z) e = Sigmoid(d) p = QuantizeLinear(e, s, z) "
    "y = DequantizeLinear(p, s, z)",
    "clamp": "d = DequantizeLinear(q, s, z) e = Add(d, d) f = Relu(e) p = QuantizeLinear(f, s, z) "
    "y = DequantizeLinear(p, s, z)",
    "constant first": "c = DequantizeLinear(z, s) d = DequantizeLinear(q, s, z) e = Sub(c, d) "
    "p = QuantizeLinear(e, t, o) y = DequantizeLinear(p, t, o)",
}


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("body", _SUB_BYTE.values(), ids=list(_SUB_BYTE))
def test_results_of_four_bits(body: str, dtype: str, variant: str) -> None:
    numbers = f"<float s = {{0.5}}, {dtype} z = {{1}}, float t = {{0.1}}, int8 o = {{3}}>"
    text = f"{_HEAD} {numbers} {{ q = QuantizeLinear(x, s, z) {body} }}"
    graph = loaded(onnx.parser.parse_model(text))
    assert hosted(graph, variant).text() == graph.text()


_SPELLED = sorted(row.name for row in OPERATORS if row.forms and row.arity == 1)


@pytest.mark.parametrize("variant", HOSTED)
def test_compositions_of_spelled_operators(variant: str) -> None:
    """Steps that TVM has no operator for are chains of calls in the ``qdq`` form."""
    for name in _SPELLED:
        text = (
            f"{_HEAD} <float s = {{0.05}}, uint8 z = {{100}}> {{ q = QuantizeLinear(x, s, z) "
            f"d = DequantizeLinear(q, s, z) a = {name}(d) b = HardSigmoid(a) e = Add(a, b) "
            "p = QuantizeLinear(e, s, z) y = DequantizeLinear(p, s, z) }"
        )
        graph = loaded(onnx.parser.parse_model(text))
        assert hosted(graph, variant).text() == graph.text(), name


@pytest.mark.parametrize("variant", HOSTED)
def test_a_cast_before_a_power_stays(variant: str) -> None:
    text = f"{_HEAD} <float e = {{0.5}}> {{ b = IsNaN(x) c = Cast<to = 1>(b) y = Pow(c, e) }}"
    graph = loaded(onnx.parser.parse_model(text))
    assert hosted(graph, variant).text() == graph.text()


_HALF = '<ir_version: 11, opset_import: ["": 24]> g (float16[2,3] x) => (float16[2,3] y)'


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("call", ["HardSigmoid(x)", "Selu(x)", "Elu<alpha: float = 0.3>(x)"])
def test_attributes_of_half_floats(call: str, variant: str) -> None:
    """A chain of float16 operators shows its numbers in float16 alone."""
    graph = loaded(onnx.parser.parse_model(f"{_HALF} {{ y = {call} }}"))
    assert hosted(graph, variant).text() == graph.text()


def test_a_factor_beyond_half_floats_is_refused() -> None:
    """0 times infinity is no 0."""
    graph = loaded(onnx.parser.parse_model(f"{_HALF} {{ y = Selu<gamma: float = 1e30>(x) }}"))
    with pytest.raises(QdqBridgeError, match="is no float16"):
        hosted(graph, HOSTED[0])


def test_a_clip_of_integers_without_bounds_is_nothing() -> None:
    text = '<ir_version: 8, opset_import: ["": 13]> g (int16[4] x) => (int16[4] y) { y = Clip(x) }'
    assert loaded(onnx.parser.parse_model(text)).nodes == []
