"""Gates of com.microsoft: those of a LinearAttention, of the norm of its results, of a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite, wide

_REAL = "float32"


def _gate(site: CompositionSite) -> Sequence[Expr]:
    """``decay = scale * Softplus(a + bias)`` and ``beta = Sigmoid(b)``, in float32.

    Source: onnxruntime docs/ContribOperators.md.
    """
    kind = site.dtype(site.arg(0))
    a, bias, scale = (site.cast(site.arg(index), _REAL) for index in range(3))
    decay = site("multiply", scale, site("nn.softplus", site("add", a, bias)))
    results = [site.cast(decay, kind)]
    if site.has(3):
        beta = site("sigmoid", site.cast(site.arg(3), _REAL))
        results.append(site.cast(beta, kind))
    return results[: len(site.node.outputs)]


def _gated_norm(site: CompositionSite) -> Sequence[Expr]:
    """``x / sqrt(mean(x^2) + epsilon) * scale * act(gate)`` of each group, in float32.

    A group is as many neighbours of the last axis as there are scales.
    Source: onnxruntime docs/ContribOperators.md.
    """
    x, scale, gate = (site.cast(site.arg(index), _REAL) for index in range(3))
    shape, (size,) = site.extents(x), site.static(scale)
    if not isinstance(shape[-1], int) or shape[-1] % size:
        raise NoRow(f"the width of its operand is {shape[-1]}, in groups of {size}")
    for have, want in zip(site.extents(gate), shape, strict=True):
        site.scope.need_same(have, want)
    groups: list[Any] = [*shape[:-1], shape[-1] // size, size]
    x = site("reshape", x, groups)
    square = site("mean", site("multiply", x, x), axis=-1, keepdims=True)
    epsilon = site.number(site.onnx.float_("epsilon", 1e-5), _REAL)
    normal = site("divide", x, site("sqrt", site("add", square, epsilon)))
    normal = site("reshape", site("multiply", normal, scale), shape)
    gate = site("reshape", gate, shape)
    bent = site("sigmoid", gate)
    if site.onnx.string("activation", "silu") != "sigmoid":
        bent = site("multiply", gate, bent)
    return [site.cast(site("multiply", normal, bent), site.dtype(site.arg(0)))]


def _gated_add(site: CompositionSite) -> Sequence[Expr]:
    """``x + y * gate``; half floats are rounded twice.

    Source: onnxruntime docs/ContribOperators.md.
    """
    if site.has(3):
        raise NoRow("it projects its gate")
    kind, shape = site.dtype(site.arg(0)), site.extents(site.arg(0))
    x, y, gate = (wide(site, site.arg(index)) for index in range(3))
    for given, wanted in ((y, shape), (gate, [*shape[:-1], 1])):
        for have, want in zip(site.extents(given), wanted, strict=True):
            site.scope.need_same(have, want)
    y, gate = site("reshape", y, shape), site("reshape", gate, [*shape[:-1], 1])
    product = wide(site, site.cast(site("multiply", y, gate), kind))
    return [site.cast(site("add", x, product), kind)]


GATES: Mapping[str, Composition] = {
    "LinearAttentionGate": _gate,
    "GatedRMSNorm": _gated_norm,
    "GatedAdd": _gated_add,
}
"""By the operator's name in the domain com.microsoft."""
