"""What the file of a graph says about itself, beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a model file.

    Attributes:
        file: Name of the file.
        ir_version: Version of ONNX's file format; None where it is another format.
        opsets: Version of every operator domain, or of TVM for its modules.
        producer: Name and version of the program that wrote it.
        operators: Number of nodes by operator, the most frequent first.
    """

    file: str
    ir_version: int | None
    opsets: Mapping[str, int | str]
    producer: str
    operators: Mapping[str, int]
