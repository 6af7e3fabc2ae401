"""The digest does not depend on the order of the rules, but for what ``rules.RULES`` says."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import qdqbridge as qb
from qdqbridge.core.canonical import form
from qdqbridge.core.rewrite import Rule
from tests.onnx_io.digest_trips import loaded
from tests.onnx_io.random_models import random_model
from tests.places import ROOT

MODELS = [*(ROOT / "models").glob("*8*.onnx"), *(ROOT / "tests").glob("onnx_io/digest_models/*")]
RANDOM = [random_model(seed) for seed in range(12)]
LAST = ("absorb-both-sides", "compose-elementwise")


def digests() -> list[str]:
    files = [qb.load(path) for path in MODELS if path.suffix == ".onnx"]
    return [graph.digest for graph in (*files, *map(loaded, RANDOM))]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return digests()


def another_order(seed: int) -> list[Rule]:
    """Returns the rules in a random order, but for those that have to stand last."""
    order, last = [r for r in form.RULES if r.name not in LAST], form.RULES[-len(LAST) :]
    random.Random(seed).shuffle(order)
    return [*order, *last]


@pytest.mark.parametrize("seed", range(3))
def test_another_order_gives_the_same_digests(
    seed: int, expected: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "RULES", tuple(another_order(seed)))
    assert digests() == expected


def test_what_takes_operators_in_has_to_stand_last(
    expected: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tuple(rule.name for rule in form.RULES[-len(LAST) :]) == LAST
    monkeypatch.setattr(form, "RULES", (*form.RULES[-len(LAST) :], *form.RULES[: -len(LAST)]))
    assert digests() != expected
