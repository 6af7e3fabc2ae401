"""Random float operators on NaN, infinities and numbers at the ends of float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from qdqbridge.options import Kernels
from tests.onnx_models import Array, Builder

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, np.finfo(np.float32).max, np.finfo(np.float32).min, 1e30, -3e9,
     2.2e8, 1e-45, -0.0, 0.0, 0.05, 0.15, -12.8],
    np.float32,
)  # fmt: skip
PLAIN = (
    "Relu", "Sign", "HardSwish", "Softplus", "Softsign", "Abs", "Neg", "Floor", "Ceil", "Round",
    "Sigmoid", "Tanh", "Exp", "Erf", "Reciprocal", "Sqrt", "Log", "Mish",
)  # fmt: skip
SLOPES: dict[str, dict[str, Any]] = {
    "LeakyRelu": {"alpha": 0.1}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "Elu": {"alpha": 1.5},
    "Selu": {}, "Celu": {"alpha": 2.0}, "ThresholdedRelu": {"alpha": 0.5},
}  # fmt: skip
POSITIONS = "position"


@dataclass
class Nonfinite:
    """A model of independent branches, and what is fed to it.

    Attributes:
        builder: The model.
        rng: Decides everything.
        feeds: One array per input.
        labels: What made each output.
    """

    builder: Builder
    rng: np.random.Generator
    feeds: dict[str, Array]
    labels: dict[str, str]

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def array(self, shape: tuple[int, ...], share: float | None = None) -> Array:
        """Returns numbers, so many of them special; whole rows of infinities too."""
        some = self.pick(0.0, 0.1, 0.3, 1.0) if share is None else share
        found = (self.rng.normal(size=shape) * 4).astype(np.float32)
        chosen = self.rng.choice(SPECIAL, shape).astype(np.float32)
        found = np.where(self.rng.random(shape) < some, chosen, found)
        if some and len(shape) > 1 and self.chance(0.3):
            found[int(self.rng.integers(shape[0]))] = self.pick(np.inf, -np.inf, np.nan)
        return found

    def fed(self, shape: tuple[int, ...], share: float | None = None) -> str:
        name = self.builder.input(self.builder.name("in"), shape)
        self.feeds[name] = self.array(shape, share)
        return name

    def number(self, *choices: float) -> str:
        """Returns an initializer of rank 0."""
        given = choices or (0.0, 1.0, -2.5, np.nan, np.inf, -np.inf)
        return self.builder.init(np.float32(self.pick(*given)))

    def shape(self, *ranks: int) -> tuple[int, ...]:
        return tuple(int(e) for e in self.rng.integers(1, 7, self.pick(*(ranks or (1, 2, 3, 4)))))

    def finish(self, value: str, label: str, *, floats: bool = True) -> None:
        """Makes an output, quantized at times."""
        kind = TensorProto.FLOAT if floats else TensorProto.INT64
        if floats and self.chance(0.5):
            dtype = self.pick(np.uint8, np.int8, np.uint16)
            info = np.iinfo(dtype)
            zero = int(self.rng.integers(info.min, int(info.max) + 1))
            value = self.builder.qdq(value, 0.1, self.pick(0, zero), dtype)
            label += f" to {np.dtype(dtype)}"
        self.builder.output(value, None, kind)
        self.labels[value] = label


def plain(m: Nonfinite) -> None:
    name = m.pick(*PLAIN)
    m.finish(m.builder.op(name, m.fed(m.shape())), name)


def sloped(m: Nonfinite) -> None:
    name = m.pick(*SLOPES)
    m.finish(m.builder.op(name, m.fed(m.shape()), **SLOPES[name]), name)


def clip(m: Nonfinite) -> None:
    low, high = m.pick(0.0, -1.0, -math.inf), m.pick(0.5, 6.0, math.inf)
    bounds = [m.builder.init(np.float32(low)), m.builder.init(np.float32(high))]
    m.finish(m.builder.op("Clip", m.fed(m.shape()), *bounds), f"Clip {low} {high}")


def extreme(m: Nonfinite) -> None:
    """Max or Min of one to three operands that broadcast; some are constants."""
    shape, name = m.shape(), m.pick("Max", "Min")
    operands = [m.fed(shape)]
    for _ in range(m.pick(0, 1, 1, 2)):
        own = tuple(1 if m.chance(0.4) else e for e in shape)[m.pick(0, 0, 1) :]
        made = m.builder.init(m.array(own)) if m.chance(0.3) else m.fed(own)
        operands.insert(m.pick(0, len(operands)), m.number() if m.chance(0.4) else made)
    m.finish(m.builder.op(name, *operands), f"{name} of {len(operands)}")


def arithmetic(m: Nonfinite) -> None:
    """A product, quotient, sum or difference with a constant, on either side."""
    name, x = m.pick("Mul", "Div", "Add", "Sub"), m.fed(m.shape())
    operands = [x, m.number()] if m.chance(0.5) else [m.number(), x]
    m.finish(m.builder.op(name, *operands), name)


def mixed(m: Nonfinite) -> None:
    """An operator of codes and floats."""
    name, shape = m.pick("Max", "Min", "Add", "Mul", "PRelu", "Where"), m.shape(2, 3)
    codes = m.builder.qdq(m.fed(shape, 0.0), 0.1, 3)
    other = m.fed(shape)
    if name == "Where":
        condition = m.builder.op("Greater", codes, m.builder.init(np.float32(0)))
        m.finish(m.builder.op("Where", condition, codes, other), "Where of codes and floats")
        return
    operands = [codes, other] if m.chance(0.5) else [other, codes]
    m.finish(m.builder.op(name, *operands), f"{name} of codes and floats")


def reduction(m: Nonfinite) -> None:
    shape, name = m.shape(), m.pick("ReduceMax", "ReduceMin")
    count = int(m.rng.integers(1, len(shape) + 1))
    axes = sorted(int(a) for a in m.rng.permutation(len(shape))[:count])
    y = m.builder.op(
        name, m.fed(shape), m.builder.init(np.array(axes)), keepdims=int(m.chance(0.5))
    )
    m.finish(y, name)


def pool(m: Nonfinite) -> None:
    shape = (*m.shape(2), *(int(e) + 2 for e in m.shape(1, 2, 3)))
    if m.chance(0.3):
        m.finish(m.builder.op("GlobalMaxPool", m.fed(shape)), "GlobalMaxPool")
        return
    image = shape[2:]
    kernel = [m.pick(1, 2, 3) for _ in image]
    pads = [int(m.rng.integers(0, k)) for k in (*kernel, *kernel)]
    strides = [m.pick(1, 2) for _ in image]
    fits = all((k - 1) * 2 < e for k, e in zip(kernel, image, strict=True))
    y = m.builder.op(
        "MaxPool", m.fed(shape), kernel_shape=kernel, pads=pads, strides=strides,
        dilations=[2 if fits and m.chance(0.3) else 1] * len(image), ceil_mode=int(m.chance(0.3)),
    )  # fmt: skip
    m.finish(y, f"MaxPool {len(image)}")


def position(m: Nonfinite) -> None:
    shape, name = m.shape(), m.pick("ArgMax", "ArgMin")
    axis = int(m.rng.integers(len(shape)))
    y = m.builder.op(name, m.fed(shape), axis=axis, keepdims=int(m.chance(0.5)))
    m.finish(y, f"{POSITIONS} {name}", floats=False)


def softmax(m: Nonfinite) -> None:
    shape, name = m.shape(2, 3), m.pick("Softmax", "LogSoftmax")
    m.finish(m.builder.op(name, m.fed(shape), axis=int(m.rng.integers(len(shape)))), name)


def chain(m: Nonfinite) -> None:
    """Several float operators between codes, which become one Composition."""
    y = m.builder.qdq(m.fed(m.shape(), 0.0), 0.1, 128)
    label = "chain"
    for _ in range(m.pick(2, 3)):
        name = m.pick("Sqrt", "Log", "Relu", "Reciprocal", "Sign", "Clip", "Exp")
        bounds = [m.number(0.0, -1.0), m.number(1.0, 6.0)] if name == "Clip" else []
        y, label = m.builder.op(name, y, *bounds), f"{label} {name}"
    m.finish(y, label)


Kind = Callable[[Nonfinite], None]
KINDS: tuple[Kind, ...] = (
    plain, sloped, clip, extreme, extreme, arithmetic, mixed, reduction, reduction, pool, pool,
    position, softmax, chain,
)  # fmt: skip
"""Makers of branches; what has many forms is there twice."""


def nonfinite_model(seed: int, branches: int) -> Nonfinite:
    """Returns a model of so many random branches."""
    made = Nonfinite(Builder(21), np.random.default_rng(seed), {}, {})
    for n in range(branches):
        KINDS[n % len(KINDS)](made)
    return made


def apart(meant: Array, got: Array) -> Array:
    """Returns where two results differ: in a NaN, an infinity, or by more than rounding."""
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(meant - got) <= 1e-6 + 1e-5 * np.abs(meant)
    return ~((meant == got) | near | (np.isnan(meant) & np.isnan(got)))


def differences(made: Nonfinite, kernels: Kernels) -> list[str]:
    """Compiles a model and returns where TVM is not the interpreter."""
    import qdqbridge as qb
    from tests.onnx_models import canonical

    graph = canonical(made.builder.model())
    meant = qb.evaluate(graph, made.feeds)
    found: list[str] = []
    for name, got in qb.compile(graph, kernels=kernels).run(made.feeds).items():
        wrong = apart(np.asarray(meant[name], np.float64), np.asarray(got, np.float64))
        if wrong.any():
            pairs = list(zip(meant[name][wrong][:4], got[wrong][:4], strict=True))
            found.append(f"{made.labels[name]}: {int(wrong.sum())} of {wrong.size}, {pairs}")
    return found
