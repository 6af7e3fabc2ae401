"""The digest through Relax: of random models, and of those where it once moved."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.errors import QdqBridgeError
from qdqbridge.options import RelaxVariant
from tests.onnx_io import digest_trips
from tests.onnx_io.digest_trips import HOSTED, hosted, loaded
from tests.onnx_io.random_models import random_model
from tests.onnx_models import Builder

FOUND = sorted((Path(digest_trips.__file__).parent / "digest_models").glob("*.onnx"))


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_where_it_once_moved(path: Path, variant: RelaxVariant) -> None:
    graph = loaded(onnx.load(path))
    assert hosted(graph, variant).text() == graph.text()


@pytest.mark.parametrize("variant", HOSTED)
def test_random_models(variant: RelaxVariant) -> None:
    """``scripts/sweeps/sweep_digests`` makes as many as one likes; some no host can compute."""
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
def test_results_of_four_bits(body: str, dtype: str, variant: RelaxVariant) -> None:
    numbers = f"<float s = {{0.5}}, {dtype} z = {{1}}, float t = {{0.1}}, int8 o = {{3}}>"
    text = f"{_HEAD} {numbers} {{ q = QuantizeLinear(x, s, z) {body} }}"
    graph = loaded(onnx.parser.parse_model(text))
    assert hosted(graph, variant).text() == graph.text()


_SPELLED = sorted(row.name for row in OPERATORS if row.forms and row.arity == 1)


@pytest.mark.parametrize("variant", HOSTED)
def test_compositions_of_spelled_operators(variant: RelaxVariant) -> None:
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
def test_a_cast_before_a_power_stays(variant: RelaxVariant) -> None:
    text = f"{_HEAD} <float e = {{0.5}}> {{ b = IsNaN(x) c = Cast<to = 1>(b) y = Pow(c, e) }}"
    graph = loaded(onnx.parser.parse_model(text))
    assert hosted(graph, variant).text() == graph.text()


_HALF = '<ir_version: 11, opset_import: ["": 24]> g (float16[2,3] x) => (float16[2,3] y)'


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("call", ["HardSigmoid(x)", "Selu(x)", "Elu<alpha: float = 0.3>(x)"])
def test_attributes_of_half_floats(call: str, variant: RelaxVariant) -> None:
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


_SIX = '<ir_version: 10, opset_import: ["": 21]> g (float[1,2,6,6] x) => (float[a,b,c,d] y)'
_SIGNED = "float s = {0.05}, uint8 z = {128}, float t = {0.02}, uint8 o = {100}"
_CLAMPED = {
    "average": "p = AveragePool<kernel_shape = [2, 3], pads = [1, 1, 0, 1]>(d)",
    "average of ceil_mode": "p = AveragePool<kernel_shape = [3, 3], strides = [2, 2], "
    "pads = [1, 1, 1, 1], ceil_mode = 1, count_include_pad = 1>(d)",
    "resize": 'p = Resize<mode = "cubic">(d, , f)',
}


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("windows", _CLAMPED.values(), ids=list(_CLAMPED))
def test_the_clamp_behind_windows_stays(windows: str, variant: RelaxVariant) -> None:
    """Where a span names the operator, a Relu behind it is no part of it."""
    numbers = f"<{_SIGNED}, float[4] f = {{1, 1, 1.5, 2}}>"
    text = (
        f"{_SIX} {numbers} {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {windows} "
        "r = Relu(p) e = QuantizeLinear(r, t, o) y = DequantizeLinear(e, t, o) }"
    )
    graph = loaded(onnx.parser.parse_model(text))
    assert "range=100..255" in graph.text()
    assert hosted(graph, variant).text() == graph.text()


_ALONG = "<float[3] s = {0.5, 0.25, 0.125}, int8[3] k = {1, 2, 3}, int64[3] to = {1, 3, 2}>"
_MOVED = {
    "nothing": "y = DequantizeLinear<axis = 1>(q, s, z)",
    "floats": "d = DequantizeLinear<axis = 1>(q, s, z) y = Transpose<perm = [1, 0]>(d)",
    "integers": "p = Transpose<perm = [1, 0]>(q) y = DequantizeLinear<axis = 0>(p, s, z)",
    "reshape": "p = Transpose<perm = [1, 0]>(q) e = Reshape(p, to) "
    "y = DequantizeLinear<axis = 1>(e, s, z)",
}


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("dtype", [TensorProto.INT4, TensorProto.UINT8, TensorProto.INT16])
@pytest.mark.parametrize("body", _MOVED.values(), ids=list(_MOVED))
def test_activations_with_scales_along_an_axis(
    body: str, dtype: int, variant: RelaxVariant
) -> None:
    head = _HEAD.replace("float[2,3] y", "float[a,b] y")
    quantize = f"z = Cast<to = {dtype}>(k) q = QuantizeLinear<axis = 1>(x, s, z)"
    text = f"{head} {_ALONG} {{ {quantize} {body} }}"
    graph = loaded(onnx.parser.parse_model(text))
    assert "reinterpret" not in graph.text()
    assert hosted(graph, variant).text() == graph.text()


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_four_bits_resized_to_nearest(dtype: str, variant: RelaxVariant) -> None:
    numbers = f"<float s = {{0.5}}, {dtype} z = {{3}}, int64[4] f = {{1, 2, 4, 9}}>"
    text = (
        f"{_SIX} {numbers} {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
        'y = Resize<mode = "nearest">(d, , , f) }'
    )
    graph = loaded(onnx.parser.parse_model(text))
    assert hosted(graph, variant).text() == graph.text()


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("movement", ["Flatten", "Transpose<perm = [1, 0]>", "Identity"])
def test_integers_that_get_another_meaning(movement: str, variant: RelaxVariant) -> None:
    """Before or behind what moves them: one place for it."""
    head = f"{_HEAD.replace('float[2,3] y', 'float[a,b] y')} <{_SIGNED}>"
    late = f"p = {movement}(q) y = DequantizeLinear(p, t, o)"
    early = f"d = DequantizeLinear(q, t, o) y = {movement}(d)"
    graphs = [
        loaded(onnx.parser.parse_model(f"{head} {{ q = QuantizeLinear(x, s, z) {body} }}"))
        for body in (late, early)
    ]
    assert graphs[0].digest == graphs[1].digest == hosted(graphs[0], variant).digest


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("zero_point", [0, 3])
def test_dynamic_products(zero_point: int, variant: RelaxVariant) -> None:
    numbers = f"float s = {{0.1}}, int8 z = {{{zero_point}}}, int8[3,2] w = {{1, -2, 3, 4, -5, 6}}"
    text = (
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> '
        f"g (float[2,3] x) => (float[2,2] y) <{numbers}> "
        "{ y = com.microsoft.DynamicQuantizeMatMul(x, w, s, z) }"
    )
    graph = loaded(onnx.parser.parse_model(text))
    assert "DynamicDense" in graph.text()
    assert hosted(graph, variant).text() == graph.text()


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize(
    ("kind", "real"), [("float16", TensorProto.FLOAT16), ("bfloat16", TensorProto.BFLOAT16)]
)
@pytest.mark.parametrize(
    "storage", [TensorProto.INT8, TensorProto.INT4, TensorProto.UINT8, TensorProto.FLOAT8E4M3FN]
)
def test_half_floats_quantized_in_blocks(
    storage: int, kind: str, real: int, variant: RelaxVariant
) -> None:
    numbers = "<float[2,2] f = {0.5, 0.25, 0.125, 0.3}, float[2,2] n = {0, 0, 0, 0}>"
    text = (
        f'<ir_version: 11, opset_import: ["": 24]> g ({kind}[2,3] x) => ({kind}[2,3] y) {numbers} '
        f"{{ s = Cast<to = {real}>(f) z = Cast<to = {storage}>(n) "
        "q = QuantizeLinear<axis = 1, block_size = 2>(x, s, z) "
        "y = DequantizeLinear<axis = 1, block_size = 2>(q, s, z) }"
    )
    graph = loaded(onnx.parser.parse_model(text))
    assert "block=2" in graph.text()
    assert hosted(graph, variant).text() == graph.text()


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("behind", ["", "r = Clip(p, l, h)"], ids=["plain", "clamped"])
def test_floats_of_open_extents_resized(behind: str, mode: str, variant: RelaxVariant) -> None:
    """They are a call of the dialect, of floats."""
    numbers = f"<{_SIGNED}, float[4] f = {{1, 1, 0.6, 2.3}}, float l = {{-0.2}}, float h = {{0.7}}>"
    text = (
        f"{_SIX.replace('1,2,6,6', '1,2,h,w')} {numbers} {{ q = QuantizeLinear(x, s, z) "
        f'd = DequantizeLinear(q, s, z) p = Resize<mode = "{mode}">(d, , f) {behind} '
        f"e = QuantizeLinear({'r' if behind else 'p'}, t, o) y = DequantizeLinear(e, t, o) }}"
    )
    graph = loaded(onnx.parser.parse_model(text))
    assert hosted(graph, variant).text() == graph.text()


_CROPS = [(b, e) for b in (-3, -1, 0, 2) for e in (-3, -1, 0, 4)]


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("size", [0, 1, 2, "n"])
def test_pads_that_crop_more_than_there_is(size: int | str, variant: RelaxVariant) -> None:
    """What one end crops beyond the data is taken off what the other adds."""
    for (begin, end), sliced in product(_CROPS, (False, True)):
        b = Builder(18)
        x = b.qdq(b.input("x", [size, 3]), 0.1, 3)
        if sliced:
            x = b.op("Slice", x, *(b.init(np.array([bound])) for bound in (1, 9, 0)))
        pads = b.init(np.array([begin, 0, end, 0]))
        b.output(b.qdq(b.op("Pad", x, pads, mode="edge" if begin == 2 else "constant"), 0.1, 3))
        try:
            graph = loaded(b.model())
            module, params = qb.to_relax(graph, variant=variant)
        except QdqBridgeError:
            continue  # it crops more than there is, whatever the other end adds
        assert qb.from_relax(module, params).digest == graph.digest, (begin, end, sliced)


_BOUNDS = (-(1 << 31), -6, -3, -2, -1, 0, 1, 3, 1 << 31)


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("step", [1, -1, -2])
def test_slices_of_an_open_axis(step: int, variant: RelaxVariant) -> None:
    for start in _BOUNDS:
        b = Builder(18)
        x = b.input("x", ["n", 2])
        for end in _BOUNDS:
            bounds = (b.init(np.array([number])) for number in (start, end, 0, step))
            b.output(b.op("Slice", x, *bounds), None)
        graph = loaded(b.model())
        assert hosted(graph, variant).digest == graph.digest, start


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("row", ["Abs", "Sigmoid", "Softmax", "ReduceMean", "GlobalAveragePool"])
def test_what_is_computed_of_stored_constants(row: str, variant: RelaxVariant) -> None:
    b = Builder(17)
    stored = b.weight(np.arange(12, dtype=np.int8).reshape(1, 3, 2, 2), 0.1)
    b.output(b.qdq(b.op(row, stored), 0.25, 5), None)
    graph = loaded(b.model())
    assert hosted(graph, variant).digest == graph.digest


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_gemm_with_factors(dtype: type, variant: RelaxVariant) -> None:
    """Sums of integers are scaled in float64, and cast at the end."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for alpha, beta, turned, added in product((1.0, 0.5), (1.0, -2.0, 0.25), (0, 1), (0, 1, 2)):
        b = Builder(13)
        given = [b.input(name, [3, 3], kind) for name in "xyc"[: 3 if added == 1 else 2]]
        given += [b.init(np.arange(3).astype(dtype))] if added == 2 else []
        b.output(b.op("Gemm", *given, alpha=alpha, beta=beta, transA=turned), None, kind)
        graph = loaded(b.model())
        assert hosted(graph, variant).digest == graph.digest, (alpha, beta, turned, added)


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize("given", ["const", "stored", "codes", "open"])
def test_a_resize_of_everything(given: str, variant: RelaxVariant) -> None:
    """Of constants, of integers that a quantize leaves, of inputs, and over open extents."""
    ways = product(("nearest", "linear"), ("asymmetric", "half_pixel", "align_corners"))
    for (mode, coordinates), kind in product(ways, (np.float32, np.uint8, np.int32)):
        if given == "stored" and kind is not np.uint8:
            continue
        code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        for sizes in ([1, 2, 2, 3], [1, 2, 5, 6]):
            b = Builder(18)
            if given == "const":
                x = b.init((np.arange(24).reshape(1, 2, 4, 3) % 7).astype(kind))
            elif given == "stored":
                x = b.op("QuantizeLinear", b.input("x", [1, 2, 4, 3]), *b.params(0.5, 3, np.uint8))
            else:
                x = b.input("x", ["n", "c", "h", "w"] if given == "open" else [1, 2, 4, 3], code)
            y = b.op(
                "Resize", x, "", "", b.init(np.array(sizes)),
                mode=mode, coordinate_transformation_mode=coordinates,
            )  # fmt: skip
            b.output(y, None, code)
            graph = loaded(b.model())
            assert hosted(graph, variant).digest == graph.digest, (mode, coordinates, kind, sizes)


def blocks_of_an_open_extent(b: Builder) -> str:
    return b.op("SpaceToDepth", b.input("x", [1, "c", 2, 4]), blocksize=2)


def shape_of_a_dequantized_input(b: Builder) -> str:
    x = b.input("x", ["n", "n", 3], TensorProto.INT32)
    return b.op("Shape", b.op("DequantizeLinear", x, b.init(np.float32(0.02))))


def nothing_in_another_shape(b: Builder) -> str:
    x = b.input("x", [1, 2, 0, 2])
    return b.op("Reshape", x, b.init(np.array([1, 2, 0, 0])), allowzero=1)


def pad_that_wraps_one(b: Builder) -> str:
    return b.op("Pad", b.input("x", [1], TensorProto.UINT8), b.init(np.array([0, 2])), mode="wrap")


def joined_constants(b: Builder) -> str:
    stored = b.init(np.array([7, 10, 6, 6], np.uint8))
    parts = [
        b.init(np.array([0, 1, 0, 0], np.float32)),
        b.op("DequantizeLinear", stored, b.init(np.float32(1)), b.init(np.uint8(7))),
        b.init(np.array([0, 1, 0, -0.4], np.float32)),
    ]
    joined = b.op("Concat", *parts, axis=0)
    return b.op("QuantizeLinear", joined, b.init(np.float32(1)), b.init(np.int8(6)))


@pytest.mark.parametrize("variant", HOSTED)
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (blocks_of_an_open_extent, TensorProto.FLOAT),
        (shape_of_a_dequantized_input, TensorProto.INT64),
        (nothing_in_another_shape, TensorProto.FLOAT),
        (pad_that_wraps_one, TensorProto.UINT8),
        (joined_constants, TensorProto.INT8),
    ],
)
def test_what_random_graphs_found(
    make: Callable[[Builder], str], code: int, variant: RelaxVariant
) -> None:
    b = Builder(21)
    b.output(make(b), None, code)
    graph = loaded(b.model())
    assert hosted(graph, variant).text() == graph.text()
