"""Takes operators of which a copy of the package has a row through Relay.

``test_new_operator.py`` runs it with that copy in front of the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx

import qdqbridge as qb
from qdqbridge.tvm.relay import emit, from_relay
from tests.core.ops.toys import TOYS, Toy, feed_of, model
from tests.tvm.relay.relay_side import run


def through_relay(folder: Path, toy: Toy, *, quantized: bool) -> None:
    path, feed = folder / f"{toy.op}.{quantized}.onnx", feed_of(toy)
    onnx.save(model(toy, quantized=quantized), path)
    graph = qb.load(path)
    for layout in ("NHWC", "NCHW"):
        module, params = emit(graph, layout=layout)
        assert from_relay(module, params).digest == graph.digest, (toy.op, layout)
    found, wanted = run(module, {**feed, **params})[0], qb.evaluate(graph, feed)["y"]
    if quantized:
        assert np.array_equal(found, wanted), toy.op
    else:
        # Floats: TVM's exponentials and roots, and its order of sums.
        assert np.allclose(found, wanted, rtol=2e-6, atol=2e-6), toy.op


def main(folder: Path) -> None:
    for toy in TOYS:
        for quantized in (True, False):
            through_relay(folder, toy, quantized=quantized)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
