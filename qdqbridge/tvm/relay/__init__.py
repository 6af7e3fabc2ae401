"""Relay (TVM 0.16): emit, build, read and store; importing it registers the ``qnn`` operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdqbridge.core.arguments import renamed_in
from qdqbridge.tvm.relay import dialect
from qdqbridge.tvm.relay.build import RelayExecutable, bind, build
from qdqbridge.tvm.relay.emit import emit
from qdqbridge.tvm.relay.files import load, readable, save

if TYPE_CHECKING:
    from qdqbridge.tvm.relay.read import export_quantized, from_relay, from_simulated

__all__ = [
    "RelayExecutable",
    "bind",
    "build",
    "dialect",
    "emit",
    "export_quantized",
    "from_relay",
    "from_simulated",
    "load",
    "readable",
    "save",
]

_renamed = renamed_in(globals(), Executable="RelayExecutable")
_READING = ("export_quantized", "from_relay", "from_simulated")


def __getattr__(name: str) -> Any:
    """Imports the readers, which need onnx, when somebody asks for one."""
    if name not in _READING:
        return _renamed(name)
    from qdqbridge.tvm.relay import read

    return getattr(read, name)
