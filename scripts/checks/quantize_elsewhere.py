"""Quantizes float files with another tool, in an environment of that tool's own.

Run as ``PYTHON scripts/checks/quantize_elsewhere.py {nncf,aimet} OUT FLOAT.onnx=SAMPLES.npz …``
with the Python of an environment that has NNCF (``pip install nncf onnx onnxruntime``) or AIMET
(``pip install aimet-onnx``); it needs nothing of qdqbridge. It writes ``OUT/NETWORK_TOOL.onnx``,
which ``scripts/checks/blame_sabotage.py --elsewhere OUT`` spoils.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

_SAMPLES = 96


def by_nncf(path: Path, name: str, data: NDArray[Any]) -> onnx.ModelProto:
    """Returns what NNCF's post-training quantization makes of a file."""
    import nncf  # pyright: ignore[reportMissingImports]

    samples = nncf.Dataset([{name: data[i : i + 1]} for i in range(len(data))])  # pyright: ignore
    return nncf.quantize(onnx.load(path), samples, subset_size=len(data))  # pyright: ignore


def by_aimet(path: Path, name: str, data: NDArray[Any]) -> onnx.ModelProto:
    """Returns what AIMET's quantization simulation of 8 bits makes of a file."""
    from aimet_onnx.quantsim import (  # pyright: ignore[reportMissingImports]
        QuantizationSimModel,  # pyright: ignore[reportUnknownVariableType]
    )

    sim: Any = QuantizationSimModel(onnx.load(path), param_type="int8", activation_type="int8")
    sim.compute_encodings([{name: data[i : i + 1]} for i in range(len(data))])
    return sim.to_onnx_qdq()


TOOLS: dict[str, Callable[[Path, str, NDArray[Any]], onnx.ModelProto]] = {
    "nncf": by_nncf,
    "aimet": by_aimet,
}


def main(arguments: list[str]) -> int:
    tool, out, *files = arguments
    for file in files:
        path, _, samples = map(Path, file.partition("="))
        port = onnx.load(path, load_external_data=False).graph.input[0]
        shape = [-1, *(d.dim_value for d in port.type.tensor_type.shape.dim[1:])]
        with np.load(samples) as arrays:
            held = arrays[port.name if port.name in arrays.files else "x"]
        made = TOOLS[tool](path, port.name, held[:_SAMPLES].reshape(shape).astype(np.float32))
        network = path.parent.parent.name if path.stem == "model" else path.stem
        onnx.save(made, Path(out) / f"{network}_{tool}.onnx")
        print(network, tool, len(made.graph.node), "nodes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
