"""Transposed convolutions of floats that multiply elements of the input only.

TVM puts zeros between and around the elements of the input, and between those of a dilated kernel.
A zero times an infinite weight is NaN, where ONNX has no product at all; and as onnxruntime does,
an element of the result that no element of the input reaches is 0. Where weights are constant and
finite, and not dilated, TVM's loops give the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.relax.empty_reductions import set_first


def products_of_elements(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr | None:
    """Returns a transposed convolution as a call of such loops; None where TVM's give the same."""
    attrs: Any = call.attrs
    if all(int(step) == 1 for step in attrs.dilation) and _is_finite(call.args[1]):
        return None
    begun = set_first(builder, call, _loops)
    return _loops(builder, call) if begun is None else begun


def _is_finite(weight: Any) -> bool:
    """True of constants without NaN and infinities."""
    if not isinstance(weight, ir.GenericConst):
        return False
    array = weight.value.numpy()
    return array.dtype.kind == "f" and bool(np.isfinite(array).all())


def _loops(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    attrs: Any = call.attrs
    shape, kind = list(call.ty.shape.values), str(call.ty.dtype)
    strides, dilations, pads = (
        [int(n) for n in numbers] for numbers in (attrs.strides, attrs.dilation, attrs.padding)
    )
    groups = int(attrs.groups)

    def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        terms, columns = w.shape[0] // groups, w.shape[1]
        term = te.reduce_axis((0, terms), "term")
        taps: list[Any] = [te.reduce_axis((0, size), f"k{i}") for i, size in enumerate(w.shape[2:])]

        def element(batch: Any, channel: Any, *pixel: Any) -> Any:
            where, there = [], []
            for axis, (at, tap) in enumerate(zip(pixel, taps, strict=True)):
                spread = at + pads[axis] - tap * dilations[axis]
                source = tirx.floordiv(spread, strides[axis])
                where.append(source)
                there += [spread >= 0, source < x.shape[axis + 2]]
                if strides[axis] > 1:
                    there.append(tirx.floormod(spread, strides[axis]) == 0)
            row = tirx.floordiv(channel, columns) * terms + term if groups > 1 else term
            column = tirx.floormod(channel, columns) if groups > 1 else channel
            product = x(batch, row, *where).astype(kind) * w(row, column, *taps).astype(kind)
            own = tirx.if_then_else(tirx.all(*there), product, tirx.const(0, kind))
            return te.sum(own, axis=[term, *taps])

        return stage(shape, element, "transposed_products")

    return builder.call_te(compute, *call.args, primfunc_name_hint="conv_transpose")
