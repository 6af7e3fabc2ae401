"""The names of TVM that moved between 0.16 (``tvm.tir``) and 0.27 (``tvm.tirx``)."""

from __future__ import annotations

from typing import Any

import tvm

_tvm: Any = tvm
tirx: Any = _tvm.tirx if hasattr(_tvm, "tirx") else _tvm.tir
"""TIR expressions."""


def analyzer() -> Any:
    """Returns a new arithmetic analyzer of symbolic extents."""
    return _tvm.sym.Analyzer() if hasattr(_tvm, "sym") else _tvm.arith.Analyzer()
