"""The plan: what a graph is computed as, how values are stored, and which kernel computes what.

Codes are stored as uint8 and images channels-last, from one end of the graph to the other; nodes
without a kernel are computed by the plain legalization in that form. Extents that a file leaves
open though they follow from its inputs are those that Relax infers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx

from qdqbridge.core.graph.copying import copied, recentered
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import Dim, Shape
from qdqbridge.core.layout import ConvertedGraph, apply_layout
from qdqbridge.core.layout import plan as plan_layout
from qdqbridge.core.ops.attributes import PoolAttrs, SoftmaxAttrs
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION, NORMS, OVER_CHANNELS
from qdqbridge.core.ops.reduction import reduces
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.ops.unary import GELU
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.control_flow.conditional import is_conditional
from qdqbridge.onnx_io.control_flow.unrolling import is_repeated
from qdqbridge.tvm.qnn.dialect.elementwise import computable
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, tvm_dtype
from qdqbridge.tvm.qnn.emit.graph import agreed, expanded
from qdqbridge.tvm.qnn.emit.nodes import EmitOpaque, computes_minifloats
from qdqbridge.tvm.relax.emit.module import ModuleEmitter, emit_part
from qdqbridge.tvm.relax.emit.opaque import emit_conditional, emit_opaque, emit_repeated
from qdqbridge.tvm.relax.emit.qdq import in_codes
from qdqbridge.tvm.relax.files import to_tensor
from qdqbridge.tvm.relax.kernels import (
    binary,
    data_movement,
    lookup,
    normalization,
    softmax,
    windows,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelMatch, KernelPlace
from qdqbridge.tvm.relax.kernels.products import (
    convolution,
    depthwise,
    dynamic,
    matmul,
    uint16_products,
)
from qdqbridge.tvm.relax.kernels.products.dynamic import (
    codes_of,
    float_convolution,
    has_kernel,
    in_floats,
    product_of_codes,
)
from qdqbridge.tvm.relax.kernels.recurrent import nodes as recurrent
from qdqbridge.tvm.relax.kernels.recurrent.layers import KINDS
from qdqbridge.tvm.relax.kernels.recurrent.nodes import in_steps
from qdqbridge.tvm.relax.kernels.weight_only import codes as weight_codes
from qdqbridge.tvm.relax.kernels.weight_only import codes as weight_only
from qdqbridge.tvm.relax.read.module import RegionAttrs

# ---- Which families of kernels can have a node, the best one first -------------------------------


_BINARY = tuple(row.name for row in OPERATORS if computable(row))


def _with(record: type[Attributes], *matches: KernelMatch) -> dict[str, tuple[KernelMatch, ...]]:
    """Returns the same kernels for all operators with these attributes that are no steps."""
    return {row.name: matches for row in OPERATORS if row.attributes is record and not row.by_steps}


FAMILIES: Mapping[str, tuple[KernelMatch, ...]] = {
    CONV.name: (
        depthwise.match_depthwise,
        convolution.match_resized_conv,
        convolution.match_conv,
        uint16_products.match_convolution,
    ),
    CONV_TRANSPOSE.name: (uint16_products.match_conv_transpose,),
    "Dense": (
        weight_codes.match_block_dense,
        weight_only.match_weight_only_dense,
        convolution.match_constant_matmul,
        uint16_products.match_dense,
    ),
    DYNAMIC_BLOCK_DENSE.name: (weight_codes.match_block_dense,),
    dynamic.DYNAMIC_CODES.name: (dynamic.match_codes,),
    dynamic.DYNAMIC_PRODUCT.name: (dynamic.match_product,),
    "Gemm": (convolution.match_constant_matmul, uint16_products.match_dense, matmul.match_matmul),
    "MatMul": (convolution.match_constant_matmul, uint16_products.match_dense, matmul.match_matmul),
    **dict.fromkeys(_BINARY, (lookup.match_byte_lookup, binary.match_binary)),
    **{row.name: (windows.match_axes,) for row in OPERATORS if reduces(row)},
    **_with(PoolAttrs, windows.match_window),
    **dict.fromkeys(data_movement.OPERATORS, (data_movement.match_data_movement,)),
    recurrent.RECURRENT_STEPS.name: (recurrent.match_recurrent,),
    RESIZE.name: (windows.match_resize,),
    "Where": (lookup.match_byte_lookup, lookup.match_where),
    "quantize": (binary.match_conversion,),
    "dequantize": (binary.match_conversion,),
    "requantize": (lookup.match_byte_lookup, binary.match_conversion),
    **_with(SoftmaxAttrs, softmax.match_quantized_softmax, softmax.match_softmax),
    GELU.name: (lookup.match_wide, softmax.match_gelu),
    **{
        row.name: (normalization.match_quantized_norm, softmax.match_float_layer_norm)
        for row in NORMS
    },
    BATCH_NORMALIZATION.name: (lookup.match_batch_norm,),
}
"""Who makes the kernel of a node, by operator; other operators may be functions of one operand."""


def kernel_of(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a node, or None where the plain legalization computes it."""
    if computes_minifloats(node):
        return None
    for match in FAMILIES.get(node.op.name, (lookup.match_wide,)):
        kernel = match(node, place)
        if kernel is not None:
            return kernel
    return None


# ---- The plan: what a graph is computed as, how values are stored, and which kernel computes what


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A graph as it is computed.

    Attributes:
        converted: The graph with the conversions of layouts in it.
        kernels: The kernels, by the node whose result they write.
        needed: The nodes whose results somebody reads; what kernels compute on the way to theirs,
            and the transposes that they read through, are not among them.
        cpu: The CPU that it is for.
        threads: How many threads that has.
    """

    converted: ConvertedGraph
    kernels: Mapping[Node, Kernel]
    needed: frozenset[Node]
    cpu: Cpu
    threads: int

    @property
    def graph(self) -> Graph:
        """The graph whose nodes are computed; its interface is the model's."""
        return self.converted.graph


def plan(graph: Graph, cpu: Cpu, threads: int = 1) -> KernelPlan:
    """Returns the plan of a graph.

    Args:
        graph: A canonical graph; it is not changed.
        threads: How many threads it has.
    """
    place = KernelPlace(cpu, False, threads)
    known = with_steps(with_codes(with_extents(expanded(graph)), place), place)
    # Kernels multiply uint8 by int8 on x86: activations are moved up once, at the model's edges.
    bytes_up = recentered(known, DType.INT8, lambda value: not value.is_constant)
    ours = apply_layout(bytes_up, plan_layout(bytes_up, fixed=OVER_CHANNELS))
    outputs = frozenset(ours.graph.outputs)
    kernels: dict[Node, Kernel] = {}
    inside: set[Node] = set()
    given = _given(ours.graph)
    for node in ours.graph.nodes:
        if node in inside:
            continue
        kernel = kernel_of(node, KernelPlace(cpu, node in ours.channels_last, threads))
        if kernel is not None and _extents_known(kernel, given):
            root, grown = _grown(node, kernel, outputs, inside)
            kernels[root] = grown
    needed = _needed(ours.graph.nodes, outputs, kernels)
    called = {node: kernel for node, kernel in kernels.items() if node in needed}
    return KernelPlan(ours, called, needed, cpu, threads)


def _grown(
    node: Node, kernel: Kernel, outputs: Set[Value], inside: set[Node]
) -> tuple[Node, Kernel]:
    """Lets a kernel take the nodes behind it; returns the last one, and the kernel."""
    # Only where nobody else reads what is in between: it is not stored any more.
    while kernel.extend is not None and len(node.output.users) == 1:
        ((reader, _),) = node.output.users
        larger = None
        if reader not in inside and node.output not in outputs:
            larger = kernel.extend(kernel, reader)
        if larger is None:
            break
        inside.add(reader)
        node, kernel = reader, larger
    return node, kernel


def _extents_known(kernel: Kernel, given: Set[Dim]) -> bool:
    """True where open extents of results are those of an operand, or of an input of the graph.

    What only the run computes is named where the plain legalization computes it.
    """
    if any(isinstance(e, str) for value in kernel.inputs for e in value.type.shape or ()):
        return True
    return all(
        isinstance(e, int) or e in given for value in kernel.outputs for e in value.type.shape or ()
    )


def _needed(
    nodes: Sequence[Node], outputs: Set[Value], kernels: Mapping[Node, Kernel]
) -> frozenset[Node]:
    wanted, found = set(outputs), set[Node]()
    # From the results back: a kernel may read past nodes that nobody else needs then.
    for node in reversed(nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        found.add(node)
        kernel = kernels.get(node)
        wanted.update(v for v in (node.inputs if kernel is None else kernel.inputs) if v)
    return frozenset(found)


# ---- the graph that is computed


def with_extents(graph: Graph) -> Graph:
    """Returns a graph in which every extent is known, or an input's, that can be; else the same.

    Args:
        graph: A canonical graph; it is not changed.
    """
    given = _given(graph)
    results = (value for node in graph.nodes for value in node.outputs)
    if not any(_left_open(value.type.shape, given) for value in results):
        return graph
    # TVM's shape inference knows more of open extents than the graph says, and it is asked by
    # emitting the graph; the module itself is thrown away.
    emitter = ModuleEmitter(keep_params=True)
    try:
        emitter.module(graph)
    except UnsupportedTargetError:
        return graph  # compiling says why
    names = {variable: name for name, variable in emitter.extents.items()}
    copy = copied(graph)
    for value, new in copy.values.items():
        found = _inferred(value, emitter.emitter.exprs.get(value), names)
        if found is not None:
            new.type = new.type.with_shape(found)
    return copy.graph


def _given(graph: Graph) -> Set[Dim]:
    return {extent for value in graph.inputs for extent in value.type.shape or ()}


def _left_open(shape: Shape, given: Set[Dim]) -> bool:
    """True where an extent is neither known nor one of those given by the inputs."""
    return shape is None or any(isinstance(e, str) and e not in given for e in shape)


def _inferred(value: Value, expr: Any, names: dict[Any, str]) -> Shape:
    """Returns the extents that Relax found; those of the graph where it found none."""
    shape = getattr(getattr(expr, "ty", None), "shape", None)
    values = getattr(shape, "values", None)
    if value.is_constant or values is None:
        return value.type.shape
    old = value.type.shape or (None,) * len(values)
    extents: list[Dim] = []
    for number, (extent, own) in enumerate(zip(values, old, strict=True)):
        if isinstance(extent, tirx.IntImm):
            extents.append(int(extent))
        else:
            extents.append(names.get(extent, own or f"{value.name}_{number}"))
    return tuple(extents)


def with_codes(graph: Graph, place: KernelPlace) -> Graph:
    """Returns a graph in which products of dynamic codes are nodes of their own; else the same.

    Products that read one activation share its codes.
    """
    if not any(has_kernel(node, place) or in_floats(node) for node in graph.nodes):
        return graph
    copy = copied(graph)
    editor, known = Editor(copy.graph), dict[Value, Sequence[Value]]()
    for node in list(copy.graph.nodes):
        product = has_kernel(node, place)
        if product or in_floats(node):
            x = node.operand(0)
            if x not in known:
                known[x] = codes_of(x, node.origin)
            value = (product_of_codes if product else float_convolution)(node, known[x])
            editor.insert(value)
            editor.replace_value(node.output, value)
    editor.finish()
    return copy.graph


def with_steps(graph: Graph, place: KernelPlace) -> Graph:
    """Returns a graph in which recurrent layers are a product and their steps; else the same."""
    if not any(node.op.name in KINDS for node in graph.nodes):
        return graph
    copy = copied(graph)
    editor = Editor(copy.graph)
    for node in list(copy.graph.nodes):
        results = in_steps(node, place)
        for old, new in zip(node.outputs, results or (), strict=False):
            editor.insert(new)
            editor.replace_value(old, new)
    editor.finish()
    return copy.graph


# ---- emit ----------------------------------------------------------------------------------------
# A plan as a Relax module: calls of PrimFuncs, and the plain legalization where there are none.


WORK = "qdqbridge.work"
"""Attribute of a PrimFunc: operations of one call, an open extent counting as 1; 0 where they are
not counted."""


def emit_plan(made: KernelPlan, regions: Mapping[str, Any] | None = None) -> ir.IRModule:
    """Returns the module of a plan; equal descriptions of kernels are one PrimFunc in it.

    Args:
        made: The plan.
        regions: The functions of nodes that are regions.

    Raises:
        UnsupportedTargetError: A node or an element type that TVM cannot run; lists every one.
    """
    return _PlanEmitter(made, regions or {}).module(made.graph)


class _PlanEmitter(ModuleEmitter):
    def __init__(self, made: KernelPlan, regions: Mapping[str, Any]) -> None:
        super().__init__(checked=True)
        self._plan, self._regions = made, regions
        self._functions: dict[tuple[type, Hashable], relax.GlobalVar] = {}
        self.emitter.channels_last = made.converted.channels_last
        self.form = self._form

    def _form(
        self, emitter: FunctionEmitter, node: Node, emit_opaque: EmitOpaque
    ) -> Sequence[Expr]:
        if node not in self._plan.needed:
            return [None] * len(node.outputs)
        kernel = self._plan.kernels.get(node)
        return in_codes(emitter, node, emit_opaque) if kernel is None else self._call(kernel)

    def _opaque(self, node: Node) -> Sequence[Expr]:
        if isinstance(node.attributes, RegionAttrs):
            return self._region(node, node.attributes)
        if is_conditional(node):
            return emit_conditional(self.emitter, node, self._inside)
        if is_repeated(node):
            return emit_repeated(self.emitter, node, self._inside)
        if node.op.name in KINDS:  # their weights are transposed once, not at every run
            return emit_opaque(self.emitter, node, emit_part, shown=False)
        return super()._opaque(node)

    def _region(self, node: Node, region: RegionAttrs) -> list[Expr]:
        function = self.builder.add_func(self._regions[region.symbol], region.symbol)
        operands = [self.emitter.value(node.operand(i)) for i in range(len(node.inputs))]
        called = self.emitter.emit(relax.Call(function, operands))
        if not isinstance(called.ty, ir.TupleType):
            return [called]
        return [relax.TupleGetItem(called, i) for i in range(len(node.outputs))]

    def _inside(self, graph: Graph) -> ir.IRModule:
        return emit_plan(plan(agreed(graph), self._plan.cpu, self._plan.threads))

    def _bound(self, value: Value, expr: Expr | None) -> Expr:
        return None if expr is None else super()._bound(value, expr)

    def _call(self, kernel: Kernel) -> list[Expr]:
        operands = [self.emitter.value(value) for value in kernel.inputs]
        constants = [_relax_const(array) for array in kernel.constants]
        extents = _open_extents(kernel.inputs, operands)
        types = [self._type(value, extents) for value in kernel.outputs]
        args: Any = [*operands, *constants]
        call = relax.call_tir(self._function(kernel), args, types if len(types) > 1 else types[0])
        called = self.emitter.emit(call)
        if len(types) == 1:
            return [called]
        return [self.builder.emit(relax.TupleGetItem(called, i)) for i in range(len(types))]

    def _type(self, value: Value, known: Mapping[str, Any]) -> relax.TensorType:
        assert value.type.shape is not None
        other = next(iter(known.values()), None)  # what has a name of its own is the operand's too
        shape: list[Any] = []
        for extent in value.type.shape:
            if isinstance(extent, str) and other is None:
                shape.append(self.emitter.extent(extent))  # the plan has none but those of inputs
            else:
                shape.append(extent if isinstance(extent, int) else known.get(extent, other))
        return relax.TensorType(shape, tvm_dtype(value.type.dtype))

    def _function(self, kernel: Kernel) -> relax.GlobalVar:
        # Two kinds of kernels may have equal descriptions.
        key = type(kernel.description), kernel.description
        if key not in self._functions:
            made = kernel.build(kernel.description).with_attr(WORK, kernel.work)
            self._functions[key] = self.builder.add_func(made, kernel.name)
        return self._functions[key]


def _open_extents(values: Sequence[Value], operands: Sequence[Expr]) -> Mapping[str, Any]:
    """Returns the open extents of operands by name, those of the first axes first."""
    found: dict[str, Any] = {}
    shapes = [
        (v.type.shape or (), e.ty.shape.values) for v, e in zip(values, operands, strict=True)
    ]
    for axis in range(max((len(shape) for shape, _ in shapes), default=0)):
        for shape, own in shapes:
            if axis < len(shape) and isinstance(name := shape[axis], str):
                found.setdefault(name, own[axis])
    return found


def _relax_const(array: Array) -> Any:
    """Returns a constant; one that lies as TVM wants it is not copied."""
    return relax.const(to_tensor(np.ascontiguousarray(array), tvm.cpu()))
