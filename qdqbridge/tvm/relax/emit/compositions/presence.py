"""What depends on whether something is there: an optional tensor, and what Dropout drops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

DROPPED = "dropped_elements"
"""What the extent is called that has to be 0; errors of a run name it."""
_OPERAND = 12
"""The opset since which the ratio and the mode of Dropout are operands."""


def _has_element(site: CompositionSite) -> Sequence[Expr]:
    return [site.number(site.has(0), "bool")]


def _dropout(site: CompositionSite) -> Sequence[Expr]:
    """All that it is given; where the run says that something is to be dropped, it ends.

    Which elements these are ONNX leaves to chance.
    """
    if site.onnx.opset < _OPERAND or not site.has(2):
        raise NoRow("TVM has it")
    known = [site.onnx.operand(index).is_constant for index in (1, 2) if site.has(index)]
    if all(known):
        raise NoRow("what it drops is known")
    ratio = site("reshape", site.arg(1), ()) if site.has(1) else site.number(0.5, "float32")
    training = site.cast(site("reshape", site.arg(2), ()), "bool")
    drops = site("logical_and", training, site("greater", ratio, site.number(0, ratio)))
    (count,) = site.bound(site.cast(site("reshape", drops, (1,)), "int64"), DROPPED)
    site.scope.need_at_most(count, 0)
    x = site.arg(0)
    mask = site("broadcast_to", site.number(np.True_, "bool"), site.extents(x))
    return [x, mask][: len(site.node.outputs)]


PRESENCE: Mapping[str, Composition] = {"Dropout": _dropout, "OptionalHasElement": _has_element}
"""By the operator's name in ONNX's own domain."""
