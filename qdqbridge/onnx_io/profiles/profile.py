"""Export profiles: what differs between the runtimes that a QDQ file is written for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph
from qdqbridge.onnx_io.profiles.finding import Demand
from qdqbridge.onnx_io.profiles.legalization import Legalization


class Clamp(Enum):
    """Where a range narrower than the storage type is written; all give the same integers."""

    BEFORE = "Relu or Clip on the operator's float result, before its QuantizeLinear"
    BEHIND = "between a Q/DQ pair and a second Q: Relu, or Max and Min with stored numbers"
    STORED = "on stored uint8; for other types, on floats between a Q/DQ pair and a second Q"


class Bias(Enum):
    """How a bias is written that has an integer form."""

    AS_READ = "as the file it was read from"
    FLOAT = "as float constant"
    INT32 = "as int32 constant behind a DequantizeLinear"


@dataclass(frozen=True, slots=True)
class Older:
    """An opset to fall back to where a newer one breaks a rule.

    Attributes:
        rule: The rule's name.
        newest: The newest opset that keeps it.
    """

    rule: str
    newest: int


@dataclass(frozen=True, slots=True)
class Versions:
    """The newest versions that a runtime reads.

    Attributes:
        runtime: The runtime and its version.
        opset: Of ONNX's operators.
        ir: Of the file format.
    """

    runtime: str
    opset: int
    ir: int


@dataclass(frozen=True, slots=True)
class ExportProfile:
    """How to write what ONNX allows to write in several ways, and what the runtime demands.

    Attributes:
        name: The name users give.
        runtime: What reads such files.
        clamp: Where narrower ranges are written.
        rules: What a file must keep so that the runtime accepts and fuses it.
        told: Rules of another runtime that may read such files as well: where it computes something
            else, an export says so, and a check does not mind.
        bias: How biases are written.
        recentered: Turn uint8 with zero point 128 into int8 with zero point 0.
        unsigned: Which signed types become unsigned in a graph, zero points shifted.
        legalizations: What is put otherwise in a graph before it is written.
        convolvable: Turn int8 activations with a zero point, or that a Concat makes for a Conv,
            into uint8; into floats weights of convolutions that do not fit into int8, and those
            with scales along the terms of a sum.
        apart: Give each tensor a scale and a zero point of its own, also where others have equal
            ones.
        guarded: Put a Max that changes nothing between a Concat and its second rounding.
        clipped: Put a Clip to what the type holds in front of a QuantizeLinear of 16 bits.
        contrib: Write Q and DQ of 16 and 4 bits in ``com.microsoft`` below opset 21.
        packed: Keep the MatMulNBits of a file, and hide from the runtime what it would make one of.
        operators: Use QLinear operators where there is one.
        as_read: Keep the nodes of a file that stores no quantized activation: by the neighbours of
            a node the runtime decides what is fused, and where results are rounded.
        strict: Refuse to write what the runtime would refuse to read.
        fixed: The runtime takes fixed shapes only.
        older: Where to write an older opset than the source's.
        newest: What the runtime reads; newer files are written down to it, or refused.
    """

    name: str
    runtime: str
    clamp: Clamp
    rules: tuple[Demand, ...] = ()
    told: tuple[Demand, ...] = ()
    bias: Bias = Bias.AS_READ
    recentered: bool = False
    unsigned: Callable[[Graph], tuple[DType, ...]] | None = None
    legalizations: tuple[Legalization, ...] = ()
    convolvable: bool = False
    apart: bool = False
    guarded: bool = False
    clipped: bool = False
    contrib: bool = False
    packed: bool = False
    operators: bool = False
    as_read: bool = False
    strict: bool = False
    fixed: bool = False
    older: Older | None = None
    newest: Versions | None = None
