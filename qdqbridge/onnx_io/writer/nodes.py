"""Graph nodes as ONNX nodes between QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import NestedType, TensorType
from qdqbridge.core.ops.attributes import GemmAttrs, QuantizeAttrs
from qdqbridge.core.ops.bodies import float_steps
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE, DYNAMIC_CONV, DYNAMIC_DENSE
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.ops.pooling import AVERAGE_POOL
from qdqbridge.core.ops.run_time_parameters import SimulatedAttrs
from qdqbridge.core.ops.selection import PAD
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs import BY_ROW, encode, since
from qdqbridge.onnx_io.codecs.linear import dividing
from qdqbridge.onnx_io.control_flow.subgraph_names import rank_stacked
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_node_proto
from qdqbridge.onnx_io.reading.operators_known import moved
from qdqbridge.onnx_io.runtime.operators import runtime_operator
from qdqbridge.onnx_io.tensors import dtype_to_onnx
from qdqbridge.onnx_io.writer.clamps import (
    clamp_extremes,
    clamp_real,
    clip_stored,
    clip_to_range,
    cut_between_steps,
    idle_max,
    rounded,
)
from qdqbridge.onnx_io.writer.dynamic import dynamic_rows, simulated_row
from qdqbridge.onnx_io.writer.fused import is_packed_matmul, unread_orders
from qdqbridge.onnx_io.writer.opset import OUTPUT_DTYPE_SINCE
from qdqbridge.onnx_io.writer.qlinear import qlinear_row
from qdqbridge.onnx_io.writer.spec import (
    Clamp,
    NodeRow,
    RowWriter,
    is_quantized,
    output_type,
    plain_type,
    quantizable,
    quantizing,
    real_dtype,
    real_name,
    stem,
)
from qdqbridge.onnx_io.writer.variants import (
    add_behind,
    adds_behind,
    dense_rows,
    file_variant,
    hidden,
    hides_dequantize,
    is_product_of_rows,
    unfused,
    unfused_operand,
    unfused_result,
)

_MATRIX = 2
_BIAS = _PAD_VALUE = 2
_MIXED = 23
"""The opset whose QuantizeLinear takes data and scales of different float types."""
_CONVOLUTIONS = (CONV, CONV_TRANSPOSE)
_INTEGER_KERNELS = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE)


class NodeWriter(RowWriter):
    """Turns the nodes of one graph into rows of a spec."""

    _moving_stored: Collection[Node] = ()

    def write(self, nodes: Sequence[Node], outputs: Collection[Value]) -> None:
        """Adds the rows of all nodes of a graph with these outputs."""
        self._moving_stored = _moving_stored(nodes, set(outputs))
        unwritten = unread_orders(nodes, set(outputs)) if self.options.packed else set[Node]()
        for node in nodes:
            if node not in unwritten:
                self.node(node)

    def node(self, node: Node) -> None:
        """Adds the rows of one graph node."""
        if node.op.flow is Flow.REINTERPRET:
            return  # its result shares the operand's tensor
        if self.options.operators and qlinear_row(self, node):
            return
        if node.op.flow is Flow.CONVERT and node.op is not CAST:
            self._convert(node)
        elif isinstance(node.attributes, OpaqueAttrs):
            self._opaque(node, node.attributes)
        elif isinstance(node.attributes, SimulatedAttrs):
            simulated_row(self, node)
        elif self._has_rows(node):
            target, type_ = self.target(node.output, node)
            dense_rows(self, node, target, type_)
            self.finish(node, node.output, target)
        elif node.op in (DYNAMIC_DENSE, DYNAMIC_CONV):
            target, type_ = self.target(node.output, node)
            dynamic_rows(self, node, target, type_)
        elif isinstance(node.attributes, CompositionAttrs):
            for part in self._parts(node, node.attributes):
                self._compute(part)
        elif node.op.name in BY_ROW:
            self._compute(node)
        elif node.op.body is not None:
            for step in self._float_steps(node):
                self.node(step)
        else:
            raise UnsupportedTargetError(
                f"ONNX has no operator for {node.op.name}",
                where=f"node '{node.name}'",
                fix="replace it by ONNX operators",
            )

    def _has_rows(self, node: Node) -> bool:
        """True for a product of a constant weight that is written in one of several forms."""
        if node.op in (DENSE, DYNAMIC_BLOCK_DENSE) or is_product_of_rows(node):
            return True
        return self.options.packed and is_packed_matmul(node)

    def _compute(self, node: Node) -> None:
        behind = adds_behind(node)
        operands = node.inputs[:_BIAS] if behind else node.inputs
        own = runtime_operator(node) if self.options.packed else None
        name, attributes = file_variant(node)
        # It is written in onnxruntime's own domain, so the file's opset need not have it.
        opset = max(self.opset, since(name, attributes)) if own else self.opset
        encoded = encode(name, attributes, operands, opset)
        dtype, quantized = real_dtype(node), is_quantized(node)
        name, metadata = self.identity(node, f"{self.tensors.of(node.output)}_{node.op.name}")
        inputs: list[str] = []
        for index, operand in enumerate(encoded.inputs):
            if operand is None:
                inputs.append("")
            elif isinstance(operand, Value):
                inputs.append(self._operand(node, index, operand, dtype, quantized=quantized))
            elif index == _PAD_VALUE and node in self._moving_stored:
                inputs.append(self.array(_code_of_pad(node, operand), f"{name}_input_{index}"))
            else:
                inputs.append(self.array(operand, f"{name}_input_{index}"))
        targets = [self.target(value, node) for value in node.outputs]
        stated = {k: v for k, v in encoded.attributes.items() if v not in ([], ())}
        if node.op is AVERAGE_POOL and set(stated.get("dilations", ())) == {1}:
            del stated["dilations"]  # onnxruntime's QLinearAveragePool does not have it
        names = [target for target, _ in targets]
        results = [self.free.take(f"{names[0]}_product")] if behind else names
        # Results that are left out have an empty name in their place.
        if encoded.results:
            by_place = dict(zip(encoded.results, results, strict=True))
            results = [by_place.get(place, "") for place in range(max(by_place) + 1)]
        unread = range(len(results), encoded.least)
        results = [*results, *(self.free.take(f"{results[0]}_{place}") for place in unread)]
        op_type, domain = encoded.op_type, encoded.domain
        if own:
            op_type, domain, stated = own.name, own.domain, own.stated(stated)
        row = NodeRow(op_type, inputs, results, stated, name, metadata, domain=domain)
        if domain:
            self.spec.imports.setdefault(domain, 1)
        self.spec.nodes.append(row)
        self.spec.types.update(targets)
        if behind:
            self.spec.types[results[0]] = targets[0][1]
            add_behind(self, node, results[0], names[0])
        for value, target in zip(node.outputs, names, strict=True):
            self.finish(node, value, target)

    def _parts(self, node: Node, attributes: CompositionAttrs) -> list[Node]:
        """Returns the operators of a composition, float in between as the file had them."""
        values: list[Value | None] = list(node.inputs)
        parts: list[Node] = []
        for step in attributes.steps:
            last = step is attributes.steps[-1]
            type_ = node.output.type if last else TensorType(DType.FLOAT32, node.output.type.shape)
            value = Value(type_, node.output.name if last else step.name)
            name = self.tensors.of(node.output) if last else self.free.take(step.name or "composed")
            self.tensors.adopt(value, name)
            operands = [values[i] for i in step.operands]
            parts.append(Node(step.op, step.attributes, operands, [value], step.origin))
            values.append(value)
        self._real_result(node, parts[-1])
        return parts

    def _float_steps(self, node: Node) -> list[Node]:
        """Returns the steps of an operator that ONNX has not, float in between."""
        steps, output = float_steps(node, real_dtype(node)), self.tensors.of(node.output)
        for step in steps:
            inside = {v for v in step.inputs if v and v.constant and v not in node.inputs}
            for value in (*inside, step.output):
                self.tensors.adopt(value, self.free.take(f"{output}_{step.op.name}"))
        self.tensors.adopt(steps[-1].output, output)
        self._real_result(node, steps[-1])
        return steps

    def _real_result(self, node: Node, last: Node) -> None:
        if node in self.own_names:
            self.own_names[last] = self.own_names.pop(node)

    def _opaque(self, node: Node, attributes: OpaqueAttrs) -> None:
        dtype = real_dtype(node)
        inputs = ["" if v is None else self.real(v, dtype) for v in node.inputs]
        outputs = [self.tensors.of(value) for value in node.outputs]
        name, metadata = self.identity(node, f"{outputs[0]}_{attributes.op_type}")
        proto = opaque_node_proto(attributes, inputs, outputs)
        rank_stacked(proto, [value.rank for value in node.outputs])
        if not attributes.domain:
            moved(proto, attributes.version, self.opset, lambda a: self.array(a, f"{name}_axes"))
        self.spec.nodes.append(
            NodeRow(attributes.op_type, inputs, outputs, {}, name, metadata, proto)
        )
        for value, output in zip(node.outputs, outputs, strict=True):
            if attributes.domain and value.type.shape is None:  # nobody else can say it
                self.spec.types[output] = plain_type(value).with_shape(value.declared)
            elif value.type.shape is not None or isinstance(value.type, NestedType):
                self.spec.types[output] = plain_type(value)

    def output(self, name: str, value: Value) -> None:
        """Adds what leads from a value to the graph output ``name``, if anything has to."""
        if value in self.kept_real:
            raise UnsupportedTargetError(
                f"ONNX cannot quantize to {value.type.dtype}",
                where=f"graph output '{name}'",
                fix="dequantize the output",
            )
        source = self.stored(value)
        type_ = output_type(value)
        if source == name:
            self.spec.types[name] = type_
        else:
            self.row("Identity", [source], name, type_)

    # ---- operands and conversions ---------------------------------------------------------------

    def _operand(
        self, node: Node, index: int, value: Value, dtype: DType, *, quantized: bool
    ) -> str:
        """Returns the tensor that a node reads as operand ``index``, in real numbers.

        Args:
            index: Which of its operands.
            dtype: The type in which the node computes.
            quantized: Any operand or result of the node is quantized.
        """
        if index == _BIAS and node.op.flow is Flow.ACCUMULATE:
            real = self.bias(value, dtype)
            return unfused_operand(self, node, value, real, TensorType(dtype, value.type.shape))
        unsafe = index == 1 and (_has_shifted_weight(node) or _scales_laid_otherwise(node, value))
        if self.options.convolvable and unsafe:
            return self.folded(value, dtype)
        if node in self._moving_stored and value.quant is not None:
            return self.stored(value)
        plain = value.constant is not None and value.quant is None
        if plain and quantized and node.op.is_data(index):
            return self.converted(value, dtype)
        real = self.real(value, dtype)
        if index == 1 and _is_matrix_of_columns(node, value):
            return unfused(self, node, real, TensorType(dtype, value.type.shape))
        return unfused_operand(self, node, value, real, TensorType(dtype, value.type.shape))

    def _convert(self, node: Node) -> None:
        source, result = node.operand(0), node.output
        if source.quant is None:
            tensor, dtype = self._widened(self.stored(source), source, result)
            type_ = TensorType(dtype, source.type.shape)
            tensor = unfused_result(self, source.producer, result.quant, tensor, type_)
            self.quantize(tensor, dtype, result, node)
        elif result.quant is None:
            target = self.tensors.of(result)
            if source in self.kept_real:
                type_ = TensorType(result.type.dtype, result.type.shape)
                self.row("Identity", [self.stored(source)], target, type_, node=node)
            elif self.options.convolvable and any(
                index == 1 and _scales_laid_otherwise(reader, source)
                for reader, index in result.users
            ):
                type_ = TensorType(result.type.dtype, result.type.shape)
                self.row("Identity", [self.folded(source, type_.dtype)], target, type_, node=node)
            else:
                tensor, type_ = (
                    self.stored(source),
                    TensorType(result.type.dtype, result.type.shape),
                )
                kept = hides_dequantize(self, source, result)
                real = self.free.take(f"{target}_unfused") if kept else target
                self.dequantize(tensor, source.quant, real, result.type.dtype, node)
                if kept:
                    hidden(self, real, type_, target)
        else:
            dtype = source.quant.params.expressed_dtype
            tensor = self.real(source, dtype)
            made = source.producer
            twice = made is not None and made.op is CONCAT
            if self.options.guarded and (
                twice or cut_between_steps(source.quant.params, result.quant.params)
            ):
                tensor = idle_max(self, tensor, dtype, source)
            self.quantize(tensor, dtype, result, node)

    def _widened(self, tensor: str, source: Value, result: Value) -> tuple[str, DType]:
        """Returns data to quantize, cast to float32 where its type is narrower than the scale's."""
        own = source.type.dtype
        wide = result.quant is not None and result.quant.params.expressed_dtype is DType.FLOAT32
        if not wide or not own.is_float or own.bits >= DType.FLOAT32.bits:
            return tensor, own
        name = self.free.take(f"{stem(tensor)}_{DType.FLOAT32}")
        return self.cast(tensor, name, TensorType(DType.FLOAT32, source.type.shape)), DType.FLOAT32

    def target(self, value: Value, node: Node) -> tuple[str, TensorType]:
        """Returns the tensor that an operator itself writes, and its type."""
        name, shape = self.tensors.of(value), value.type.shape
        if value.quant is None or node in self._moving_stored:
            return name, TensorType(value.type.dtype, shape)
        if quantizable(value.quant.params):
            name = self.free.take(real_name(name))
        return name, TensorType(real_dtype(node), shape)

    def finish(self, node: Node, value: Value, target: str) -> None:
        """Adds what leads from an operator's float result to a value of quantized type."""
        if value.quant is None or node in self._moving_stored:
            return
        if not quantizable(value.quant.params):
            self.kept_real.add(value)
            return
        dtype, clamp = real_dtype(node), not _implied(node, value)
        type_ = TensorType(dtype, value.type.shape)
        target = unfused_result(self, node, value.quant, target, type_)
        fuses = node.op.flow in _INTEGER_KERNELS
        own = value.quant.params.expressed_dtype
        # OpenVINO moves a clamp in front of the DequantizeLinear, where its ends become stored
        # numbers of the operand; a Max that changes nothing keeps it behind the average.
        if self.options.guarded and node.op.flow is Flow.AVERAGE:
            x = node.operand(0).quant
            if x is not None and cut_between_steps(x.params, value.quant.params):
                target = idle_max(self, target, dtype, value)
        if dtype is not own and (node.origin.computed is not None or self.opset < _MIXED):
            name = self.free.take(f"{stem(target)}_{own}")
            target, dtype = self.cast(target, name, TensorType(own, value.type.shape)), own
        self.quantize(target, dtype, value, clamp=clamp, fuses=fuses)

    def quantize(
        self, tensor: str, dtype: DType, value: Value, node: Node | None = None, *,
        clamp: bool = True, fuses: bool = False,
    ) -> None:  # fmt: skip
        """Adds a QuantizeLinear, and a clamp where the range is narrower than the storage."""
        assert value.quant is not None
        params, target, shape = value.quant.params, self.tensors.of(value), value.type.shape
        if not quantizable(params):
            raise UnsupportedTargetError(
                f"ONNX cannot quantize to {params.storage_dtype}",
                where=f"tensor '{value.name}'",
                fix="choose a storage type of 16 bits or less",
            )
        if clamp and self.options.clipped and params.storage_dtype.bits == 16 and params.per_tensor:
            tensor = clip_to_range(self, tensor, dtype, value)
        elif clamp and not params.full_range:
            stored = self.options.clamp is Clamp.STORED and fuses
            if stored and params.storage_dtype is DType.UINT8:
                whole = self.free.take(f"{stem(target)}_unclamped")
                inputs = [tensor, *self.parameters.of(params, stem(target))]
                type_ = TensorType(params.storage_dtype, shape)
                self.row("QuantizeLinear", inputs, whole, type_, quantizing(params), node)
                clip_stored(self, whole, value)
                return
            if self.options.clamp is Clamp.BEHIND:
                tensor = clamp_extremes(self, rounded(self, tensor, dtype, value), dtype, value)
            else:
                tensor = rounded(self, tensor, dtype, value) if stored else tensor
                tensor = clamp_real(self, tensor, dtype, value)
        inputs, stated = [tensor, *self.parameters.of(params, stem(target))], quantizing(params)
        if node is not None and isinstance(node.attributes, QuantizeAttrs):
            own = params.expressed_dtype
            stated |= dividing(node.attributes.precision, own, self.opset)
        type_ = TensorType(params.storage_dtype, shape)
        if type_.dtype.is_small_float and self.opset >= OUTPUT_DTYPE_SINCE:
            del inputs[2:]  # onnxruntime's fusions read the zero point of a float8 as an integer
            stated["output_dtype"] = dtype_to_onnx(type_.dtype)
        self.row("QuantizeLinear", inputs, target, type_, stated, node)


def _is_matrix_of_columns(node: Node, weight: Value) -> bool:
    """True for a constant weight ``[K, N]``, as a MatMul has it."""
    gemm = GEMM.of(node)
    columns = node.op is MATMUL or (gemm is not None and not gemm.trans_b)
    return columns and weight.constant is not None and weight.rank == _MATRIX


def _has_shifted_weight(node: Node) -> bool:
    """True for a convolution whose weight does not fit into a type around 0."""
    weight = node.operand(1) if node.op in _CONVOLUTIONS else None
    if weight is None or weight.constant is None or weight.quant is None:
        return False
    return not weight.quant.params.symmetric or weight.quant.dtype is DType.UINT8


def _scales_laid_otherwise(node: Node, weight: Value) -> bool:
    """True for a product of matrices whose weight has scales that OpenVINO lays otherwise.

    These are a scale for each term of a sum, or blocks of results.

    Args:
        node: The product.
        weight: Its second operand, or what that is dequantized from.
    """
    if node.op not in (DENSE, GEMM, MATMUL) or weight.constant is None or weight.quant is None:
        return False
    params, rank = weight.quant.params, weight.rank or 0
    transposed = isinstance(node.attributes, GemmAttrs) and node.attributes.trans_b
    terms = rank - (1 if transposed or node.op is DENSE else 2)
    if params.blocked:
        return rank == _MATRIX and params.axis != terms
    return params.axis == terms


def _implied(node: Node, value: Value) -> bool:
    """True where a data-movement operator's operand has the narrow range already."""
    if node.op.flow is not Flow.MOVE or value.quant is None or not node.inputs:
        return False
    first = node.operand(0).quant
    if first is None or not first.params.same_mapping(value.quant.params):
        return False
    own, result = first.params, value.quant.params
    return result.qmin <= own.qmin and own.qmax <= result.qmax


def _moving_stored(nodes: Sequence[Node], outputs: set[Value]) -> set[Node]:
    """Returns the data movement that is written of stored integers, not between a DQ and a Q.

    No Q gives these integers (int32), and either an output of the graph is what they are moved to,
    or they come from an input: behind a DQ of these other rounding may be pushed past, and
    onnxruntime's optimizations push a Q of int32 there, which it refuses. Or a Q would give other
    integers: the expressed type does not tell them apart (16 bits of half floats).
    """
    stored: set[Value] = set()
    able: set[Node] = set()
    found: set[Node] = set()
    for node in nodes:
        values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.quant is not None]
        moves = node.op.flow is Flow.MOVE or (node.op is CONCAT and _has_one_mapping(values))
        if moves and any(_is_lost(value) for value in values):
            found.add(node)
            continue
        if node.op.flow is not Flow.MOVE or any(_takes_q(value) for value in values) or not values:
            continue
        if all(_is_stored(v) or v in stored for v in node.inputs if v is not None):
            able.add(node)
            stored.update(node.outputs)
            first = node.operand(0)
            runs = first.producer in found or (_is_stored(first) and not first.is_constant)
            if runs and first.quant is not None:
                found.add(node)
    wanted = set(outputs)
    for node in reversed(nodes):
        if node in able and wanted & set(node.outputs) and node.output.quant is not None:
            found.add(node)
            wanted.update(value for value in node.inputs if value is not None)
    return found


def _code_of_pad(node: Node, value: NDArray[Any]) -> NDArray[Any]:
    """Returns the stored integer that a Pad of stored integers writes; other arrays as they are."""
    attributes, quant = PAD.of(node), node.operand(0).quant
    if attributes is None or quant is None:
        return value
    return quantize(np.asarray(attributes.value, np.float32), quant.params)


def _has_one_mapping(values: Sequence[Value]) -> bool:
    found = [value.quant.params for value in values if value.quant is not None]
    return all(params.same_mapping(found[0]) for params in found)


def _is_lost(value: Value) -> bool:
    """True where a Q gives other integers than a DQ in front of it was given."""
    params = None if value.quant is None else value.quant.params
    return params is not None and quantizable(params) and not params.round_trips


def _takes_q(value: Value) -> bool:
    return value.quant is None or quantizable(value.quant.params)


def _is_stored(value: Value) -> bool:
    """True of what a file has as it is stored: inputs, constants, and plain integers."""
    made = value.producer
    return value.quant is None or made is None or made.op.flow is Flow.REINTERPRET
