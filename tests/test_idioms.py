"""Every idiom on the list has a test, and the table that says so is current."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

from tests.places import ROOT


@cache
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "idioms", ROOT / "scripts" / "generators" / "idioms.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_idiom_is_held_by_a_test() -> None:
    module = script()
    listed, held = module.idioms(), module.held()
    assert len(listed) == 145
    assert set(held) == set(listed)


def test_the_table_is_current() -> None:
    module = script()
    assert module.TABLE.read_text("utf-8") == module.table(), (
        "run python scripts/generators/idioms.py"
    )
