"""What is written as C: any processor that has a compiler, and Cortex-M with DSP instructions."""

from __future__ import annotations

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Prim
from qdqbridge.tvm.relax.kernels.codegen.processors.description import Cpu, Dot

C = "c"
"""The architecture of what is written as C."""
_REGISTERS = 8
"""Of 13, what is left beside the places of activations and weights: two pixels by two channels."""
_ROOM = 1 << 12
"""Bytes of rows with their padding that are copied at once: memory is scarce."""


def _product(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """One product of bytes is added to a sum of 32 bits."""
    return sums + activations.astype("int32") * weights.astype("int32")


def _smlad(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """Four products of bytes are added, after both words are two pairs of 16 bits each."""
    word = tirx.reinterpret("int32", weights)
    return tirx.call_pure_extern("int32", "qdq_dot4", sums, activations, word)


CORTEX_M = Cpu(
    "cortex_m_dsp",
    "C for Cortex-M with DSP instructions (M4, M7, M33, M55): smlad on two pairs of 16 bits",
    C, ("dsp",), 1, _REGISTERS, Dot("uint8", "int8", 4, _smlad), fuses=True, room=_ROOM,
)  # fmt: skip
GENERIC_C = Cpu(
    "generic_c", "C for any other processor: one product after the other", C, (), 1, _REGISTERS,
    Dot("uint8", "int8", 1, _product), fuses=False, room=_ROOM,
)  # fmt: skip
