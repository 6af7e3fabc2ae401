"""The ways in: a Relay module as a canonical graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.rewrite import Rule, run
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read import resize
from qdqbridge.tvm.qnn.read.reader import CallReader, Read, rows_of
from qdqbridge.tvm.qnn.read.reading import Row
from qdqbridge.tvm.qnn.read.rules import WHOLE
from qdqbridge.tvm.qnn.read.transposes import cancel
from qdqbridge.tvm.relay.read import (
    data_movement,
    dynamic,
    elementwise,
    provenance,
    simulated,
    stored,
)
from qdqbridge.tvm.relay.read.module import read_module
from qdqbridge.tvm.relay.read.simulated import NAME

# ---- what each Relay operator becomes: the rows that hosts share, and those of Relay's own -------

_OWN: Mapping[str, Callable[[CallReader], Read]] = {
    **dynamic.ROWS,
    **elementwise.ROWS,
    **data_movement.ROWS,
    **elementwise.REDUCTIONS_ROWS,
    simulated.NAME: simulated.simulated_quantize,
}
_PLAIN: Mapping[str, Row] = {**read.ROWS, **resize.ROWS, **resize.HOST_RESIZE, **rows_of(_OWN)}
_FLOAT: Mapping[str, Row] = {
    **_PLAIN,
    "add": provenance.channels_last_bias(_PLAIN["add"]),
    **{name: provenance.channels_last_pool(_PLAIN[name]) for name in ("mean", "qnn.mean", "max")},
}
_STORED: Mapping[str, Row] = {**_FLOAT, **stored.rows(_FLOAT)}
ROWS: Mapping[str, Row] = MappingProxyType(
    {**_STORED, "cast": provenance.channels_last_cast(_STORED["cast"])}
)
"""One row per operator, by Relay's name."""
CALLS: tuple[Rule, ...] = (provenance.needless_bias, *stored.CLAMPED, *read.CALLS)
"""The rules of calls that decide types, those of Relay's own first."""


# --------------------------------------------------------------------------------------------------


def from_relay(mod: Any, params: Mapping[str, Any] | None = None) -> Graph:
    """Reads a Relay module.

    That may be what ``relay.emit`` wrote in any variant and layout, a float or QNN module of
    Relay's importers (Q/DQ ones of the ONNX importer, integer ones of the TFLite, PyTorch and
    MXNet importers), or one behind ``FakeQuantizationToInteger``. Parameters are compared with
    those of neighbours bit for bit; where TVM truncates or rounds between the parts of one
    operator (averages, interpolation), the graph rounds its real result once.

    Args:
        mod: An ``IRModule`` whose ``main`` is one flow of operators, or a function.
        params: Values of parameters of ``main`` by name; the others are the graph's inputs.

    Returns:
        The canonical graph. Its inputs are named as the function's parameters; its outputs as the
        function's attribute ``output_names`` says, else ``output``, ``output_1`` and so on.

    Raises:
        UnsupportedModelError: Operators without a counterpart, or control flow; lists every one.
        InvalidModelError: An operator's operands break its rules.
    """
    return canonicalize(_raw(mod, params))


def from_simulated(mod: Any, params: Mapping[str, Any] | None = None) -> Graph:
    """Reads a module that ``relay.quantize`` has annotated and calibrated.

    That is the module before constants are folded, as
    :func:`~qdqbridge.tvm.relay.read.export.calibrated` returns it. The result of
    ``relay.quantize.quantize`` with ``do_simulation=True`` is read too, but its last pass has made
    float constants of the weights; they stay float.

    Args:
        mod: An ``IRModule`` or a function.
        params: Values of parameters by name.

    Returns:
        The canonical graph; activations have the narrow range -127..127.

    Raises:
        UnsupportedModelError: It has no ``simulated_quantize`` with numbers for its scale, or an
            operator without a counterpart.
    """
    graph = _raw(mod, params)
    if not any(node.op is QUANTIZE for node in graph.nodes):
        raise UnsupportedModelError(
            "the module is not annotated by relay.quantize",
            why=f"it has no {NAME}",
            fix="run relay.quantize with do_simulation=True, or use export_quantized",
        )
    return canonicalize(graph)


def _raw(mod: Any, params: Mapping[str, Any] | None) -> Graph:
    graph, ranks = read_module(mod, params, ROWS, CALLS)
    cancel(graph, ranks)
    run(graph, WHOLE)
    verify(graph)
    return graph
