"""What RESCALE adds to a quantized network's error, on given samples and on others.

``python scripts/benches/tosa_choice.py models/digits_cnn_float.onnx`` quantizes a network of images
of digits for ``tosa`` from many draws of samples. Of each it compares decibels with rounded floats
and with TOSA's RESCALE: on samples that a search could choose by, and on others. Where the one
tells nothing of the other, a search that computed RESCALE would choose by chance.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph

DATA = Path(__file__).parents[2] / "models" / "digits_test.npz"
SEEN, GIVEN = 200, 24
"""Samples to draw from, and how many of them are given each time."""


def decibels(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    error = found.astype(np.float64) - wanted
    return float(10 * np.log10((wanted.astype(np.float64) ** 2).sum() / (error**2).sum()))


def both(made: Graph, reference: Graph, x: NDArray[Any]) -> tuple[float, float]:
    """Returns decibels with rounded floats and with RESCALE."""
    (wanted,) = qb.evaluate(reference, {reference.inputs[0].name: x}).values()
    feeds = {made.inputs[0].name: x}
    (plain,) = qb.evaluate(made, feeds).values()
    (rescaled,) = qb.evaluate(made, feeds, requantize="double-round").values()
    return decibels(plain, wanted), decibels(rescaled, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="float networks of models/")
    parser.add_argument("--draws", type=int, default=120)
    given = parser.parse_args()
    print("| network | plans | RESCALE adds, given samples | others | correlation | of both dB |")
    print("|---|---|---|---|---|---|")
    for model in given.models:
        graph = qb.load(model)
        images = np.load(DATA)["x"]
        x = images.reshape(len(images), *(graph.inputs[0].type.shape or ())[1:])
        rng, rows = np.random.default_rng(3), list[tuple[float, ...]]()
        for _ in range(given.draws):
            seen, chosen_by = (x[rng.choice(SEEN, GIVEN, replace=False)] for _ in range(2))
            feeds = {graph.inputs[0].name: seen}
            made = qb.quantize(graph, feeds, target="tosa", preset="fast")
            rows.append((*both(made, graph, chosen_by), *both(made, graph, x[SEEN:])))
        here, seen_with, there, with_rescale = np.array(rows).T
        added, others = seen_with - here, with_rescale - there
        print(
            f"| {Path(model).stem} | {given.draws} | {added.mean():.2f} ± {added.std():.2f} dB | "
            f"{others.mean():.2f} ± {others.std():.2f} dB | "
            f"{np.corrcoef(added, others)[0, 1]:.2f} | "
            f"{np.corrcoef(there, with_rescale)[0, 1]:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
