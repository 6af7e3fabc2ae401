"""onnxruntime-web in Node: the WebAssembly build that browsers run."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdqbridge.targets.engines.workers import Array, Loaded
from qdqbridge.tflite_io.vela import installed_program

_SCRIPT = Path(__file__).with_name("onnxruntime_web.cjs")


class OnnxRuntimeWebWorker:
    """Asks a script in Node, line by line: JSON, with the bytes of tensors in base 64."""

    def __init__(self) -> None:
        node = installed_program("node")
        assert node is not None
        self._node = subprocess.Popen(
            [node, str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def version(self) -> str:
        """Returns the version that decides."""
        return f"onnxruntime-web {self._ask(do='version')}"

    def load(self, key: str, file: str) -> Loaded:
        """Opens a model with the optimizations that are the default."""
        self._ask(do="load", key=key, file=file)
        return [], 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model."""
        given = {
            name: [str(array.dtype), list(array.shape), base64.b64encode(array.tobytes()).decode()]
            for name, array in inputs.items()
        }
        found = self._ask(do="run", key=key, inputs=given)
        return {
            name: np.frombuffer(base64.b64decode(found[name][2]), found[name][0]).reshape(
                found[name][1]
            )
            for name in names
        }

    def _ask(self, **request: Any) -> Any:
        """Returns an answer.

        Raises:
            RuntimeError: It is an error, or the script has ended.
        """
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.write(json.dumps(request) + "\n")
        self._node.stdin.flush()
        while line := self._node.stdout.readline():
            if line.startswith("="):  # others are what onnxruntime prints
                answer = json.loads(line[1:])
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["value"]
        raise RuntimeError(f"node has ended ({self._node.wait()})")


WORKER = OnnxRuntimeWebWorker
