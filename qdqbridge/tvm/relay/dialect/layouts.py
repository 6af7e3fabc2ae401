"""What Relay's ConvertLayout needs to carry another layout through the operators of the dialect.

Without these hooks ConvertLayout puts a pair of ``layout_transform`` around every call. Emission
writes channels-last modules directly; the hooks serve modules that come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relay
from tvm.ir import Op
from tvm.relay.op.op import register_convert_op_layout, register_infer_correct_layout
from tvm.relay.transform.infer_layout_utils import InferCorrectLayoutOutput

from qdqbridge.tvm.qnn.dialect.context import QnnOp
from qdqbridge.tvm.relay.dialect.host import dict_attrs, names_of, values_of

AXES = ("axis", "lhs_axis", "rhs_axis")
"""Attributes that count axes of the data."""
_FIRST = ("axis",)
_WHOLE_TAIL = ("qnn.layer_norm", "qnn.rms_norm")
"""``axis`` means it and all axes after it, which another layout does not keep together."""


def register_layouts(ops: Sequence[QnnOp]) -> None:
    """Registers the layout hooks of operators with ``DictAttrs``."""
    for op in ops:
        names = {attribute.name for attribute in op.attributes}
        if "layout" in names:
            register_infer_correct_layout(op.name, _stated("layout", len(op.arguments)))
            register_convert_op_layout(op.name, _converted(op.name))
        elif op.arguments[0] == "lhs":
            register_infer_correct_layout(op.name, _two_operands(len(op.arguments)))
        elif _follows(op, names):
            register_infer_correct_layout(op.name, _follow(len(op.arguments)))


def _follows(op: QnnOp, names: set[str]) -> bool:
    """True for an operator of one operand whose axes may lie in any order."""
    if op.arguments[0] != "data" or op.name in _WHOLE_TAIL:
        return False
    return "data_layout" not in names and op.name not in (
        "qnn.resize",
        "qnn.instance_norm",
        "qnn.group_norm",
        "qnn.dense",
        "qnn.concatenate",
    )


def _stated(name: str, count: int) -> Callable[..., Any]:
    """The layout is an attribute, for data and result alike."""

    def infer(attrs: Any, new: Any, old: Any, types: Any) -> Any:
        del new, old, types
        layout = tvm.tir.layout(str(attrs[name]))
        return InferCorrectLayoutOutput([layout, *_param_layouts(count - 1)], [layout], attrs)

    return infer


def _follow(count: int) -> Callable[..., Any]:
    """The result has the layout of the data; axes in attributes follow."""

    def infer(attrs: Any, new: Any, old: Any, types: Any) -> Any:
        layout = _chosen(new, old, 0)
        reduced = "keepdims" in names_of(attrs) and not attrs["keepdims"]
        if reduced and _is_defined_layout(old[0]) and _scrambled(attrs, old[0], layout, types[0]):
            layout = old[0]
        moved = _moved(attrs, old[0], layout, _FIRST)
        out = tvm.tir.layout("__undef__") if reduced else layout
        return InferCorrectLayoutOutput([layout, *_param_layouts(count - 1)], [out], moved)

    return infer


def _two_operands(count: int) -> Callable[..., Any]:
    """Operands of equal rank take one layout; others keep theirs."""

    def infer(attrs: Any, new: Any, old: Any, types: Any) -> Any:
        same_rank = len(types[0].shape) == len(types[1].shape)
        choices = [_chosen(new, old, i) for i in (0, 1)]
        changed = [
            c for i, c in enumerate(choices) if _layout_letters(c) != _layout_letters(old[i])
        ]
        known = next((o for o in list(old)[:2] if _is_defined_layout(o)), None)
        if not same_rank or not changed or known is None:
            layouts = [old[0], old[1]]
            out = old[0] if len(types[0].shape) >= len(types[1].shape) else old[1]
            return InferCorrectLayoutOutput([*layouts, *_param_layouts(count - 2)], [out], attrs)
        layout = changed[0]
        moved = _moved(attrs, known, layout, AXES)
        rest = _param_layouts(count - 2)
        return InferCorrectLayoutOutput([layout, layout, *rest], [layout], moved)

    return infer


def _param_layouts(count: int) -> list[Any]:
    return [tvm.tir.layout("C")] * count


def _layout_letters(layout: Any) -> str:
    """Returns the letters of a layout, empty where it is not known."""
    return "" if layout is None or layout.name == "__undef__" else str(layout.name)


def _is_defined_layout(layout: Any) -> bool:
    return bool(_layout_letters(layout))


def _chosen(new: Any, old: Any, index: int) -> Any:
    """Returns the new layout where it is the old one with its axes in another order.

    ``new`` is None where nothing has changed before the call.
    """
    was = old[index]
    now = was if new is None else new[index]
    if not (_is_defined_layout(now) and _is_defined_layout(was)) or now.name == was.name:
        return was
    return now if sorted(now.name) == sorted(was.name) else was


def _moved(attrs: Any, old: Any, new: Any, names: Sequence[str]) -> Any:
    """Returns attributes whose axes count those of the new layout."""
    if _layout_letters(old) == _layout_letters(new):
        return attrs
    values = values_of(attrs)
    for name in names:
        if name not in values:
            continue
        value = values[name]
        values[name] = (
            _axis_in_new_layout(int(value), old, new)
            if isinstance(value, int | tvm.tir.IntImm)
            else [_axis_in_new_layout(int(v), old, new) for v in value]
        )
    return dict_attrs(values)


def _axis_in_new_layout(axis: int, old: Any, new: Any) -> int:
    return new.name.index(old.name[axis])


def _scrambled(attrs: Any, old: Any, new: Any, type_: Any) -> bool:
    """True where the axes that a reduction keeps come in another order afterwards."""
    value = attrs["axis"]
    axes = [int(value)] if isinstance(value, int | tvm.tir.IntImm) else [int(v) for v in value]
    gone = {old.name[axis] for axis in axes} if axes else set(old.name[: len(type_.shape)])
    kept = [[letter for letter in layout.name if letter not in gone] for layout in (old, new)]
    return kept[0] != kept[1]


def _converted(name: str) -> Callable[..., Any]:
    """Returns the hook that rewrites a call to a desired layout."""

    def convert(attrs: Any, inputs: Any, types: Any, desired: Any) -> Any:
        del types
        values = values_of(attrs) | {"layout": str(desired[0])}
        return relay.Call(Op.get(name), list(inputs), dict_attrs(values))

    return convert
