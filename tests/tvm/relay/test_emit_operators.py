"""Every operator in every variant: the models of the Relax emission tests, built by Relay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from qdqbridge.tvm.relay import emit, from_relay
from tests.tvm.relax.test_product_columns import products
from tests.tvm.relay.emitted import distances, model_of, operators, results

ACCUMULATE = [
    "test_convolutions", "test_sixteen_bits", "test_transposed_convolutions",
    "test_matrix_products_with_a_constant", "test_products_of_two_activations", "test_vectors",
    "test_weights_of_run_time_with_scales_per_channel",
    "test_narrow_weights", "test_clamps_are_ranges", "test_float_results", "test_float_biases",
    "test_symbolic_batch",
]  # fmt: skip
ROWS = [
    "test_average_pools", "test_reductions", "test_softmax", "test_softmax_over_several_axes",
    "test_layer_norms", "test_channel_norms", "test_resize", "test_symbolic_batch",
]  # fmt: skip
ELEMENTWISE = [
    "test_tables", "test_arithmetic", "test_float_constants", "test_several_operands",
    "test_concatenate", "test_where", "test_clamps", "test_conversions", "test_reinterpretation",
    "test_half_precision_scales", "test_symbolic_batch",
]  # fmt: skip
MOVERS = [
    "test_shapes", "test_slices", "test_pads", "test_maxima", "test_resize_of_the_nearest",
    "test_movers_in_a_new_type", "test_run_time_shapes_of_a_symbolic_batch", "test_symbolic_batch",
]  # fmt: skip
FLOATING = [
    "test_unary", "test_arithmetic", "test_products", "test_rows", "test_windows", "test_resize",
    "test_movers", "test_double_and_half",
]  # fmt: skip
FLOAT_IMAGES = ["test_rows", "test_windows", "test_resize", "test_movers"]
ALL = [
    *(("test_emit_accumulate", name) for name in ACCUMULATE),
    *(("test_emit_rows", name) for name in ROWS),
    *(("test_emit_elementwise", name) for name in ELEMENTWISE),
    *(("test_emit_data_movement", name) for name in MOVERS),
]
IMAGES = [
    ("test_emit_accumulate", "test_convolutions"),
    ("test_emit_accumulate", "test_transposed_convolutions"),
    ("test_emit_accumulate", "test_float_biases"),
    ("test_emit_rows", "test_average_pools"),
    ("test_emit_rows", "test_channel_norms"),
    ("test_emit_rows", "test_resize"),
    ("test_emit_data_movement", "test_shapes"),
    ("test_emit_data_movement", "test_pads"),
    ("test_emit_data_movement", "test_maxima"),
]
"""Where channels-last makes a difference."""
CLAMPED = [
    ("test_emit_accumulate", "test_clamps_are_ranges"),
    ("test_emit_elementwise", "test_clamps"),
]
ADDITIONS = [("test_emit_elementwise", "test_arithmetic")]
TFLITE = {"AveragePool": 4, "GlobalAveragePool": 1, "ReduceMean": 1, "Resize": 1}
"""LSB by which forms of integer divisions and Relay's float resize miss the contract here."""
FQ2I = {"GlobalAveragePool": 1}


def missed(found: dict[str, float], bounds: dict[str, int]) -> dict[str, float]:
    return {k: v for k, v in found.items() if v > bounds.get(k.split(maxsplit=1)[0], 0)}


@pytest.mark.parametrize(("module", "test"), ALL)
def test_canonical(module: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed(distances(model_of(module, test, monkeypatch), "canonical"), {}) == {}


@pytest.mark.parametrize(("module", "test"), IMAGES)
def test_canonical_channels_last(module: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed(distances(model_of(module, test, monkeypatch), "canonical", "NHWC"), {}) == {}


@pytest.mark.parametrize(
    ("module", "test"),
    [
        *(("test_emit_accumulate", name) for name in ACCUMULATE[:5]),
        *(("test_emit_rows", name) for name in ROWS[:3]),
        ("test_emit_rows", "test_resize"),
        ("test_emit_elementwise", "test_tables"),
        ("test_emit_elementwise", "test_several_operands"),
        ("test_emit_elementwise", "test_concatenate"),
        *CLAMPED,
    ],
)
def test_tflite(module: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed(distances(model_of(module, test, monkeypatch), "tflite"), TFLITE) == {}


@pytest.mark.parametrize(
    ("module", "test"),
    [*(("test_emit_accumulate", name) for name in ACCUMULATE[:5]), *CLAMPED, *ADDITIONS],
)
def test_dnnl(module: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed(distances(model_of(module, test, monkeypatch), "dnnl"), {}) == {}


@pytest.mark.parametrize(
    ("module", "test"),
    [
        *(("test_emit_accumulate", name) for name in ACCUMULATE[:5]), *CLAMPED,
        ("test_emit_rows", "test_average_pools"),
    ],
)  # fmt: skip
def test_fq2i(module: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed(distances(model_of(module, test, monkeypatch), "fq2i"), FQ2I) == {}


@pytest.mark.parametrize(("test", "layout"), [
    *((test, "NCHW") for test in FLOATING),
    *(pytest.param(test, "NHWC", marks=() if test in FLOAT_IMAGES else pytest.mark.slow)
      for test in FLOATING),
])  # fmt: skip
def test_floats(test: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float operators are Relay's: within 16 ulps of a result, and 400 of 1 where sums cancel."""
    m = model_of("test_emit_floating", test, monkeypatch)
    ulp = 2.0**-23  # of float32
    for name, (ours, wanted) in results(m.load(), m.inputs, "canonical", layout).items():
        assert ours.dtype == wanted.dtype, name
        np.testing.assert_allclose(ours, wanted, rtol=16 * ulp, atol=400 * ulp, err_msg=name)


@pytest.mark.parametrize("seed", range(4))
def test_a_scale_of_each_column(seed: int) -> None:
    """Relay's own operator takes one; the dialect's carries them, and is read back as it was."""
    m = products(seed)
    assert missed(distances(m, "canonical"), {}) == {}
    graph = m.load()
    module, _ = emit(graph, "canonical", None)
    made = Counter(operators(module))  # of one column there is one scale
    assert made["qnn.qdq_batch_matmul"] > made["qnn.batch_matmul"]
    assert made["qnn.qdq_batch_matmul"] + made["qnn.batch_matmul"] == len(m.branches)
    assert from_relay(module).digest == graph.digest
