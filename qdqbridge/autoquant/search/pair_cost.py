"""Whether one file is for processors that add pairs with saturation and for those that do not.

Scales with which no pair saturates (:mod:`qdqbridge.autoquant.hardware.pair_room`) are larger, and
cost something where nothing saturates. Where that is much, the file keeps the smaller ones, and it
is told what it gives on either kind of processor.
"""

from __future__ import annotations

from qdqbridge.autoquant.hardware.arithmetic import arithmetic_of, run
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.steps import StepRecord
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.autoquant.simulation.metrics import measured, outputs_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.numerics import dequantize

PAIRS = "pairs"
"""The name of the step in records."""
COST = 1.0
"""What they may cost where nothing saturates, in dB."""
_SAMPLES = 8


def of_pairs(exact: float, avoided: float) -> StepRecord:
    """Returns whether pairs that saturate are avoided.

    Args:
        exact: How close the outputs come with the smaller scales where nothing saturates, in dB.
        avoided: With those for which no pair saturates.
    """
    outcome = "no pair of products that was seen saturates: the same on x86 with VNNI and without"
    return StepRecord(PAIRS, avoided >= exact - COST, outcome, exact, avoided)


def saturating(
    original: Graph, quantized: Graph, samples: Samples, remedy: str = "--avoid-pairs"
) -> str:
    """Returns what a file gives whose pairs saturate, on which processors, and what mends it.

    Args:
        original: The float graph.
        quantized: What was made of it.
        samples: Some of them are run.
        remedy: The option that avoids it.
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
    return (
        f"{best:.2f} dB on x86 with VNNI and on Arm; {worst:.2f} dB on x86 without VNNI (AVX2), "
        "where pairs of products saturate. Scales that avoid it cost too much where nothing "
        f"saturates; for processors without VNNI quantize with {remedy}"
    )
