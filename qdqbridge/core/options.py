"""Options for reading a model, shared by everything that reads one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Rewrites beyond the bit-exact ones.

    Attributes:
        decomposed: Read fake quantization written as float arithmetic (Div, Round, Clip, Mul) as
            Q and DQ.
        fold_affine: Fold float Mul, Add, BatchNormalization … into the integer product before them;
            moves a rounding.
        fuse: Fuse activations and norms that are written step by step into one operator each;
            includes ``dynamic``.
        dynamic: Turn a product whose activation goes through DynamicQuantizeLinear and
            DequantizeLinear into an integer product.
    """

    decomposed: bool = False
    fold_affine: bool = False
    fuse: bool = False
    dynamic: bool = False


BIT_FOR_BIT = ReadingOptions()
"""Nothing that moves a rounding."""
