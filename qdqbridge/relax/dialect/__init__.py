"""The QNN dialect on Relax."""

from qdqbridge.relax.dialect import quantize
from qdqbridge.relax.dialect.op import Attribute, QnnOp, call, lookup, register

register(quantize.OPS)
QNN_OPS = quantize.OPS
