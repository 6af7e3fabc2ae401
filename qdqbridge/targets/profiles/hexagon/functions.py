"""How far functions of 16 bits are off on Hexagon: the same on every architecture.

Measured over all 65,536 operands in several ranges (onnxruntime-qnn 2.7.0, host build). Steps that
are the same in every encoding of the result are errors of the integers; where another scale has as
many times fewer, the function itself is an approximation, and no encoding makes it better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from qdqbridge.targets.profiles.file_view import FileEncoding, FileNode, FileView

Error = Callable[[FileView, FileNode, float], float]
"""Returns the error in real numbers, of an operand's largest number."""
_STEPS = {
    "LayerNormalization": 64, "Div": 32, "Sigmoid": 8, "Tanh": 8, "Add": 4, "Sub": 4, "Mul": 4,
    "Atan": 4, "Exp": 16, "HardSigmoid": 4, "Log": 4, "LogSoftmax": 4, "Reciprocal": 16,
    "Sqrt": 128,
}  # fmt: skip
"""Steps of the result that were seen, rounded up to a power of 2."""
_ROUNDED = 2


def steps_of(
    view: FileView, node: FileNode, result: FileEncoding, most: float | None
) -> int | None:
    """Returns by how many steps of a result a function may be off; None where it is right.

    Args:
        view: The file.
        node: The function.
        result: The encoding of its result.
        most: The largest number of its operand, None where it is not known.
    """
    error = _ERRORS.get(node.op)
    if error is None:
        return _STEPS.get(node.op)
    scale = None if result.scale is None else float(result.scale.max(initial=0))
    if not scale or most is None:
        return 1 << 16
    return min(_ROUNDED + math.ceil(error(view, node, most) / scale), 1 << 16)


def _gelu(view: FileView, node: FileNode, most: float) -> float:
    """A thousandth of small numbers, and less of larger ones."""
    del view, node
    return min(1e-3 * most, 2.2e-3 + 3e-4 * most)


def _softplus(view: FileView, node: FileNode, most: float) -> float:
    del view, node, most
    return 1.28e-2


def _softmax(view: FileView, node: FileNode, most: float) -> float:
    """Some hundredths of the mean of its row."""
    del most
    shape, axis = view.shape(node.input(0)) or (), int(node.attributes.get("axis", -1))
    extent = shape[axis] if -len(shape) <= axis < len(shape) else None
    return 1.6e-2 / (extent if isinstance(extent, int) and extent else 2)


_ERRORS: Mapping[str, Error] = MappingProxyType(
    {"Gelu": _gelu, "Softplus": _softplus, "Softmax": _softmax}
)
