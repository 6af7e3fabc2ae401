"""x86 with AVX2 and without VNNI: the processor at hand, or the one that qemu-user makes of it.

qemu-user translates one process and follows into none that it starts, so that it stands before the
command of each worker. Which processor that is, only CPUID knows: ``/proc/cpuinfo`` stays the
machine's.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from dataclasses import dataclass
from shutil import which

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.runtime.products import saturates

QEMU = "qemu-x86_64"
HASWELL = "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"
"""Without what qemu-user does not have and warns of."""
_CPUID = bytes.fromhex("53 89f8 89f1 4989d0 0fa2 418900 41895804 41894808 4189500c 5b c3")
"""``cpuid(leaf, subleaf, registers)``: eax, ebx, ecx and edx into four words, as System V calls."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What CPUID says of the processor that runs this process.

    Attributes:
        brand: Its name.
        avx2: It has AVX2.
        vnni: It has products of bytes that do not saturate, of 256 or 512 bits.
        amx: It has tiles of bytes (AMX-INT8).
    """

    brand: str
    avx2: bool
    vnni: bool
    amx: bool


def processor() -> Processor:
    """Asks CPUID; on x86-64 with the calling convention of System V only."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as m:
        m.write(_CPUID)
        code = ctypes.c_char.from_buffer(m)
        call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(
            ctypes.addressof(code)
        )

        def asked(leaf: int, subleaf: int = 0) -> bytes:
            registers = ctypes.create_string_buffer(16)
            call(leaf, subleaf, ctypes.addressof(registers))
            return registers.raw

        brand = b"".join(asked(0x80000002 + part) for part in range(3))
        # Leaf 7 has AVX2 in bit 5 of EBX, VNNI in bit 11 of ECX and AMX-INT8 in bit 25 of EDX; VNNI
        # without AVX-512 is bit 4 of EAX in its subleaf 1.
        _, ebx, ecx, edx = struct.unpack("<4I", asked(7))
        eax = struct.unpack("<4I", asked(7, 1))[0]
        del code  # the mapping cannot be closed while something points into it
    name = brand.rstrip(b"\0").decode("ascii", "replace").strip()
    return Processor(name, bool(ebx >> 5 & 1), bool(ecx >> 11 & 1 or eax >> 4 & 1),
                     bool(edx >> 25 & 1))  # fmt: skip


def start_without_vnni(engine: str) -> tuple[str, ...]:
    """Returns what stands before a command so that it runs on x86 with AVX2 and without VNNI.

    Args:
        engine: The engine's name, for messages.

    Raises:
        UnsupportedTargetError: This processor is another, and there is no qemu-user.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnsupportedTargetError(
            f"the engine '{engine}' does not run here",
            why=f"this is {sys.platform} on {platform.machine()}",
            fix="use Linux on x86-64",
        )
    if saturates():
        return ()
    found = which(QEMU)
    if found is None:
        raise UnsupportedTargetError(
            f"the engine '{engine}' needs {QEMU} on this processor",
            why="onnxruntime's products of uint8 and int8 do not saturate here, as they do on x86 "
            "with AVX2 and without VNNI",
            fix="sudo apt install qemu-user (Debian, Ubuntu), sudo dnf install qemu-user (Fedora)",
        )
    return found, "-cpu", HASWELL
