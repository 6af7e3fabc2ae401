"""Float networks quantized by us, by onnxruntime and by others: ``scripts/bench quantize``.

Every method (``bench_quantize_tools.py``) gets the same calibration samples; what is measured
(``bench_quantize_figures.py``) are other samples. Figures are output SQNR in dB and, where there
are labels, top-1 in percent; beside them stands the share of operators that compute whose operands
are all stored as integers, and of the kernels that onnxruntime runs with its optimizations on those
that take integers, with the CPU time of a sample on one thread. ``--folder`` reads what
``quantization_networks.py`` trained.

``--activations uint16`` compares with 16-bit activations: ours, and onnxruntime's own.

``--weights int4`` stores weights in 4 bits per channel and activations in 8; ``--weights int4/32``
stores weights alone, in 4 bits with a scale for every 32 of a sum, ``--weights int4/channel`` with
one for every channel. Of those two the share is that of the products' weights (their elements) that
have 4 bits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from bench_networks import Case, cases, cases_in
from bench_quantize_figures import Row, in_4_bits, integers, interval, row
from bench_quantize_tools import ALONE, ORT, OTHERS, Method

WITHIN = 0.1
"""How far below the best of onnxruntime's methods we may be, in dB."""


@dataclass(frozen=True)
class Calibration:
    """What is given of the samples to calibrate with.

    Attributes:
        samples: So many of the first; None for all.
        repeat: Each so often.
    """

    samples: int | None = None
    repeat: int = 1

    def of(self, case: Case) -> Case:
        """Returns a network with fewer samples, or the same ones again and again."""
        held = {
            name: array[: self.samples].repeat(self.repeat, axis=0)
            for name, array in case.calibration.items()
        }
        return replace(case, calibration=held)


def show(found: Row) -> None:
    """Prints the figures of one network."""
    accuracy = "" if found.top1 is None else f", float top-1 {found.top1:.2f} %"
    print(f"{found.case.name}{accuracy}, float {found.milliseconds:.2f} ms")
    for method, figures in found.figures.items():
        none = "  nothing quantized" if figures.decibels > 0 else "    no file"
        number = f"{figures.decibels:7.2f} dB" if np.isfinite(figures.decibels) else none
        accuracy = "" if figures.top1 is None else f"  top-1 {figures.top1:6.2f} %"
        if np.isfinite(figures.decibels):
            number += f" ({figures.optimized:.2f} optimized)  {figures.integers:>7}"
            number += f"  {figures.kernels:>7} kernels  {figures.milliseconds:6.2f} ms"
        print(f"    {method!s:<32}{number}{accuracy}  {figures.seconds:6.1f} s  {figures.remark}")
    for told, share in (("", 0.0), (" with as many operators on integers", found.share)):
        best = found.nearest(ORT, *OTHERS, share=share)
        if best is None or found.first.noise is None or best.noise is None:
            continue
        low, high = interval(found.first.noise, best.noise)
        margin = f"{found.ours - best.decibels:+.2f} dB, by other samples {low:+.2f} to {high:+.2f}"
        print(f"    ours over the best of the others{told}: {margin}")
    sys.stdout.flush()


def as_json(rows: Sequence[Row]) -> str:
    """Returns the figures for programs."""
    return json.dumps(
        {
            found.case.name: {
                "float top-1": found.top1,
                "float milliseconds": found.milliseconds,
                **{
                    str(m): {
                        "dB": f.decibels,
                        "dB optimized": f.optimized,
                        "covered": f.integers,
                        "kernels": f.kernels,
                        "milliseconds": f.milliseconds,
                        "top-1": f.top1,
                        "seconds": f.seconds,
                        "remark": f.remark,
                    }
                    for m, f in found.figures.items()
                },
            }
            for found in rows
        },
        indent=1,
    )


def bench(
    networks: Sequence[str],
    seed: int,
    ways: Sequence[Method],
    out: Path | None,
    folder: Path | None = None,
    weights: str | None = None,
    calibration: Calibration | None = None,
) -> int:
    """Prints the tables.

    Args:
        networks: Names; all where there is none.
        seed: Of the drawn pictures.
        ways: Methods.
        out: A file for the figures.
        folder: Of networks of :mod:`quantization_networks`; None for those of the repository.
        weights: As :func:`methods` has them.
        calibration: What is given of the samples to calibrate with; None for all.

    Returns:
        1 where onnxruntime is better than we are by more than 0.1 dB.
    """
    rows: list[Row] = []
    every = cases(networks, seed) if folder is None else cases_in(folder, networks)
    coverage = in_4_bits if weights in ALONE else integers
    for case in every:
        rows.append(row(calibration.of(case) if calibration else case, ways, coverage))
        show(rows[-1])
    if out is not None:
        out.write_text(as_json(rows))
    below = [r.case.name for r in rows if r.ours < r.best(ORT, *OTHERS, share=r.share)]
    missed = [r.case.name for r in rows if r.ours < r.best(ORT) - WITHIN]
    told = "below the best of the others with as many operators on integers: "
    print(told + (", ".join(below) or "none"))
    print(f"below onnxruntime by more than {WITHIN} dB: " + (", ".join(missed) or "none"))
    return 1 if missed else 0
