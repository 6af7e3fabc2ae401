"""The QNN dialect on Relax: Relay's ``qnn`` operators, and new ones, as real Relax operators.

Importing this package registers every record of ``qdqbridge.tvm.qnn.dialect`` with TVM: type
inference, purity, argument names, and a legalization to PrimFuncs that computes the numeric
contract bit for bit. Build calls with :func:`call`.
"""

from qdqbridge.tvm.qnn.dialect import QNN_OPS, REQUIRED, Attribute, QnnOp
from qdqbridge.tvm.qnn.dialect.quantize import MINIFLOAT_OPS as MINIFLOAT_OPS
from qdqbridge.tvm.qnn.dialect.quantize import SIMULATED_OPS as SIMULATED_OPS
from qdqbridge.tvm.qnn.ranges import accumulator_dtype, magnitude
from qdqbridge.tvm.relax.dialect import registration
from qdqbridge.tvm.relax.dialect.registration import (
    RelaxHost,
    call,
    lookup,
    lower_call,
    register,
    tensor_type,
)

register(QNN_OPS)
register(MINIFLOAT_OPS)
register(SIMULATED_OPS)
registration.register_broadcast()

__all__ = [
    "QNN_OPS",
    "REQUIRED",
    "Attribute",
    "QnnOp",
    "RelaxHost",
    "accumulator_dtype",
    "call",
    "lookup",
    "lower_call",
    "magnitude",
    "register",
    "tensor_type",
]
