"""The table of Relax's operators is what the rows of the reader say."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.places import ROOT

pytest.importorskip("tvm")

pytestmark = pytest.mark.relax


def script() -> ModuleType:
    place = ROOT / "scripts" / "generators" / "support_table.py"
    spec = importlib.util.spec_from_file_location("support_table", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_current() -> None:
    module = script()
    assert module.TABLE.read_text("utf-8") == module.page(), (
        "run python scripts/generators/support_table.py"
    )


def test_rows_say_what_they_become() -> None:
    module = script()
    assert module.becomes("nn.max_pool2d") == ["MaxPool", "Transpose"]
    assert {"Mul", "HardSwish", "Mish"} < set(module.becomes("multiply"))
    assert module.becomes("cumprod") is None
    assert "MatMul" in module.becomes("nn.attention")
    assert module.reason("ccl.allreduce") == "several devices; ONNX has one"
