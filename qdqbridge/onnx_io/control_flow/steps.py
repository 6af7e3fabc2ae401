"""Which body of an If, Loop or Scan runs when, and on what (ONNX's If-11, Loop-11, Scan-9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs

Array: TypeAlias = "NDArray[Any]"
Call: TypeAlias = "Callable[[str, Sequence[Array]], Sequence[Array]]"
"""Runs a body, by its attribute, on its own inputs; returns its results."""


@dataclass(frozen=True, slots=True)
class ControlSteps:
    """How a node goes through its bodies.

    Attributes:
        op_type: ``If``, ``Loop`` or ``Scan``.
        own: How many operands are its own; it captures the others.
        scanned: Of a Scan: along which axis it goes through each of its last own operands, and
            whether from the end.
        stacked: Of a Scan: the same of each result that it stacks.
    """

    op_type: str
    own: int
    scanned: tuple[tuple[int, bool], ...]
    stacked: tuple[tuple[int, bool], ...]

    @staticmethod
    def of(node: Node) -> ControlSteps:
        """Returns how an opaque If, Loop or Scan does it."""
        record = node.record(OpaqueAttrs)
        own = len(node.inputs) - len(record.captures)
        if record.op_type != "Scan":
            return ControlSteps(record.op_type, own, (), ())
        stored = record.node
        count = stored.integers()["num_scan_inputs"]
        results = next(len(a.g.output) for a in stored.proto().attribute if a.name == "body")

        def each(kind: str, count: int) -> tuple[tuple[int, bool], ...]:
            axes = stored.listed(f"scan_{kind}_axes") or [0] * count
            backwards = stored.listed(f"scan_{kind}_directions") or [0] * count
            return tuple(zip(axes, map(bool, backwards), strict=True))

        stacked = results - (own - count)
        return ControlSteps("Scan", own, each("input", count), each("output", stacked))

    def run(self, operands: Sequence[Array | None], call: Call) -> list[Array] | None:
        """Runs the bodies; returns all results, None of no steps, which stack nothing.

        Args:
            operands: Those of the node, or its own ones.
            call: Runs a body.
        """
        own = operands[: self.own]
        match self.op_type:
            case "If":
                taken = bool(np.asarray(own[0]).reshape(-1)[0])
                return list(call("then_branch" if taken else "else_branch", []))
            case "Loop":
                return _loop(own, call)
            case _:
                return self._scan([each for each in own if each is not None], call)

    def _scan(self, given: Sequence[Array], call: Call) -> list[Array] | None:
        first = len(given) - len(self.scanned)
        state = list(given[:first])
        rows = [
            np.moveaxis(array, axis, 0)[:: -1 if backwards else 1]
            for array, (axis, backwards) in zip(given[first:], self.scanned, strict=True)
        ]
        made: list[Sequence[Array]] = []
        for row in zip(*rows, strict=True):
            results = call("body", [*state, *(np.ascontiguousarray(each) for each in row)])
            state = list(results[:first])
            made.append(results[first:])
        return _stacked(state, made, self.stacked)


def _loop(operands: Sequence[Array | None], call: Call) -> list[Array] | None:
    count, condition = operands[0], operands[1] if len(operands) > 1 else None
    most = None if count is None else int(count.reshape(-1)[0])
    alive = np.array(True) if condition is None else condition.reshape(())
    state = [each for each in operands[2:] if each is not None]
    made: list[Sequence[Array]] = []
    while bool(alive) and (most is None or len(made) < most):
        results = call("body", [np.array(len(made), np.int64), alive, *state])
        alive, state = results[0].reshape(()), list(results[1 : 1 + len(state)])
        made.append(results[1 + len(state) :])
    return _stacked(state, made, [(0, False)] * (len(made[0]) if made else 0))


def _stacked(
    state: list[Array], made: Sequence[Sequence[Array]], how: Sequence[tuple[int, bool]]
) -> list[Array] | None:
    if not made:
        return None
    rows = zip(*made, strict=True)
    return [
        *state,
        *(
            np.stack(row[::-1] if backwards else row, axis)
            for row, (axis, backwards) in zip(rows, how, strict=True)
        ),
    ]
