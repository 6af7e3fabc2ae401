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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.arguments import need_graph
from qdqbridge.core.graph.copying import copied, recentered
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import NO_ORIGIN, Graph, Node, Note, Value
from qdqbridge.core.graph.operator import Attributes, Flow, Operator
from qdqbridge.core.graph.types import QuantParams, QuantType
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
from qdqbridge.core.ops.build import requantized, retyped
from qdqbridge.core.ops.conversion import REQUANTIZE
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.ops.matmul import OPERATORS as MATRIX_PRODUCTS
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.reduction import reduces
from qdqbridge.core.ops.table import OPERATORS, PRODUCTS
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    Rule,
    RuleContext,
    converted_interface,
    rule,
    run,
)
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.tvm.byoc.constraints import Constraints, Limits
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
class Rewrite(Note):
    """One rewrite, done or refused: a note of the rule that does it.

    Attributes:
        done: False where it is refused.
        exactness: ``exact``, or the most that a result can move.
    """

    done: bool = True
    exactness: str = EXACT

    @property
    def name(self) -> str:
        """Which rewrite."""
        return self.rule

    @property
    def where(self) -> str:
        """The node, or what it was done to."""
        return self.node

    @property
    def detail(self) -> str:
        """What became what, or why it is refused."""
        return self.reason


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
    own, done = _eight_bit_type(graph, constraints)
    notes = own.notes
    for each in rules_for(constraints):
        own.notes = []
        refused = run(own, (each,))
        done += [note for note in own.notes if isinstance(note, Rewrite)]
        done += [
            Rewrite(each.name.replace("-", " "), node.name, reject.reason, (), False, "not exact")
            for (_, node), reject in refused.items()
        ]
    own.notes = notes
    return own, done


def rules_for(constraints: Constraints) -> tuple[Rule, ...]:
    """Returns the rules by which a graph fits constraints better, in their order."""
    return (_softmax_scale(constraints), _split_clamps(constraints), _one_scale(constraints))


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


# ---- 8-bit type ------------------------------------------------------------------------------


def _eight_bit_type(graph: Graph, constraints: Constraints) -> tuple[Graph, list[Rewrite]]:
    graph = copied(graph).graph
    allowed = set(constraints.everywhere.activations or ())
    if len(allowed & {"int8", "uint8"}) != 1:
        return graph, []
    source = DType.UINT8 if "int8" in allowed else DType.INT8
    computed = [v for v in graph.values() if v.constant is None and _is(v, source)]
    if not computed:
        return graph, []
    ends = _ends(graph, source)
    run(graph, (_open_ends(source),))
    allowed_weights = constraints.everywhere.weights
    free = allowed_weights is None or str(source) in allowed_weights
    changed = recentered(graph, source, lambda v: not (free and _is_weight(v)))
    left = sum(v.constant is None and _is(v, source) for v in changed.values()) - len(ends)
    target = "int8" if source is DType.UINT8 else "uint8"
    detail = f"{len(computed) - max(left, 0)} values from {source} to {target}, zero points by 128"
    done = [Rewrite("8-bit type", "activations", detail)]
    if ends:
        detail = f"{', '.join(ends)} keep {source}: a requantize stands at the border"
        done.append(Rewrite("8-bit type", "interface", detail))
    if left > 0:
        detail = f"{left} values keep {source}: something looks at their bits"
        done.append(Rewrite("8-bit type", "the rest", detail, done=False))
    return changed, done


def _is(value: Value, dtype: DType) -> bool:
    return value.quant is not None and value.quant.params.storage_dtype is dtype


def _is_weight(value: Value) -> bool:
    return value.constant is not None and any(n.op in PRODUCTS for n, _ in value.users)


def _ends(graph: Graph, source: DType) -> list[str]:
    """Returns the names of inputs that are read and of computed outputs of a type."""
    inputs = [v.name for v in graph.inputs if _is(v, source) and v.users]
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    return [*inputs, *(name for name, v in outputs if _is(v, source) and v.producer is not None)]


def _open_ends(source: DType) -> Rule:
    @rule("interface-kept")
    def rewrite(node: Node, context: RuleContext) -> Proposal:
        """``f(x) -> requantize(f(requantize(x)))`` where inputs and outputs have a type."""
        return converted_interface(node, context, lambda value: _is(value, source), _once_more)

    return rewrite


def _once_more(value: Value) -> Value:
    assert value.quant is not None
    origin = NO_ORIGIN if value.producer is None else value.producer.origin
    return requantized(value, value.quant.params, origin, value.name)


def _softmax_scale(constraints: Constraints) -> Rule:
    limits = constraints.of("softmax")

    @rule("softmax-scale", SOFTMAX)
    def rewrite(node: Node, context: RuleContext) -> Proposal:
        """``Softmax(x) -> requantize(Softmax(x) in the scale that the backend has built in)``."""
        del context
        params = None if node.output.quant is None else node.output.quant.params
        if params is None or limits.output_scale is None:
            return None
        wanted = _wanted(params, limits)
        if wanted is None or wanted.same_mapping(params):
            return None
        detail = (
            f"scale {params.scale} became {wanted.scale}, a requantize back stands behind it; "
            "results are rounded twice"
        )
        exactness = f"at most {_largest_move(params, wanted)} LSB of {params.scale}"
        done = Rewrite("softmax scale", node.name, detail, exactness=exactness)
        return Replace({node.output: _behind(node, wanted)}, (done,))

    return rewrite


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


def _behind(node: Node, params: QuantParams) -> Value:
    """Returns a node's result in other parameters, and requantized to its own behind it."""
    value = node.output
    assert value.quant is not None
    inside = retyped(node, node.inputs, QuantType(params, value.quant.shape), value.name)
    return requantized(inside, value.quant.params, node.origin, value.name)


# ---- clamps and scales -----------------------------------------------------------------------


def _split_clamps(constraints: Constraints) -> Rule:
    @rule("split-clamp")
    def rewrite(node: Node, context: RuleContext) -> Proposal:
        """``f(x)`` in a narrower range ``-> requantize(f(x))``, which clamps; movements keep it."""
        del context
        quant = node.output.quant if len(node.outputs) == 1 else None
        if quant is None or node.op.flow is Flow.MOVE or node.op is REQUANTIZE:
            return None
        params, family = quant.params, FAMILIES.get(node.op.name, "unary")
        if constraints.of(family).clamp is not False or params.full_range:
            return None
        if not params.round_trips:
            return None
        detail = f"the range {params.qmin}..{params.qmax} became an operator of its own"
        done = Rewrite("split clamp", node.name, detail)
        return Replace({node.output: _behind(node, params.widened())}, (done,))

    return rewrite


def _one_scale(constraints: Constraints) -> Rule:
    @rule("scales-per-channel")
    def rewrite(node: Node, context: RuleContext) -> Proposal:
        """Refused: one scale for all channels would round the weights again."""
        del context
        family = FAMILIES.get(node.op.name, "")
        weight = node.optional(1) if family in ("convolution", "dense") else None
        if weight is None or weight.quant is None or weight.quant.params.per_tensor:
            return None
        if not constraints.of(family).per_tensor:
            return None
        scales = weight.quant.params.scale.size
        return Reject(f"one scale instead of {scales} would round the weights again: quantize anew")

    return rewrite
