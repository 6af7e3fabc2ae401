"""A whole graph as a Relay module with one function ``main``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir, relay

from qdqbridge.core.arguments import need_graph
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import check_extents, symbolic_extents
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.layout import apply_layout, plan
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr, tvm_dtype, unsupported
from qdqbridge.tvm.qnn.emit.graph import (
    check_known,
    emit_nodes,
    expanded,
    merge_errors,
    unique_identifier,
)
from qdqbridge.tvm.qnn.origin import conversion, type_text
from qdqbridge.tvm.relay.dialect.dynamic import MATMUL, QUANTIZE, SCALE, ZERO_POINT, dynamic
from qdqbridge.tvm.relay.emit.emitter import RelayEmitter, held
from qdqbridge.tvm.relay.emit.variants import RelayVariant, variant_of

# ---- ONNX's nodes of dynamic quantization, which a graph keeps as they are ---------------------


def emit_dynamic(emitter: RelayEmitter, node: Node) -> Sequence[Expr]:
    """Returns an expression for each result of a node.

    Raises:
        UnsupportedTargetError: It is another node without a row.
    """
    attributes = node.attributes
    known = isinstance(attributes, OpaqueAttrs) and not attributes.domain
    if known and node.op.name == "DynamicQuantizeLinear":
        x = emitter.value(node.operand(0))
        scale = emitter.emit(dynamic(SCALE, [x]))
        point = emitter.emit(dynamic(ZERO_POINT, [x, scale]))
        return [emitter.emit(dynamic(QUANTIZE, [x, scale, point])), scale, point]
    if known and node.op.name == "MatMulInteger":
        a, b = (emitter.value(node.operand(i)) for i in (0, 1))
        given = [*node.inputs[2:], None, None][:2]
        points = [
            emitter.number(np.zeros((), emitter.dtype(x)))
            if value is None
            else emitter.value(value)
            for x, value in zip((a, b), given, strict=True)
        ]
        return [emitter.emit(dynamic(MATMUL, [a, b, *points]))]
    raise unsupported(node, "only a Relax module can hold a node of this operator")


LARGE = 1 << 16
"""Bytes from which a constant becomes a parameter when parameters are kept apart."""

LAYOUTS = ("NCHW", "NHWC")


def emit(
    graph: Graph,
    variant: str = "canonical",
    layout: str | None = None,
    *,
    extents: Mapping[str, int] | None = None,
    keep_params: bool = False,
) -> tuple[ir.IRModule, dict[str, NDArray[Any]]]:
    """Returns ``graph`` as a Relay module in the QNN dialect.

    Args:
        graph: A canonical graph.
        variant: ``canonical`` (exact), ``tflite``, ``dnnl`` or ``fq2i``; see
            ``qdqbridge.tvm.relay.emit.variants`` for what each is for and how exact it is.
        layout: ``NCHW`` or ``NHWC``; None takes the variant's own. The inputs and outputs of
            ``main`` keep the graph's layout.
        extents: Numbers for the symbolic extents of the inputs, by name (``{"batch": 1}``).
        keep_params: Make large constants parameters of ``main`` after the graph's inputs.

    Returns:
        The module, typed, and the parameters by name (empty unless ``keep_params``). ``main``
        returns one tensor, or a tuple of several; its attributes ``input_names`` and
        ``output_names`` hold the model's own names, ``input_types`` what quantized inputs mean.
        Spans say which node a call comes from (:mod:`qdqbridge.tvm.qnn.origin`).

    Raises:
        InputDataError: ``graph`` is no graph, or ``extents`` are no positive numbers of its inputs.
        UnsupportedTargetError: A node, an element type or a symbolic extent that Relay cannot
            express; lists every one. No such variant or layout.
    """
    need_graph(graph, "relay.emit")
    form = variant_of(variant)
    chosen = form.layout if layout is None else layout
    if chosen not in LAYOUTS:
        raise UnsupportedTargetError(
            f"Relay modules have no layout {layout!r}", fix=f"use one of {', '.join(LAYOUTS)}"
        )
    check_known(graph)
    _check_dtypes(graph)
    _check_extents(graph, {} if extents is None else extents)
    return _Module(graph, form, chosen, extents or {}, keep_params=keep_params).emit()


def _check_dtypes(graph: Graph) -> None:
    for value in graph.values():
        if value.type.dtype.is_small_float:
            raise UnsupportedTargetError(
                f"Relay cannot hold tensors of {value.type.dtype}",
                where=f"tensor '{value.name}'",
                fix="compile it with Relax, or run it with onnxruntime",
            )


def _check_extents(graph: Graph, extents: Mapping[str, int]) -> None:
    check_extents(graph, extents)
    open_ = [name for name in symbolic_extents(graph) if name not in extents]
    open_ += ["rank"] if any(value.type.shape is None for value in graph.inputs) else []
    if open_:
        named = ", ".join(f"'{name}'" for name in open_)
        raise UnsupportedTargetError(
            "Relay needs the extents of every input",
            why=f"{named} {'is' if len(open_) == 1 else 'are'} not known",
            fix=f"give numbers: extents={{{', '.join(f'{n!r}: 1' for n in open_)}}}, "
            f"on the command line {' '.join(f'--extent {n}=1' for n in open_)}",
        )


class _Module:
    def __init__(
        self, graph: Graph, form: RelayVariant, layout: str, extents: Mapping[str, int], *,
        keep_params: bool,
    ) -> None:  # fmt: skip
        last = layout == "NHWC"
        graph = expanded(graph)
        ours = apply_layout(graph, plan(graph, last, fixed=form.fixed))
        self.graph, self.sources, self.to_last = ours.graph, ours.sources, ours.to_last
        self.extents = extents
        self.names: set[str] = set()
        self.lifted: dict[str, tuple[Any, Constant]] = {}
        lift = self._lift if keep_params else None
        self.emitter = RelayEmitter(form.variant, ours.channels_last, lift)

    def emit(self) -> tuple[ir.IRModule, dict[str, NDArray[Any]]]:
        inputs = [self._input(value) for value in self.graph.inputs]
        problems = emit_nodes(self.emitter, self.graph, self._bound, self._opaque, self._begin)
        if problems:
            raise merge_errors(problems) from problems[0].__cause__
        outputs = [self.emitter.value(value) for value in self.graph.outputs]
        result = outputs[0] if len(outputs) == 1 else relay.Tuple(outputs)
        params = [variable for variable, _ in self.lifted.values()]
        function: Any = relay.Function([*inputs, *params], result)
        function = function.with_attr(
            {
                "input_names": [value.name for value in self.graph.inputs],
                "input_types": [type_text(value.type) for value in self.graph.inputs],
                "output_names": list(self.graph.output_names),
            }
        )
        module = relay.transform.InferType()(tvm.IRModule.from_expr(function))
        return module, {name: held(constant) for name, (_, constant) in self.lifted.items()}

    def _input(self, value: Value) -> Any:
        shape = [
            self.extents.get(d, 0) if isinstance(d, str) else d for d in value.type.shape or ()
        ]
        name = self._name(value.name or "input")
        variable = self.emitter.emit(
            relay.var(name, shape=shape, dtype=tvm_dtype(value.type.dtype))
        )
        self.emitter.exprs[value] = variable
        return variable

    def _name(self, name: str) -> str:
        return unique_identifier(name, self.names)

    def _lift(self, constant: Constant, name: str) -> Any:
        if constant.nbytes < LARGE:
            return None
        unique = self._name(name or "param")
        dtype = tvm_dtype(constant.dtype)
        variable = relay.var(unique, shape=list(constant.shape), dtype=dtype)
        self.lifted[unique] = (variable, constant)
        return variable

    def _begin(self, node: Node) -> None:
        """Describes a node as the file has it, or a conversion of layouts."""
        if node in self.sources:
            self.emitter.describe(*self.sources[node])
        else:
            last = node in self.to_last
            self.emitter.origin = conversion(node.output.name, last=last)

    def _bound(self, value: Value, expr: Expr) -> Any:
        del value
        return self.emitter.emit(expr)

    def _opaque(self, node: Node) -> Sequence[Expr]:
        return emit_dynamic(self.emitter, node)
