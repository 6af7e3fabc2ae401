"""Legal rewrites of a graph that make it eligible for a table, done only when asked.

``prepare(graph, table)`` reads the table's constraints and returns another graph with what was
done; every rewrite says whether it is exact, or how far results can move::

    graph, rewrites = prepare(qb.load("model.onnx"), npu)
    module, _ = qb.to_relax(graph)

* ``8-bit type``: uint8 values become int8 ones (or the reverse) by zero points shifted by 128
* ``softmax scale``: a softmax gets the scale that the backend has built in, and a requantize to
  its own scale behind it
* ``split clamp``: a narrower range becomes an operator of its own
* ``scales per channel``: refused, one scale for all channels would round the weights again
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.arguments import need_graph
from qdqbridge.core.graph.copying import recentered
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    EpsilonAttrs,
    GroupNormAttrs,
    NormAttrs,
    PoolAttrs,
    ResizeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.ops.matmul import OPERATORS as MATRIX_PRODUCTS
from qdqbridge.core.ops.reduction import reduces
from qdqbridge.core.ops.softmax import SOFTMAX
from qdqbridge.core.ops.table import OPERATORS, PRODUCTS
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.tvm.byoc.constraints import Constraints
from qdqbridge.tvm.byoc.limits import Limits
from qdqbridge.tvm.byoc.table import Table

_BY_RECORD: Mapping[type[Attributes], str] = {
    AxisAttrs: "concatenation", ConvAttrs: "convolution", ConvTransposeAttrs: "convolution",
    EpsilonAttrs: "normalization", GroupNormAttrs: "normalization", NormAttrs: "normalization",
    PoolAttrs: "pool", ResizeAttrs: "resize", SoftmaxAttrs: "softmax",
}  # fmt: skip


def _family(row: Operator) -> str:
    if row.flow is Flow.MOVE:
        return ""
    if reduces(row):
        return "reduction"
    if row.arity == 2 or row is WHERE:
        return "binary"
    return "dense" if row in MATRIX_PRODUCTS else _BY_RECORD.get(row.attributes, "")


FAMILIES: Mapping[str, str] = {row.name: _family(row) for row in OPERATORS if _family(row)}
"""The families of the records by the graph's operators; the others are unary or data movement."""

NAMED: Mapping[str, Constraints] = {
    "int8": Constraints(Limits(activations=("int8",))),
    "uint8": Constraints(Limits(activations=("uint8",))),
    "softmax-1/256": Constraints(families={"softmax": Limits(output_scale=1 / 256)}),
    "split-clamps": Constraints(Limits(clamp=False)),
    "per-tensor": Constraints(Limits(per_tensor=True)),
}
"""Constraints that a shipped table asks for by name."""

EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite, done or refused.

    Attributes:
        name: Which rewrite.
        where: The node, or what it was done to.
        done: False where it is refused.
        exactness: ``exact``, or the most that a result can move.
        detail: What became what, or why it is refused.
    """

    name: str
    where: str
    done: bool
    exactness: str
    detail: str


def prepare(graph: Graph, table: Table | Constraints) -> tuple[Graph, list[Rewrite]]:
    """Returns a graph that fits a table's constraints better, and how it came about.

    Args:
        graph: A canonical graph; it is not changed.
        table: The table, or constraints alone (:func:`named` for a shipped table's).

    Raises:
        InputDataError: ``graph`` is not a graph, or ``table`` neither of the two.
    """
    need_graph(graph, "prepare")
    if not isinstance(table, Table | Constraints):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputDataError(
            "prepare needs a table or constraints",
            why=f"it is given {type(table).__name__}",
            fix="give byoc.canonical(constraints=...), or Constraints",
        )
    constraints = table if isinstance(table, Constraints) else table.constraints
    rewrites: list[Rewrite] = []
    copy = recentered(graph, only=_nothing)
    for rule in (_eight_bit_type, _softmax_scale, _split_clamps, _scales_per_channel):
        copy, done = rule(copy, constraints)
        rewrites += done
    return copy, rewrites


def named(names: Iterable[str]) -> Constraints:
    """Returns the constraints of these names, joined.

    Raises:
        UnsupportedTargetError: A name is not in ``NAMED``.
    """
    everywhere, families = Limits(), dict[str, Limits]()
    for name in names:
        if name not in NAMED:
            raise UnsupportedTargetError(
                f"there is no rewrite {name!r}", fix=f"there are {', '.join(NAMED)}"
            )
        everywhere = everywhere.updated(NAMED[name].everywhere)
        families.update(NAMED[name].families)
    return Constraints(everywhere, families)


def _nothing(value: Value) -> bool:
    del value
    return False


Result = tuple[Graph, list[Rewrite]]


# ---- 8-bit type ------------------------------------------------------------------------------


def _eight_bit_type(graph: Graph, constraints: Constraints) -> Result:
    allowed = set(constraints.everywhere.activations or ())
    if len(allowed & {"int8", "uint8"}) != 1:
        return graph, []
    source = DType.UINT8 if "int8" in allowed else DType.INT8
    computed = [v for v in graph.values() if v.constant is None and _is(v, source)]
    if not computed:
        return graph, []
    ends = _open_ends(graph, source)
    allowed_weights = constraints.everywhere.weights
    free = allowed_weights is None or str(source) in allowed_weights
    changed = recentered(graph, source, lambda v: not (free and _is_weight(v)))
    left = sum(v.constant is None and _is(v, source) for v in changed.values()) - len(ends)
    target = "int8" if source is DType.UINT8 else "uint8"
    detail = f"{len(computed) - max(left, 0)} values from {source} to {target}, zero points by 128"
    done = [Rewrite("8-bit type", "activations", True, EXACT, detail)]
    if ends:
        detail = f"{', '.join(ends)} keep {source}: a requantize stands at the border"
        done.append(Rewrite("8-bit type", "interface", True, EXACT, detail))
    if left > 0:
        detail = f"{left} values keep {source}: something looks at their bits"
        done.append(Rewrite("8-bit type", "the rest", False, EXACT, detail))
    return changed, done


def _is(value: Value, dtype: DType) -> bool:
    return value.quant is not None and value.quant.params.storage_dtype is dtype


def _is_weight(value: Value) -> bool:
    return value.constant is not None and any(n.op in PRODUCTS for n, _ in value.users)


def _open_ends(graph: Graph, source: DType) -> list[str]:
    """Puts a requantize behind inputs and before outputs of ``source``; returns their names."""
    editor, names = Editor(graph), list[str]()
    for value in graph.inputs:
        if _is(value, source) and value.users:
            inner = Value(value.type, value.name)
            editor.replace_value(value, inner)
            editor.insert(_requantized(value, inner))
            names.append(value.name)
    for slot, value in enumerate(graph.outputs):
        if _is(value, source) and value.producer is not None:
            outer = Value(value.type, graph.output_names[slot])
            editor.insert(_requantized(value, outer))
            graph.outputs[slot] = outer
            names.append(graph.output_names[slot])
    editor.finish()
    return names


def _requantized(source: Value, result: Value) -> Value:
    """Makes ``result`` the requantized ``source``; returns it."""
    producer = source.producer
    if producer is None:
        Node(REQUANTIZE, NO_ATTRIBUTES, [source], [result])
    else:
        Node(REQUANTIZE, NO_ATTRIBUTES, [source], [result], producer.origin)
    return result


# ---- softmax scale ---------------------------------------------------------------------------


def _softmax_scale(graph: Graph, constraints: Constraints) -> Result:
    limits, done = constraints.of("softmax"), list[Rewrite]()
    if limits.output_scale is None:
        return graph, done
    editor = Editor(graph)
    for node in [n for n in graph.nodes if n.op is SOFTMAX]:
        params = None if node.output.quant is None else node.output.quant.params
        wanted = None if params is None else _wanted(params, limits)
        if params is None or wanted is None or wanted.same_mapping(params):
            continue
        error = _largest_move(params, wanted)
        _behind(editor, node, wanted)
        detail = (
            f"scale {params.scale} became {wanted.scale}, a requantize back stands behind it; "
            "results are rounded twice"
        )
        exactness = f"at most {error} LSB of {params.scale}"
        done.append(Rewrite("softmax scale", node.name, True, exactness, detail))
    editor.finish()
    return graph, done


def _wanted(params: QuantParams, limits: Limits) -> QuantParams | None:
    if not params.per_tensor or not params.storage_dtype.is_integer:
        return None
    lowest, zero_point = params.storage_dtype.qmin, limits.output_zero_point
    zero_point = lowest if zero_point is None else zero_point
    assert limits.output_scale is not None
    scale = np.asarray(limits.output_scale, np.float32)
    return QuantParams(params.storage_dtype, scale, np.asarray(zero_point, np.int32))


def _largest_move(params: QuantParams, wanted: QuantParams) -> int:
    """Returns the largest difference, in codes of ``params``, that a second rounding can make."""
    codes = np.arange(wanted.qmin, wanted.qmax + 1, dtype=np.int64)
    scale, zero = float(wanted.scale), int(wanted.zero_point)
    edges = [(codes - zero + half) * scale for half in (-0.5, 0.5)]
    edges[1] = np.where(codes == wanted.qmax, np.inf, edges[1])  # saturation
    reachable = (edges[0] <= 1.0) & (edges[1] >= 0.0)
    direct = [_code(np.clip(edge, 0.0, 1.0), params) for edge in edges]
    twice = _code((codes - zero) * scale, params)
    moves = np.maximum(np.abs(twice - direct[0]), np.abs(twice - direct[1]))
    return int(moves[reachable].max(initial=0))


def _code(real: NDArray[Any], params: QuantParams) -> NDArray[np.int64]:
    code = np.rint(real / float(params.scale)) + int(params.zero_point)
    return np.clip(code, params.qmin, params.qmax).astype(np.int64)


def _behind(editor: Editor, node: Node, params: QuantParams) -> None:
    """Gives a node's result other parameters, and puts a requantize to its own behind it."""
    value = node.output
    assert value.quant is not None
    outer = Value(value.type, value.name)
    editor.replace_value(value, outer)
    value.type = QuantType(params, value.quant.shape)
    editor.insert(_requantized(value, outer))


# ---- clamps and scales -----------------------------------------------------------------------


def _split_clamps(graph: Graph, constraints: Constraints) -> Result:
    done: list[Rewrite] = []
    editor = Editor(graph)
    for node, params in list(_rounding_nodes(graph)):
        family = FAMILIES.get(node.op.name, "unary")
        if constraints.of(family).clamp is not False or params.full_range:
            continue
        if not params.round_trips or node.op is REQUANTIZE:
            continue
        _behind(editor, node, params.widened())
        detail = f"the range {params.qmin}..{params.qmax} became an operator of its own"
        done.append(Rewrite("split clamp", node.name, True, EXACT, detail))
    editor.finish()
    return graph, done


def _rounding_nodes(graph: Graph) -> Iterator[tuple[Node, QuantParams]]:
    """Yields the nodes that round their result; data movement only hands a range on."""
    for node in graph.nodes:
        if node.outputs and node.output.quant is not None and node.op.flow is not Flow.MOVE:
            yield node, node.output.quant.params


def _scales_per_channel(graph: Graph, constraints: Constraints) -> Result:
    done: list[Rewrite] = []
    for node in graph.nodes:
        family = FAMILIES.get(node.op.name, "")
        weight = node.optional(1)
        if family not in ("convolution", "dense") or weight is None or weight.quant is None:
            continue
        if constraints.of(family).per_tensor and not weight.quant.params.per_tensor:
            scales = weight.quant.params.scale.size
            detail = f"one scale instead of {scales} would round the weights again: quantize anew"
            done.append(Rewrite("scales per channel", node.name, False, "not exact", detail))
    return graph, done
