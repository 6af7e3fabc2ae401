"""The models of the emission tests: every operator that the emitter writes, in many forms."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.tvm.relax.single_ops import Model

FILES = (
    "test_emit_accumulate", "test_emit_elementwise", "test_emit_data_movement", "test_emit_rows",
    "test_emit_ceil_mode", "test_emit_floating",
)  # fmt: skip


class Reached(Exception):
    """A test has made its model and is about to compile it."""


def tests_of(name: str) -> list[tuple[str, Callable[[], None]]]:
    """Returns the tests without parameters of a file, by name."""
    module = import_module(f"tests.tvm.relax.{name}")
    found = [(key, value) for key, value in vars(module).items() if key.startswith("test_")]
    return [(key, test) for key, test in found if test.__code__.co_argcount == 0]


def model_of(test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Model | None:
    """Returns the model that a test compiles by ``Model.check``; None where it has none."""
    found: list[Model] = []

    def stop(m: Model, *_: Any, **__: Any) -> Any:
        found.append(m)
        raise Reached

    monkeypatch.setattr(Model, "check", stop)
    module = import_module(test.__module__)
    if hasattr(module, "outputs"):
        monkeypatch.setattr(module, "outputs", stop)
    try:
        test()
    except Reached:
        return found[0]
    return None


CASES = [
    pytest.param(test, id=f"{name.removeprefix('test_emit_')}-{key.removeprefix('test_')}")
    for name in FILES
    for key, test in tests_of(name)
]
