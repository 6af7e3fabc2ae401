"""Every limit refuses what it forbids, in a sentence with the values, and takes the rest."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc import Constraints, Limits
from qdqbridge.tvm.byoc.constraints import refusals
from qdqbridge.tvm.byoc.pattern import FixedTerm, Free, Tensor
from qdqbridge.tvm.byoc.records import (
    Binary,
    Concatenation,
    Conversion,
    Convolution,
    DataMovement,
    Dense,
    Pool,
    Record,
    Resize,
)


def value(
    *shape: int | str, dtype: str = "int8", scale: Any = 0.5, zero: Any = 0, axis: int | None = None
) -> Tensor:
    scales = np.asarray(scale, np.float32)
    zeros = np.broadcast_to(np.asarray(zero, np.int32), scales.shape)
    return Tensor(shape, dtype, Free(None, shape, dtype, "v"), scales, zeros, axis)


def constant(*shape: int, dtype: str = "int8", **rest: Any) -> Tensor:
    made = value(*shape, dtype=dtype, **rest)
    term = FixedTerm(None, shape, dtype, lambda: np.zeros(shape, dtype))
    return Tensor(made.shape, dtype, term, made.scale, made.zero_point, made.axis)


def floating(*shape: int) -> Tensor:
    return Tensor(shape, "float32", Free(None, shape, "float32", "f"))


def conv(**changes: Any) -> Convolution:
    plain: dict[str, Any] = {
        "op": "qnn.conv2d", "input": value(1, 8, 9, 9), "weight": constant(4, 8, 3, 3),
        "output": value(1, 4, 9, 9), "accumulator_scale": np.float32(0.25),
        "bias": np.zeros(4, np.int32), "rounding": "TONEAREST_EVEN", "strides": (1, 1),
        "padding": (1, 1, 1, 1), "dilation": (1, 1), "kernel_size": (3, 3), "groups": 1,
        "channels": 4, "data_layout": "NCHW", "kernel_layout": "OIHW",
    }  # fmt: skip
    return Convolution(**{**plain, **changes})


def pool(**changes: Any) -> Pool:
    plain: dict[str, Any] = {
        "op": "qnn.avg_pool2d", "input": value(1, 4, 8, 8), "output": value(1, 4, 4, 4),
        "maximum": False, "pool_size": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0),
        "dilation": (1, 1), "ceil_mode": False, "count_include_pad": False, "data_layout": "NCHW",
    }  # fmt: skip
    return Pool(**{**plain, **changes})


def binary(lhs: Tensor, rhs: Tensor, output: Tensor) -> Binary:
    return Binary(op="qnn.add", output=output, lhs=lhs, rhs=rhs)


def resize(method: str) -> Resize:
    return Resize(
        op="qnn.resize2d", input=value(1, 4, 8, 8), output=value(1, 4, 16, 16), size=(16, 16),
        scales=(), method=method, coordinate_transformation_mode="half_pixel",
        rounding_method="", data_layout="NCHW", attributes={},
    )  # fmt: skip


VECTOR = np.linspace(0.1, 0.4, 4)
CASES: list[tuple[Limits, Record, Record, str]] = [
    (Limits(activations=("int8",)), conv(), conv(input=value(1, 8, 9, 9, dtype="uint8")),
     "the type of the input is uint8, int8 is taken"),
    (Limits(activations=("int8",)), conv(output=floating(1, 4, 9, 9)),
     conv(output=value(1, 4, 9, 9, dtype="int16")), "the type of the result is int16, int8"),
    (Limits(weights=("int8",)), conv(), conv(weight=constant(4, 8, 3, 3, dtype="uint8")),
     "the type of the weight is uint8, int8 is taken"),
    (Limits(accumulators=("int32",)), conv(), conv(accumulator_dtype="int64"),
     "the accumulator is int64, int32 is taken"),
    (Limits(float_result=False), conv(), conv(output=floating(1, 4, 9, 9)), "the result is float"),
    (Limits(constant_weights=True), conv(), conv(weight=value(4, 8, 3, 3)), "is not constant"),
    (Limits(per_tensor=True), conv(), conv(weight=constant(4, 8, 3, 3, scale=VECTOR, axis=0)),
     "the weight has 4 scales along axis 0, one scale for the tensor is taken"),
    (Limits(symmetric_weights=True), conv(), conv(weight=constant(4, 8, 3, 3, zero=1)),
     "a zero point of the weight is not 0"),
    (Limits(symmetric_activations=True), conv(), conv(output=value(1, 4, 9, 9, zero=-3)),
     "the zero point of the result is -3, 0 is taken"),
    (Limits(bias=True), conv(), conv(bias=None), "there is no bias"),
    (Limits(bias=False), conv(bias=None), conv(), "there is a bias"),
    (Limits(float_bias=False), conv(), conv(float_bias=np.zeros(4)), "the bias is float"),
    (Limits(clamp=False), conv(), conv(clamp=(0, 127)), "the result is clamped to 0..127"),
    (Limits(same_params=True), pool(), pool(output=value(1, 4, 4, 4, scale=0.25)),
     "the input and the result have different scales or zero points"),
    (Limits(output_scale=0.5), pool(), pool(output=value(1, 4, 4, 4, scale=0.25)),
     "the scale of the result is 0.25, 0.5 is taken"),
    (Limits(output_zero_point=0), pool(), pool(output=value(1, 4, 4, 4, zero=7)),
     "the zero point of the result is 7, 0 is taken"),
    (Limits(roundings=("UPWARD",)), conv(rounding="UPWARD"), conv(), "the rounding is TONEAREST"),
    (Limits(layouts=("NHWC",)), conv(data_layout="NHWC"), conv(), "the layout is NCHW, NHWC is"),
    (Limits(kernel_layouts=("HWIO", "HWOI")), conv(kernel_layout="HWIO"), conv(),
     "the kernel layout is OIHW, HWIO or HWOI is taken"),
    (Limits(operators=("qnn.conv2d",)), conv(), conv(op="qnn.conv3d"), "operator is qnn.conv3d"),
    (Limits(max_kernel=3), conv(), conv(kernel_size=(1, 5)), "the window is 1x5, at most 3 a side"),
    (Limits(max_kernel_size=9), pool(pool_size=(3, 3)), pool(pool_size=(4, 3)),
     "the window 4x3 has 12 elements, 9 are taken"),
    (Limits(strides=(1, 2)), conv(strides=(2, 2)), conv(strides=(1, 3)), "strides is 1x3, 1 to 2"),
    (Limits(dilation=(1, 1)), conv(), conv(dilation=(2, 1)), "dilation is 2x1, 1 to 1 is taken"),
    (Limits(max_padding=1), conv(), conv(padding=(0, 2, 0, 0)), "padding is [0, 2, 0, 0], at most"),
    (Limits(max_channels=8), conv(), conv(output=value(1, 12, 9, 9)),
     "the result has 12 channels, at most 8 are taken"),
    (Limits(channels_multiple=4), conv(), conv(input=value(1, 3, 9, 9)),
     "the data has 3 channels, multiples of 4 are taken"),
    (Limits(groups="one"), conv(), conv(groups=8), "it has 8 groups, only 1 is supported"),
    (Limits(groups="depthwise"), conv(groups=8), conv(groups=2), "only 1 or one for each channel"),
    (Limits(methods=("linear",)), resize("linear"), resize("cubic"), "the method is cubic, linear"),
    (Limits(batch=1), pool(), pool(input=value(2, 4, 8, 8)), "axis 0 of the input is 2, 1 is"),
    (Limits(max_rank=4), pool(), pool(input=value(1, 4, 8, 8, 8)), "has 5 axes, at most 4 are"),
    (Limits(max_extent=9), conv(), conv(input=value(1, 16, 9, 9)), "has an axis of 16, at most 9"),
    (Limits(static=True), pool(), pool(input=value("n", 4, 8, 8)), "has the symbolic extent n"),
    (Limits(broadcast=False), binary(value(1, 4), value(1, 4), value(1, 4)),
     binary(value(1, 4), value(4), value(1, 4)), "the operands have shapes (1, 4) and (4,)"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[3][:40])
def test_a_limit_takes_and_refuses(case: tuple[Limits, Record, Record, str]) -> None:
    limits, taken, refused, reason = case
    assert list(refusals(taken, limits)) == []
    reasons = list(refusals(refused, limits))
    assert any(reason in each for each in reasons), reasons


def test_every_limit_has_a_case() -> None:
    stated = {
        f.name
        for limits, *_ in CASES
        for f in fields(Limits)
        if getattr(limits, f.name) is not None
    }
    assert stated == {f.name for f in fields(Limits)}


@pytest.mark.parametrize(
    ("limit", "told"),
    [({"activations": "int8"}, r"activations=\('int8',\)"),
     ({"activations": ("int9",)}, "names 'int9'"),
     ({"roundings": ("EVEN",)}, "names 'EVEN'"),
     ({"weights": ["int8"]}, "a tuple of names"),
     ({"layouts": (3,)}, "a tuple of names"),
     ({"strides": 2}, r"write strides=\(1, 2\)"),
     ({"dilation": (3, 1)}, "the smallest and the largest"),
     ({"max_kernel": "3"}, "write max_kernel=1"),
     ({"max_rank": -1}, "a whole number"),
     ({"batch": True}, "a whole number"),
     ({"output_scale": 0}, "a positive number"),
     ({"output_zero_point": 0.5}, "a whole number"),
     ({"groups": "many"}, "'one' or 'depthwise'"),
     ({"bias": "yes"}, "True or False")],
)  # fmt: skip
def test_what_a_limit_cannot_be_is_refused(limit: dict[str, Any], told: str) -> None:
    with pytest.raises(QdqBridgeError) as error:
        Limits(**limit)
    assert next(iter(limit)) in error.value.what
    assert re.search(told, str(error.value))


def test_constraints_are_made_of_limits() -> None:
    wrong: Any = 3
    for attempt in (lambda: Constraints(wrong), lambda: Constraints(families={"pool": wrong})):
        with pytest.raises(QdqBridgeError, match="are no limits"):
            attempt()


def test_limits_of_a_family_replace_those_of_everywhere() -> None:
    constraints = Constraints(
        Limits(activations=("int8",), batch=1), {"pool": Limits(activations=("int8", "uint8"))}
    )
    wide = pool(input=value(1, 4, 8, 8, dtype="uint8"), output=value(1, 4, 4, 4, dtype="uint8"))
    assert constraints.reasons(wide) == []
    assert constraints.reasons(pool(input=value(3, 4, 8, 8))) == [
        "axis 0 of the input is 3, 1 is taken"
    ]
    dense = Dense(
        op="qnn.dense", input=value(1, 4, dtype="uint8"), weight=constant(5, 4), units=5,
        output=value(1, 5), accumulator_scale=np.asarray(1, np.float32),
    )  # fmt: skip
    assert len(constraints.reasons(dense)) == 1


def test_constants_of_several_operands_are_activations_without_a_batch() -> None:
    limits = Limits(activations=("int8",), batch=1, weights=("int16",))
    both = binary(value(1, 4), constant(4), value(1, 4))
    assert list(refusals(both, limits)) == []
    other = binary(value(1, 4), constant(4, dtype="uint8"), value(1, 4))
    assert list(refusals(other, limits)) == ["the type of input 1 is uint8, int8 is taken"]


def test_what_states_no_parameters_is_judged_by_its_types() -> None:
    bare = Tensor((2, 3), "uint8", Free(None, (2, 3), "uint8", "v"))
    moved = DataMovement(op="reshape", input=bare, output=bare, attributes={})
    assert list(refusals(moved, Limits(same_params=True, output_scale=0.5))) == []
    assert len(list(refusals(moved, Limits(activations=("int8",))))) == 2
    joined = Concatenation(op="concatenate", operands=(bare, bare), axis=0, output=bare)
    assert list(refusals(joined, Limits(per_tensor=True))) == []


def test_a_clip_alone_is_no_clamped_result() -> None:
    bare = Tensor((2, 3), "uint8", Free(None, (2, 3), "uint8", "v"))
    clip = Conversion(op="clip", input=bare, output=bare, clamp=(0, 9))
    assert list(refusals(clip, Limits(clamp=False))) == []
