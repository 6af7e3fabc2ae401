"""Whether one file is for processors that add pairs with saturation and for those that do not.

Scales with which no pair saturates (:mod:`qdqbridge.autoquant.hardware.pair_room`) are larger, and
cost something where nothing saturates. Where that is much, products of which few sums saturate keep
the smaller ones, as few products as make it little; where that is no way, all of them do. It is
told then what the file gives on either kind of processor.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.hardware.arithmetic import arithmetic_of, run
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.repair.steps import StepRecord
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.autoquant.simulation.metrics import measured, outputs_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.numerics import dequantize

PAIRS = "pairs"
"""The name of the step in records."""
COST = 1.0
"""What they may cost where nothing saturates, in dB."""
_SAMPLES, _LEAST_HARM = 8, 1e-3
_SURE = 1.645
"""The quantile of a normal distribution beyond which it lies once in 20 times."""


def doubt(exact: NDArray[np.float64], avoided: NDArray[np.float64]) -> float:
    """Returns how much of what avoiding pairs costs may be due to the samples, in dB.

    Without it a file loses half of its decibels on some processors for a cost that hardly differs
    from what is allowed on others.

    Args:
        exact: Errors of each sample with the smaller scales where nothing saturates.
        avoided: Of the same samples with those for which no pair saturates.
    """
    if len(exact) < 2 or not (exact.mean() > 0 and avoided.mean() > 0):
        return 0.0
    apart = avoided / avoided.mean() - exact / exact.mean()
    return min(_SURE * float(apart.std(ddof=1)) / len(apart) ** 0.5 * 10 / math.log(10), COST)


def of_pairs(
    exact: float, avoided: float, names: Collection[str] = (), doubt: float = 0.0
) -> StepRecord:
    """Returns whether pairs that saturate are avoided.

    Args:
        exact: How close the outputs come with the smaller scales where nothing saturates, in dB.
        avoided: With those for which no pair saturates.
        names: Of products that keep the smaller ones all the same.
        doubt: How much of the difference may be due to the samples, in dB.
    """
    where = ": the same on x86 with VNNI and without"
    if names:
        where = f" but in {len(names)} product{'s' if len(names) > 1 else ''}"
    outcome = f"with these data no pair of products saturates{where}"
    return StepRecord(PAIRS, avoided >= exact - COST - doubt, outcome, exact, avoided)


def by_saturation(made: Quantized, raised: Mapping[str, float], samples: Samples) -> list[str]:
    """Returns names of products, that first of which few sums saturate and which avoiding harms.

    Args:
        made: What was quantized without avoiding pairs.
        raised: How many times as large rounding errors are with it, by the product's name.
        samples: Some of them are run.
    """
    pieces, share = spread(samples, _SAMPLES).batches(made.graph.inputs), dict[str, float]()
    seen = made.profile.by_name()
    sizes = {n.name: seen[n.output.name].count for n in made.decision.plan.graph.nodes
             if n.output.name in seen}  # fmt: skip
    for piece in pieces:
        for node, count in run(made.graph, piece, arithmetic_of(pairs=True)).overflows.items():
            here = count / max(sizes.get(node.name, 1), 1)
            share[node.name] = share.get(node.name, 0.0) + here
    harm = {name: max(more - 1, _LEAST_HARM) for name, more in raised.items()}
    return sorted(raised, key=lambda name: (share.get(name, 0.0) / harm[name], -harm[name]))


def fewest(
    names: Sequence[str], tried: Callable[[frozenset[str]], float], enough: float
) -> frozenset[str]:
    """Returns the first of ``names``, as few as are enough; none where all would have to be.

    Args:
        names: Of products whose pairs may saturate.
        tried: How close the outputs come where these do nothing about it, in dB.
        enough: How close they have to come.
    """
    counts = range(1, len(names))
    found = bisect_left(counts, True, key=lambda n: tried(frozenset(names[:n])) >= enough)
    return frozenset(names[: counts[found]] if found < len(counts) else ())


def on_both(
    tried: Sequence[StepRecord],
    original: Graph,
    made: Quantized,
    samples: Samples,
    remedy: str,
    warn: Callable[[str], None],
) -> tuple[StepRecord, ...]:
    """Returns what was tried, with what the file gives on either kind of processor if it differs.

    Args:
        tried: Records of steps.
        original: The float graph.
        made: What was made of it.
        samples: Some of them are run.
        remedy: The option that avoids all pairs.
        warn: Called where it gives much less on one of them, and where no pair is avoided.
    """
    found, some = list[StepRecord](), bool(made.target.saturating)
    for step in tried:
        if step.step == PAIRS and (some or not step.applied):
            best, worst = with_and_without_vnni(original, made.graph, samples)
            message = (
                f"{best:.2f} dB on x86 with VNNI and on Arm; {worst:.2f} dB on x86 without VNNI "
                "(AVX2), where pairs of products saturate. Scales that avoid it cost too much "
                f"where nothing saturates; for processors without VNNI quantize with {remedy}"
            )
            if not some or worst < best - COST:
                warn(message)
            message = f"{step.outcome}: {message}" if some else message
            found.append(replace(step, outcome=message))
        else:
            found.append(step)
    return tuple(found)


def with_and_without_vnni(
    original: Graph, quantized: Graph, samples: Samples
) -> tuple[float, float]:
    """Returns how close the outputs come where nothing saturates and where pairs do, in dB.

    Args:
        original: The float graph.
        quantized: What was made of it.
        samples: Some of them are run.
    """
    pieces = spread(samples, _SAMPLES).batches(original.inputs)
    wanted, exact = list(outputs_of(original, pieces)), outputs_of(quantized, pieces)
    hardware = arithmetic_of(pairs=True)
    stored = (run(quantized, piece, hardware).outputs.values() for piece in pieces)
    paired = (
        [
            array if value.quant is None else dequantize(array, value.quant.params)
            for value, array in zip(quantized.outputs, arrays, strict=True)
        ]
        for arrays in stored
    )
    names = quantized.output_names
    best, worst = (measured(names, wanted, found).sqnr for found in (exact, paired))
    return best, worst
