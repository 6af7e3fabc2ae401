"""TVM's own auto-quantization as Q/DQ files."""

import warnings

import numpy as np
import onnxruntime as ort
import pytest
import tvm
from tvm import relay
from tvm.relay import quantize

import qdqbridge
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.operator import Flow
from qdqbridge.errors import InputDataError, UnsupportedModelError, UnsupportedTargetError
from qdqbridge.tvm.relay.read import export_quantized, from_simulated
from qdqbridge.tvm.relay.read.entry import NAME, Grid
from qdqbridge.tvm.relay.read.export import calibrated
from tests.places import MODELS
from tests.tvm.relay.relay_side import fixed, imported, run_each

IMAGES = np.load(MODELS / "digits_test.npz")
CALIBRATION = [{"input": image[None]} for image in IMAGES["x"][:32]]
EVERY_LAYER = {"skip_conv_layers": [], "global_scale": 4.0}


@pytest.fixture(scope="module")
def network():
    return imported(fixed(MODELS / "digits_cnn_float.onnx"))


def params(value):
    assert value.quant is not None
    return value.quant.params


def simulated_calls(module):
    calls = []

    def visit(expr):
        if isinstance(expr, relay.Call) and expr.op == relay.op.get(NAME) and expr.attrs.kind != 2:
            calls.append(expr)

    relay.analysis.post_order_visit(module["main"], visit)
    return calls


def watched(module, calls):
    """Returns the module with what each call takes and gives as further results."""
    main = module["main"]
    fields = [main.body, *(call.args[0] for call in calls), *calls]
    return tvm.IRModule.from_expr(relay.Function(main.params, relay.Tuple(fields)))


def by_onnxruntime(path, rows):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.concatenate([np.asarray(session.run(None, {"input": row[None]})[0]) for row in rows])


@pytest.mark.parametrize(
    ("mode", "weight_scale"),
    [
        ("global_scale", "power2"),
        ("percentile", "max"),
        pytest.param("percentile", "power2", marks=pytest.mark.slow),
        pytest.param("kl_divergence", "max", marks=pytest.mark.slow),
    ],
)
def test_the_file_agrees_with_relays_simulation(mode, weight_scale, network, tmp_path):
    config = {"calibrate_mode": mode, "weight_scale": weight_scale, **EVERY_LAYER}
    with quantize.qconfig(**config):
        module = calibrated(network, None, CALIBRATION)
    expected, *_ = run_each(module, "input", IMAGES["x"])
    graph = export_quantized(network, None, CALIBRATION, tmp_path / "q.onnx", qconfig=config)
    actual = by_onnxruntime(tmp_path / "q.onnx", IMAGES["x"])
    assert (actual.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.99
    assert (
        graph.digest == from_simulated(module).digest == qdqbridge.load(tmp_path / "q.onnx").digest
    )
    assert [n.op.name for n in graph.nodes if n.output.quant][:3] == ["quantize", "Conv", "Conv"]


def test_value_by_value_only_ties_differ(network):
    """On Relay's own values, Q rounds as TVM does but for exact halves."""
    with quantize.qconfig(calibrate_mode="global_scale", **EVERY_LAYER):
        module = calibrated(network, None, None)
    calls = simulated_calls(module)
    _, *values = run_each(watched(module, calls), "input", IMAGES["x"][:60])
    ties = 0
    for call, taken, given in zip(calls, values, values[len(calls) :], strict=False):
        scale = np.float32(call.args[1].data.numpy())
        ratio = taken / scale
        codes = np.clip(np.rint(ratio), -127, 127)
        different = codes != np.rint(given / scale)
        halves = np.abs(ratio - np.trunc(ratio)) == 0.5
        assert (different <= halves).all()
        ties += int(different.sum())
    assert ties > 100  # a power of two as scale makes halves common


def test_layers_differ_only_where_the_bias_is_finer(network):
    """Each Conv on Relay's codes: TVM's bias is a float, ours in units of scale_x * scale_w."""
    with quantize.qconfig(calibrate_mode="percentile", **EVERY_LAYER):
        module = calibrated(network, None, CALIBRATION)
    calls = simulated_calls(module)
    _, *values = run_each(watched(module, calls), "input", IMAGES["x"][:60])
    graph = from_simulated(module)
    codes = {
        f"simulated_quantize_{i + 1}": np.rint(
            values[len(calls) + i] / np.float32(call.args[1].data.numpy())
        )
        for i, call in enumerate(calls)
    }
    near = {f"simulated_quantize_{i + 1}": values[i] for i in range(len(calls))}
    convs = [n for n in graph.nodes if n.op.name == "Conv" and n.operand(0).name in codes]
    assert len(convs) >= 3
    for conv in convs:
        x, w, y = params(conv.operand(0)), params(conv.operand(1)), params(conv.output)
        stored = evaluate_node(conv, [
            codes[conv.operand(0).name].astype(np.int8),
            *(None if v is None or v.constant is None else v.constant.numpy()
              for v in conv.inputs[1:]),
        ])[0]  # fmt: skip
        different = stored != np.clip(codes[conv.output.name], y.qmin, y.qmax)
        ratio = near[conv.output.name][different] / float(y.scale)
        unit = float(x.scale) * float(w.scale) / float(y.scale)
        to_half = np.abs(np.abs(ratio - np.floor(ratio)) - 0.5)
        assert (to_half <= 0.5 * unit + 1e-4).all()
        assert different.mean() < 0.01


def test_defaults_leave_the_first_conv_and_the_classifier_float(network):
    with quantize.qconfig(calibrate_mode="global_scale", global_scale=4.0):
        graph = from_simulated(calibrated(network, None, None))
    products = [n for n in graph.nodes if n.op.flow is Flow.ACCUMULATE]
    assert [n.operand(0).quant is None for n in products] == [True, *[False] * 4, True]


def test_modes_that_observe_need_data(network, tmp_path):
    with pytest.raises(InputDataError, match="percentile"):
        export_quantized(
            network, None, None, tmp_path / "q.onnx", qconfig={"calibrate_mode": "percentile"}
        )


def test_an_unknown_mode_is_named(network):
    with (
        quantize.qconfig(calibrate_mode="guess"),
        pytest.raises(UnsupportedTargetError, match="guess"),
    ):
        calibrated(network, None, CALIBRATION)


def test_tvms_own_quantize_gives_the_same_activations(network):
    """What ``relay.quantize.quantize`` returns is read too; its weights are float by then."""
    config = {"calibrate_mode": "global_scale", "do_simulation": True, **EVERY_LAYER}
    with quantize.qconfig(**config), tvm.transform.PassContext(opt_level=3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TVM reads NumPy's np.math
            module = quantize.quantize(network)
        ours = calibrated(network, None, None)
    rows = IMAGES["x"][:3]
    (a,), (b,) = run_each(module, "input", rows), run_each(ours, "input", rows)
    # Folded into other constants: sums of floats in another order.
    np.testing.assert_allclose(a, b, atol=1e-5)
    graph = from_simulated(module)
    assert any(n.output.quant for n in graph.nodes)


# ---- single calls ------------------------------------------------------------------------------


MAKE = quantize._quantize.simulated_quantize


def annotated(x, scale, low=-127.0, high=127.0, kind=1):
    numbers = [relay.const(np.float32(n)) for n in (scale, low, high)]
    return MAKE(x, *numbers, kind, True, "round")


def read(body, *variables):
    return from_simulated(relay.Function(list(variables), body))


X = relay.var("x", shape=(1, 4))


def test_an_activation_is_q_and_dq_over_the_narrow_range():
    graph = read(annotated(X, 0.5), X)
    grid = params(graph.nodes[0].output)
    assert (grid.qmin, grid.qmax, float(grid.scale)) == (-127, 127, 0.5)
    out = qdqbridge.evaluate(graph, {"x": np.array([[0.2, -200.0, 200.0, 0.8]], np.float32)})
    np.testing.assert_array_equal(out["output"], [[0, -63.5, 63.5, 1.0]])


def test_four_bits_are_a_narrower_range():
    grid = params(read(annotated(X, 0.5, -7.0, 7.0), X).nodes[0].output)
    assert (str(grid.storage_dtype), grid.qmin, grid.qmax) == ("int8", -7, 7)


def test_thirty_two_bits_are_a_clamp():
    wide = annotated(annotated(X, 0.5), 2.0**-28, -(2.0**31), 2.0**31, kind=3)
    graph = read(wide, X)
    assert graph.nodes[-1].op.name == "Clip"
    assert graph.nodes[-1].attributes.high == 8.0
    assert any(note.rule == "simulated-bits" for note in graph.notes)


def test_a_scale_that_is_no_number_is_refused():
    numbers = [relay.var(name, shape=()) for name in ("dom_scale", "low", "high")]
    call = MAKE(X, *numbers, 1, True, "round")
    with pytest.raises(UnsupportedModelError, match="not calibrated"):
        from_simulated(relay.Function([X, *numbers], call))


def test_a_module_without_annotations_is_refused():
    with pytest.raises(UnsupportedModelError, match="not annotated"):
        read(relay.nn.relu(X), X)


def test_constants_are_rounded_as_tvm_rounds_them():
    grid = Grid(np.float32(0.5), -127, 127)
    x = np.array([0.25, -0.25, 0.75, 0.2, 1e9, -1e9], np.float32)
    np.testing.assert_array_equal(grid.integers(x), [1, -1, 2, 0, 127, -127])
