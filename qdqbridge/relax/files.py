"""Relax modules as files."""

from __future__ import annotations

from pathlib import Path

import tvm
from tvm import ir


def write_module(module: ir.IRModule, path: Path) -> None:
    """Writes a module: ``.json`` for TVM to load, ``.py`` (TVMScript) for people to read.

    Loading the JSON needs ``import qdqbridge.relax.dialect`` first, which registers ``qnn.*``.

    Args:
        module: Any Relax module.
        path: Where to; its suffix says how.
    """
    as_script = path.suffix == ".py"
    path.write_text(module.script() + "\n" if as_script else tvm.ir.save_json(module), "utf-8")
