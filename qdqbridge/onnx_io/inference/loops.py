"""Shapes of what a Loop makes, which ONNX's own inference leaves open.

A state that its body gives back in the shape it came in has that shape however often the body runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, numpy_helper

_GIVEN = 2
"""Operands in front of the states: how often, and whether at all. A body gets as many."""
_Shape: TypeAlias = "tuple[int | str, ...]"
Infer: TypeAlias = Callable[[Sequence[TypeProto]], Sequence[TypeProto]]


def loop_results(
    body: GraphProto,
    operands: Sequence[TypeProto | None],
    data: Mapping[int, NDArray[Any]],
    infer: Infer,
) -> list[TypeProto]:
    """Returns the types of a Loop's results, each empty where its shape does not follow.

    Args:
        body: What is run.
        operands: The types of the Loop's operands.
        data: Operands that are known to be small constants, by index.
        infer: Gives the types of the body's results from those of its inputs.
    """
    states = [type_ or TypeProto() for type_ in operands[_GIVEN:]]
    counter, going = TypeProto(), TypeProto()
    counter.tensor_type.elem_type, going.tensor_type.elem_type = TensorProto.INT64, TensorProto.BOOL
    for scalar in (counter, going):
        scalar.tensor_type.shape.SetInParent()
    while True:
        made = infer([counter, going, *states])[1:]
        moved = [
            index
            for index, state in enumerate(states)
            if _shape(state) is not None and _shape(made[index]) != _shape(state)
        ]
        if not moved:
            break
        for index in moved:
            open_ = TypeProto()
            open_.tensor_type.elem_type = states[index].tensor_type.elem_type
            states[index] = open_
    kept = [TypeProto() if _shape(state) is None else state for state in states]
    return kept + [_gathered(each, _times(body, operands, data)) for each in made[len(states) :]]


def _shape(type_: TypeProto) -> _Shape | None:
    """Returns extents that are all known or named; None for others."""
    if not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims)
    return None if "" in shape else shape


def _gathered(each: TypeProto, times: int | None) -> TypeProto:
    """Returns the type of what all runs of a body give, behind each other.

    Of no run onnxruntime gives one axis, whatever the rank of the others.
    """
    if _shape(each) is None or not times:
        return TypeProto()
    gathered = TypeProto()
    gathered.tensor_type.elem_type = each.tensor_type.elem_type
    gathered.tensor_type.shape.dim.add().dim_value = times
    gathered.tensor_type.shape.dim.extend(each.tensor_type.shape.dim)
    return gathered


def _times(
    body: GraphProto, operands: Sequence[TypeProto | None], data: Mapping[int, NDArray[Any]]
) -> int | None:
    """Returns how often a body is run, where no condition ends it."""
    asked = operands[1] is not None
    if 0 not in data or (asked and (1 not in data or not data[1].all())):
        return None
    return max(int(data[0].reshape(-1)[0]), 0) if _goes_on(body) else None


def _goes_on(body: GraphProto) -> bool:
    """True where a body hands on the condition it is given, or a constant that is true."""
    makers: dict[str, NodeProto] = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    held = [tensor for tensor in body.initializer if tensor.name == name]
    if name in makers and makers[name].op_type == "Constant":
        held = [each.t for each in makers[name].attribute if each.name == "value"]
    return any(bool(numpy_helper.to_array(tensor).all()) for tensor in held)
