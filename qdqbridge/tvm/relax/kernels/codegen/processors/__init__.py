"""Classes of processors: one description each, which all kernels are made from.

To add one, write a file beside ``arm.py`` that describes it with :class:`~.description.Cpu`, and
add it to :data:`PROCESSORS` before those it is better than. What kernels do follows from that.
"""

from qdqbridge.tvm.relax.kernels.codegen.processors.arm import NEON, NEON_DOT, NEON_I8MM
from qdqbridge.tvm.relax.kernels.codegen.processors.c import CORTEX_M, GENERIC_C
from qdqbridge.tvm.relax.kernels.codegen.processors.description import GENERIC, Cpu
from qdqbridge.tvm.relax.kernels.codegen.processors.x86 import AVX2, AVX512_VNNI, AVX_VNNI

PROCESSORS: tuple[Cpu, ...] = (
    AVX512_VNNI, AVX_VNNI, AVX2, NEON_I8MM, NEON_DOT, NEON, CORTEX_M, GENERIC_C, GENERIC,
)  # fmt: skip
"""The best ones first: a target gets the first one of which it has all features."""
