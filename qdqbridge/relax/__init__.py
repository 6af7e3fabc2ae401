"""The QNN dialect on Relax, today's TVM; importing it registers the ``qnn`` operators."""

from qdqbridge.relax import dialect

__all__ = ["dialect"]
