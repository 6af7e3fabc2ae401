"""Counts the stops on the way of a graph through ``load``, ``compile`` and ``quantize``.

    python scripts/checks/stops.py [--list]

A small model is taken through each of them under ``sys.setprofile``. What is counted is what
somebody has to open who follows the graph through the code, each function once, at its first call:

stops    functions of the package that are handed a model (a graph, ONNX's, or TVM's module), as an
         argument or in a field of one
files    the files in which they stand
returns  stops that the stop before them does not call: the reader goes back to some caller, to find
         there what comes next
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import qdqbridge
from qdqbridge.core.graph.graph import Graph

FORMS = {"ModelProto", "GraphProto", "IRModule"}
PACKAGE = str(Path(qdqbridge.__file__).parent)
MODELS = Path(__file__).parents[2] / "models"


@dataclass
class Walk:
    """The first calls of functions that see a graph, in order, each with its caller."""

    stops: dict[CodeType, CodeType | None] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self.stops or not counted(code):
            return
        if any(holds(frame.f_locals.get(name)) for name in arguments(code)):
            self.stops[code] = self.caller(frame)

    def caller(self, frame: FrameType) -> CodeType | None:
        above = frame.f_back
        while above is not None and above.f_code not in self.stops:
            above = above.f_back
        return None if above is None else above.f_code

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.stops}

    @property
    def returns(self) -> int:
        before, count = None, 0
        for code, caller in self.stops.items():
            count += caller is not before
            before = code
        return count


def counted(code: CodeType) -> bool:
    """True for functions of the package, but for comprehensions."""
    return code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")


def arguments(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def holds(value: object) -> bool:
    """True for a model, and for what has one in a field."""
    if is_model(value):
        return True
    kind = type(value)
    if not kind.__module__.startswith("qdqbridge"):
        return False
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    names = [*slots, *getattr(value, "__dict__", ())]
    return any(is_model(getattr(value, name, None)) for name in names)


def is_model(value: object) -> bool:
    """True for a graph and what it comes from or goes to: ONNX's model, its graph, TVM's module."""
    return isinstance(value, Graph) or type(value).__name__ in FORMS


def walk(step: Callable[[], object]) -> Walk:
    found = Walk()
    sys.setprofile(found)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the stops")
    wanted = parser.parse_args()
    model = MODELS / "digits_cnn_u8s8_per_channel.onnx"
    floats = qdqbridge.load(MODELS / "digits_cnn_float.onnx")
    rng = np.random.default_rng(0)
    shape = tuple(e if isinstance(e, int) else 4 for e in floats.inputs[0].type.shape or ())
    data = {floats.inputs[0].name: rng.random(shape, np.float32)}
    graph = qdqbridge.load(model)
    steps: dict[str, Callable[[], object]] = {
        "load": lambda: qdqbridge.load(model),
        "compile": lambda: qdqbridge.compile(graph),
        "quantize": lambda: qdqbridge.quantize(floats, data),
    }
    for name, step in steps.items():
        found = walk(step)
        stops, files = len(found.stops), len(found.files)
        print(f"{name:10} {stops:4} stops {files:4} files {found.returns:4} returns")
        if wanted.list:
            before = None
            for code, caller in found.stops.items():
                mark = " " if caller is before else "<"
                print(f"  {mark} {Path(code.co_filename).relative_to(PACKAGE)}:{code.co_name}")
                before = code


if __name__ == "__main__":
    main()
