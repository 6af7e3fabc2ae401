"""Bodies of If, Loop and Scan: what is seen in them, and what they become."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.profiling.collect import collect, onnxruntime_observer, profile_model
from qdqbridge.autoquant.profiling.control_flow import watched
from qdqbridge.autoquant.profiling.profile import merge, profile_text
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import InputDataError
from tests.control_flow_models import (
    HIDDEN,
    ROWS,
    digits,
    if_network,
    loop_network,
    nested_network,
    recurrent_weights,
    scan_network,
)
from tests.exact_sessions import exact_session
from tests.onnx_models import canonical

PLAIN: dict[str, Any] = {"repair": (), "tune": False}
NETWORKS = {"Loop": loop_network, "Scan": scan_network, "If": if_network, "nested": nested_network}


@pytest.fixture(scope="module", params=list(NETWORKS))
def network(request):
    return canonical(NETWORKS[request.param]())


def profiled(graph, images, start=None):
    samples = Samples.of(graph.inputs, {"x": images})
    return collect(graph, samples, onnxruntime_observer(graph), start=start)


def states(images):
    w, u, b, *_ = recurrent_weights()
    h, found = np.zeros((len(images), HIDDEN), np.float32), []
    for row in range(ROWS):
        h = np.tanh(images[:, row] @ w + h @ u + b)
        found.append(h)
    return np.array(found)


# ---- statistics


@pytest.mark.parametrize(
    ("make", "name"),
    [(loop_network, "recurrence/body/h_next"), (scan_network, "encoder/body/h_next")],
)
def test_statistics_are_those_of_every_step(make, name):
    images, _ = digits(12)
    graph = canonical(make())
    seen = profiled(graph, images).by_name()[name]
    wanted = states(images)
    assert seen.count == wanted.size
    # sums of float32 in another order
    assert seen.maximum == pytest.approx(wanted.max(), abs=1e-6)
    assert seen.minimum == pytest.approx(wanted.min(), abs=1e-6)  # likewise


def test_only_the_branch_that_is_taken_is_seen():
    images, _ = digits(40)
    bright = images.mean(axis=(1, 2)) > 0.31
    assert 0 < bright.sum() < len(bright)
    seen = profiled(canonical(if_network(above=0.31)), images).by_name()
    assert seen["choice/then_branch/bright_y"].count == 10 * bright.sum()
    assert seen["choice/else_branch/dark_y"].count == 10 * (~bright).sum()


def test_a_body_in_a_body_is_seen():
    images, _ = digits(6)
    seen = profiled(canonical(nested_network()), images).by_name()
    inner = [name for name in seen if "/then_branch/" in name or "/else_branch/" in name]
    assert inner
    counts = {name: seen[name].count for name in inner if name.endswith("_next")}
    assert sum(counts.values()) == len(images) * ROWS * HIDDEN


def test_shards_and_resumption_change_no_byte(network):
    images, _ = digits(9)
    whole = profile_text(profiled(network, images))
    shards = merge([profiled(network, part) for part in (images[6:], images[:2], images[2:6])])
    assert profile_text(shards) == whole
    assert profile_text(profiled(network, images, start=profiled(network, images[:5]))) == whole


@pytest.mark.slow  # in the gate: other models by workers, bodies in shards
def test_workers_change_no_byte():
    images, _ = digits(20)
    graph = canonical(loop_network())
    alone = profile_model(graph, {"x": images}, threads=1)
    assert any(name.startswith("recurrence/body/") for name in alone.by_name())
    assert profile_text(profile_model(graph, {"x": images}, workers=2)) == profile_text(alone)


def test_names_of_watched_tensors_are_their_own(network):
    names = [value.name for value in watched(network)]
    assert len(names) == len(set(names))


# ---- quantization


def session(graph, path, *, optimized=True):
    qb.save(graph, path, overwrite=True)
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return exact_session(path, options)


def integers_inside(made):
    """Returns the names of the nodes in bodies that are quantized."""
    bodies = [body.made for body in made.made.inside if body.made is not None]
    return {node.name for body in bodies for node in body.decision.plan.rules}


def feeds(graph, images):
    step = 1 if graph.inputs[0].type.shape[0] == 1 else len(images)
    return [{"x": images[i : i + step]} for i in range(0, len(images), step)]


def sqnr(wanted, found):
    return 10 * np.log10((wanted**2).sum() / ((found - wanted) ** 2).sum())


def test_integers_inside_compute_the_same_in_onnxruntime(network, tmp_path):
    """No LSB is lost: what a Gemm gives as floats is at most a few ulp of another order away."""
    images, _ = digits(40)
    graph = qb.quantize(network, {"x": images}, repair=())
    assert qb.load(_saved(graph, tmp_path)).digest == graph.digest
    unseen, _ = digits(12, test=True)
    for optimized in (False, True):
        run = session(graph, str(tmp_path / "q.onnx"), optimized=optimized)
        for feed in feeds(graph, unseen):
            ours, _ = evaluate(graph, feed)
            for mine, theirs in zip(ours.values(), run.run(None, feed), strict=True):
                np.testing.assert_allclose(
                    np.asarray(theirs), mine, rtol=0, atol=1e-6
                )  # floats, another order


def _saved(graph, tmp_path):
    qb.save(graph, tmp_path / "saved.onnx", overwrite=True)
    return tmp_path / "saved.onnx"


@pytest.mark.parametrize(
    ("make", "products", "least"),
    [
        (loop_network, {"cell_input", "cell_state"}, 28.0),
        (scan_network, {"cell_input", "cell_state"}, 25.0),
        (if_network, {"bright_gemm", "dark_gemm"}, 30.0),
    ],
)
def test_products_in_bodies_are_integers(make, products, least, tmp_path):
    graph = canonical(make(above=0.31) if make is if_network else make())
    images, _ = digits(120)
    made = quantization(graph, {"x": images})
    rules = integers_inside(made)
    assert products <= rules
    file = onnx.load(_saved(made.graph, tmp_path))
    holder = next(n for n in file.graph.node if n.op_type in ("If", "Loop", "Scan"))
    bodies = [a.g for a in holder.attribute if a.type == onnx.AttributeProto.GRAPH]
    stored = {t.data_type for body in bodies for t in body.initializer if len(t.dims) == 2}
    assert stored == {onnx.TensorProto.INT8}
    unseen, classes = digits(60, test=True)
    float_, ours = (
        np.concatenate([next(iter(evaluate(g, f)[0].values())) for f in feeds(g, unseen)])
        for g in (graph, made.graph)
    )
    assert sqnr(float_, ours) > least
    hits = [(each.argmax(1) == classes).mean() for each in (float_, ours)]
    assert hits[1] >= hits[0] - 0.02


def test_a_branch_never_taken_stays_float_and_is_told():
    graph = canonical(if_network(above=-1.0))
    images, _ = digits(20)
    made = quantization(graph, {"x": images}, **PLAIN)
    by_place = {body.body.place: body for body in made.made.inside}
    assert by_place["choice/then_branch/"].integers == 1
    assert by_place["choice/else_branch/"].made is None
    assert by_place["choice/else_branch/"].reason == "no sample takes this branch"
    stored = quantization(graph, {"x": images}, target="weight-only", **PLAIN)
    assert [body.integers for body in stored.made.inside] == [1, 1]  # it needs no statistics


@pytest.mark.parametrize("target", ["weight-only", "dynamic", "qnn", "tensorrt", "ort-s8"])
def test_other_targets_quantize_bodies(target, tmp_path):
    graph = canonical(loop_network())
    images, _ = digits(24)
    made = quantization(graph, {"x": images}, target=target, **PLAIN)
    assert sum(body.integers for body in made.made.inside) >= 2
    unseen, _ = digits(12, test=True)
    run = session(made.graph, str(tmp_path / "q.onnx"), optimized=False)
    (ours,) = evaluate(made.graph, {"x": unseen})[0].values()
    (theirs,) = run.run(None, {"x": unseen})
    np.testing.assert_allclose(np.asarray(theirs), ours, rtol=0, atol=1e-6)  # floats, another order


def test_names_mean_nodes_in_bodies_too():
    graph = canonical(loop_network())
    data = {"x": digits(16)[0]}

    def integers(**wanted):
        made = quantization(graph, data, **PLAIN, **wanted)
        return integers_inside(made), {node.name for node in made.made.decision.plan.rules}

    everything, outer = integers()
    assert integers(exclude=["cell_state"]) == (everything - {"cell_state"}, outer)
    assert integers(exclude=["recurrence"]) == (set(), outer)
    assert integers(only=["cell_input"]) == ({"cell_input"}, set())
    assert integers(only=["recurrence"]) == (everything, set())
    with pytest.raises(InputDataError, match="no node is called 'nobody'"):
        integers(exclude=["nobody"])


def test_a_goal_leaves_bodies_float_only_where_it_has_to():
    graph = canonical(scan_network())
    made = quantization(graph, {"x": digits(40)[0]}, **PLAIN)
    few, many = made.meeting(min_sqnr=20.0), made.meeting(min_sqnr=60.0)
    assert few.fallback is not None and few.fallback.decision.bodies
    assert many.fallback is not None and not many.fallback.decision.bodies
    assert many.fallback.metrics.sqnr >= 60.0
    assert {r.layer.name for r in many.fallback.reverted} >= {"encoder"}
    assert all("stay float" in body.reason for body in many.inside)


def test_the_report_names_nodes_in_bodies(tmp_path):
    made = quantization(canonical(loop_network()), {"x": digits(16)[0]}, **PLAIN)
    made.report(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "recurrence/body/pick" in text or "recurrence/body/h_next" in text
    budget = made.within(max_bytes=7200)
    assert budget.fallback is not None and budget.fallback.decision.bodies


def test_a_profile_alone_is_enough():
    graph = canonical(loop_network())
    images, _ = digits(16)
    made = quantization(graph, None, profile=profiled(graph, images))
    assert sum(body.integers for body in made.made.inside) >= 2


def test_what_loses_too_much_gets_fewer_integers():
    made = quantization(canonical(scan_network()), {"x": digits(120)[0]})
    record = next(r for r in made.made.repairs if r.step == "bodies")
    assert (record.after or 0.0) >= 30.0 or "as the target says" not in record.outcome
