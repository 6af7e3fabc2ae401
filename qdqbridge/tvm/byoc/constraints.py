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
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc import records
from qdqbridge.tvm.byoc.pattern import Tensor
from qdqbridge.tvm.byoc.records import Accumulation, Binary, Convolution, Pool, Record, Resize

# ---- The limits of an operator, stated as data ---------------------------------------------------


_TYPES = frozenset(str(dtype) for dtype in DType)
_NAMES: Mapping[str, frozenset[str] | None] = {
    "activations": _TYPES,
    "weights": _TYPES,
    "accumulators": _TYPES,
    "roundings": frozenset(("TONEAREST_EVEN", "TONEAREST", "UPWARD")),
    "layouts": None,
    "kernel_layouts": None,
    "operators": None,
    "methods": frozenset(("nearest_neighbor", "linear", "cubic")),
}
"""Limits that list names, and all names there are; None where hosts may have others."""
_RANGES = ("strides", "dilation")
_COUNTS = (
    "max_kernel", "max_kernel_size", "max_padding", "max_channels", "batch", "max_rank",
    "max_extent",
)  # fmt: skip
_GROUPS = ("one", "depthwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is taken; None leaves a thing free.

    Attributes:
        activations: Element types of inputs and of the result where it is quantized.
        weights: Element types of the constant weights of convolutions and products.
        accumulators: Element types of exact sums.
        float_result: True to take float results, False to refuse them.
        constant_weights: True to refuse weights that are computed.
        per_tensor: True to refuse operands with a scale for each channel.
        symmetric_weights: True to refuse weight zero points other than 0.
        symmetric_activations: True to refuse activation zero points other than 0.
        bias: True to refuse what has no bias, False to refuse a bias.
        float_bias: False to refuse a bias that is added to a float result.
        clamp: False to refuse a range narrower than the type's.
        same_params: True to refuse operands whose parameters differ from the result's.
        output_scale: The only scale of the result.
        output_zero_point: The only zero point of the result.
        roundings: How ties may be broken (TONEAREST_EVEN, TONEAREST, UPWARD).
        layouts: Data layouts (``NCHW``, ``NHWC``).
        kernel_layouts: Kernel layouts.
        operators: Relay's names of the operators.
        max_kernel: Largest window extent.
        max_kernel_size: Most elements of a window.
        strides: Smallest and largest stride.
        dilation: Smallest and largest dilation.
        max_padding: Largest padding of one side.
        max_channels: Most channels of the data or the result of what has a data layout: an
            addition or a dense layer has none (``max_extent``, or an entry's own check).
        channels_multiple: What the number of these channels has to be a multiple of.
        groups: ``one`` for plain convolutions only, ``depthwise`` to allow depthwise ones too.
        methods: Methods of resizing.
        batch: The only extent of axis 0.
        max_rank: Most axes of an input.
        max_extent: Largest extent of an axis of an input or of the result.
        static: True to refuse symbolic extents.
        broadcast: False to refuse operands of different shapes.

    Raises:
        QdqBridgeError: A value is none that its limit can have.
    """

    activations: tuple[str, ...] | None = None
    weights: tuple[str, ...] | None = None
    accumulators: tuple[str, ...] | None = None
    float_result: bool | None = None
    constant_weights: bool | None = None
    per_tensor: bool | None = None
    symmetric_weights: bool | None = None
    symmetric_activations: bool | None = None
    bias: bool | None = None
    float_bias: bool | None = None
    clamp: bool | None = None
    same_params: bool | None = None
    output_scale: float | None = None
    output_zero_point: int | None = None
    roundings: tuple[str, ...] | None = None
    layouts: tuple[str, ...] | None = None
    kernel_layouts: tuple[str, ...] | None = None
    operators: tuple[str, ...] | None = None
    max_kernel: int | None = None
    max_kernel_size: int | None = None
    strides: tuple[int, int] | None = None
    dilation: tuple[int, int] | None = None
    max_padding: int | None = None
    max_channels: int | None = None
    channels_multiple: int | None = None
    groups: Literal["one", "depthwise"] | None = None
    methods: tuple[str, ...] | None = None
    batch: int | None = None
    max_rank: int | None = None
    max_extent: int | None = None
    static: bool | None = None
    broadcast: bool | None = None

    def __post_init__(self) -> None:
        """Refuses what a limit cannot be: nothing would be held to it, or all would be refused."""
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None:
                _check_limit_value(limit.name, value)

    def updated(self, other: Limits) -> Limits:
        """Returns these limits with what ``other`` states in their place."""
        stated = {f.name: getattr(other, f.name) for f in fields(other)}
        return replace(self, **{k: v for k, v in stated.items() if v is not None})


def _check_limit_value(name: str, value: Any) -> None:
    if name in _NAMES:
        _check_names(name, value, _NAMES[name])
    elif name in _RANGES:
        both = isinstance(value, tuple) and len(value) == 2 and all(map(_is_plain_int, value))
        if not both or value[0] > value[1]:
            raise _refused(name, value, "the smallest and the largest", f"{name}=(1, 2)")
    elif name in _COUNTS or name == "output_zero_point":
        if not _is_plain_int(value) or (name in _COUNTS and value < 0):
            raise _refused(name, value, "a whole number", f"{name}=1")
    elif name == "channels_multiple":
        if not _is_plain_int(value) or value < 1:
            raise _refused(name, value, "a positive whole number", f"{name}=16")
    elif name == "output_scale":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise _refused(name, value, "a positive number", "output_scale=1 / 256")
    elif name == "groups":
        if value not in _GROUPS:
            raise _refused(name, value, " or ".join(map(repr, _GROUPS)), "groups='one'")
    elif not isinstance(value, bool):
        raise _refused(name, value, "True or False", f"{name}=True")


def _check_names(name: str, value: Any, known: frozenset[str] | None) -> None:
    if isinstance(value, str):  # its letters would be taken for names
        raise QdqBridgeError(
            f"the limit '{name}' is one string, not a tuple of them",
            fix=f"write {name}=({value!r},)",
        )
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise _refused(name, value, "a tuple of names", f"{name}=('...',)")
    unknown = [] if known is None else [each for each in value if each not in known]
    if unknown:
        raise QdqBridgeError(
            f"the limit '{name}' names {unknown[0]!r}, which there is not",
            fix=f"there are {', '.join(sorted(known or ()))}",
        )


def _is_plain_int(value: Any) -> bool:
    # True is 1 for Python; as a limit it is a slip.
    return isinstance(value, int) and not isinstance(value, bool)


def _refused(name: str, value: Any, what: str, example: str) -> QdqBridgeError:
    return QdqBridgeError(
        f"the limit '{name}' cannot be {value!r}", why=f"it is {what}", fix=f"write {example}"
    )


# ---- What a vendor's hardware takes, declared as data; every refusal is a sentence ---------------


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
        # The record is frozen, and its family has the name of today from here on.
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
    # A limit of False frees what an outer one has bound.
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


def _channels(record: Record) -> Iterator[tuple[str, int]]:
    axis = str(getattr(record, "data_layout", "")).find("C")
    if axis < 0:
        return
    for what, value in (("the data", record.inputs[0]), ("the result", record.output)):
        count = None if value.shape is None else value.shape[axis]
        if isinstance(count, int):
            yield what, count


def _max_channels(record: Record, most: int) -> Iterator[str]:
    for what, count in _channels(record):
        if count > most:
            yield f"{what} has {count} channels, at most {most} are taken"


def _channels_multiple(record: Record, unit: int) -> Iterator[str]:
    for what, count in _channels(record):
        if count % unit:
            yield f"{what} has {count} channels, multiples of {unit} are taken"


def _groups(record: Record, allowed: str) -> Iterator[str]:
    if not isinstance(record, Convolution) or record.groups == 1:
        return
    if allowed == "one":
        yield f"it has {record.groups} groups, only 1 is supported"
    elif not record.depthwise:
        yield f"it has {record.groups} groups, only 1 or one for each channel is supported"


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
    "max_channels": _max_channels,
    "channels_multiple": _channels_multiple,
    "groups": _groups,
    "methods": _methods,
    "batch": _batch,
    "max_rank": _max_rank,
    "max_extent": _max_extent,
    "static": _static,
    "broadcast": _refuse_broadcast,
}
"""One rule per field of :class:`Limits`."""
