"""Relay modules -> :class:`Graph`: emitted ones, importers' and TVM's auto-quantization's.

What a call becomes is one row of :data:`ROWS`: those that hosts share
(:mod:`qdqbridge.tvm.qnn.read`), and Relay's own beside this file. :mod:`.stored` reads what
importers
and ``FakeQuantizationToInteger`` do on stored integers, :mod:`.entry` what ``relay.quantize``
leaves after calibration; :mod:`qdqbridge.tvm.qnn.read.transposes` brings channels-last modules into
the layout of the graph.
"""

from __future__ import annotations

from qdqbridge.tvm.relay.read.entry import ROWS, from_relay, from_simulated
from qdqbridge.tvm.relay.read.export import export_quantized

__all__ = ["ROWS", "export_quantized", "from_relay", "from_simulated"]
