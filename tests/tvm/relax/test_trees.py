"""TreeEnsemble on TVM, against onnxruntime."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from tests.onnx_models import Builder, canonical

pytestmark = pytest.mark.relax

_DOMAIN, _MEMBER, _TARGETS, _FEATURES = "ai.onnx.ml", 6, 3, 4


class _Ensemble:
    """Random trees; splits are small whole numbers, so that some tests are of equal ones."""

    def __init__(self, rng: Random, modes: list[int]) -> None:
        self.rng, self.modes = rng, modes
        self.nodes: list[dict[str, Any]] = []
        self.leaves: list[tuple[int, float]] = []
        self.roots = [self.node(4) for _ in range(5)]

    def node(self, depth: int) -> int:
        index, rng = len(self.nodes), self.rng
        own: dict[str, Any] = {"mode": rng.choice(self.modes), "missing": rng.randint(0, 1),
                               "feature": rng.randrange(_FEATURES), "split": rng.randint(-2, 2),
                               "members": rng.sample(range(-3, 4), rng.randint(1, 4))}  # fmt: skip
        self.nodes.append(own)
        for side in ("true", "false"):
            leaf = depth == 0 or rng.random() < 0.3
            own[f"{side}leafs"] = int(leaf)
            if leaf:
                own[f"{side}nodeids"] = len(self.leaves)
                self.leaves.append((rng.randrange(_TARGETS), rng.choice((-1.5, 0.25, 2.0, 0.0))))
            else:
                own[f"{side}nodeids"] = self.node(depth - 1)
        return index

    def attributes(self) -> dict[str, Any]:
        def listed(key: str) -> list[Any]:
            return [node[key] for node in self.nodes]

        def floats(numbers: list[float]) -> Any:
            return helper.make_tensor("numbers", TensorProto.FLOAT, [len(numbers)], numbers)

        members = [float(m) for node in self.nodes if node["mode"] == _MEMBER
                   for m in [*node["members"], np.nan]]  # fmt: skip
        kinds = helper.make_tensor("modes", TensorProto.UINT8, [len(self.nodes)], listed("mode"))
        sides = [f"{side}{what}" for side in ("true", "false") for what in ("leafs", "nodeids")]
        return {
            "tree_roots": self.roots,
            "n_targets": _TARGETS,
            "nodes_modes": kinds,
            "nodes_splits": floats(listed("split")),
            "nodes_featureids": listed("feature"),
            "nodes_missing_value_tracks_true": listed("missing"),
            **{f"nodes_{side}": listed(side) for side in sides},
            "leaf_targetids": [target for target, _ in self.leaves],
            "leaf_weights": floats([weight for _, weight in self.leaves]),
            "membership_values": floats(members) if members else None,
        }


@pytest.mark.parametrize(
    ("modes", "how"), [([0], 0), ([1, 4], 1), ([2, 3], 2), ([0, 5], 3), (list(range(7)), 1)]
)
def test_walks(modes: list[int], how: int) -> None:
    """Sums of few binary fractions: exact in any order."""
    attributes = _Ensemble(Random(how), modes).attributes()
    b = Builder(21)
    b.opsets[_DOMAIN] = 5
    x = b.input("x", ["n", _FEATURES])
    y = b.op("TreeEnsemble", x, domain=_DOMAIN, aggregate_function=how, **attributes)
    b.output(y, ["n", _TARGETS])
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    numbers = np.random.default_rng(how).integers(-3, 4, (60, _FEATURES)).astype(np.float32)
    numbers[::7, 1] = np.nan
    executable = qb.compile(graph)
    for given in ({"x": numbers}, {"x": numbers[:0]}):
        (found,), (wanted,) = executable.run(given).values(), qb.evaluate(graph, given).values()
        np.testing.assert_array_equal(found, wanted)


def test_refused() -> None:
    """What ONNX calls a softmax is a logistic function in onnxruntime."""
    b = Builder(21)
    b.opsets[_DOMAIN] = 5
    attributes = _Ensemble(Random(0), [0]).attributes()
    x = b.input("x", ["n", _FEATURES])
    y = b.op("TreeEnsemble", x, domain=_DOMAIN, post_transform=1, **attributes)
    b.output(y, ["n", _TARGETS])
    with pytest.raises(UnsupportedTargetError, match="otherwise than ONNX"):
        qb.compile(canonical(b.model()))
