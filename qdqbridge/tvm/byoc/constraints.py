"""What a vendor's hardware takes, declared as data; every refusal is a sentence.

::

    NPU = Constraints(
        everywhere=Limits(activations=("int8",), batch=1),
        families={
            "convolution": Limits(per_tensor=True, max_kernel=7, strides=(1, 2), groups="one"),
            "softmax": Limits(output_scale=1 / 256, output_zero_point=-128),
        },
    )

``Limits`` of a family are added to those of everywhere, and replace them where both say something.
Families are the ``family`` of the records: convolution, dense, batch_matmul, binary, unary,
softmax, pool, reduction, resize, normalization, concatenation, data_movement, conversion.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc import records
from qdqbridge.tvm.byoc.limits import Limits
from qdqbridge.tvm.byoc.records import (
    Accumulation,
    Binary,
    Convolution,
    Pool,
    Record,
    Resize,
)
from qdqbridge.tvm.byoc.terms import Tensor

_FAMILIES = frozenset(
    found.family
    for found in vars(records).values()
    if isinstance(found, type) and issubclass(found, Record) and found.family
)
_OLD_FAMILIES = {"mover": "data_movement"}


def _family(name: str, level: int) -> str:
    """Returns the name of a family that may have been given by the one that it had before.

    Args:
        name: The name.
        level: How many calls above this one the name was written.
    """
    if name not in _OLD_FAMILIES:
        return name
    new = _OLD_FAMILIES[name]
    warnings.warn(f"the family {name!r} is {new!r} now", DeprecationWarning, stacklevel=level + 1)
    return new


@dataclass(frozen=True, slots=True)
class Constraints:
    """All limits of one target.

    Attributes:
        everywhere: What holds for every operator.
        families: What holds for one family of records.

    Raises:
        QdqBridgeError: There is no such family, or what it has are no ``Limits``.
    """

    everywhere: Limits = field(default_factory=Limits)
    families: Mapping[str, Limits] = field(default_factory=dict[str, Limits])

    def __post_init__(self) -> None:
        """Refuses limits of a family that no record has: nothing would be held to them."""
        families: dict[str, Limits] = {}
        for name, limits in self.families.items():
            families[_family(name, 3)] = limits
        object.__setattr__(self, "families", families)
        if unknown := sorted(set(self.families) - _FAMILIES):
            raise QdqBridgeError(
                f"no record is of the family {', '.join(map(repr, unknown))}",
                fix=f"the families are {', '.join(sorted(_FAMILIES))}",
            )
        for place, limits in (("everywhere", self.everywhere), *self.families.items()):
            if not isinstance(limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise QdqBridgeError(
                    f"the constraints of {place!r} are no limits",
                    why=f"they are {limits!r}",
                    fix="write Limits(...)",
                )

    def of(self, family: str) -> Limits:
        """Returns the limits of a family."""
        own = self.families.get(_family(family, 2))
        return self.everywhere if own is None else self.everywhere.updated(own)

    def reasons(self, record: Record) -> list[str]:
        """Returns why a record is refused, in sentences; nothing where it is taken."""
        return list(refusals(record, self.of(record.family)))


def refusals(record: Record, limits: Limits) -> Iterator[str]:
    """Yields why ``limits`` refuse a record."""
    for name, rule in _RULES.items():
        limit = getattr(limits, name)
        if limit is not None:
            yield from rule(record, limit)


# ---- rules: (record, limit) -> reasons --------------------------------------------------------

Rule = Callable[[Any, Any], Iterator[str]]


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> Iterator[str]:
    if value not in allowed:
        yield f"{what} is {value}, {' or '.join(allowed)} is taken"


def _non_float_tensors(record: Record) -> Iterator[tuple[str, Tensor]]:
    for index, value in enumerate(record.inputs):
        if not value.is_float and value.dtype != "bool":
            yield (f"input {index}" if len(record.inputs) > 1 else "the input"), value
    if record.output.dtype and not record.output.is_float:  # a tuple has none
        yield "the result", record.output


def _activations(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    for what, value in _non_float_tensors(record):
        yield from _one_of(f"the type of {what}", value.dtype, allowed)


def _weights(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    for value in record.weights if isinstance(record, Accumulation) else ():
        yield from _one_of("the type of the weight", value.dtype, allowed)


def _accumulators(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    if isinstance(record, Accumulation):
        yield from _one_of("the accumulator", record.accumulator_dtype, allowed)


def _float_result(record: Record, taken: bool) -> Iterator[str]:
    if not taken and record.output.is_float:
        yield "the result is float"


def _constant_weights(record: Record, wanted: bool) -> Iterator[str]:
    if wanted and isinstance(record, Accumulation) and not record.weights:
        yield "the weight is not constant"


def _per_tensor(record: Record, wanted: bool) -> Iterator[str]:
    for value in (*record.weights, *record.inputs):
        if wanted and not value.per_tensor:
            assert value.scale is not None
            what = "the weight" if value in record.weights else "an operand"
            yield (
                f"{what} has {max(value.scale.size, 1)} scales along axis {value.axis}, "
                "one scale for the tensor is taken"
            )


def _symmetric_weights(record: Record, wanted: bool) -> Iterator[str]:
    if wanted and not all(value.symmetric for value in record.weights):
        yield "a zero point of the weight is not 0"


def _symmetric_activations(record: Record, wanted: bool) -> Iterator[str]:
    for what, value in _non_float_tensors(record):
        if wanted and not value.symmetric:
            yield f"the zero point of {what} is {_shown(value.zero_point)}, 0 is taken"


def _check_bias_presence(record: Record, wanted: bool) -> Iterator[str]:
    if isinstance(record, Accumulation) and wanted != (record.bias is not None):
        yield "there is no bias" if wanted else "there is a bias"


def _float_bias(record: Record, taken: bool) -> Iterator[str]:
    if not taken and isinstance(record, Accumulation) and record.float_bias is not None:
        yield "the bias is float"


def _clamp(record: Record, taken: bool) -> Iterator[str]:
    if not taken and record.clamp is not None and record.op != "clip":
        yield f"the result is clamped to {record.clamp[0]}..{record.clamp[1]}"


def _same_params(record: Record, wanted: bool) -> Iterator[str]:
    if not wanted:
        return
    for what, value in _non_float_tensors(record):
        if not value.same_params(record.output):
            yield f"{what} and the result have different scales or zero points"


def _output_scale(record: Record, wanted: float) -> Iterator[str]:
    scale = record.output.scale
    if scale is not None and not (scale == np.float32(wanted)).all():
        yield f"the scale of the result is {_shown(scale)}, {np.float32(wanted)} is taken"


def _output_zero_point(record: Record, wanted: int) -> Iterator[str]:
    zero_point = record.output.zero_point
    if zero_point is not None and not (zero_point == wanted).all():
        yield f"the zero point of the result is {_shown(zero_point)}, {wanted} is taken"


def _shown(values: Any) -> str:
    return str(values) if np.ndim(values) == 0 or np.size(values) == 1 else "a vector"


def _roundings(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    rounding = getattr(record, "rounding", None)
    if rounding is not None:
        yield from _one_of("the rounding", rounding, allowed)


def _layouts(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    layout = getattr(record, "data_layout", "")
    if layout:
        yield from _one_of("the layout", layout, allowed)


def _kernel_layouts(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    if isinstance(record, Convolution):
        yield from _one_of("the kernel layout", record.kernel_layout, allowed)


def _operators(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    yield from _one_of("the operator", record.op, allowed)


def _kernel_or_pool_size(record: Record) -> tuple[int, ...]:
    if isinstance(record, Convolution):
        return record.kernel_size
    return record.pool_size if isinstance(record, Pool) else ()


def _max_kernel(record: Record, most: int) -> Iterator[str]:
    window = _kernel_or_pool_size(record)
    if any(extent > most for extent in window):
        yield f"the window is {_by(window)}, at most {most} a side is taken"


def _max_kernel_size(record: Record, most: int) -> Iterator[str]:
    window = _kernel_or_pool_size(record)
    if window and int(np.prod(window)) > most:
        yield f"the window {_by(window)} has {int(np.prod(window))} elements, {most} are taken"


def _by(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def _between(name: str) -> Rule:
    def rule(record: Record, limit: tuple[int, int]) -> Iterator[str]:
        values = getattr(record, name, ()) if isinstance(record, Convolution | Pool) else ()
        if any(not limit[0] <= value <= limit[1] for value in values):
            yield f"{name} is {_by(values)}, {limit[0]} to {limit[1]} is taken"

    return rule


def _max_padding(record: Record, most: int) -> Iterator[str]:
    padding = record.padding if isinstance(record, Convolution | Pool) else ()
    if any(side > most for side in padding):
        yield f"padding is {list(padding)}, at most {most} is taken"


def _groups(record: Record, allowed: str) -> Iterator[str]:
    if not isinstance(record, Convolution) or record.groups == 1:
        return
    if allowed == "one":
        yield f"there are {record.groups} groups, one is taken"
    elif not record.depthwise:
        yield f"there are {record.groups} groups, one or one for each channel is taken"


def _methods(record: Record, allowed: tuple[str, ...]) -> Iterator[str]:
    if isinstance(record, Resize):
        yield from _one_of("the method", record.method, allowed)


def _batch(record: Record, only: int) -> Iterator[str]:
    for what, value in _non_float_tensors(record):
        if value.shape and value.shape[0] != only and not value.is_constant:
            yield f"axis 0 of {what} is {value.shape[0]}, {only} is taken"


def _max_rank(record: Record, most: int) -> Iterator[str]:
    for what, value in _non_float_tensors(record):
        if value.rank > most:
            yield f"{what} has {value.rank} axes, at most {most} are taken"


def _max_extent(record: Record, most: int) -> Iterator[str]:
    for what, value in _non_float_tensors(record):
        large = [d for d in value.shape or () if isinstance(d, int) and d > most]
        if large:
            yield f"{what} has an axis of {large[0]}, at most {most} is taken"


def _static(record: Record, wanted: bool) -> Iterator[str]:
    for what, value in _non_float_tensors(record):
        names = [d for d in value.shape or () if isinstance(d, str)]
        if wanted and names:
            yield f"{what} has the symbolic extent {names[0]}"


def _refuse_broadcast(record: Record, taken: bool) -> Iterator[str]:
    if isinstance(record, Binary) and not taken and record.lhs.shape != record.rhs.shape:
        yield f"the operands have shapes {record.lhs.shape} and {record.rhs.shape}"


_RULES: Mapping[str, Rule] = {
    "activations": _activations,
    "weights": _weights,
    "accumulators": _accumulators,
    "float_result": _float_result,
    "constant_weights": _constant_weights,
    "per_tensor": _per_tensor,
    "symmetric_weights": _symmetric_weights,
    "symmetric_activations": _symmetric_activations,
    "bias": _check_bias_presence,
    "float_bias": _float_bias,
    "clamp": _clamp,
    "same_params": _same_params,
    "output_scale": _output_scale,
    "output_zero_point": _output_zero_point,
    "roundings": _roundings,
    "layouts": _layouts,
    "kernel_layouts": _kernel_layouts,
    "operators": _operators,
    "max_kernel": _max_kernel,
    "max_kernel_size": _max_kernel_size,
    "strides": _between("strides"),
    "dilation": _between("dilation"),
    "max_padding": _max_padding,
    "groups": _groups,
    "methods": _methods,
    "batch": _batch,
    "max_rank": _max_rank,
    "max_extent": _max_extent,
    "static": _static,
    "broadcast": _refuse_broadcast,
}
"""One rule per field of :class:`Limits`."""
