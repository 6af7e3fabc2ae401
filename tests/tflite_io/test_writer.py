"""TFLite files that we write: read back, and run in LiteRT, on the same integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.places import MODELS

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, the judge")

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tflite_io.litert import Kernels, node_differences
from qdqbridge.tflite_io.writer import TFLiteModel, converted, write
from tests.core.graph.graphs import S8, apply, const, graph, quant, stored
from tests.tflite_io import test_against_litert, test_hard_forms
from tests.tflite_io.drawn_inputs import drawn_inputs

NETWORKS = ("digits_cnn_s8s8_per_tensor", "digits_cnn_u8s8_per_channel")
FLOATS = ("digits_cnn_float", "digits_mlp_float", "digits_mobile_float")
HEADER = "qnn-raw 1\n"
X = "input %x: quant<int8, 0.05, 3>"
IMAGE = f"{X}[1,4,6,8]"
"""Graphs by their text, each of which is written, read and run."""
CASES = {
    "unsigned": "input %x: quant<uint8, 0.05, 131>[1,4]\n%y = Abs(%x): quant<uint8, 0.1, 128>[1,4]",
    "add": f"{IMAGE}\n%y = Add(%x, %x): quant<int8, 0.12, -7>[1,4,6,8]",
    "mul clamped": f"{IMAGE}\n%y = Mul(%x, %x): quant<int8, 0.2, -20, range=-20..127>[1,4,6,8]",
    "sub odd range": f"{IMAGE}\n"
    "%y = Sub(%x, const quant<int8, 0.1, 0>[] 5): quant<int8, 0.06, 2, range=-90..77>[1,4,6,8]",
    "sigmoid": f"{X}[2,5]\n%y = Sigmoid(%x): quant<int8, 0.00390625, -128>[2,5]",
    "sigmoid requantized": f"{X}[2,5]\n%y = Sigmoid(%x): quant<int8, 0.005, -100>[2,5]",
    "tanh": f"{X}[2,5]\n%y = Tanh(%x): quant<int8, 0.0078125, 0>[2,5]",
    "softmax": f"{X}[2,5]\n%y = Softmax(%x) {{axes=[1]}}: quant<int8, 0.00390625, -128>[2,5]",
    "softmax of channels": f"{IMAGE}\n"
    "%y = Softmax(%x) {axes=[1]}: quant<int8, 0.00390625, -128>[1,4,6,8]",
    "maximum": f"{IMAGE}\n%r = Neg(%x): quant<int8, 0.04, 0>[1,4,6,8]\n"
    "%y = Max(%x, %r): quant<int8, 0.05, 3>[1,4,6,8]",
    "concat": f"{IMAGE}\n%r = Neg(%x): quant<int8, 0.04, 0>[1,4,6,8]\n"
    "%y = Concat(%x, %r) {axis=1}: quant<int8, 0.05, 3>[1,8,6,8]",
    "convolution without a bias": f"{IMAGE}\n"
    "%y = Conv(%x, const quant<int8, [0.01 0.02], 0, axis=0>"
    "[2,4,1,1] [1 -2 3 -4 5 -6 7 -8]) {strides=[1 1], dilations=[1 1], pads=[0 0 0 0], group=1}"
    ": quant<int8, 0.05, 3>[1,2,6,8]",
    "depthwise without a bias": f"{IMAGE}\n%y = Conv(%x, const quant<int8, 0.01, 0>"
    "[4,1,1,1] [1 -2 3 -4]) {strides=[1 1], dilations=[1 1], pads=[0 0 0 0], group=4}"
    ": quant<int8, 0.05, 3>[1,4,6,8]",
    "float convolution": "input %x: float32[1,4,6,8]\n%y = Conv(%x, const float32"
    "[2,4,1,1] [1 -2 3 -4 5 -6 7 -8]) {strides=[1 1], dilations=[1 1], pads=[0 0 0 0], group=1}"
    ": float32[1,2,6,8]\n%z = quantize(%y): quant<int8, 0.05, 3>[1,2,6,8]",
    "relu of unsigned numbers": "input %x: quant<uint8, 0.05, 37>[1,4]\n"
    "%y = requantize(%x): quant<uint8, 0.05, 37, range=37..255>[1,4]",
    "division by zero": "input %x: quant<int8, 0.05, 3>[300]\n"
    "%y = Div(%x, const quant<int8, 0.05, 3>[] 3): quant<int8, 0.1, -91>[300]",
    "island": f"{X}[2,5]\n%y = Cos(%x): quant<int8, 0.01, 0>[2,5]",
    "mean": f"{IMAGE}\n%y = GlobalAveragePool(%x): quant<int8, 0.02, 3>[1,4,1,1]",
    "average pool": f"{IMAGE}\n%y = AveragePool(%x) {{kernel_shape=[2 2], strides=[2 2], "
    "dilations=[1 1], pads=[0 0 0 0]}: quant<int8, 0.05, 3>[1,4,3,4]",
    "average pool requantized": f"{IMAGE}\n%y = AveragePool(%x) {{kernel_shape=[3 3], "
    "strides=[1 1], dilations=[1 1], pads=[1 1 1 1]}: quant<int8, 0.04, 0>[1,4,6,8]",
    "average pool in between": f"{IMAGE}\n%y = AveragePool(%x) {{kernel_shape=[3 3], "
    "strides=[2 2], dilations=[1 1], pads=[1 1 1 1]}: quant<int8, 0.05, 3>[1,4,3,4]",
    "max pool padded": f"{IMAGE}\n%y = MaxPool(%x) {{kernel_shape=[3 3], strides=[2 2], "
    "dilations=[1 1], pads=[1 1 1 1]}: quant<int8, 0.05, 3>[1,4,3,4]",
    "resize": f"{IMAGE}\n%y = Resize(%x) {{mode='nearest', "
    "coordinate_transformation_mode='asymmetric', nearest_mode='floor', "
    "scales=[1.0 1.0 2.0 2.0], sizes=None}: quant<int8, 0.05, 3>[1,4,12,16]",
    "slices": f"{IMAGE}\n%y = Slice(%x) {{starts=[1 -1], ends=[4 -9], axes=[1 3], steps=[1 -2]}}"
    ": quant<int8, 0.05, 3>[1,3,6,4]",
    "depth to space": f"{IMAGE}\n%y = DepthToSpace(%x) {{block_size=2, mode='DCR'}}"
    ": quant<int8, 0.05, 3>[1,1,12,16]",
    "wide depth to space": "input %x: quant<int16, 0.05, 0>[1,8,2,2]\n"
    "%y = DepthToSpace(%x) {block_size=2, mode='CRD'}: quant<int16, 0.05, 0>[1,2,4,4]",
    "columns before rows": f"{X}[1,8,2,2]\n%y = DepthToSpace(%x) {{block_size=2, mode='CRD'}}"
    ": quant<int8, 0.05, 3>[1,2,4,4]",
    "pad": f"{IMAGE}\n%y = Pad(%x) {{pads=[0 0 1 2 0 0 0 1], mode='constant', value=0.25}}"
    ": quant<int8, 0.05, 3>[1,4,7,11]",
}


def feeds(made: TFLiteModel, extent: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    return drawn_inputs(made, 7, extent)


def steps(made: TFLiteModel, kernels: Kernels = Kernels.REFERENCE) -> float:
    """Returns the largest difference of a node, in steps of its scale."""
    found = node_differences(made, feeds(made), kernels)
    assert found
    return max(d.largest for d in found if d.value.quant is not None)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("layout", ["model", "nhwc"])
def test_a_network_keeps_its_digest_and_its_integers(
    name: str, layout: str, tmp_path: Path
) -> None:
    made = write(qb.load(MODELS / f"{name}.onnx"), tmp_path / "m.tflite", layout=layout)
    assert qb.load(tmp_path / "m.tflite").digest == made.digest
    assert not any(op.name == "TRANSPOSE" for op in made.model.operators)
    for kernels in Kernels:
        assert steps(made, kernels) <= 1


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_network_computes_the_same(name: str, tmp_path: Path) -> None:
    made = write(qb.load(MODELS / f"{name}.onnx"), tmp_path / "m.tflite")
    assert qb.load(tmp_path / "m.tflite").digest == made.digest
    assert max(d.largest for d in node_differences(made, feeds(made))) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_an_operator(name: str, tmp_path: Path) -> None:
    result = CASES[name].rsplit("\n", 1)[-1].split(" ")[0]
    graph = qb.parse(f"{HEADER}{CASES[name]}\noutput {result}\n")
    made = write(graph, tmp_path / "m.tflite")
    assert qb.load(tmp_path / "m.tflite").digest == made.digest
    assert steps(made) <= 1


def test_what_has_no_counterpart_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    graph = qb.parse(
        f"{HEADER}input %x: float32[2,3]\n%a = ThresholdedRelu(%x) {{alpha=0.5}}: float32[2,3]\n"
        "%y = ReduceMean(%a) {axes=[0]}: float32[1,3]\noutput %y\n"
    )
    with pytest.raises(UnsupportedTargetError, match="TFLite cannot take") as caught:
        write(graph, tmp_path / "m.tflite")
    assert "ThresholdedRelu (1," in caught.value.why
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_dequantized_constant_of_another_float_is_no_float32(kind: str, tmp_path: Path) -> None:
    graph = qb.parse(
        f"{HEADER}input %x: float32[1]\n"
        f"%y = dequantize(const quant<int4, 0.5, -7>[4] [1 2 3 4]): {kind}[4]\n"
        "output %y\noutput %x\n"
    )
    with pytest.raises(UnsupportedTargetError, match=f"it computes in {kind}"):
        write(graph, tmp_path / "m.tflite")


REFUSED = {
    "update_slice": "ScatterND", "batched_gather": "GatherND", "magnitudes": "DFT",
    "square_transform": "DFT", "lstm": "LSTM", "coupled_lstm": "LSTM", "bidirectional_lstm": "LSTM",
    "rnn": "RNN", "suppression": "NonMaxSuppression", "branch": "If",
    "one_hot": "OneHot", "where": "NonZero", "reverse_sequence": "ReverseSequence",
    "scatter": "ScatterND",
}  # fmt: skip
"""Operators of TFLite's own that are read as others, which TFLite does not have."""
CASES_OF_OTHERS = {**test_against_litert.CASES, **test_hard_forms.CASES}


@pytest.mark.parametrize("name", CASES_OF_OTHERS)
def test_a_file_of_another_writer_comes_back_with_the_same_outputs(
    name: str, tmp_path: Path
) -> None:
    for seed in test_against_litert.SEEDS:
        case = CASES_OF_OTHERS[name](seed)
        first, second = tmp_path / f"{seed}a.tflite", tmp_path / f"{seed}b.tflite"
        first.write_bytes(case.model.tobytes(case.inputs, case.outputs))
        graph = qb.load(first)
        if name in REFUSED:
            with pytest.raises(UnsupportedTargetError) as caught:
                write(graph, second)
            assert REFUSED[name] in caught.value.why
            continue
        made = write(graph, second)
        assert qb.load(second).digest == made.digest
        _agree(case, first, second, made)


def _agree(case: test_against_litert.Case, first: Path, second: Path, made: TFLiteModel) -> None:
    fed = case.feed()
    theirs = test_against_litert.by_litert(first, fed)
    ours = test_against_litert.by_litert(second, fed)
    # LiteRT's uint8 kernels round otherwise than its int8 ones: by a step, or a few ulp of floats.
    unsigned = any(case.model.tensors[i].dtype == "uint8" for i in (*case.inputs, *case.outputs))
    for a, b in zip(theirs, ours, strict=True):
        if not unsigned:
            np.testing.assert_array_equal(a, b, err_msg=str([o.name for o in made.model.operators]))
        elif np.issubdtype(a.dtype, np.floating):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        else:
            assert np.abs(a.astype(int) - b.astype(int)).max(initial=0) <= 1


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_other_floats_are_refused(kind: str) -> None:
    graph = qb.parse(
        f"{HEADER}input %x: {kind}[2,3]\n%y = Mish(%x): {kind}[2,3]\noutput %y\n"
    )  # fmt: skip
    with pytest.raises(UnsupportedTargetError, match="TFLite cannot take") as caught:
        converted(graph)
    assert kind in caught.value.why


@pytest.mark.parametrize("kind", ["uint16, 0.001, 32768", "int16, 0.001, 5"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_16_bits_that_do_not_lie_around_zero_are_refused_at_the_interface(
    kind: str, side: str
) -> None:
    plain = "quant<int8, 0.05, 3>[2,3]"
    types = (f"quant<{kind}>[2,3]", plain) if side == "input" else (plain, f"quant<{kind}>[2,3]")
    graph = qb.parse(f"{HEADER}input %x: {types[0]}\n%y = Abs(%x): {types[1]}\noutput %y\n")
    with pytest.raises(UnsupportedTargetError, match="TFLite cannot take") as caught:
        converted(graph)
    assert f"{kind.split(',', maxsplit=1)[0]} with zero point" in caught.value.why


def test_a_range_of_nothing_but_zero_is_written() -> None:
    graph = qb.parse(
        f"{HEADER}input %x: float32[2,3]\n"
        "%y = quantize(%x): quant<uint16, 0.001, 65535, range=65535..65535>[2,3]\n"
        "%z = dequantize(%y): float32[2,3]\noutput %z\n"
    )
    made = converted(graph)
    assert made.model.operators


def test_a_file_is_hardly_larger_than_its_weights(tmp_path: Path) -> None:
    """Weights of a network of real size: 5 MB in convolutions, per channel."""
    rng = np.random.default_rng(0)
    value = first = stored("x", S8, ("N", 256, 4, 4))
    own = 0
    for _ in range(8):
        scales = quant(DType.INT8, rng.uniform(0.001, 0.01, 256).astype(np.float32),
                       np.zeros(256, np.int32), axis=0)  # fmt: skip
        weight = const(rng.integers(-127, 128, (256, 256, 3, 3)).astype(np.int8), scales)
        own += 256 * 256 * 9
        same = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1), 1)
        type_ = QuantType(S8, value.type.shape)
        value = apply("Conv", value, weight, attributes=same, type_=type_)
    made = write(canonicalize(graph([first], value)), tmp_path / "m.tflite")
    assert own <= (tmp_path / "m.tflite").stat().st_size <= 1.03 * own
    assert qb.load(tmp_path / "m.tflite").digest == made.digest


def test_outputs_and_open_extents_keep_their_names(tmp_path: Path) -> None:
    text = (
        f"{HEADER}input %x: quant<int8, 0.05, 3>[N,4]\ninput %z: quant<int8, 0.05, 3>[N,M,4]\n"
        "%y = Abs(%x): quant<int8, 0.05, 3>[N,4]\n%a = Neg(%z): quant<int8, 0.05, 3>[N,M,4]\n"
        "output %y\noutput %a\n"
    )
    before = qb.parse(text)
    write(before, tmp_path / "m.tflite")
    after = qb.load(tmp_path / "m.tflite")
    assert [v.name for v in after.inputs] == [v.name for v in before.inputs]
    assert after.output_names == before.output_names
    assert [v.type.shape for v in after.inputs] == [("N", 4), ("N", "M", 4)]


def test_a_16_bit_result_that_loses_its_zero_point_is_told() -> None:
    graph_ = qb.parse(
        f"{HEADER}input %x: float32[2,4]\n%q = quantize(%x): quant<uint16, 0.0001, 100>[2,4]\n"
        "%y = Abs(%q): quant<uint16, 0.0001, 30000>[2,4]\n%r = dequantize(%y): float32[2,4]\n"
        "output %r\n"
    )
    notes = [n for n in converted(graph_).notes if n.rule == "around-zero"]
    assert len(notes) == 2
    assert "the scale 0.0001 becomes" in notes[0].reason


@pytest.mark.parametrize("kind", ["uint16, 0.01, 7", "int16, 0.01, 7"])
def test_16_bit_interfaces_with_zero_points_are_refused_by_name(kind: str) -> None:
    graph_ = qb.parse(
        f"{HEADER}input %x: quant<{kind}>[2,4]\n%y = Abs(%x): quant<{kind}>[2,4]\noutput %y\n"
    )
    with pytest.raises(UnsupportedTargetError) as caught:
        converted(graph_)
    assert "input (1" in caught.value.why
    assert "output (1" in caught.value.why


@pytest.mark.parametrize("place", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners"])
def test_every_nearest_resize_is_written(mode: str, place: str) -> None:
    graph_ = qb.parse(
        f"{HEADER}{IMAGE}\n%y = Resize(%x) {{mode='nearest', nearest_mode='{place}', "
        f"coordinate_transformation_mode='{mode}', scales=[1 1 1.5 0.5], sizes=None}}"
        ": quant<int8, 0.05, 3>[1,4,9,4]\noutput %y\n"
    )
    made = converted(graph_)
    fed = feeds(made)
    before, after = qb.evaluate(graph_, fed), qb.evaluate(made.graph, fed)
    np.testing.assert_array_equal(before["y"], after["y"])
    assert steps(made) == 0


@pytest.mark.parametrize("scale", ["nan", "inf", "1e-45", "3e38"])
@pytest.mark.parametrize("kind", ["int8", "uint16"])
def test_scales_that_are_no_usable_numbers_are_refused_by_name(kind: str, scale: str) -> None:
    graph_ = qb.parse(
        f"{HEADER}input %x: float32[1,2]\n%q = quantize(%x): quant<{kind}, {scale}, 3>[1,2]\n"
        "%y = dequantize(%q): float32[1,2]\noutput %y\n"
    )
    with pytest.raises(UnsupportedTargetError) as caught:
        converted(graph_)
    assert "quantize (1, 'q'): its scale is too large or too small" in caught.value.why


def test_an_open_number_of_channels_is_refused_by_name() -> None:
    graph_ = qb.parse(
        f"{HEADER}input %x: quant<int8, 0.05, 3>[1,'n',4,4]\n"
        "%y = Conv(%x, const quant<int8, 0.01, 0>[2,1,1,1] [1 2]) {strides=[1 1], "
        "dilations=[1 1], pads=[0 0 0 0], group=1}: quant<int8, 0.12, -7>[1,2,4,4]\noutput %y\n"
    )
    with pytest.raises(UnsupportedTargetError) as caught:
        converted(graph_)
    assert "the number of its image's channels is open" in caught.value.why


def test_extents_beyond_32_bits_are_refused_by_name() -> None:
    graph_ = qb.parse(
        f"{HEADER}input %x: quant<int8, 0.05, 3>[1,35184372088832]\n"
        "%y = Abs(%x): quant<int8, 0.05, 3>[1,35184372088832]\noutput %y\n"
    )
    with pytest.raises(UnsupportedTargetError) as caught:
        converted(graph_)
    assert "it counts to 35,184,372,088,832" in caught.value.why
