"""How a graph is written where ONNX allows to write the same in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
class WriterOptions:
    """The choices of a writer.

    Attributes:
        clamp: Where narrower ranges are written.
        bias: How biases are written.
        convolvable: Write into floats weights of convolutions that do not fit into int8, and those
            with scales along the terms of a sum.
        apart: Give each tensor a scale and a zero point of its own, also where others have equal
            ones.
        guarded: Put a Max that changes nothing between a Concat and its second rounding.
        clipped: Put a Clip to what the type holds in front of a QuantizeLinear of 16 bits.
        contrib: Write Q and DQ of 16 and 4 bits in ``com.microsoft`` below opset 21.
        packed: Keep the MatMulNBits of a file, and hide from the runtime what it would make one of.
        operators: Use QLinear operators where there is one.
        newest: What the reader knows; newer files are written down to it, or refused.
    """

    clamp: Clamp
    bias: Bias = Bias.AS_READ
    convolvable: bool = False
    apart: bool = False
    guarded: bool = False
    clipped: bool = False
    contrib: bool = False
    packed: bool = False
    operators: bool = False
    newest: Versions | None = None


ONNXRUNTIME_1_31 = Versions("onnxruntime 1.31", opset=26, ir=13)
"""1.32 reads opset 28 and IR 14, and has kernels of opset 27; every older file is read by both."""
ONNXRUNTIME = WriterOptions(Clamp.STORED, packed=True, newest=ONNXRUNTIME_1_31)
"""What onnxruntime's CPU computes fast. 1.31 makes a float FusedConv of a Conv with a clamp right
behind it; with the clamp on integers the Conv is a QLinearConv, and the clamp is integer as well.
On x86 that holds for uint8 only: int8 becomes uint8 where a DQ follows its Q at once."""
