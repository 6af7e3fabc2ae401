"""The limits of an operator, stated as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.errors import QdqBridgeError

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
_COUNTS = ("max_kernel", "max_kernel_size", "max_padding", "batch", "max_rank", "max_extent")
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
    return isinstance(value, int) and not isinstance(value, bool)


def _refused(name: str, value: Any, what: str, example: str) -> QdqBridgeError:
    return QdqBridgeError(
        f"the limit '{name}' cannot be {value!r}", why=f"it is {what}", fix=f"write {example}"
    )
