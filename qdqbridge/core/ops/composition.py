"""Composition: several elementwise operators of one tensor as one function, rounded once.

A file that leaves the values between two operators float (``DQ -> Div -> Erf -> Q``) means one
function of the dequantized operand. On 8- and 16-bit codes that is one table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from qdqbridge.core.graph.graph import NO_ORIGIN, Node, Origin
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Operator, Row, Types
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.stored import present


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a composition.

    Attributes:
        op: Its row, elementwise.
        operands: Where they come from: the node's operands are numbered first, then the results of
            the steps before.
        origin: Where it comes from (provenance).
        name: The name of its float result in the file (provenance).
    """

    op: Operator
    attributes: Attributes
    operands: tuple[int, ...]
    origin: Origin = field(default=NO_ORIGIN, compare=False)
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        from qdqbridge.core.graph.printer import attributes_text

        listed = ",".join(map(str, self.operands))
        return f"{self.op.name}({listed}){attributes_text(self.attributes)}"


@dataclass(frozen=True, slots=True)
class CompositionAttrs(Attributes):
    """The steps in execution order; the last one is the result."""

    steps: tuple[Step, ...]


def step_results(attributes: CompositionAttrs, operands: Operands) -> list[Array]:
    """Returns the results of all steps, in the element type of the operands."""
    values = list(present(operands, len(operands)))
    for step in attributes.steps:
        with np.errstate(all="ignore"):
            (result,) = step.op.compute(step.attributes, [values[i] for i in step.operands])
        values.append(result)
    return values[len(operands) :]


def _compose(attributes: CompositionAttrs, operands: Operands) -> tuple[Array, ...]:
    return (step_results(attributes, operands)[-1],)


def table(
    attributes: CompositionAttrs, source: QuantParams, result: QuantParams, scalars: Operands
) -> Array:
    """Returns the stored result of every code of ``source``, in the order of its bit pattern."""
    (values,) = _compose(attributes, [dequantize(codes(source), source), *scalars])
    return quantize(values, result)


def _contract(
    attributes: CompositionAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    source, result, stored = types[0], results[0], operands[0]
    if not isinstance(source, QuantType) or not isinstance(result, QuantType) or stored is None:
        return None
    entries = table(attributes, source.params, result.params, operands[1:])
    index = np.asarray(stored, order="C").view(np.uint8 if stored.itemsize == 1 else np.uint16)
    return (entries[index],)


def _check_composition(node: Node, attributes: CompositionAttrs) -> Iterator[str]:
    if not attributes.steps:
        yield "it has no steps"
    for index, step in enumerate(attributes.steps):
        known = len(node.inputs) + index
        if not step.operands or not all(0 <= operand < known for operand in step.operands):
            yield f"step {index}, {step}, takes what is not among the {known} values before it"
        elif step.op.flow is not Flow.ELEMENTWISE:
            yield f"step {index}, {step}, is not element-wise"


COMPOSITION = Row(
    name="Composition", flow=Flow.ELEMENTWISE, attributes=CompositionAttrs, compute=_compose,
    contract=_contract, data=(0,), check=_check_composition,
    quantize=False,  # made of quantized operators already
    numerics="A table over all codes: each step in float32 as its own row says, one rounding.",
)  # fmt: skip

OPERATORS = (COMPOSITION,)
