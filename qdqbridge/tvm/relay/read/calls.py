"""Relay's calls under the names and attributes that the shared rows know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.reader import CallReader

_OWN = "qnn.qdq_"
"""Prefix of our operators where Relay has one of the name that cannot carry the call."""


def normalized(call: Call, context_of: Callable[[Call], CallReader]) -> Call:
    """Returns a call as the shared rows expect it.

    Args:
        call: The call as Relay has it.
        context_of: Makes the view of a call, to look at constants.

    Raises:
        UnsupportedModelError: The call has a form that no row knows.
    """
    if call.op.startswith(_OWN):
        call = replace(call, op="qnn." + call.op.removeprefix(_OWN))
    _check_out_layout(call, context_of(call))
    change = _CHANGES.get(call.op)
    return call if change is None else change(call, context_of(call))


def _check_out_layout(call: Call, reader: CallReader) -> None:
    """Relay can state another layout for a result than for the data."""
    stated, own = reader.text("out_layout"), reader.text("data_layout") or reader.text("layout")
    if stated not in ("", own):
        raise reader.refusal(f"its data has layout {own}, its result {stated}")


def _pad_value_to_attribute(call: Call, reader: CallReader) -> Call:
    """The pad value is Relay's second argument, here an attribute."""
    if len(call.args) < 2:
        return call
    value = reader.array(1)
    if value is None:
        raise reader.refusal("the number that it pads with is computed")
    number = float(np.asarray(value).reshape(-1)[0])
    return replace(call, args=call.args[:1], attrs={**call.attrs, "pad_value": number})


def _norm(call: Call, reader: CallReader) -> Call:
    """Relay says with ``center`` and ``scale`` whether beta and gamma count."""
    data, gamma, beta, *rest = call.args
    if not reader.flag("scale", default=True):
        gamma = reader.constant(np.ones(reader.static(reader.value(1)), np.float32))
    if not reader.flag("center", default=True):
        beta = reader.constant(np.zeros(reader.static(reader.value(2)), np.float32))
    return replace(call, args=(data, gamma, beta, *rest))


def _reduction(call: Call, reader: CallReader) -> Call:
    """``exclude`` reduces the axes that are not listed; an empty list reduces none or all."""
    if not reader.flag("exclude"):
        return call
    rank = len(reader.shape(reader.value(0)))
    kept = {axis % rank for axis in reader.ints("axis")}
    axes = tuple(axis for axis in range(rank) if axis not in kept)
    return replace(call, attrs={**call.attrs, "axis": axes, "exclude": False})


def _order_clip_bounds(call: Call, reader: CallReader) -> Call:
    """Where the bounds are swapped, every element becomes the first of them."""
    low, high = float(call.attrs["a_min"]), float(call.attrs["a_max"])
    del reader
    return call if not low > high else replace(call, attrs={"a_min": low, "a_max": low})


_CHANGES: Mapping[str, Callable[[Call, CallReader], Call]] = {
    "nn.pad": _pad_value_to_attribute,
    "clip": _order_clip_bounds,
    **dict.fromkeys(("nn.layer_norm", "nn.instance_norm", "nn.group_norm", "nn.batch_norm"), _norm),
    **dict.fromkeys(("mean", "sum", "max", "min"), _reduction),
}
