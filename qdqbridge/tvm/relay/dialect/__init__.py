"""The QNN dialect on Relay: new ``qnn`` operators, and half-even rounding for Relay's own.

Importing this package registers the operators of ``qdqbridge.tvm.qnn.dialect`` that Relay lacks
(type
relation, and a canonicalization into kernels that compute the numeric contract bit for bit), and
widens the type relations of Relay's ``qnn.softmax``, ``qnn.leaky_relu`` and unary operators to
every 8- and 16-bit type. Build calls with :func:`call`.

A call that Relay's own operator of that name cannot carry (operands of different types, a
``TONEAREST_EVEN`` that is stated, 16-bit ``batch_matmul``, ...) is one of ``qnn.qdq_<name>``.
"""

from qdqbridge.tvm.relay.dialect import dynamic
from qdqbridge.tvm.relay.dialect.half_even import half_even
from qdqbridge.tvm.relay.dialect.registration import call, lookup, register
from qdqbridge.tvm.relay.dialect.shims import install_shims

install_shims()
register()
dynamic.register()

__all__ = ["call", "half_even", "install_shims", "lookup", "register"]
