"""Rows of matrix products and reductions that only Relay writes so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import ReduceAttrs, SoftmaxAttrs, TransposeAttrs
from qdqbridge.tvm.qnn.read.site import Ints, ReadSite


def dense(site: ReadSite) -> Value:
    """``nn.dense(x, w)``: ``x @ transpose(w)``."""
    return site.emit("MatMul", [site.real(0), _permuted(site, site.value(1))])


def matmul(site: ReadSite) -> Value:
    """``nn.matmul(a, b; transpose_a, transpose_b)``."""
    a, b = site.real(0), site.real(1)
    a = _permuted(site, a) if site.flag("transpose_a") else a
    b = _permuted(site, b) if site.flag("transpose_b") else b
    return site.emit("MatMul", [a, b])


def batch_matmul(site: ReadSite) -> Value:
    """``nn.batch_matmul(a, b; transpose_a, transpose_b)``; b is transposed by default."""
    a, b = site.real(0), site.real(1)
    a = _permuted(site, a) if site.flag("transpose_a") else a
    b = _permuted(site, b) if site.flag("transpose_b", default=True) else b
    return site.emit("MatMul", [a, b])


def _permuted(site: ReadSite, value: Value) -> Value:
    """Returns matrices transposed; those that were transposed just before, as they were."""
    value = site.plain(value)
    rank = len(site.shape(value))
    swap = (*range(rank - 2), rank - 1, rank - 2)
    node = value.producer
    if node is not None and node.attributes == TransposeAttrs(swap):
        return node.operand(0)
    return site.transposed(value, swap)


def reduced_axes(site: ReadSite) -> Ints:
    """Returns every reduced axis, from the front and sorted."""
    rank = len(site.shape(site.value(0)))
    given = site.call.attrs.get("axis")
    axes = range(rank) if given is None or given == () else site.ints("axis")
    wrapped = sorted({axis % rank for axis in axes})
    if site.flag("exclude"):
        wrapped = [axis for axis in range(rank) if axis not in wrapped]
    return tuple(wrapped)


def variance(site: ReadSite) -> Value:
    """``variance(x, mean; axis, keepdims)``: the mean of the squared differences."""
    if site.flag("unbiased"):
        raise site.refusal("it is unbiased (divides by n - 1)")
    x, mean = site.real(0), site.real(1)
    difference = site.emit("Sub", [x, mean], type_=x.type)
    squared = site.emit("Mul", [difference, difference], type_=x.type)
    return site.emit(
        "ReduceMean", [squared], ReduceAttrs(reduced_axes(site), site.flag("keepdims"))
    )


def fast_softmax(site: ReadSite) -> Value:
    """``nn.fast_softmax(x; axis)``: what TVM's FastMath writes."""
    return site.emit("Softmax", [site.real(0)], SoftmaxAttrs((site.axis(),)))


def l2_normalize(site: ReadSite) -> Value:
    """``nn.l2_normalize(x; eps, axis)``: ``x / sqrt(max(sum(x * x), eps))``."""
    x = site.real(0)
    shape = site.shape(x)
    axes = reduced_axes(site)
    kept = tuple(1 if i in axes else extent for i, extent in enumerate(shape))
    type_ = TensorType(x.type.dtype, kept)
    squares = site.emit("Mul", [x, x], type_=x.type)
    total = site.emit("ReduceSum", [squares], ReduceAttrs(axes), type_)
    least = site.constant(np.asarray(site.number("eps"), np.float32))
    bounded = site.emit("Max", [total, least], type_=type_)
    return site.emit("Div", [x, site.emit("Sqrt", [bounded], type_=type_)])


ROWS: Mapping[str, Callable[[ReadSite], Value]] = {
    "nn.dense": dense,
    "nn.matmul": matmul,
    "nn.batch_matmul": batch_matmul,
    "variance": variance,
    "nn.fast_softmax": fast_softmax,
    "nn.l2_normalize": l2_normalize,
}
