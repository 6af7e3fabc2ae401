"""Products of uint8 by int8 in a file, and how many pairs of their weights can saturate.

On x86 with AVX2 and without VNNI, as :mod:`qdqbridge.onnx_io.runtime.products` says: what is
counted here can, what data makes of it is predicted there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.onnx_io.runtime.products import FULL, PRODUCTS_OF_BYTES, can_saturate, paired
from qdqbridge.targets.profiles.file_view import FileNode, FileView
from qdqbridge.targets.profiles.finding import Finding, Reason
from qdqbridge.targets.profiles.ort.fusion import (
    DequantizeSource,
    rounds_weight,
    source,
)

RULE = "pairs-fit"
_SIGNED = (-128, 127)
CONVOLUTIONS = frozenset({"Conv", "QLinearConv"})
"""Of one channel to one they have a kernel of their own, which is exact."""
_KERNELS = CONVOLUTIONS | {"ConvInteger"}
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ByteFactors:
    """The two factors of a product, of which one is signed.

    Attributes:
        tensors: The names of the signed and of the unsigned one; the latter may be empty.
        shape: Of the signed one, as far as it is known.
        signed: Its codes, where they are constant.
        unsigned: Those of the other one.
    """

    tensors: tuple[str, str]
    shape: Sequence[int | str | None] | None
    signed: NDArray[Any] | None
    unsigned: NDArray[Any] | None


def stored_factors(view: FileView, node: FileNode) -> Iterator[ByteFactors]:
    """Yields what an operator on bytes multiplies, where it is uint8 by int8."""
    operands = PRODUCTS_OF_BYTES.get(node.bare)
    if operands is None:
        return
    data, zero = ("", "") if operands.unsigned is None else map(node.input, operands.unsigned)
    if (view.dtype(data) or view.dtype(zero) or DType.UINT8) is not DType.UINT8:
        return
    for name in (node.input(index) for index, _ in operands.signed):
        if view.dtype(name) is DType.INT8:
            held = view.constant(name), view.constant(data) if data else None
            yield ByteFactors((name, data), view.shape(name), *held)


def quantized_factors(view: FileView, node: FileNode) -> Iterator[ByteFactors]:
    """Yields what a Conv, Gemm or MatMul between Q and DQ multiplies, where it is uint8 by int8."""
    x, w = (source(view, node.input(index)) for index in (0, 1))
    shape = view.shape(node.input(1))
    if x is None or x.dtype is not DType.UINT8:
        return
    if w is None:
        codes = _rounded_by_runtime(view, node)
        if codes is not None:
            yield ByteFactors((node.input(1), ""), shape, codes, None)
    elif w.dtype is DType.INT8:
        names = w.encoding.node.input(0), x.encoding.node.input(0)
        held = (_codes(view, node.input(i), each) for i, each in ((1, w), (0, x)))
        yield ByteFactors(names, shape, *held)


def _codes(view: FileView, tensor: str, found: DequantizeSource) -> NDArray[Any] | None:
    """Returns constant codes behind the data movement that a DQ is pushed past."""
    node = view.producer(tensor)
    if node is None or node is found.encoding.node:
        return view.constant(found.encoding.node.input(0))
    codes, shape = _codes(view, node.input(0), found), view.shape(tensor) or ()
    if codes is not None and node.op == "Transpose":
        return np.transpose(codes, node.attributes.get("perm"))
    known = [size for size in shape if isinstance(size, int)]
    same = codes is not None and len(known) == len(shape) and math.prod(known) == codes.size
    return codes.reshape(known) if same and codes is not None else None


def _rounded_by_runtime(view: FileView, node: FileNode) -> NDArray[np.int8] | None:
    """Returns the codes of a float weight that onnxruntime quantizes (weight_bias_quantization.cc).

    The range of all of it, and 0, becomes the whole range of int8.
    """
    real = view.constant(node.input(1)) if rounds_weight(view, node) else None
    if node.op == "ConvTranspose" or real is None or not real.size:
        return None
    low, high = np.minimum(real.min(), np.float32(0)), np.maximum(real.max(), np.float32(0))
    scale = (high - low) / np.float32(255)
    if not 0 < scale < np.inf:
        return None
    zero = np.clip(np.rint(_SIGNED[0] - low / scale), *_SIGNED)
    return np.clip(np.rint(real / scale) + zero, *_SIGNED).astype(np.int8)


def unfit_pairs(node: FileNode, products: Sequence[ByteFactors]) -> Reason | None:
    """Returns how many pairs of a node's products can saturate; None where none can."""
    can = total = 0
    tensors: list[str] = []
    for each in products:
        if _alone(node, each) or _one_term(node, each):
            continue
        rows, codes = _rows(node, each)
        if rows is None:
            text = f"both factors of '{node.name}' are computed, and all pairs of them can saturate"
            return Reason(text, tuple(name for name in each.tensors if name))
        pairs = paired(rows)
        count = int(can_saturate(pairs, codes).sum())
        can, total = can + count, total + math.prod(pairs.shape[:-1])
        tensors += [each.tensors[each.signed is None]] if count else []
    if not can:
        return None
    text = f"{can} of the {total} pairs of weights of '{node.name}' can saturate"
    return Reason(text, tuple(tensors))


def _alone(node: FileNode, factors: ByteFactors) -> bool:
    """True for convolutions of one channel to one."""
    group, shape = int(node.attributes.get("group", 1)), factors.shape
    return node.bare in CONVOLUTIONS and shape is not None and tuple(shape[:2]) == (group, 1)


def _one_term(node: FileNode, factors: ByteFactors) -> bool:
    """True where every sum has one term, which cannot saturate."""
    shape = factors.shape
    if not shape:
        return False
    if node.bare in CONVOLUTIONS:
        return all(size == 1 for size in shape[1:])
    if node.bare in _KERNELS:
        return False
    return shape[_inner_axis(node, len(shape), second=True)] == 1


def _inner_axis(node: FileNode, rank: int, *, second: bool) -> int:
    """Returns the axis over which a product of matrices adds."""
    if rank == 1:
        return -1
    turned = bool(node.attributes.get("transB" if second else "transA", 0))
    return -1 if turned == second else -2


def _rows(node: FileNode, factors: ByteFactors) -> tuple[NDArray[Any] | None, tuple[int, int]]:
    """Returns the codes of the constant factor, one sum in each row, and those of the other one."""
    if node.bare in CONVOLUTIONS:
        held = factors.signed
        rows = None if held is None else np.moveaxis(held, 1, -1).reshape(len(held), -1)
        return rows, FULL
    if node.bare in _KERNELS:  # taps before channels, as they are stored
        held = factors.unsigned
        return None if held is None else held.reshape(len(held), -1), _SIGNED
    second = factors.signed is not None
    held = factors.signed if second else factors.unsigned
    if held is None:
        return None, FULL
    rows = np.moveaxis(held, _inner_axis(node, held.ndim, second=second), -1)
    return rows.reshape(-1, rows.shape[-1]), FULL if second else _SIGNED


def pairs_sentence(findings: Sequence[Finding]) -> str:
    """Returns in which products pairs can saturate, and where; empty where there are none."""
    names = [f"'{each.node}'" for each in findings if each.rule == RULE]
    if not names:
        return ""
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return (
        f"on x86 with AVX2 and without VNNI, onnxruntime adds products in pairs of 16 bits, which "
        f"can saturate in {len(names)} product{'s' * (len(names) > 1)} "
        f"({', '.join([*names[:_SHOWN], *more])}): compare --engine onnxruntime-avx2 tells what "
        "data loses"
    )
