"""Which tensor of a quantized model loses the accuracy, by which cause, and what helps.

A float model and a quantized one that claims to be it, of any two tools, are aligned by their
structure (:mod:`.correspondence`). What the quantized one rounds is done to the float one, tensor
by tensor (:mod:`.simulation`), and each tensor's error is split by cause (:mod:`.causes`); for the
worst ones repairs are tried (:mod:`.repairs`). What a node adds to the error of its operands is
split likewise (there, too), and so are two runtimes of one model (:mod:`.attribute`).
"""

from qdqbridge.autoquant.attribution.attribute import (
    Attribution,
    SuspectTensor,
    attribute,
    attribute_to_kernels,
)
from qdqbridge.autoquant.attribution.causes import NodeError

__all__ = ["Attribution", "NodeError", "SuspectTensor", "attribute", "attribute_to_kernels"]
