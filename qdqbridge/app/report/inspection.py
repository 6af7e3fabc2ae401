"""What a model holds, before and after the canonical rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Graph, Header, Note, Value
from qdqbridge.core.graph.types import QuantParams, ValueType
from qdqbridge.core.ops.conversion import QUANTIZE

# Data that do not fit the quantization of a model's inputs: it was calibrated with others.

_OUTSIDE, _FILLED = 0.1, 0.1
"""Shares outside of a range, and of a range that numbers fill, from which on they are reported.
Choosers that clip leave out a hundredth; a few samples fill a third."""


def misfits(graph: Graph, data: Mapping[str, NDArray[Any]]) -> list[str]:
    """Returns what is to be reported of data that an input's quantization does not fit.

    Args:
        graph: A graph; inputs of real numbers that are quantized at once are looked at.
        data: One array per input, by name.
    """
    found: list[str] = []
    for value in graph.inputs:
        params, array = _input_qparams(value), data.get(value.name)
        if params is None or array is None:
            continue
        real = array.astype(np.float64)
        finite = real[np.isfinite(real)]
        scale, zero = float(params.scale.reshape(-1)[0]), int(params.zero_point.reshape(-1)[0])
        low, high = ((end - zero) * scale for end in (params.qmin, params.qmax))
        if not finite.size or not high > low:
            continue
        # A step beyond the ends is rounding.
        outside = float(np.mean((finite < low - scale) | (finite > high + scale)))
        # With 0, which every range contains: data far from it need not fill one.
        filled = float(max(finite.max(), 0) - min(finite.min(), 0)) / (high - low)
        stated = f"input '{value.name}' is quantized for {low:.4g} to {high:.4g}"
        advice = "the model seems to be calibrated with data of another scale"
        if outside > _OUTSIDE:
            found.append(
                f"{stated}, and {100 * outside:.0f} % of these numbers lie outside: {advice}"
            )
        elif filled < _FILLED:
            found.append(f"{stated}, of which these numbers fill {100 * filled:.2g} %: {advice}")
    return found


def _input_qparams(value: Value) -> QuantParams | None:
    """Returns the parameters of integers that all readers of an input make of it, if they do."""
    # A reader of the real numbers bears any scale: then nothing is said about the data.
    results = [node.output for node, _ in value.users if node.op is QUANTIZE]
    if value.quant is not None or len(results) != len(value.users) or not results:
        return None
    quant = results[0].quant
    if quant is None or not quant.params.per_tensor or not quant.params.storage_dtype.is_integer:
        return None
    return quant.params


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: Its interface name.
    """

    name: str
    type: ValueType


@dataclass(frozen=True, slots=True)
class Inspection:
    """A summary of one model file.

    Attributes:
        header: What the file says about itself.
        raw: Number of nodes by operator, as read.
        canonical: Number of nodes by operator, in canonical form.
        activations: Number of quantized results by storage and granularity, in bodies too.
        constants: Number of quantized constants by storage and granularity, in bodies too.
        floats: Number of results that are float in canonical form, in bodies too.
        inputs: The graph inputs.
        outputs: The graph outputs.
        digest: SHA-256 of the canonical text form.
        notes: Why nodes stayed float, and what was assumed.
        paired: Products whose pairs can saturate in onnxruntime, on x86 without VNNI.
    """

    header: Header
    raw: Mapping[str, int]
    canonical: Mapping[str, int]
    activations: Mapping[str, int]
    constants: Mapping[str, int]
    floats: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    digest: str
    notes: tuple[Note, ...]
    paired: tuple[str, ...]


def inspection(
    header: Header,
    raw: Mapping[str, int],
    canonical: Graph,
    notes: Sequence[Note],
    bodies: Sequence[Graph] = (),
    paired: Sequence[str] = (),
) -> Inspection:
    """Returns the summary of a model.

    Args:
        header: What its file says.
        raw: Number of nodes by operator, as read.
        canonical: Its canonical form.
        notes: What ``explain`` says about it.
        bodies: The graphs inside its If, Loop and Scan.
        paired: Products whose pairs can saturate.
    """
    values = [value for graph in (canonical, *bodies) for value in graph.values()]
    results = [value for value in values if not value.is_constant]
    return Inspection(
        header=header,
        raw=raw,
        canonical=operators(canonical),
        activations=_storages(results),
        constants=_storages([value for value in values if value.is_constant]),
        floats=sum(v.quant is None and v.type.dtype.is_float for v in results),
        inputs=tuple(Port(value.name, value.type) for value in canonical.inputs),
        outputs=tuple(
            Port(name, value.type)
            for name, value in zip(canonical.output_names, canonical.outputs, strict=True)
        ),
        digest=canonical.digest,
        notes=tuple(notes),
        paired=tuple(paired),
    )


def operators(graph: Graph) -> dict[str, int]:
    """Returns the number of nodes by operator, the most frequent first."""
    return dict(Counter(node.op.name for node in graph.nodes).most_common())


def _storages(values: Sequence[Value]) -> dict[str, int]:
    names = (_storage(value.quant.params) for value in values if value.quant is not None)
    return dict(Counter(names).most_common())


def _storage(params: QuantParams) -> str:
    if params.blocked:
        return f"{params.storage_dtype} in blocks of {params.block_size}"
    return f"{params.storage_dtype} {'per tensor' if params.per_tensor else 'per channel'}"
