"""Reading what emission writes: calls of ``qnn.*`` and plain operators back into a graph.

A host's reader (:mod:`qdqbridge.tvm.relax.read`, ``qdqbridge.tvm.relay.read``) walks over the
calls of a
function, operands first, and hands over each as a :class:`Call` with Relay's operator and
attribute names. A :class:`Reading` looks up the row of the operator and makes graph nodes of it::

    reading = Reading({**ROWS, **rows_of_your_own}, CALLS, where="module 'main'")
    x = reading.input("image", "uint8", ("batch", 3, 32, 32))
    w = reading.constant(array, "weight")
    entry = reading.call(Call("qnn.conv2d", (x, w, zx, zw, sx, sw), attrs, types))
    ...
    graph = reading.finish([x], [last], ["logits"])      # raw: canonicalize it

What a call stands for is an :data:`Entry`: a graph :class:`Value`, or a tuple of entries. The int32
result of a product is a value whose node is an :class:`UnroundedProduct`; with the bias and the
requantize that follow it becomes one node, by rules of calls (:data:`CALLS`), which are asked
before the rows because they decide types. A row is ``(reading, call) -> Entry``; a host adds rows
of its own for forms of its own.

* Rows make nodes in absorbed form (``Add`` of quantized operands with a quantized result); what a
  host writes with ``qnn.dequantize`` and floats is read like that and absorbed by the canonical
  rules.
* Integers that only move get their parameters from who reads them (:mod:`.types`).
* A call without a row stands for itself (:meth:`Reading.unread`). What a host needs several calls
  for is completed when all are read, by the rules of :mod:`.rules` on the rewriter; whatever is
  left without a row in the end is refused, all at once and by name.
* Channels-last calls are read as channels-first nodes between Transposes.
* ``call.provenance`` (:func:`qdqbridge.tvm.qnn.origin.provenance_of` of the call's span) says how
the
  graph had written what the call means, and is believed only where both agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.core.rewrite import Rule
from qdqbridge.tvm.qnn.read import accumulate, conversions
from qdqbridge.tvm.qnn.read.call import Call, Entry, Result, UnroundedProduct
from qdqbridge.tvm.qnn.read.floating import FLOATING
from qdqbridge.tvm.qnn.read.gather_concat import GATHER_CONCAT
from qdqbridge.tvm.qnn.read.reading import Reading, Row
from qdqbridge.tvm.qnn.read.reshape import RESHAPE
from qdqbridge.tvm.qnn.read.resize import WINDOWS
from qdqbridge.tvm.qnn.read.rounded import QNN

ROWS: Mapping[str, Row] = MappingProxyType(
    {**QNN, **RESHAPE, **GATHER_CONCAT, **WINDOWS, **FLOATING}
)
"""What every operator that emission writes becomes, by Relay's name."""

CALLS: tuple[Rule, ...] = (*accumulate.RULES, *conversions.RULES)
"""The rules of calls that decide types: integer products with bias and rounding, blocks."""

__all__ = ["CALLS", "ROWS", "Call", "Entry", "Reading", "Result", "Row", "UnroundedProduct"]
