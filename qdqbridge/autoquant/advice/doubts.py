"""What is reported of a network that quantizes badly: which layers do it, and what mends it."""

from __future__ import annotations

import math

from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.search.search import stats_of
from qdqbridge.autoquant.search.sensitivity import Ranking, Variants, layers_of, sensitivity
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.autoquant.simulation import Simulation

BAD = 20.0
"""Outputs further than this from the float model's, in dB, are reported."""
WANTED = 30.0
"""What the command that mends it asks for, in dB."""
_SAMPLES, _LAYERS, _SHOWN = 16, 400, 3


def doubt(made: Quantized, samples: Samples, sqnr: float) -> str:
    """Returns a warning about outputs that are far from the float model's.

    Args:
        made: What was quantized.
        samples: Some of these show which layers are to blame.
        sqnr: Of its outputs, in dB.
    """
    message = f"the outputs reach only {sqnr:.1f} dB SQNR against the float model"
    if sqnr == -math.inf:
        message = "outputs are NaN or infinite, or not zero where the float model gives zeros alone"
    names = culprits(made, samples)
    if names:
        message += f"; most of the error comes from {', '.join(names)}"
    excluded = "".join(f" --exclude '{name}'" for name in names)
    return (
        f"{message}. 'qdqbridge quantize … --min-sqnr {WANTED:g}' gives layers more bits until "
        f"that is reached, with '--fallback float' leaves them float;"
        f"{excluded or ' --exclude NAME'} leaves these float right away"
    )


def culprits(made: Quantized, samples: Samples) -> list[str]:
    """Returns the names of the layers that cost most alone, the worst first."""
    ranking = ranked(made, samples)
    named = () if ranking is None else ranking.layers[:_SHOWN]
    return [entry.layer.name for entry in named if entry.layer.name]


def ranked(made: Quantized, samples: Samples) -> Ranking | None:
    """Returns what every layer costs alone; None where there are very many: each takes a run.

    Args:
        made: What was quantized.
        samples: Some of these are run.
    """
    plan = made.decision.plan
    if not 1 < len(layers_of(plan)) <= _LAYERS:
        return None
    overrides = made.options.overrides(plan.graph)
    variants = Variants(made.decision, made.target, stats_of(made), overrides)
    simulation = Simulation(plan, spread(samples, _SAMPLES), original=made.original)
    return sensitivity(variants, simulation, without=False)
