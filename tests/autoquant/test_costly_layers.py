"""A few layers stay float where 16 bits everywhere are better, which the engine has in floats."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.planning.targets import ORT
from qdqbridge.autoquant.quantize import QuantizeOptions
from qdqbridge.autoquant.search import operator_choice
from qdqbridge.autoquant.search.operator_choice import COSTLY_GAIN as GAIN
from qdqbridge.autoquant.search.operator_choice import STEP, _ChoiceTrials, left_float
from tests.onnx_models import Builder

LOUD = 10.0
"""How much larger one channel of the input is than the others; its weights are as much smaller."""


def attending(path, *, normed=False):
    """Masked attentions, which 8 bits everywhere destroy, behind a product of a loud channel.

    ``normed`` puts norms before them whose channels can be scaled.
    """
    rng, size = np.random.default_rng(0), 16
    b = Builder(17)

    def product(x, spread=1.0):
        return b.op("MatMul", x, b.init((rng.standard_normal((size, size)) / 4).astype("f4")))

    first = (rng.standard_normal((size, size)) / 4).astype(np.float32)
    first[0] /= LOUD
    h = b.op("MatMul", b.input("x", ["n", 8, size]), b.init(first))
    mask = b.init(np.triu(np.full((8, 8), -1e3, np.float32), 1))
    for _ in range(2):
        gain = b.init(np.linspace(0.2, 3, size, dtype=np.float32))
        x = b.op("LayerNormalization", h, gain, axis=-1) if normed else h
        q, k, v = (product(x) for _ in range(3))
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
        shares = b.op("Softmax", b.op("Add", scores, mask), axis=-1)
        h = b.op("Add", h, product(b.op("MatMul", shares, v)))
    b.output(h)
    onnx.save(b.model(), path)
    return path


def drawn(seed, count):
    x = np.random.default_rng(seed).standard_normal((count, 8, 16)).astype(np.float32)
    x[..., 0] *= LOUD
    return {"x": x}


@pytest.mark.parametrize("normed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_product_that_costs_most_stays_float(tmp_path, normed):
    path = attending(tmp_path / "f.onnx", normed=normed)
    made = quantization(path, drawn(1, 48), preset="full")
    first = made.made.repairs[0]
    names = [node.name for node in qb.load(path).nodes if node.op.name == "MatMul"]
    assert first.step == STEP and first.applied
    assert f"on integers, except {names[0]}" in first.outcome
    left = {node.name for node in made.made.decision.plan.rules}
    assert names[0] not in left and len(left) >= len(names) // 2
    assert first.after is not None and first.before is not None
    unseen = drawn(2, 48)
    (real,), (rough,) = (qb.evaluate(g, unseen).values() for g in (qb.load(path), made.graph))
    assert 10 * np.log10((real**2).sum() / ((rough - real) ** 2).sum()) > 20


def test_layers_are_left_float_while_each_gains_and_the_goal_is_far():
    gains = {"a": 4.0, "b": GAIN, "c": GAIN / 2, "d": 9.0}

    def tried(target):
        floats = [
            name
            for name in gains
            if not any(r.when(_Named(name)) for r in target.rules if r.quantized)
        ]
        return 20.0 + sum(gains[name] for name in floats)

    names = [*gains]
    target, left, sqnr = left_float(ORT, names, tried, 20.0, 99.0)
    assert list(left) == ["a", "b"] and sqnr == 24.0 + GAIN
    assert tried(target) == sqnr
    _, left, sqnr = left_float(ORT, names, tried, 20.0, 23.0)
    assert list(left) == ["a"] and sqnr == 24.0
    assert left_float(ORT, names, tried, 20.0, 19.0) == (ORT, [], 20.0)


class _Named:
    """As much of a node as rules look at that are about all."""

    def __init__(self, name):
        self.name = name


@pytest.fixture
def tried(monkeypatch):
    """What is chosen where attempts have given figures, the target's own rules 10 dB."""
    monkeypatch.setattr(operator_choice, "costly", lambda *_: ["l0", "l1", "l2"])
    monkeypatch.setattr(operator_choice, "spread", lambda *_: None)
    monkeypatch.setattr(operator_choice._Attempt, "changes", lambda *_: True)
    monkeypatch.setattr(_ChoiceTrials, "quantized", lambda *_: None)
    plan = SimpleNamespace(rules=[_Named("x")])
    made: Any = SimpleNamespace(target=ORT, decision=SimpleNamespace(plan=plan))
    nothing: Any = None

    def run(*figures, enough=99):
        work: Any = SimpleNamespace(left=True)
        asked: list[float] = []

        def sqnr(*_):
            asked.append(figures[len(asked)])
            work.left = len(asked) < enough
            return asked[-1]

        monkeypatch.setattr(_ChoiceTrials, "sqnr", sqnr)
        seen: Any = SimpleNamespace(few=())
        trials = _ChoiceTrials(seen, made, nothing, nothing, work)
        _, record = trials.chosen(QuantizeOptions(), 10.0, QuantizeOptions())
        assert record is not None
        return record.outcome.partition(";")[0], record.after, len(asked)

    return run


def test_layers_are_left_float_from_the_choice_that_was_kept(tried):
    """Products with weights only are closer by 0.1 dB, which is not worth the other products."""
    told, after, _ = tried(10.5, 14.0, 14.1, 30.0, 15.0, 15.2)
    assert (told, after) == ("products only on integers, except l0", 15.0)


def test_layers_are_left_float_from_the_closest_choice_where_none_was_kept(tried):
    told, after, _ = tried(10.5, 12.0, 11.0, 30.0, 14.0, 14.2)
    assert (told, after) == ("products only on integers, except l0", 14.0)
    assert tried(10.5, 12.0, 11.0, 30.0, 12.9, 13.0)[:2] == (
        "fewer integer operators would not help", 10.0,
    )  # fmt: skip


def test_no_layer_is_tried_beyond_the_budget(tried):
    assert tried(10.5, 14.0, 13.0, 30.0, 16.0, enough=5) == (
        "products only on integers, except l0", 16.0, 5,
    )  # fmt: skip
