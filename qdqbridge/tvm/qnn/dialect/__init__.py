"""The QNN dialect: Relay's ``qnn`` operators, and new ones, as records that every host registers.

Each record of ``QNN_OPS`` has the operator's arguments and attributes, its type rule, and TE
functions that compute the numeric contract bit for bit, on TVM 0.27 (Relax) and 0.16 (Relay).
Scales are float32 and zero points int32 constants of rank 0 or 1.

* conversions: quantize, dequantize, requantize
* exact integer sums: conv1d, conv2d, conv3d, conv1d_transpose, conv2d_transpose,
  conv3d_transpose, dense, batch_matmul
* dynamic_dense: a product whose activation is quantized while the model runs
* two operands: add, subtract, mul, divide, minimum, maximum, power, prelu, where; concatenate
* averages: avg_pool1d, avg_pool2d, avg_pool3d, mean, sum
* tables: sigmoid, tanh, exp, log, sin, cos, erf, sqrt, rsqrt, reciprocal, abs, negative, floor,
  ceil, round, sign, relu, clip, leaky_relu, thresholded_relu, elu, celu, selu, gelu, silu, mish,
  softplus, softsign, hardsigmoid, hardswish; lookup in a table of one's own
* rows: softmax, log_softmax, layer_norm, rms_norm, instance_norm, group_norm, batch_norm
* resize1d, resize2d, resize3d, resize
* unpack: codes of less than a byte

Relay's simulated_quantize and simulated_dequantize are in :mod:`.quantize`, for hosts without
them.
"""

from qdqbridge.tvm.qnn.dialect import (
    convolution,
    dense,
    dynamic,
    elementwise,
    normalization,
    pooling,
    quantize,
    resize,
    unary,
)
from qdqbridge.tvm.qnn.dialect.context import REQUIRED, Attribute, QnnOp

QNN_OPS: tuple[QnnOp, ...] = (
    *quantize.OPS,
    *convolution.OPS,
    *convolution.TRANSPOSED_OPS,
    *dense.OPS,
    *dynamic.OPS,
    *elementwise.OPS,
    *pooling.OPS,
    *unary.OPS,
    *normalization.OPS,
    *resize.OPS,
    *quantize.UNPACK_OPS,
)

__all__ = ["QNN_OPS", "REQUIRED", "Attribute", "QnnOp"]
