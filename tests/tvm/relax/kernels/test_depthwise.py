"""Depthwise convolution: windows, channels that do not fill registers, parameters, CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.kernel import KernelPlace
from qdqbridge.tvm.relax.kernels.products.depthwise import extend, match_depthwise
from tests.tvm.dialect.contract import contract, every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand

WINDOWS = [
    # image, kernel, strides, dilations, pads
    ((9, 13), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((8, 8), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((7, 7), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    ((14, 9), (5, 5), (2, 2), (1, 1), (1, 2, 2, 1)),
    ((10, 11), (3, 3), (1, 1), (2, 2), (2, 2, 2, 2)),
    ((6, 17), (7, 1), (1, 2), (1, 1), (3, 0, 3, 0)),
    ((5, 12), (2, 4), (1, 3), (1, 2), (0, 3, 1, 1)),
    ((3, 3), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((1, 1), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((1, 30), (1, 9), (1, 1), (1, 3), (0, 12, 0, 12)),
]
CHANNELS = (4, 16, 24, 33, 64, 7, 130, 48, 19, 96)


def _weight(
    rng: np.random.Generator,
    channels: int,
    kernel: Any,
    dtype: str = "int8",
    zero: int = 0,
    *,
    per_channel: bool = True,
) -> Operand:
    scale = rng.uniform(0.001, 0.05, channels) if per_channel else 0.02
    own = params(dtype, scale, np.full(np.shape(scale), zero), axis=0 if per_channel else None)
    return Operand(every_code(rng, dtype, (channels, 1, *kernel)), own, fixed=True)


def _bias(rng: np.random.Generator, x: QuantParams, weight: Operand) -> Operand:
    assert weight.params is not None
    scale = np.asarray(x.scale.astype(np.float32) * weight.params.scale.astype(np.float32))
    own = params("int32", scale, np.zeros(scale.shape), axis=0 if scale.ndim else None)
    return Operand(rng.integers(-9000, 9000, weight.array.shape[0]).astype(np.int32), own, True)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_windows(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_depthwise, cpu)
    for i, (image, kernel, strides, dilations, pads) in enumerate(WINDOWS):
        if cpu == HOST or i % 3 == len(cpu.name) % 3:
            channels = CHANNELS[i]
            kind = ("uint8", "int8")[i % 2]
            x = params(kind, 0.05, int(rng.choice([0, 1, 127])))
            y = params(("int8", "uint8")[i // 2 % 2], 0.2, int(rng.choice([0, 1, 127])))
            y = y.with_range(3, 120) if i % 3 == 0 else y
            weight = _weight(rng, channels, kernel, per_channel=i % 2 == 0)
            operands = [Operand(every_code(rng, kind, (1 + i % 2, channels, *image)), x), weight]
            operands += [_bias(rng, x, weight)] if i % 4 else []
            cases.add("Conv", ConvAttrs(strides, dilations, pads, channels), operands, y, last=True)
    cases.check()


def test_unsigned_weights_and_sequences() -> None:
    rng = np.random.default_rng(1)
    cases = Cases(match_depthwise)
    x, y = params("uint8", 0.05, 255), params("uint8", 0.3, 128)
    data = Operand(every_code(rng, "uint8", (1, 20, 6, 6)), x)
    weight = _weight(rng, 20, (3, 3), "uint8", 128, per_channel=False)
    cases.add("Conv", ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1), 20), [data, weight], y, last=True)
    line = Operand(every_code(rng, "uint8", (2, 20, 31)), x)
    weight = _weight(rng, 20, (5,))
    cases.add("Conv", ConvAttrs((2,), (1,), (2, 1), 20), [line, weight], y, last=True)
    cases.check()


def test_a_function_of_the_codes_is_computed_on_the_way_out() -> None:
    rng = np.random.default_rng(3)
    cases = Cases(match_depthwise)
    x, y, z = params("uint8", 0.05, 3), params("uint8", 0.3, 128), params("uint8", 0.2, 9)
    data = Operand(every_code(rng, "uint8", (1, 70, 46, 46)), x)
    attributes = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1), 70)
    node, codes, _ = cases.node("Conv", attributes, [data, _weight(rng, 70, (3, 3))], y, last=True)
    kernel = match_depthwise(node, KernelPlace(HOST, channels_last=True))
    result = Value(QuantType(z, codes.shape), "z")
    swish = Node(BY_NAME["HardSwish"], NO_ATTRIBUTES, [node.output], [result])
    assert kernel is not None
    larger = extend(kernel, swish)
    assert (larger is not None) == HOST.permutes
    if larger is None:
        return
    wanted = contract("HardSwish", NO_ATTRIBUTES, [codes], [y], z)
    cases.take(larger, [np.ascontiguousarray(data.array.transpose(0, 2, 3, 1))], wanted, "swish")
    cases.check()
    assert extend(larger, swish) is None
    own: Any = kernel.description
    small = replace(own, outcome=(1, 2, 2, 70))
    assert extend(replace(kernel, description=small), swish) is None


def test_what_is_refused() -> None:
    rng = np.random.default_rng(2)
    cases = Cases(match_depthwise)
    x, y = params("uint8", 0.05, 3), params("uint8", 0.3, 128)
    data = Operand(every_code(rng, "uint8", (1, 20, 6, 6)), x)
    attributes = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1), 20)
    operands = [data, _weight(rng, 20, (3, 3))]
    cases.add("Conv", attributes, operands, y, last=False, needed=False)
    cases.add("Conv", attributes, operands, params("int16", 0.1), last=True, needed=False)
    twice = _weight(rng, 40, (3, 3))
    cases.add("Conv", attributes, [data, twice], y, last=True, needed=False)
    if HOST.bytes_in:
        odd = _weight(rng, 20, (3, 3), "uint8", 3, per_channel=False)
        cases.add("Conv", attributes, [data, odd], y, last=True, needed=False)
    assert cases.refused == 3 + HOST.bytes_in
