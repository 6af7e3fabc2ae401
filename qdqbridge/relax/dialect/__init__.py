"""The QNN dialect on Relax."""

from qdqbridge.relax.dialect import convolution, dense, quantize, transposed
from qdqbridge.relax.dialect.op import Attribute, QnnOp, call, lookup, register

QNN_OPS = (*quantize.OPS, *convolution.OPS, *transposed.OPS, *dense.OPS)
register(QNN_OPS)
