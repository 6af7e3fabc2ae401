"""What has to hold of a model of an old opset: read, written, and run by onnxruntime as before."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from qdqbridge.app.pipeline import evaluate, load, save, session
from qdqbridge.errors import QdqBridgeError
from tests.onnx_io.old_models import old_model


def problem(seed: int, folder: Path) -> str:
    """Returns what is wrong with the model of a seed; empty where nothing is.

    The written file passes ONNX's checker, has the digest, and gives onnxruntime's results on the
    original bit for bit; so does the interpreter, within float rounding.
    """
    name, model, feeds = old_model(seed)
    old, new = folder / "old.onnx", folder / "new.onnx"
    onnx.save(model, old)
    names = [value.name for value in model.graph.output]
    try:
        wanted = session(old).run(feeds, names)
    except QdqBridgeError:
        return "onnxruntime cannot run the original"
    for value in model.graph.output:  # ONNX requires a rank of every output
        for _ in wanted[value.name].shape:
            value.type.tensor_type.shape.dim.add()
        value.type.tensor_type.shape.SetInParent()
    onnx.save(model, old)
    try:
        graph = load(old)
        save(graph, new, overwrite=True)
        onnx.checker.check_model(str(new))
        found, computed = session(new).run(feeds, names), evaluate(graph, feeds)
        digest = load(new).digest
    except (QdqBridgeError, onnx.checker.ValidationError) as error:
        return f"{name}: {error}"
    if digest != graph.digest:
        return f"{name}: the digest moves"
    for key, array in wanted.items():
        if array.dtype != found[key].dtype or not np.array_equal(array, found[key], equal_nan=True):
            return f"{name}: '{key}' of the written file differs"
        # Floats: onnxruntime adds in another order, and rounds functions by a few ulp.
        if array.shape != computed[key].shape or not np.allclose(
            computed[key], array, 1e-5, 1e-6, equal_nan=True
        ):
            return f"{name}: '{key}' of the interpreter differs"
    return ""


def main() -> None:
    """``python -m tests.onnx_io.old_checks 2000``: so many models, every problem told."""
    counts: Counter[object] = Counter()
    with TemporaryDirectory() as folder:
        for seed in range(int(sys.argv[1])):
            found = problem(seed, Path(folder))
            counts["cannot run" if found.startswith("onnxruntime") else bool(found)] += 1
            if found and not found.startswith("onnxruntime"):
                print(seed, found, flush=True)
    print(counts)


if __name__ == "__main__":
    main()
