"""Rows of what only Relay writes so, element by element, and of what computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.ops.permutation import permuted_shape
from qdqbridge.tvm.qnn import read
from qdqbridge.tvm.qnn.read.call import Result
from qdqbridge.tvm.qnn.read.site import Read, ReadSite

_FAST = {"fast_tanh": "Tanh", "fast_exp": "Exp", "fast_erf": "Erf"}


def fast(site: ReadSite) -> Value:
    """``fast_<op>(x)``: an approximation of ``op`` that TVM's FastMath writes."""
    return site.emit(_FAST[site.name], [site.real(0)])


def rsqrt(site: ReadSite) -> Value:
    """``1 / sqrt(x)``."""
    return site.emit("Reciprocal", [site.emit("Sqrt", [site.real(0)])])


def prelu(site: ReadSite) -> Value:
    """``nn.prelu(x, slope; axis)``: a slope per channel."""
    x, slope = site.real(0), site.real(1)
    rank, axis = len(site.shape(x)), site.axis(default=1)
    if len(site.shape(slope)) == 1 and axis != rank - 1:
        slope = site.unsqueezed(slope, tuple(range(1, rank - axis)))
    return site.emit("PRelu", [x, slope])


def on_channels(site: ReadSite) -> Read:
    """A norm whose channels may be on any axis: the shared row has them on axis 1."""
    x, axis = site.real(0), site.axis(default=1)
    rank, row = len(site.shape(x)), read.ROWS[site.name]
    if axis == 1 or rank < 2:
        return site.shared()
    perm = (0, axis, *(i for i in range(1, rank) if i != axis))
    back = tuple(perm.index(i) for i in range(rank))
    first = Result(site.call.result.dtype, permuted_shape(site.call.result.shape, perm))
    args = (site.transposed(x, perm, layout=True), *site.call.args[1:])
    attrs, results = {**site.call.attrs, "axis": 1}, (first, *site.call.results[1:])
    found = row(site.reading, replace(site.call, args=args, attrs=attrs, results=results))
    values = found if isinstance(found, list) else [found]
    permuted = site.transposed(site.reading.value(values[0]), back, layout=True)
    return [permuted, *values[1:]] if isinstance(found, list) else permuted


def identity(site: ReadSite) -> Value:
    """Annotations and copies, which compute nothing."""
    return site.value(0)


def filled(number: float) -> Callable[[ReadSite], Value]:
    """Returns the row of a constant tensor of one number."""

    def row(site: ReadSite) -> Value:
        return site.constant(np.full(site.extents(), number, site.result.dtype.numpy))

    return row


def full(site: ReadSite) -> Value:
    """``full(value; shape)``."""
    number = site.array(0)
    if number is None:
        raise site.refusal("its value is computed")
    return site.constant(np.full(site.extents(), number, site.result.dtype.numpy))


ROWS: Mapping[str, Callable[[ReadSite], Read]] = {
    **dict.fromkeys(_FAST, fast),
    "rsqrt": rsqrt,
    "nn.prelu": prelu,
    **dict.fromkeys(("nn.instance_norm", "nn.group_norm", "nn.batch_norm"), on_channels),
    "copy": identity,
    "annotation.cast_hint": identity,
    "annotation.stop_fusion": identity,
    "annotation.checkpoint": identity,
    "on_device": identity,
    "zeros": filled(0),
    "ones": filled(1),
    "full": full,
}
