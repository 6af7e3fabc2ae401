"""A case: a model, its inputs, and what may come out of it; and how its model is put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqbridge.targets.conformance.exact import TYPES, Array

Node: TypeAlias = onnx.NodeProto
Alternatives: TypeAlias = "tuple[tuple[str, tuple[Array, ...]], ...]"


@dataclass(frozen=True)
class CaseBody:
    """What a situation makes of one choice of types, shapes and numbers.

    Attributes:
        name: What tells it from the others of its situation.
        inputs: Of the model, in its order.
        allowed: What may come out, each with the reading of the text that leads to it. There is
            one, unless the text leaves a choice.
    """

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    allowed: Alternatives

    @property
    def output_names(self) -> list[str]:
        """Returns the names of the model's outputs."""
        return [str(info.name) for info in self.model.graph.output]

    def fixed(self) -> bytes:
        """Returns the file with the extents that the inputs have."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        pairs = [(info, self.inputs[info.name]) for info in model.graph.input]
        pairs += list(zip(model.graph.output, self.allowed[0][1], strict=True))
        for info, values in pairs:
            info.CopyFrom(typed(info.name, values))
        return model.SerializeToString()


@dataclass(frozen=True)
class ConformanceSituation:
    """Something that ONNX's text decides, or leaves open.

    Attributes:
        name: Of the situation; the names of its cases begin with it.
        section: Where the text says it: an operator's page and its version.
        says: The sentence.
        bodies: Makes its cases.
    """

    name: str
    section: str
    says: str
    bodies: Callable[[], Iterable[CaseBody]]


@dataclass(frozen=True)
class ConformanceCase:
    """A case of a situation."""

    situation: ConformanceSituation
    body: CaseBody

    @property
    def name(self) -> str:
        """Its name, which is that of its folder."""
        return f"{self.situation.name}_{self.body.name}"

    @property
    def is_open(self) -> bool:
        """Whether the text leaves a choice."""
        return len(self.body.allowed) > 1


def op(kind: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    """Returns a node; its inputs and outputs are words, and ``-`` is none."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), **attributes)


def element(values: Array) -> int:
    """Returns ONNX's number of a type."""
    return helper.np_dtype_to_tensor_dtype(values.dtype)


def typed(name: str, values: Array, shape: Sequence[int | str] | None = None) -> Any:
    """Returns the type of an input or output."""
    return helper.make_tensor_value_info(
        name, element(values), values.shape if shape is None else shape
    )


def const(values: Any, kind: str) -> Array:
    """Returns an array of a type."""
    return np.asarray(values).astype(TYPES[kind])


def body(
    name: str,
    nodes: Sequence[Node],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Mapping[str, Array] | Mapping[str, Sequence[tuple[str, Array]]],
    *,
    opset: int = 19,
    open_extents: bool = False,
    functions: Sequence[onnx.FunctionProto] = (),
) -> CaseBody:
    """Returns a case; outputs of which the text allows several are pairs of a reading and values.

    Args:
        name: What tells it from the others of its situation.
        nodes: Of the graph.
        inputs: Of the model.
        constants: Its initializers.
        outputs: What must come out.
        opset: The version of the operators.
        open_extents: The extents of inputs and outputs are symbols.
        functions: Local ones, of the domain ``local``.
    """
    options = {
        key: [("", value)] if isinstance(value, np.ndarray) else list(value)
        for key, value in outputs.items()
    }
    first = {key: pairs[0][1] for key, pairs in options.items()}
    count = len(next(iter(options.values())))

    def shape(key: str, values: Array) -> Sequence[int | str]:
        return [f"{key}{i}" for i in range(values.ndim)] if open_extents else values.shape

    graph = helper.make_graph(
        list(nodes),
        "conformance",
        [typed(key, values, shape(key, values)) for key, values in inputs.items()],
        [typed(key, values, shape(key, values)) for key, values in first.items()],
        [numpy_helper.from_array(values, key) for key, values in constants.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    if functions:
        imports.append(helper.make_opsetid("local", 1))
    model = helper.make_model(
        graph,
        opset_imports=imports,
        ir_version=13 if opset >= 25 else 10,
        producer_name="qdq-conformance",
        functions=list(functions),
    )
    allowed = tuple(
        (next(iter(options.values()))[i][0], tuple(pairs[i][1] for pairs in options.values()))
        for i in range(count)
    )
    return CaseBody(name, model, inputs, allowed)


# ---- onnxruntime and ONNX's reference implementation on a case, in this process ------------------


LEVELS = {
    "onnxruntime": "ORT_DISABLE_ALL",
    "onnxruntime-basic": "ORT_ENABLE_BASIC",
    "onnxruntime-optimized": "ORT_ENABLE_ALL",
}
"""Engines that are a session of onnxruntime, and its level of optimizations."""
REFERENCE = "onnx.reference"


def run_directly(engine: str, model: bytes, inputs: dict[str, Array]) -> list[Any]:
    """Returns what a session, or the reference implementation, computes.

    Args:
        engine: A key of ``LEVELS``, or ``REFERENCE``.
        model: The bytes of a file.
        inputs: Of the model.
    """
    if engine == REFERENCE:
        from onnx.reference import ReferenceEvaluator

        found: Any = ReferenceEvaluator(proto_of(model)).run(None, dict(inputs))
        return list(found)
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[engine])
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def proto_of(model: bytes) -> Any:
    """Returns a file as ONNX's own record of it."""
    import onnx

    return onnx.load_from_string(model)
