"""LayerNormalization whose mean or deviation is a result, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

_REAL, _FLOAT = "float32", 1


def _layer_normalization(site: CompositionSite) -> Sequence[Expr]:
    """The norm, the mean and the reciprocal of the deviation, in float32.

    ONNX's definition takes the square of the mean off that of the data, which leaves little where
    the mean is large; onnxruntime 1.32 takes the mean off the data, as here.
    """
    if site.onnx.int_("stash_type", _FLOAT) != _FLOAT:
        raise NoRow("it does not compute in float32")
    kind, x = site.dtype(site.arg(0)), site.cast(site.arg(0), _REAL)
    rank = site.rank(x)
    axes = list(range(site.onnx.int_("axis", -1) % rank, rank))
    mean = site("mean", x, axis=axes, keepdims=True)
    centred = site("subtract", x, mean)
    variance = site("mean", site("multiply", centred, centred), axis=axes, keepdims=True)
    epsilon = site.number(site.onnx.float_("epsilon", 1e-5), _REAL)
    one = site.number(1, _REAL)
    inverse = site("divide", one, site("sqrt", site("add", variance, epsilon)))
    y = site("multiply", site("multiply", centred, inverse), site.cast(site.arg(1), _REAL))
    if site.has(2):
        y = site("add", y, site.cast(site.arg(2), _REAL))
    results = (site.cast(y, kind), mean, inverse)
    return [result for index, result in enumerate(results) if site.asks(index)]


NORMS: Mapping[str, Composition] = {"LayerNormalization": _layer_normalization}
"""By the operator's name in ONNX's own domain."""
