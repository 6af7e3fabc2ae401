"""What may be asked of reading a model, for everybody who reads one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """What is rewritten beyond what keeps every bit.

    Attributes:
        decomposed: Read fake-quantization in float arithmetic as Q and DQ.
        fold_affine: Fold float Mul, Add, BatchNormalization … behind integer products into these.
        fuse: Make one operator of each activation and norm written in steps, and what ``dynamic``
            says.
        dynamic: Make integer products of those whose activation a DynamicQuantizeLinear has
            rounded and a DequantizeLinear brought back.
    """

    decomposed: bool = False
    fold_affine: bool = False
    fuse: bool = False
    dynamic: bool = False


BIT_FOR_BIT = ReadingOptions()
"""Nothing that moves a rounding."""
