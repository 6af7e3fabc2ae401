"""Scales and zero points that a PT2E program finds as it runs, as ``DynamicQuantizeLinear`` does.

PyTorch's ``choose_qparams`` takes them from the extremes of the data and 0, as ONNX does, in int8
or uint8: codes and zero points of int8 are 128 less, which no real number shows, so all are uint8
here. Two things PyTorch does otherwise: it multiplies by ``1 / scale``, where a tie may round to
the other side, and it has a smallest scale. Source: PyTorch's
``torch/ao/quantization/fx/_decomposed.py``, and ``determine_qparams`` in
``torch/ao/quantization/utils.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import relax

from qdqbridge.core.graph.graph import Note
from qdqbridge.errors import UnsupportedQuantization

_CHOOSE = "choose_qparams.tensor"
_OTHERS = (
    "choose_qparams", "choose_qparams_symmetric", "choose_qparams_per_token",
    "choose_qparams_per_token_asymmetric",
)  # fmt: skip
"""Operators that find scales at run time, by the part of their names before the overload."""
_READERS = ("quantize_per_tensor.tensor", "dequantize_per_tensor.tensor")
_LAST = 255
_WHOLE = {"uint8": (0, _LAST), "int8": (-128, 127)}
"""Codes of a type, all of which are used."""


def parameters_of(node: Any) -> tuple[Any, Any] | None:
    """Returns the graph nodes of the scale and the zero point of a Q or DQ; None of constants."""
    given = {**dict(zip(("input", "scale", "zero_point"), node.args, strict=False)), **node.kwargs}
    scale, zero_point = given.get("scale"), given.get("zero_point")
    if _chooser(scale) is None or _chooser(scale) is not _chooser(zero_point):
        return None
    return scale, zero_point


def _chooser(value: Any) -> Any:
    """Returns the node that chose a scale or a zero point."""
    source = value.args[0] if getattr(value, "op", "") == "call_function" and value.args else None
    return source if source is not None and _fx_target_name(source) == _CHOOSE else None


def _fx_target_name(node: Any) -> str:
    return str(getattr(getattr(node, "target", None), "__name__", ""))


def choose(node: Any, importer: Any) -> tuple[Any, Any]:
    """Returns the scale and the uint8 zero point of data, in the steps of TVM's ONNX frontend.

    Args:
        node: The ``choose_qparams.tensor`` of an exported program.
        importer: TVM's importer of the program.
    """
    emit, op = importer.block_builder.emit, relax.op
    x = importer.env[node.args[0]]
    zero, last = (relax.const(number, "float32") for number in (0.0, float(_LAST)))
    high = emit(op.maximum(zero, op.max(x)))
    low = emit(op.minimum(zero, op.min(x)))
    scale = emit(op.divide(op.subtract(high, low), last))
    place = op.subtract(zero, op.divide(low, scale))
    clipped = op.clip(place, 0, _LAST)  # type: ignore[arg-type] # TVM takes numbers
    return scale, emit(op.astype(op.round(clipped), "uint8"))


def check(program: Any) -> None:
    """Refuses scales of run time that no ``DynamicQuantizeLinear`` has.

    Raises:
        UnsupportedQuantization: They are symmetric or per token, leave codes out, are not of
            float32, or something else reads them.
    """
    for node in program.graph.nodes:
        why = _reason(node) if node.op == "call_function" else ""
        if why:
            raise UnsupportedQuantization(
                f"cannot read the quantization of '{node.name}'",
                where=_fx_target_name(node),
                why=why,
                fix="use a quantizer that takes asymmetric scales of whole tensors in all of int8 "
                "or uint8, or static ones (is_dynamic=False)",
            )


def _reason(node: Any) -> str:
    name = _fx_target_name(node)
    if name.partition(".")[0] not in _OTHERS:
        return ""
    if name != _CHOOSE:
        return "its scales, found as the program runs, are not ONNX's DynamicQuantizeLinear's"
    source, low, high, _, dtype = node.args
    stored = str(dtype).removeprefix("torch.")
    if _WHOLE.get(stored) != (low, high):
        return f"it uses the codes {low} to {high} of {stored}, not all"
    real = str(source.meta["val"].dtype).removeprefix("torch.")
    if real != "float32":
        return f"its data are {real}, not float32"
    readers = {_fx_target_name(user) for part in node.users for user in part.users}
    others = sorted(readers.difference(_READERS))
    return f"{', '.join(others)} reads its scale or zero point" if others else ""


def notes(program: Any) -> Iterator[Note]:
    """Yields what PyTorch does otherwise: a smallest scale."""
    for node in program.graph.nodes:
        if node.op == "call_function" and _fx_target_name(node) == _CHOOSE:
            least = float(node.args[3])
            yield Note(
                "smallest-scale",
                node.name,
                f"PyTorch has no scale below {least:.6g}; data within a range of "
                f"{np.float32(least * _LAST):.3g} have a finer one here",
            )
