"""Random models with open extents on TVM, against the interpreter, bit for bit.

``scripts/sweeps/sweep_open --models 240``: broadcasting, products, computed shapes, reductions,
norms, softmaxes, resizes, pads, windows and data movement over extents that the inputs leave open
(``tests/tvm/relax/open_models.py``), with fast kernels and with plain loops, each fed with
several extents, 1 and unfit ones among them; and the exported file in onnxruntime, to a step.
Every difference or refusal is printed with its seed; ``--seed`` begins there, and ``--family
repeating`` takes the models of one family only.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).parents[2]))

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from tests.exact_sessions import exact_session
from tests.onnx_models import canonical
from tests.tvm.relax.open_models import FAMILIES, Case, case
from tests.tvm.relax.test_open_extents import problems


def exported(model: Case) -> list[str]:
    """Returns what differs between onnxruntime on the exported file and the interpreter."""
    graph, found = canonical(model.model), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported.onnx"
        try:
            qb.save(graph, path, profile="portable")
        except UnsupportedTargetError as error:
            return [f"refused: {error.why}"]
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = exact_session(path, options)
    summed = any(node.op_type == "Einsum" for node in model.model.graph.node)
    for extents in model.feeds:
        if summed and 0 in extents.values():
            continue  # an Einsum of nothing ends onnxruntime's process
        inputs = model.inputs(extents)
        try:
            expected = qb.evaluate(graph, inputs)
            given = dict(zip(expected, session.run(None, inputs), strict=True))
        except Exception:  # which extents fit is what TVM is asked for; onnxruntime allows others
            continue
        for name, array in expected.items():
            if given[name].shape != array.shape:
                found.append(f"{extents}: {name} has the shape {given[name].shape}")
            elif array.size and array.dtype.kind == "f":
                # sums of floats in another order move a result to the next step of its Q
                steps = np.unique(np.abs(np.diff(np.unique(array)))) if array.size > 1 else [0.0]
                away = np.abs(given[name].astype(np.float64) - array)
                step = max(float(min((s for s in steps if s > 1e-6), default=0.0)), 1e-3)
                if not np.all((away <= 1.001 * step) | (given[name] == array) | np.isnan(array)):
                    found.append(f"{extents}: {name} differs by {np.nanmax(away)}")
            elif not np.array_equal(given[name], array):
                found.append(f"{extents}: {name} differs")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model")
    parser.add_argument("--family", default="", help="of which models are made")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    families = [family.__name__ for family in FAMILIES]
    places = itertools.count(arguments.seed)
    if arguments.family:
        places = itertools.count(families.index(arguments.family), len(families))
        places = itertools.islice(places, arguments.seed, None)
    for seed in itertools.islice(places, arguments.models):
        model = case(seed)
        for problem in exported(model):
            counts["exported files differ"] += 1
            print(f"{model.name}, exported: {problem}")
        for kernels in ("fast", "reference"):
            try:
                found = problems(model, kernels)
            except UnsupportedTargetError as error:
                counts["refused"] += 1
                print(f"{model.name}, {kernels}: refused: {error.why}")
                continue
            counts["differ" if found else "agree"] += 1
            for problem in found:
                print(f"{model.name}, {kernels}: {problem}")
    print(dict(counts))
    return 1 if counts["differ"] or counts["exported files differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
