"""Relay's calls under the names and attributes that the shared rows know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.site import ReadSite

_OWN = "qnn.qdq_"
"""Prefix of our operators where Relay has one of the name that cannot carry the call."""


def normalized(call: Call, site_of: Callable[[Call], ReadSite]) -> Call:
    """Returns a call as the shared rows expect it.

    Args:
        call: The call as Relay has it.
        site_of: Makes the view of a call, to look at constants.

    Raises:
        UnsupportedModelError: The call has a form that no row knows.
    """
    if call.op.startswith(_OWN):
        call = replace(call, op="qnn." + call.op.removeprefix(_OWN))
    _check_out_layout(call, site_of(call))
    change = _CHANGES.get(call.op)
    return call if change is None else change(call, site_of(call))


def _check_out_layout(call: Call, site: ReadSite) -> None:
    """Relay can state another layout for a result than for the data."""
    stated, own = site.text("out_layout"), site.text("data_layout") or site.text("layout")
    if stated not in ("", own):
        raise site.refusal(f"its data has layout {own}, its result {stated}")


def _pad(call: Call, site: ReadSite) -> Call:
    """The pad value is Relay's second argument, here an attribute."""
    if len(call.args) < 2:
        return call
    value = site.array(1)
    if value is None:
        raise site.refusal("the number that it pads with is computed")
    number = float(np.asarray(value).reshape(-1)[0])
    return replace(call, args=call.args[:1], attrs={**call.attrs, "pad_value": number})


def _norm(call: Call, site: ReadSite) -> Call:
    """Relay says with ``center`` and ``scale`` whether beta and gamma count."""
    data, gamma, beta, *rest = call.args
    if not site.flag("scale", default=True):
        gamma = site.constant(np.ones(site.static(site.value(1)), np.float32))
    if not site.flag("center", default=True):
        beta = site.constant(np.zeros(site.static(site.value(2)), np.float32))
    return replace(call, args=(data, gamma, beta, *rest))


def _reduction(call: Call, site: ReadSite) -> Call:
    """``exclude`` reduces the axes that are not listed; an empty list reduces none or all."""
    if not site.flag("exclude"):
        return call
    rank = len(site.shape(site.value(0)))
    kept = {axis % rank for axis in site.ints("axis")}
    axes = tuple(axis for axis in range(rank) if axis not in kept)
    return replace(call, attrs={**call.attrs, "axis": axes, "exclude": False})


def _clip(call: Call, site: ReadSite) -> Call:
    """Where the bounds are swapped, every element becomes the first of them."""
    low, high = float(call.attrs["a_min"]), float(call.attrs["a_max"])
    del site
    return call if not low > high else replace(call, attrs={"a_min": low, "a_max": low})


_CHANGES: Mapping[str, Callable[[Call, ReadSite], Call]] = {
    "nn.pad": _pad,
    "clip": _clip,
    **dict.fromkeys(("nn.layer_norm", "nn.instance_norm", "nn.group_norm", "nn.batch_norm"), _norm),
    **dict.fromkeys(("mean", "sum", "max", "min"), _reduction),
}
