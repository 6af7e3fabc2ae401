"""One file for processors that add pairs of products with saturation, and for those that do not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.app.quantizing import Quantization, quantization
from qdqbridge.autoquant.hardware.arithmetic import arithmetic_of, run
from qdqbridge.autoquant.hardware.pair_room import PairRoom
from qdqbridge.autoquant.planning.targets import ORT, TARGETS
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import ChannelExtremes, TensorStats
from qdqbridge.autoquant.quantize import QuantizeOptions, quantized
from qdqbridge.autoquant.search.pair_cost import (
    by_saturation,
    doubt,
    fewest,
    of_pairs,
    on_both,
    with_and_without_vnni,
)
from qdqbridge.autoquant.simulation.metrics import measured, outputs_of
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.types import QuantParams, per_tensor
from tests.targets.engines.target_networks import MODELS, Net

IMAGES = np.load(MODELS / "digits_test.npz")["x"]
DATA, UNSEEN = {"input": IMAGES[:64]}, {"input": IMAGES[100:164]}
INT16 = np.iinfo(np.int16)


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.normal(size=shape).astype(np.float32)


def drawn_product(rng: np.random.Generator) -> Node:
    """Returns a product of one of the kinds that are added in pairs."""
    b, kind = Net(), rng.integers(3)
    if kind == 0:
        groups = int(rng.choice([1, 1, 2, 3]))
        channels, size = groups * int(rng.integers(2, 6)), int(rng.choice([1, 2, 3]))
        x = b.input("x", ["n", channels, 5, 5])
        kernel = b.init(normal(rng, groups * 2, channels // groups, size, size))
        b.output(b.op("Conv", x, kernel, group=groups, pads=[size // 2] * 4))
    else:
        terms = int(rng.integers(2, 20))
        x = b.input("x", ["n", terms] if kind == 1 else ["n", 3, terms])
        matrix = b.init(normal(rng, terms, 5))
        b.output(b.op("Gemm" if kind == 1 else "MatMul", x, matrix))
    return b.done().nodes[0]


def terms_of(node: Node, stored: NDArray[Any], channels: NDArray[Any]) -> tuple[Any, Any]:
    """Returns stored weights as rows, taps outside and channels of a group inside; and the same of
    numbers of the operand's channels."""
    geometry = geometry_of(node)
    assert geometry is not None
    if not geometry.image:
        rows = stored.T if geometry.axis == 1 else stored
        return rows, np.broadcast_to(channels, rows.shape)
    out, inside = stored.shape[:2]
    rows = np.stack([np.concatenate([w[:, i, j] for i in range(w.shape[1]) for j in range(
        w.shape[2])]) for w in stored])  # fmt: skip
    group = np.arange(out) // (out // geometry.groups)
    taps = stored.shape[2] * stored.shape[3]
    return rows, np.stack([np.tile(channels[g * inside : (g + 1) * inside], taps) for g in group])


def overflows(node: Node, stored: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> bool:
    """Returns whether codes between these make a pair leave int16."""
    rows, ends = terms_of(node, stored.astype(np.int64), low)
    _, most = terms_of(node, stored, high)
    even = rows.shape[1] // 2 * 2
    products = np.stack([rows * ends, rows * most])[:, :, :even]
    up = products.max(axis=0).reshape(len(rows), -1, 2).sum(axis=2)
    down = products.min(axis=0).reshape(len(rows), -1, 2).sum(axis=2)
    return bool((up > INT16.max).any() or (down < INT16.min).any())


@pytest.mark.parametrize("seed", range(100))
def test_no_pair_of_what_was_seen_saturates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    node = drawn_product(rng)
    geometry, constant = geometry_of(node), node.operand(1).constant
    assert geometry is not None and constant is not None
    weight = constant.numpy()
    value = node.operand(0)
    axis = 1 if geometry.image else (value.rank or 0) - 1
    count = (value.type.shape or ())[axis]
    assert isinstance(count, int)
    low, high = -rng.uniform(0, 1, count) * rng.integers(2), rng.uniform(0.2, 1, count)
    low, high = low.astype(np.float32), high.astype(np.float32)
    signed = bool(rng.integers(2))
    span = float(high.max() - low.min()) / 255 * rng.uniform(0.7, 1.3)
    x = per_tensor(
        DType.INT8 if signed else DType.UINT8,
        span,
        int(np.clip(np.rint(-low.min() / span), 0, 255)) - 128 * signed,
    )
    others = tuple(i for i in range(weight.ndim) if i != geometry.axis)
    scale = np.abs(weight).max(axis=others) / 127
    zeros = np.zeros(len(scale), np.int32)
    params = QuantParams(
        DType.INT8, scale.astype(np.float32), zeros, axis=geometry.axis, qmin=-127, qmax=127
    )
    stats = replace(
        TensorStats.of(np.array([low.min(), high.max()])),
        channels=ChannelExtremes(axis, low, high),
    )
    stores_x = bool(rng.random() < 0.6)
    running = frozenset() if stores_x else frozenset([node.name])
    room = PairRoom("channels-last", {value.name: stats}, samples=1 << 20, running=running)
    reads = x if stores_x else None  # quantized while the model runs: any codes
    found = room.raised(node, params, reads)
    codes = [np.zeros(count, np.int64), np.full(count, 255)]
    if stores_x:
        codes = [quantize(each, x).astype(np.int64) + 128 * signed for each in (low, high)]
        codes[0] = np.minimum(codes[0], int(x.zero_point) + 128 * signed)
        codes[1] = np.maximum(codes[1], int(x.zero_point) + 128 * signed)
    assert stores_x or PairRoom("channels-last", {}, samples=1).raised(node, params, None) is params

    before, stored = quantize(weight, params), quantize(weight, found)
    assert not overflows(node, stored, *codes)
    assert (found is not params) == overflows(node, before, *codes)
    factor = found.scale.astype(np.float64) / params.scale.astype(np.float64)
    assert (factor >= 1).all() and (factor <= 2.02).all()
    assert room.raised(node, found, reads) is found  # what was raised is not raised again

    limits = room.limits(node, stored, found, reads)
    assert limits is not None
    assert (limits[0] <= stored).all() and (stored <= limits[1]).all()
    for end in limits:
        assert not overflows(node, end, *codes)
    mixed = np.where(rng.integers(2, size=stored.shape), *limits)
    assert not overflows(node, mixed, *codes)


def decibels(found: Quantization, *, pairs: bool) -> float:
    """Returns how close unseen samples come where pairs saturate, or do not."""
    return of_graph(found.graph, found.original, UNSEEN, pairs=pairs)


def of_graph(graph: Graph, original: Graph, data: dict[str, Any], *, pairs: bool) -> float:
    ran = run(graph, data, arithmetic_of(pairs=pairs))
    wanted = outputs_of(original, [data])
    return measured(graph.output_names, wanted, [list(ran.outputs.values())]).sqnr


@cache
def made(name: str, target: str) -> Quantization:
    wanted: dict[str, Any] = {"repair": ("learn",), "tune": False}
    exact = replace(TARGETS[target.removesuffix(" exact")], avoided_pairs=None)
    chosen = exact if target.endswith(" exact") else target
    return quantization(MODELS / f"digits_{name}_float.onnx", DATA, target=chosen, **wanted)


@pytest.mark.parametrize(
    ("name", "target"),
    [("cnn", "ort"), ("mlp", "ort-s8"), ("mlp", "dynamic")],
)
def test_one_file_is_as_good_where_pairs_saturate(name: str, target: str) -> None:
    found = made(name, target)
    exact = decibels(found, pairs=False)
    assert decibels(found, pairs=True) >= exact - 1
    assert exact >= decibels(made(name, f"{target} exact"), pairs=False) - 1


def test_no_pair_saturates_of_rows_that_are_quantized_while_the_model_runs() -> None:
    found, exact = made("mlp", "dynamic-rows"), made("mlp", "dynamic-rows exact")
    assert decibels(found, pairs=True) == decibels(found, pairs=False)
    assert decibels(found, pairs=True) > decibels(exact, pairs=True) + 20


def test_a_network_that_was_not_told_of_pairs_loses_by_them() -> None:
    found = made("cnn", "ort exact")
    assert decibels(found, pairs=True) < decibels(found, pairs=False) - 10


def costly() -> tuple[Graph, dict[str, NDArray[Any]]]:
    """A product of which every pair saturates, and whose weights alone are rounded."""
    rng = np.random.default_rng(0)
    b = Net()
    signs = rng.choice([-1.0, 1.0], (16, 8)).repeat(2, axis=0)
    weight = (signs * rng.uniform(0.9, 1, (32, 8))).astype(np.float32)
    b.output(b.op("MatMul", b.input("x", ["n", 32]), b.init(weight)))
    levels = rng.integers(0, 256, (64, 32))
    levels[:, ::2] = levels[:, 1::2]
    levels[0] = 255
    return b.done(), {"x": (levels / 255).astype(np.float32)}


def test_where_avoiding_pairs_costs_much_both_figures_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    graph, data = costly()
    found = quantization(graph, data, repair=("bias",))
    step = next(step for step in found.made.repairs if step.step == "pairs")
    assert not step.applied and step.before is not None and step.after is not None
    assert step.before - step.after > 3
    left_out = {"x": data["x"][list(found.left_out)]}
    exact, paired = (of_graph(found.graph, graph, left_out, pairs=pairs) for pairs in (False, True))
    assert paired < exact - 10
    told = caplog.messages[-1]
    assert told == step.outcome and told.startswith(
        f"{exact:.2f} dB on x86 with VNNI and on Arm; {paired:.2f} dB on x86 without VNNI (AVX2)"
    )
    assert told.endswith("for processors without VNNI quantize with --avoid-pairs")
    avoided = quantization(graph, data, avoid_pairs=True)
    again = of_graph(avoided.graph, graph, data, pairs=True)
    assert again == of_graph(avoided.graph, graph, data, pairs=False) > paired + 10


def test_pairs_may_saturate_in_some_products_which_is_told() -> None:
    """One product saturates in one sample, another in most: the first keeps its scales."""
    rng = np.random.default_rng(1)
    b, ends = Net(), {"often": 0.51, "seldom": 0.9}
    signs = rng.choice([-1.0, 1.0], (16, 8)).repeat(2, axis=0)
    for name, low in ends.items():
        weight = signs * rng.uniform(low, low + 0.1, (32, 8))
        x, kernel = b.input(name, ["n", 32]), b.init(weight.astype(np.float32))
        b.output(b.op("MatMul", x, kernel))
    levels = rng.integers(0, 256, (2, 64, 32))
    levels[0] = 255 - levels[0] // 4
    levels[1, 1:] //= 2
    data = {n: (each / 255).astype(np.float32) for n, each in zip(ends, levels, strict=True)}
    plain, graph = QuantizeOptions(repair=(), tune=False), b.done()
    none = replace(ORT, avoided_pairs=None)
    exact, avoided = (quantized(graph, data, replace(plain, target=t)) for t in (none, ORT))
    room, samples = avoided.decision.plan.room, Samples.of(graph.inputs, data)
    assert room is not None
    often, seldom = room.raised_by
    assert by_saturation(exact, room.raised_by, samples) == [seldom, often]

    some = replace(ORT, saturating=frozenset([seldom]))
    partly = quantized(graph, data, replace(plain, target=some))
    scales = [
        {w.node.name: p.scale.tobytes() for w, p in each.decision.weights.items()}
        for each in (exact, avoided, partly)
    ]
    assert scales[2] == {often: scales[1][often], seldom: scales[0][seldom]}
    assert scales[0][seldom] != scales[1][seldom] and scales[0][often] != scales[1][often]

    warnings = list[str]()
    asked = of_pairs(50.0, 49.5, [seldom]), graph, partly, samples, "--avoid-pairs"
    (step,) = on_both(asked[:1], *asked[1:], warnings.append)
    best, worst = with_and_without_vnni(graph, partly.graph, samples)
    figures = f"{best:.2f} dB on x86 with VNNI and on Arm; {worst:.2f} dB on x86 without VNNI"
    assert step.applied and f"but in 1 product: {figures}" in step.outcome
    assert worst < best - 1 and len(warnings) == 1 and figures in warnings[0]
    untouched = of_pairs(50.0, 49.5)
    assert on_both([untouched], graph, avoided, *asked[3:], warnings.append) == (untouched,)
    assert len(warnings) == 1


@pytest.mark.parametrize("seed", range(20))
def test_what_surely_costs_too_much_is_not_avoided(seed: int) -> None:
    """Errors of the same samples move together; how much more they are is known far better."""
    rng = np.random.default_rng(seed)
    exact = rng.lognormal(sigma=1.0, size=16)
    costs = 1.02, 2.5, 1.02
    apart = exact * rng.lognormal(sigma=[[0.1], [0.1], [0.8]], size=(3, 16))
    apart *= exact.mean() / apart.mean(axis=1, keepdims=True)  # costs are what is measured
    slightly, surely, unclear = apart * 10 ** (np.array(costs)[:, None] / 10)
    assert doubt(exact, exact) == 0.0
    assert 0.02 < doubt(exact, slightly) < doubt(exact, unclear) <= 1.0
    steps = [
        of_pairs(50.0, 50.0 - cost, doubt=doubt(exact, each))
        for cost, each in zip(costs, (slightly, surely, unclear), strict=True)
    ]
    assert [step.applied for step in steps] == [True, False, True]


@pytest.mark.parametrize("count", [1, 2, 3, 17, 50])
def test_as_few_products_saturate_as_are_enough(count: int) -> None:
    names = [str(i) for i in range(count)]
    for enough in range(1, count + 1):
        found = fewest(names, lambda some: float(len(some)), float(enough))
        assert found == frozenset(names[: enough if enough < count else 0])


def test_files_whose_pairs_hold_stay_as_they_are() -> None:
    rng = np.random.default_rng(3)
    b = Net()
    weight = normal(rng, 32, 8)
    weight[1::2] *= 0.005  # the neighbours of large weights are small
    b.output(b.op("MatMul", b.input("x", ["n", 32]), b.init(weight)))
    graph, data = b.done(), {"x": rng.uniform(0, 1, (64, 32)).astype(np.float32)}
    wanted = replace(ORT, avoided_pairs=None)
    one, other = (qb.quantize(graph, data, target=target, repair=()) for target in (ORT, wanted))
    assert one.digest == other.digest


def test_what_does_not_saturate_is_not_looked_at() -> None:
    node = drawn_product(np.random.default_rng(0))
    room = PairRoom("channels-last", {}, 1)
    weight = node.operand(1).constant
    assert weight is not None
    wide, byte = per_tensor(DType.UINT16, 0.1, 0), per_tensor(DType.UINT8, 0.1, 0)
    for params, x in (
        (per_tensor(DType.INT8, 1e-3), wide),
        (per_tensor(DType.UINT8, 1e-3, 128), byte),
        (per_tensor(DType.INT4, 1e-3), byte),
    ):
        assert isinstance(params, QuantParams)
        assert room.raised(node, params, x) is params


@pytest.mark.parametrize("seed", range(100))
def test_no_pair_saturates_on_the_samples_that_were_looked_at(seed: int) -> None:
    rng = np.random.default_rng(seed)
    node = drawn_product(rng)
    geometry, constant = geometry_of(node), node.operand(1).constant
    assert geometry is not None and constant is not None
    value, weight = node.operand(0), constant.numpy()
    axis = 1 if geometry.image else (value.rank or 0) - 1
    shape = [4 if isinstance(extent, str) else extent for extent in value.type.shape or ()]
    array = normal(rng, *shape)
    if rng.integers(2):
        array = np.maximum(array, 0)
    ends = float(array.min()), float(array.max())
    span = (ends[1] - min(ends[0], 0)) / 255
    x = per_tensor(DType.UINT8, span, int(np.rint(-min(ends[0], 0) / span)))
    others = tuple(i for i in range(weight.ndim) if i != geometry.axis)
    scale = (np.abs(weight).max(axis=others) / 127).astype(np.float32)
    zeros = np.zeros(len(scale), np.int32)
    params = QuantParams(DType.INT8, scale, zeros, axis=geometry.axis, qmin=-127, qmax=127)
    rest = tuple(i for i in range(array.ndim) if i != axis)
    extremes = ChannelExtremes(axis, array.min(axis=rest), array.max(axis=rest))
    stats = {value.name: replace(TensorStats.of(array), channels=extremes)}
    graph = Graph([value], [node.output], ["y"], [node])
    apart = PairRoom("channels-last", stats, 4)
    room = PairRoom("channels-last", stats, 4, graph, lambda values: [{values[0]: array}])
    found, alone = room.raised(node, params, x), apart.raised(node, params, x)
    least, own, most = (each.scale.astype(np.float64) for each in (params, found, alone))
    assert (least <= own).all() and (own <= most).all()
    stored = quantize(weight, found)
    ends_of = room.limits(node, stored, found, x) or (stored, stored)
    for integers in (stored, *ends_of, np.where(rng.integers(2, size=stored.shape), *ends_of)):
        assert largest_pair(node, integers, quantize(array, x)) <= INT16.max


def largest_pair(node: Node, stored: NDArray[Any], codes: NDArray[Any]) -> int:
    """Returns the largest sum of a pair over every place of a window, borders left out."""
    geometry, codes, stored = geometry_of(node), codes.astype(np.int64), stored.astype(np.int64)
    assert geometry is not None
    if not geometry.image:
        columns = codes.reshape(-1, codes.shape[-1])[:, None]
        rows = (stored.T if geometry.axis == 1 else stored)[None]
    else:
        size = stored.shape[2]
        views = np.lib.stride_tricks.sliding_window_view(codes, (size, size), axis=(2, 3))
        taken = np.moveaxis(views, 1, -1).reshape(-1, size * size, codes.shape[1])
        group = np.arange(len(stored)) // (len(stored) // geometry.groups)
        inside = stored.shape[1]
        cut = [taken[:, :, g * inside : (g + 1) * inside].reshape(len(taken), -1) for g in group]
        columns = np.stack(cut, axis=1)
        rows = np.moveaxis(stored, 1, -1).reshape(1, len(stored), -1)
    each = columns * rows
    even = each.shape[2] // 2 * 2
    return int(np.abs(each[:, :, :even:2] + each[:, :, 1:even:2]).max(initial=0))


def test_a_small_product_whose_pairs_all_saturate_is_computed_in_two_parts() -> None:
    rng = np.random.default_rng(5)
    b = Net()
    x = b.input("x", ["n", 64])
    wide = b.op("Relu", b.op("Gemm", x, b.init(normal(rng, 64, 200) / 8)))
    inside = b.op("Tanh", b.op("Gemm", wide, b.init(normal(rng, 200, 32))))
    signs = rng.choice([-1.0, 1.0], (16, 4)).repeat(2, axis=0)
    head = b.init((signs * rng.uniform(0.8, 1, (32, 4))).astype(np.float32))
    b.output(b.op("Gemm", inside, head, b.init(normal(rng, 4))))
    graph, data = b.done(), {"x": normal(rng, 64, 64)}
    found = quantization(graph, data)
    exact = quantization(graph, data, target=replace(ORT, avoided_pairs=None))
    assert len(found.graph.nodes) == len(exact.graph.nodes) + 2
    unseen = {"x": normal(rng, 64, 64)}
    paired, without = (of_graph(found.graph, graph, unseen, pairs=p) for p in (True, False))
    best = of_graph(exact.graph, graph, unseen, pairs=False)
    assert min(paired, without) >= best - 1
    assert of_graph(exact.graph, graph, unseen, pairs=True) < best - 5
