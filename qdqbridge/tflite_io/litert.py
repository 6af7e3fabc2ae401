"""LiteRT runs what the writer writes, node by node; TOSA's arithmetic is a side of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import TensorType, ValueType, static_shape
from qdqbridge.core.layout import channels_first
from qdqbridge.core.ops.attributes import AlphaAttrs, PoolAttrs
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.pooling import AVERAGE_POOL, GLOBAL_AVERAGE_POOL, window_counts, window_sums
from qdqbridge.core.ops.reduction import REDUCE_MEAN, REDUCE_SUM
from qdqbridge.core.ops.unary import ABS
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.tflite_io.arithmetic import (
    FORMULAS,
    approximated,
    double_round,
    fixed_point,
    int16_lookup_table,
    rescaled_twice,
    rounded_of_sixteen,
    rounded_once,
)
from qdqbridge.tflite_io.writer.writer import TFLiteModel

# ---- litert --------------------------------------------------------------------------------------
# LiteRT runs what the writer writes: its tensors, and each node on the operands that LiteRT had.
#
# LiteRT is the package ``ai-edge-litert``; it is imported when first asked for.


Array = NDArray[Any]


class Kernels(Enum):
    """Which of its kernels LiteRT runs."""

    XNNPACK = "XNNPACK, where it takes an operator"
    BUILTIN = "LiteRT's own optimized kernels"
    REFERENCE = "LiteRT's reference kernels"


_RESOLVERS = {
    Kernels.XNNPACK: "BUILTIN",
    Kernels.BUILTIN: "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    Kernels.REFERENCE: "BUILTIN_REF",
}


class LiteRTSession:
    """A TFLite file in LiteRT.

    Args:
        data: The file's bytes.
        kernels: Which kernels run it.
        every_tensor: Keep all tensors; XNNPACK keeps those that leave the graph only.

    Raises:
        UnsupportedTargetError: LiteRT is not installed, or refuses the file.
    """

    def __init__(
        self, data: bytes, kernels: Kernels = Kernels.XNNPACK, *, every_tensor: bool = False
    ) -> None:
        module = _litert()
        resolver = getattr(module.OpResolverType, _RESOLVERS[kernels])
        try:
            self._interpreter = module.Interpreter(
                model_content=data, experimental_op_resolver_type=resolver,
                experimental_preserve_all_tensors=every_tensor and kernels is not Kernels.XNNPACK,
            )  # fmt: skip
        except (ValueError, RuntimeError) as error:
            # LiteRT refuses a file, or a shape, with either
            raise _refused(error) from error

    def run(
        self, inputs: Mapping[int, Array], wanted: Iterator[int] | list[int]
    ) -> dict[int, Array]:
        """Runs the file once.

        Args:
            inputs: An array per input tensor.
            wanted: The tensors to return.

        Raises:
            UnsupportedTargetError: LiteRT refuses an operator.
            InputDataError: An input does not fit.
        """
        interpreter = self._interpreter
        try:
            for entry in interpreter.get_input_details():
                array = inputs[entry["index"]]
                if tuple(entry["shape"]) != array.shape:
                    interpreter.resize_tensor_input(entry["index"], list(array.shape))
            interpreter.allocate_tensors()
            for index, array in inputs.items():
                interpreter.set_tensor(index, array)
            interpreter.invoke()
        except KeyError as error:
            raise InputDataError(
                "an input of the TFLite file is missing", why=str(error)
            ) from error
        except (ValueError, RuntimeError) as error:
            # LiteRT refuses a file, or a shape, with either
            raise _refused(error) from error
        found: dict[int, Array] = {}
        for index in wanted:
            try:
                found[index] = np.array(interpreter.get_tensor(index))
            except ValueError:  # a tensor that a delegate keeps to itself
                continue
        return found


def _litert() -> Any:
    try:
        return import_module("ai_edge_litert.interpreter")
    except ImportError as error:
        raise UnsupportedTargetError(
            "running TFLite files needs LiteRT, which is not installed",
            why=str(error),
            fix="pip install ai-edge-litert",
        ) from error


def _refused(error: Exception) -> UnsupportedTargetError:
    return UnsupportedTargetError("LiteRT refuses the TFLite file", why=str(error)[:500])


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """How far a node's result in LiteRT is from the interpreter's on the same operands.

    Attributes:
        node: The node of the graph that was written.
        value: Its result.
        count: Number of elements.
        different: How many differ.
        largest: The largest difference: in steps of the result's scale, or of floats relative to
            the largest number of the result.
    """

    node: Node
    value: Value
    count: int
    different: int
    largest: float


def node_differences(
    made: TFLiteModel, inputs: Mapping[str, Array], kernels: Kernels = Kernels.REFERENCE
) -> list[NodeDifference]:
    """Runs a file in LiteRT and each of its nodes by the interpreter, on the operands LiteRT had.

    Args:
        made: What was written.
        inputs: An array per input of the graph, by name.
        kernels: Which of LiteRT's kernels.

    Raises:
        UnsupportedTargetError: LiteRT is not installed or refuses the file.
    """
    recorded = recorded_tensors(made, inputs, kernels)
    values: dict[Value, Array] = {
        value: inputs[value.name] for value in made.graph.inputs if value.name in inputs
    }
    return [found.difference for found in _compared(made, recorded, values)]


def recorded_here(
    data: bytes, kernels: Kernels, inputs: Mapping[int, Array], wanted: list[int]
) -> dict[int, Array]:
    """Runs a file once, in this process, and returns tensors by index, those that it still has.

    Raises:
        UnsupportedTargetError: LiteRT is not installed or refuses the file.
    """
    return LiteRTSession(data, kernels, every_tensor=True).run(inputs, wanted)


Recorder: TypeAlias = "Callable[[bytes, Kernels, Mapping[int, Array], list[int]], dict[int, Array]]"
"""Runs a file as :func:`recorded_here` does, wherever it likes."""


def recorded_tensors(
    made: TFLiteModel,
    inputs: Mapping[str, Array],
    kernels: Kernels,
    recorder: Recorder = recorded_here,
) -> dict[int, Array]:
    """Returns every tensor of the file that is a value of the graph, as LiteRT computes it.

    Args:
        made: What was written.
        inputs: An array per input of the graph, by name.
        kernels: Which of LiteRT's kernels.
        recorder: What runs the file.

    Raises:
        UnsupportedTargetError: LiteRT is not installed or refuses the file.
    """
    model = made.model
    made_by_operators = {index for operator in model.operators for index in operator.outputs}
    wanted = sorted({index for index, _ in made.tensors.values()} & made_by_operators)
    known = set(model.outputs)
    everything = replace(
        model,
        outputs=[*model.outputs, *(index for index in wanted if index not in known)],
        output_names=[
            *model.output_names,
            *(model.tensors[index].name for index in wanted if index not in known),
        ],
    )
    fed = dict(zip(model.inputs, (inputs[name] for name in model.input_names), strict=True))
    return recorder(everything.tobytes(), kernels, fed, wanted)


def products_by_formula(
    made: TFLiteModel, inputs: Mapping[str, Array], kernels: Kernels
) -> dict[str, int]:
    """Returns for every way of rounding how many results of integer products it does not give.

    Raises:
        UnsupportedTargetError: LiteRT is not installed or refuses the file.
    """
    recorded = recorded_tensors(made, inputs, kernels)
    values = {value: inputs[value.name] for value in made.graph.inputs if value.name in inputs}
    found: dict[str, int] = {}
    for step in _compared(made, recorded, values):
        for name, result in _by_formula(step).items():
            found[name] = found.get(name, 0) + int((result != step.theirs).sum())
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    """A result of a node: its operands and LiteRT's result, as the graph lays them out."""

    difference: NodeDifference
    operands: list[Array | None]
    theirs: Array


def _by_formula(step: _Step) -> dict[str, Array]:
    """Returns the results of an integer product by every way of rounding its accumulator."""
    node = step.difference.node
    if node.op.flow is not Flow.ACCUMULATE:
        return {}
    return rounded_by_formula(node, step.operands, step.theirs.ndim)


def rounded_by_formula(node: Node, operands: Sequence[Array | None], rank: int) -> dict[str, Array]:
    """Returns a node's result by every way in which LiteRT's kernels round.

    Args:
        node: Any node; one that multiplies no integer by a real number has none.
        operands: Its operands, as stored.
        rank: The rank of its result.
    """
    quant = node.output.quant
    found = None if quant is None else accumulated(node, operands, rank)
    if quant is None or found is None:
        return {}
    total, multiplier = found
    params, wide = quant.params, np.broadcast_to(multiplier, total.shape)
    return {
        name: np.clip(formula(total, wide) + int(params.zero_point), params.qmin, params.qmax)
        for name, formula in FORMULAS.items()
    }


Accumulator = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Exact integers, and the real number that each is multiplied by."""


def accumulated(node: Node, operands: Sequence[Array | None], rank: int) -> Accumulator | None:
    """Returns what kernels round of a node's result; None for those that do not multiply so.

    Args:
        node: Any node.
        operands: Its operands, as stored.
        rank: The rank of its result.
    """
    result = node.output.quant
    sources = [value.quant for _, value in node.data_operands() if value.quant is not None]
    if result is None or not sources or not result.params.per_tensor:
        return None
    y = float(result.params.scale)
    x = sources[0].params
    match node.op.name:
        case "Conv" | "ConvTranspose" | "Dense" | "MatMul" if len(sources) > 1:
            scale = x.scale.astype(np.float64) * sources[1].params.scale.astype(np.float64)
            if scale.ndim and node.op in (CONV, CONV_TRANSPOSE):
                scale = scale.reshape(-1, *([1] * (rank - 2)))
            return _exactly(node, operands, scale), scale / y
        case "Mul" if len(sources) > 1:
            scale = x.scale.astype(np.float64) * sources[1].params.scale.astype(np.float64)
            return _exactly(node, operands, scale), scale / y
        case "requantize" | "Abs" | "LeakyRelu" if operands[0] is not None:
            total = operands[0].astype(np.int64) - int(x.zero_point)
            step = np.asarray(float(x.scale) / y)
            if isinstance(node.attributes, AlphaAttrs):
                slope = float(np.float32(node.attributes.alpha)) * step
                return total, np.where(total >= 0, step, slope)
            return (np.abs(total) if node.op is ABS else total), step
        case "GlobalAveragePool" | "ReduceMean" | "ReduceSum" if operands[0] is not None:
            before, after = operands[0].shape, _shape_after(node, operands)
            count = math.prod(before) // max(math.prod(after), 1)
            count = 1 if node.op is REDUCE_SUM else count
            scale = np.asarray(float(x.scale) / count)
            return _exactly(node, operands, scale), scale / y
        case _:
            return None


def _exactly(
    node: Node, operands: Sequence[Array | None], scale: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Returns a node's exact real result as whole multiples of ``scale``."""
    return np.rint(_evaluate_float64(node, operands) / scale).astype(np.int64)


def _shape_after(node: Node, operands: Sequence[Array | None]) -> tuple[int, ...]:
    return _evaluate_float64(node, operands).shape


def _evaluate_float64(node: Node, operands: Sequence[Array | None]) -> Array:
    """Returns a node's real result in float64, without its range."""
    plain = Node(node.op, node.attributes, node.inputs, [Value(TensorType(DType.FLOAT64, None))])
    return np.asarray(evaluate_node(plain, operands, exact=True)[0])


class LiteRTEngine:
    """LiteRT as a side of a comparison: it gives every value of the graph that was written.

    Args:
        made: What was written.
        kernels: Which of its kernels run.
        recorder: What runs the file.
    """

    def __init__(
        self,
        made: TFLiteModel,
        kernels: Kernels = Kernels.XNNPACK,
        recorder: Recorder = recorded_here,
    ) -> None:
        self._made, self._kernels, self._recorder = made, kernels, recorder
        self.graph = made.graph
        self.label = f"LiteRT ({kernels.value})"
        named = {value.name: value for value in made.tensors}
        self.outputs: Sequence[str] = list(made.graph.output_names)
        self._values = {
            **named, **dict(zip(self.outputs, made.graph.outputs, strict=True)),
        }  # fmt: skip
        self.names: Sequence[str] = list(dict.fromkeys((*self.outputs, *named)))
        self.types: Mapping[str, ValueType] = {n: v.type for n, v in self._values.items()}

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Returns the tensors ``names`` as they are stored, laid out as the graph has them.

        Raises:
            UnsupportedTargetError: LiteRT is not installed or refuses the file.
        """
        recorded = recorded_tensors(self._made, inputs, self._kernels, self._recorder)
        found: dict[str, Array] = {}
        for name in names:
            value = self._values[name]
            index, last = self._made.tensors.get(value, (-1, False))
            if value in self._made.graph.inputs:  # a graph may give back what it is given
                found[name] = inputs[value.name]
            elif index in recorded:
                array = recorded[index]
                found[name] = array.transpose(channels_first(array.ndim)) if last else array
        return found

    @staticmethod
    def explained(
        node: Node, operands: Sequence[Array | None], theirs: Array
    ) -> tuple[str, NDArray[np.bool_]] | None:
        """Returns which results are those of LiteRT's fixed-point arithmetic, bit for bit."""
        tables = [] if not operands or operands[0] is None else approximated(
            node, operands[0], theirs.ndim
        )  # fmt: skip
        if tables:
            equal = [result == theirs for result in tables if result.shape == theirs.shape]
            return (APPROXIMATION, np.logical_or.reduce(equal)) if equal else None
        ways = rounded_by_formula(node, operands, theirs.ndim)
        equal = [
            result == theirs
            for name, result in ways.items()
            if result.shape == theirs.shape and name.startswith("fixed point")
        ]
        return (FIXED_POINT, np.logical_or.reduce(equal)) if equal else None


FIXED_POINT = "fixed-point multiplier"
"""A cause: the multiplier is an integer of 31 (15) bits, and rounded once or twice."""


APPROXIMATION = "fixed-point approximation"
"""A cause: a table of 16 bits, or places between elements to 1/1024, bit for bit."""


def _compared(
    made: TFLiteModel, recorded: Mapping[int, Array], values: dict[Value, Array]
) -> Iterator[_Step]:
    for node in made.graph.nodes:
        operands: list[Array | None] = [
            None if v is None else values[v] if v.constant is None else v.constant.numpy()
            for v in node.inputs
        ]
        results = evaluate_node(node, operands)
        for value, result in zip(node.outputs, results, strict=False):
            values[value] = np.asarray(result)
            index, last = made.tensors.get(value, (-1, False))
            if index not in recorded:
                continue
            theirs = recorded[index]
            if last:
                theirs = theirs.transpose(channels_first(theirs.ndim))
            if theirs.shape != values[value].shape:
                continue
            yield _Step(_difference(node, value, theirs, values[value]), operands, theirs)
            values[value] = theirs.astype(values[value].dtype, copy=False)


def _difference(node: Node, value: Value, theirs: Array, ours: Array) -> NodeDifference:
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    largest = float(distance.max(initial=0.0))
    if value.quant is None:
        finite = np.abs(b[np.isfinite(b)])
        largest /= max(float(finite.max(initial=0.0)), 1e-30)
    return NodeDifference(node, value, a.size, int((distance > 0).sum()), largest)


def shapes_of(graph: Graph, extent: int = 1) -> dict[str, tuple[int, ...]]:
    """Returns the inputs' shapes; open extents become ``extent``."""
    found: dict[str, tuple[int, ...]] = {}
    for value in graph.inputs:
        shape = value.type.shape or ()
        fixed = tuple(extent if isinstance(e, str) else e for e in shape)
        found[value.name] = static_shape(fixed) or fixed
    return found


# ---- TOSA's arithmetic as a side of comparisons: what differs from the contract, bit for bit -----
# Source: TOSA 1.0, ``apply_scale_32`` with its two roundings, and TABLE of 16 bits, whose 513
# entries the converter fills as TFLite fills its own.


def mean_rounded(total: NDArray[np.int64], multiplier: float, count: int) -> NDArray[np.int64]:
    """MEAN of integers: the number of terms divides the mantissa, which loses its last places."""
    mantissa, shift = fixed_point(np.asarray(multiplier))
    more = count.bit_length() - 1
    return rescaled_twice(total, (mantissa << more) // count, 31 - shift + more)


def _averaged(total: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """AVG_POOL2D: the number of elements is a reciprocal of 31 bits; rounded half up."""
    more = np.ceil(np.log2(counts)).astype(np.int64)
    reciprocal = (((1 << 30) + 1) << more) // counts
    return (total * reciprocal + (np.int64(1) << (29 + more))) >> (30 + more)


def rescaled(node: Node, operands: Sequence[Array | None]) -> Array | None:
    """Returns what RESCALE gives of a node's operands; None for a node that needs none of it."""
    quant = node.output.quant
    if quant is None or not quant.params.per_tensor or not operands or operands[0] is None:
        return None
    ways = _ways(node, operands, operands[0].ndim)[1]
    if not ways:
        return None
    params = quant.params
    # what is 16 bits wide is rounded by 15
    way = ways[-1] if operands[0].dtype == np.int16 else ways[0]
    stored = np.clip(way + int(params.zero_point), params.qmin, params.qmax)
    return stored.astype(params.storage_dtype.numpy)


class TosaEngine(LiteRTEngine):
    """TOSA's reference model: it gives every value of the graph that was written.

    Args:
        made: What was written for TOSA.
        recorder: What converts the file and runs it.
    """

    def __init__(self, made: TFLiteModel, recorder: Recorder) -> None:
        super().__init__(made, Kernels.REFERENCE, recorder)
        self.label = "TOSA reference model"

    @staticmethod
    def explained(
        node: Node, operands: Sequence[Array | None], theirs: Array
    ) -> tuple[str, NDArray[np.bool_]] | None:
        """Returns which results are those of TOSA's arithmetic, bit for bit."""
        quant = node.output.quant
        if quant is None or not quant.params.per_tensor or not operands or operands[0] is None:
            return None
        cause, ways = _ways(node, operands, theirs.ndim)
        params, zero = quant.params, int(quant.params.zero_point.item())
        stored = (np.clip(way + zero, params.qmin, params.qmax) for way in ways)
        equal = [way == theirs for way in stored if way.shape == theirs.shape]
        return (cause, np.logical_or.reduce(equal)) if equal else None


def _ways(
    node: Node, operands: Sequence[Array | None], rank: int
) -> tuple[str, list[NDArray[np.int64]]]:
    """Returns a cause, and results without their zero point by each way it may be."""
    x, quant, step = operands[0], node.operand(0).quant, _scale(node)
    if x is not None and quant is not None and x.dtype == np.int16 and node.op.name in _TABLES:
        low, high = (float(quant.params.scale.item()) * end for end in (-(1 << 15), (1 << 15) - 1))
        table = int16_lookup_table(_TABLES[node.op.name], low, high, 1 / step)
        place = x.astype(np.int64) + (1 << 15)
        first, rest = table[place >> 7], place & 127
        between = (first << 7) + (table[(place >> 7) + 1] - first) * rest
        return APPROXIMATION, [(between + 64) >> 7]
    if isinstance(node.attributes, PoolAttrs) and x is not None and quant is not None:
        if node.op is not AVERAGE_POOL or float(quant.params.scale.item()) != step:
            return FIXED_POINT, []
        # the converter gives the operator no zero points: what is averaged are codes
        total = window_sums(node.attributes, x.astype(np.int64))
        averages = _averaged(total, window_counts(node.attributes, x))
        return FIXED_POINT, [averages - int(quant.params.zero_point.item())]
    found = accumulated(node, operands, rank)
    if found is None:
        return FIXED_POINT, []
    total, multiplier = found
    wide = np.broadcast_to(multiplier, total.shape)
    if node.op in (GLOBAL_AVERAGE_POOL, REDUCE_MEAN) and x is not None and quant is not None:
        plain = float(quant.params.scale.item()) / step
        return FIXED_POINT, [mean_rounded(total, plain, x.size // max(total.size, 1))]
    return FIXED_POINT, [
        way(total, wide) for way in (double_round, rounded_once, rounded_of_sixteen)
    ]


def _scale(node: Node) -> float:
    assert node.output.quant is not None
    return float(node.output.quant.params.scale.item())


_TABLES: Mapping[str, Callable[[float], float]] = MappingProxyType({
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "Tanh": math.tanh,
})  # fmt: skip
