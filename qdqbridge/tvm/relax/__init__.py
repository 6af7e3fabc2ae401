"""The QNN dialect on Relax, today's TVM; importing it registers the ``qnn`` operators."""

from importlib.util import find_spec

from qdqbridge.errors import UnsupportedTargetError

if find_spec("tvm") is not None and find_spec("tvm.s_tir") is None:
    raise UnsupportedTargetError(
        "this TVM's Relax is too old",
        why="it has no tvm.s_tir, which came with TVM 0.27's split of TIR",
        fix="pip install 'qdqbridge[relax]' elsewhere, or stay with Relay: --dialect relay, "
        "qdqbridge.tvm.relay",
    )

from qdqbridge.tvm.relax import dialect

__all__ = ["dialect"]
