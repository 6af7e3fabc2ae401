"""A kernel: a description of code, the PrimFunc made of it, and the operands of one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class KernelPlace:
    """Where a node is computed.

    Attributes:
        cpu: The CPU.
        channels_last: True where the node's data operand and results are channels-last; their
            types have the shapes in which they are stored.
        threads: How many threads the machine has; the work is spread over no more.
    """

    cpu: Cpu
    channels_last: bool
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One call of a PrimFunc in destination-passing style: ``inputs, constants, outputs``.

    Attributes:
        name: What profiles call it, a C identifier.
        description: Everything that shapes the code. Kernels with equal descriptions (of one
            type) share one PrimFunc, so nothing about one tensor's numbers belongs here.
        build: Makes the PrimFunc of a description; it has to be without ``global_symbol``.
        inputs: The values it reads, as they are stored.
        constants: Packed weights, biases, multipliers, tables: C-contiguous arrays.
        outputs: The values it writes.
        work: Operations of one call (two per multiplication and addition), for shares of the
            limit, an open extent counting as 1; 0 where that says nothing.
        extend: Returns the kernel that also computes the node that alone reads its only output, or
            None where it cannot; called as ``extend(kernel, node)``.
    """

    name: str
    description: Hashable
    build: Callable[[Any], Any]
    inputs: tuple[Value, ...]
    constants: tuple[Array, ...]
    outputs: tuple[Value, ...]
    work: int = 0
    extend: Callable[[Kernel, Node], Kernel | None] | None = None


KernelMatch = Callable[[Node, KernelPlace], "Kernel | None"]
"""Returns the kernel of a node, or None where its family has none for it."""
