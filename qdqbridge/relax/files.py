"""Relax modules as files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm import ir


def write_module(module: ir.IRModule, path: Path) -> None:
    """Writes a module: ``.json`` for TVM to load, ``.py`` (TVMScript) for people to read.

    TVMScript holds its constants as metadata; TVM reads it back where all extents are fixed.
    Loading the JSON needs ``import qdqbridge.relax.dialect`` first, which registers ``qnn.*``.

    Args:
        module: Any Relax module.
        path: Where to; its suffix says how.
    """
    if path.suffix == ".py":
        text = module.script(show_meta=True) + "\n"  # the metadata holds the constants
    else:
        text = tvm.ir.save_json(module)
    path.write_text(text, "utf-8")


def write_library(library: Any, path: Path) -> None:
    """Writes compiled code, without the warning that TVM prints for each of its constants."""
    with _without(b"Warning: Scope Saving"):
        library.export_library(str(path))


@contextmanager
def _without(noise: bytes) -> Generator[None, None, None]:
    """Holds back what is written to file descriptor 2, and leaves out the lines with ``noise``."""
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if noise not in line:
                    os.write(2, line)
