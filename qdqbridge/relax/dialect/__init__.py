"""The QNN dialect on Relax."""

from qdqbridge.relax.dialect import (
    concatenate,
    convolution,
    dense,
    elementwise,
    normalization,
    pooling,
    quantize,
    resize,
    softmax,
    transposed,
    unary,
)
from qdqbridge.relax.dialect.accumulate import accumulator_dtype, magnitude
from qdqbridge.relax.dialect.op import Attribute, QnnOp, call, lookup, register

QNN_OPS = (
    *quantize.OPS, *convolution.OPS, *transposed.OPS, *dense.OPS, *elementwise.OPS,
    *concatenate.OPS, *pooling.OPS, *unary.OPS, *softmax.OPS, *normalization.OPS,
    *resize.OPS,
)
register(QNN_OPS)
