"""The QNN dialect on Relax: Relay's ``qnn`` operators, and new ones, as real Relax operators.

Importing this package registers every record of ``QNN_OPS`` with TVM: type inference, purity,
argument names, and a legalization to PrimFuncs that computes the numeric contract bit for bit.
Build calls with :func:`call`. Scales are float32 and zero points int32 constants of rank 0 or 1.

* conversions: quantize, dequantize, requantize
* exact integer sums: conv1d, conv2d, conv3d, conv1d_transpose, conv2d_transpose,
  conv3d_transpose, dense, batch_matmul
* two operands: add, subtract, mul, divide, minimum, maximum, power, prelu, where; concatenate
* averages: avg_pool1d, avg_pool2d, avg_pool3d, mean, sum
* tables: sigmoid, tanh, exp, log, sin, cos, erf, sqrt, rsqrt, reciprocal, abs, negative, floor,
  ceil, round, sign, relu, clip, leaky_relu, thresholded_relu, elu, celu, selu, gelu, silu, mish,
  softplus, softsign, hardsigmoid, hardswish; lookup in a table of one's own
* rows: softmax, log_softmax, layer_norm, rms_norm, instance_norm, group_norm, batch_norm
* resize1d, resize2d, resize3d, resize
"""

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
from qdqbridge.relax.dialect.op import REQUIRED, Attribute, QnnOp, call, lookup, register

QNN_OPS: tuple[QnnOp, ...] = (
    *quantize.OPS, *convolution.OPS, *transposed.OPS, *dense.OPS, *elementwise.OPS,
    *concatenate.OPS, *pooling.OPS, *unary.OPS, *softmax.OPS, *normalization.OPS, *resize.OPS,
)
register(QNN_OPS)

__all__ = [
    "QNN_OPS", "REQUIRED", "Attribute", "QnnOp", "accumulator_dtype", "call", "lookup",
    "magnitude", "register",
]
