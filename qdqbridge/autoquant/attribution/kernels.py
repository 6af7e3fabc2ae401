"""An engine's own share: what its results are off by where the contract has the same operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.batches import Batch, concat_batch_results
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.targets.comparison.difference import TensorDifference
from qdqbridge.targets.comparison.engine import Engine
from qdqbridge.targets.comparison.local import compare_locally

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class KernelShare:
    """What an engine does otherwise.

    Attributes:
        engine: The engine, as reports name it.
        gaps: What each value is off by, in real numbers of all batches.
        steps: The same as they are stored: in integers of quantized values.
        differences: The differences of each value, and their causes.
        unseen: Values that the engine does not show; what is off there is counted behind them.
        outputs: The graph's outputs as the engine stores them, by name.
    """

    engine: str
    gaps: Mapping[Value, Array]
    steps: Mapping[Value, Array]
    differences: Mapping[Value, TensorDifference]
    unseen: tuple[str, ...]
    outputs: Mapping[str, Array]


@dataclass(slots=True)
class _Recorder:
    """Keeps what is compared."""

    batches: list[Batch] = field(default_factory=list[Batch])
    steps: dict[Value, list[Array]] = field(default_factory=dict[Value, list[Array]])
    gaps: dict[Value, list[Array]] = field(default_factory=dict[Value, list[Array]])

    def __call__(self, batch: Batch, value: Value, ours: Array, theirs: Array) -> None:
        if not self.batches or self.batches[-1] is not batch:
            self.batches.append(batch)
        pair = (theirs, ours)
        with np.errstate(invalid="ignore"):
            if ours.dtype.kind == "f":
                step = np.nan_to_num(theirs.astype(np.float64) - ours)
            else:
                step = theirs.astype(np.int64) - ours.astype(np.int64)
            quant = value.quant
            real = pair if quant is None else [dequantize(a, quant.params) for a in pair]
            gap = np.nan_to_num(real[0].astype(np.float64) - real[1].astype(np.float64))
        self.steps.setdefault(value, []).append(step)
        self.gaps.setdefault(value, []).append(gap)


def kernel_share(graph: Graph, engine: Engine, data: Mapping[str, Array]) -> KernelShare:
    """Returns what an engine's kernels do otherwise than the contract, each on the same operands.

    Args:
        graph: The graph that the engine runs.
        engine: The engine.
        data: One array per graph input.

    Raises:
        InputDataError: The data does not fit.
        UnsupportedTargetError: The engine cannot run the graph.
    """
    recorder = _Recorder()
    found = compare_locally(graph, engine, data, witness=recorder)
    off = [value for value, parts in recorder.steps.items() if any(part.any() for part in parts)]
    named = {each.name: each for each in found.values}
    names = {v: v.name for node in graph.nodes for v in node.outputs}
    names.update(zip(graph.outputs, graph.output_names, strict=True))
    count = len(recorder.batches)
    names_of = list(engine.outputs)
    ran = [engine.run(batch.inputs, names_of) for batch in recorder.batches]
    outputs = {
        name: concat_batch_results([each[name] for each in ran], recorder.batches, name)
        for name in (names_of if ran else ())
        if name in graph.output_names
    }
    whole = [v for v in off if len(recorder.steps[v]) == count and names[v] in named]
    return KernelShare(
        found.b,
        {v: concat_batch_results(recorder.gaps[v], recorder.batches, names[v]) for v in whole},
        {v: concat_batch_results(recorder.steps[v], recorder.batches, names[v]) for v in whole},
        {v: named[names[v]] for v in whole},
        found.unmatched,
        outputs,
    )
