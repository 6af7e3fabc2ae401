"""ONNX's own runner on this folder of cases: ``python run.py [onnx.reference|onnxruntime]``.

It needs onnx and the runtime. Of another runtime give the module that is an
``onnx.backend.base.Backend``.
"""

from __future__ import annotations

import sys
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any

from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import loader, runner


class Session(BackendRep):
    """A model in ONNX's reference implementation."""

    def __init__(self, model: Any) -> None:
        from onnx.reference import ReferenceEvaluator

        self._session: Any = ReferenceEvaluator(model)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs."""
        del kwargs
        return tuple(
            self._session.run(None, dict(zip(self._session.input_names, inputs, strict=True)))
        )


class Reference(Backend):
    """ONNX's reference implementation."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Session:
        """Opens a model."""
        del device, kwargs
        return Session(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns whether it runs there."""
        return device == "CPU"


def suite(name: str, folder: Path) -> unittest.TestSuite:
    """Returns the strict cases of a folder as tests of a backend."""
    backend: Any = Reference if name == "onnx.reference" else import_module(name)
    if name == "onnxruntime":
        backend = import_module("onnxruntime.backend")

    def cases(kind: str) -> list[Any]:
        return loader.load_model_tests(str(folder), "strict") if kind == "node" else []

    module: Any = runner
    module.load_model_tests = cases  # else it runs ONNX's thousand tests of nodes as well
    return runner.Runner(backend, __name__).exclude("_cuda").test_suite


if __name__ == "__main__":
    tests = suite(sys.argv[1] if sys.argv[1:] else "onnx.reference", Path(__file__).parent)
    done = unittest.TextTestRunner(verbosity=0).run(tests)
    sys.exit(not done.wasSuccessful())
