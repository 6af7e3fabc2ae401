"""One node being lowered: what it says, and the nodes that are made in its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qdqbridge.core.graph.types import Shape
from qdqbridge.errors import UnsupportedQuantization
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.inference.node_types import GrowingTypes
from qdqbridge.onnx_io.inference.shapes import TypeAndShape
from qdqbridge.onnx_io.reading.constants import constant_of_node
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.tensors import constant_from_proto

# ---- What is known of a model's tensors while its nodes are being lowered

_CONE = 32
"""Nodes that the computation of a parameter may take."""
_NONE: TypeAndShape = (0, None)


class Known:
    """Constants, types and layouts of a model of which a first part is lowered.

    Args:
        model: The model; its nodes are in a topological order.
        folder: Where its external data lies.
        file: File name, for messages.

    Attributes:
        lowered: The nodes made so far.
        taken: Every tensor name in use.
        layouts: ``name -> (source, perm)`` for tensors that are ``Transpose(source, perm)``.
        variants: How the file writes what makes a tensor, by the tensor's name, for writers.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path, file: str) -> None:
        self.model, self.folder, self.file = model, folder, file
        graph = model.graph
        self.lowered: list[onnx.NodeProto] = []
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.taken = {value.name for value in graph.input} | set(self.initializers)
        self.taken |= set(self.makers)
        self.layouts: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.variants: dict[str, str] = {}
        self._arrays: dict[str, NDArray[Any] | None] = {}
        self._types = GrowingTypes(model)
        self._places = {id(node): place for place, node in enumerate(graph.node)}

    def fresh(self, hint: str) -> str:
        """Returns a tensor name that nothing has."""
        name, number = hint, 1
        while name in self.taken:
            number += 1
            name = f"{hint}.{number}"
        self.taken.add(name)
        return name

    def add_initializer(self, tensor: onnx.TensorProto) -> None:
        """Enters a constant under its name."""
        self.model.graph.initializer.append(tensor)
        self.initializers[tensor.name] = tensor

    def mark(self) -> tuple[int, int]:
        """Returns how far the file has come, for :meth:`take_back`."""
        return len(self.lowered), len(self.model.graph.initializer)

    def take_back(self, mark: tuple[int, int]) -> None:
        """Forgets the nodes and constants that were made since; their names stay taken."""
        nodes, constants = mark
        self._types.forget(self.lowered, nodes)
        del self.lowered[nodes:]
        for tensor in self.model.graph.initializer[constants:]:
            del self.initializers[tensor.name]
        del self.model.graph.initializer[constants:]

    # ---- constants ----------------------------------------------------------------------------

    def array(self, name: str) -> NDArray[Any] | None:
        """Returns the data of a constant: an initializer, or what a few nodes make of some."""
        if name not in self._arrays:
            self._arrays[name] = self._array(name)
        return self._arrays[name]

    def _array(self, name: str) -> NDArray[Any] | None:
        where = f"{self.file}, initializer '{name}'"
        if name in self.initializers:
            return constant_from_proto(self.initializers[name], self.folder, where).numpy()
        node = self.makers.get(name)
        if node is not None and node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            return constant_of_node(node, self.folder, where).numpy()
        if node is not None and node.op_type == "Reshape" and node.domain in ONNX_DOMAINS:
            return self._reshaped(node)
        cone = self._cone(name)
        return None if cone is None else self._run(cone, name)

    def _reshaped(self, node: onnx.NodeProto) -> NDArray[Any] | None:
        """Returns a constant in another shape; a weight that two nodes share is not copied."""
        data, target = (self.array(name) for name in node.input[:2])
        if data is None or target is None or any(a.name == "allowzero" for a in node.attribute):
            return None
        shape = [data.shape[i] if n == 0 else int(n) for i, n in enumerate(target.reshape(-1))]
        try:
            return data.reshape(shape)
        except ValueError:  # whoever infers its shape says so
            return None

    def is_constant(self, name: str) -> bool:
        """True where only constants determine a tensor."""
        return name in self.initializers or self._cone(name) is not None

    def _cone(self, name: str) -> list[onnx.NodeProto] | None:
        """Returns the nodes behind ``name`` in order; None if an input is among them, or many."""
        cone: list[onnx.NodeProto] = []
        pending = [name]
        while pending:
            current = pending.pop()
            if not current or current in self.initializers:
                continue
            node = self.makers.get(current)
            if node is None or node.domain not in ONNX_DOMAINS or len(cone) == _CONE:
                return None
            cone.append(node)
            pending.extend(node.input)
        unique = {id(node): node for node in cone}
        return sorted(unique.values(), key=lambda node: self._places.get(id(node), 0))

    def _run(self, cone: list[onnx.NodeProto], name: str) -> NDArray[Any] | None:
        used = {operand for node in cone for operand in node.input}
        given = [self.initializers[n] for n in sorted(used) if n in self.initializers]
        tensors = [self._embedded(tensor) for tensor in given]
        graph = onnx.helper.make_graph(cone, "cone", [], [onnx.ValueInfoProto(name=name)], tensors)
        model = onnx.helper.make_model(graph, opset_imports=list(self.model.opset_import))
        try:
            results: Any = ReferenceEvaluator(model).run(None, {})
            return np.asarray(results[0])
        except Exception:  # the evaluator raises whatever its operators meet
            return None

    def _embedded(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return tensor
        array = self.array(tensor.name)
        return tensor if array is None else onnx.numpy_helper.from_array(array, tensor.name)

    # ---- types --------------------------------------------------------------------------------

    def element_type(self, name: str) -> int:
        """Returns ONNX's number of a tensor's element type, 0 where unknown."""
        return self._type(name)[0]

    def rank(self, name: str) -> int | None:
        """Returns a tensor's rank, None where unknown."""
        shape = self._type(name)[1]
        return None if shape is None else len(shape)

    def shape(self, name: str) -> Shape:
        """Returns a tensor's shape, None where unknown."""
        return self._type(name)[1]

    def _type(self, name: str) -> TypeAndShape:
        if name in self.initializers:
            tensor = self.initializers[name]
            return tensor.data_type, tuple(tensor.dims)
        if name not in self._types.found:
            self._types.take(self.lowered, self.initializers)
        return self._types.found.get(name, _NONE)


# ----

UNSIGNED = {2: TensorProto.UINT2, 4: TensorProto.UINT4, 8: TensorProto.UINT8}
"""ONNX's unsigned element type of a width."""


def unpacked(data: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """Returns the first ``count`` codes of every row of bytes (the last axis)."""
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    codes = (data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)[..., :count]


def packed(codes: NDArray[Any], bits: int) -> bytes:
    """Returns the bytes of codes in row-major order."""
    per_byte = 8 // bits
    flat = codes.reshape(-1).astype(np.uint8)
    rows = np.pad(flat, (0, -flat.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    return np.bitwise_or.reduce(rows << shifts, axis=1).astype(np.uint8).tobytes()


def tensor_of(codes: NDArray[Any], bits: int, name: str) -> onnx.TensorProto:
    """Returns a constant of unsigned codes."""
    tensor = TensorProto(name=name, data_type=UNSIGNED[bits], dims=codes.shape)
    tensor.raw_data = packed(codes, bits)
    return tensor


# ---- channels-last nodes, as channels-first ones between transpositions that cancel --------------
# onnxruntime's NHWC transformer gives QLinearConv, QLinearAveragePool, QLinearGlobalAveragePool
# and MaxPool the layout (N, spatial…, C), and leaves elementwise operators between them as they
# are.

_USUAL_RANK = 4
Perm = tuple[int, ...]


def to_first(rank: int) -> Perm:
    """Returns the permutation (N, spatial…, C) -> (N, C, spatial…)."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> Perm:
    """Returns the permutation (N, C, spatial…) -> (N, spatial…, C)."""
    return (0, *range(2, rank), 1)


def transposed(context: LoweringContext, name: str, perm: Perm, result: str = "") -> str:
    """Returns ``Transpose(name)``, or its source where the two cancel and no name is asked for."""
    layouts = context.known.layouts
    source, inner = layouts.get(name, ("", ()))
    order = [*range(len(inner))]  # the file's perm may be no permutation
    if source and not result and sorted(perm) == order and [inner[i] for i in perm] == order:
        return source
    made = context.op("Transpose", [name], result, perm=list(perm))
    layouts[made] = (name, perm)
    return made


def usual_rank(context: LoweringContext, name: str) -> int:
    """Returns the rank of a tensor, 4 where nothing tells it."""
    return context.known.rank(name) or _USUAL_RANK


def common_source(context: LoweringContext, names: Sequence[str]) -> tuple[list[str], Perm | None]:
    """Returns what ``names`` are transpositions of, where all are the same one."""
    layouts = context.known.layouts
    perms = {layouts[name][1] if name in layouts else None for name in names}
    perm = next(iter(perms))
    if len(perms) != 1 or perm is None:
        return list(names), None
    return [layouts[name][0] for name in names], perm


# --------------------------------------------------------------------------------------------------

MICROSOFT = "com.microsoft"
"""The domain in which QuantizeLinear and DequantizeLinear exist alike under every opset."""


class LoweringContext(NodeView):
    """A node, typed access to it, and a builder of the nodes that say the same.

    New nodes carry the node's name and metadata, and use tensor names that nothing else has.

    Args:
        proto: The node.
        known: What is known of the model.
    """

    __slots__ = ("known", "main_opset")

    def __init__(self, proto: onnx.NodeProto, known: Known) -> None:
        super().__init__(proto, 1, [], known.file)
        self.known = known
        self.main_opset = default_opset(known.model)

    # ---- reading ------------------------------------------------------------------------------

    def input(self, index: int) -> str:
        """Returns the name of an input, empty where it is left out."""
        inputs = self.proto.input
        return inputs[index] if index < len(inputs) else ""

    def wants(self, index: int) -> bool:
        """True where the node names a result."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def array(self, index: int, what: str) -> NDArray[Any]:
        """Returns the data of an input that has to be constant.

        Raises:
            UnsupportedQuantization: It is computed at run time.
        """
        found = self.known.array(self.input(index))
        if found is None:
            raise self.refusal(
                f"{what} is not constant",
                f"input {index} ('{self.input(index)}') is known only at run time",
                "make it an initializer",
            )
        return found

    def packed(self, index: int, what: str) -> NDArray[np.uint8]:
        """Returns the bytes of an input that has to be constant and of an 8-bit integer type.

        Raises:
            UnsupportedQuantization: It is computed at run time, or of another type.
        """
        array = self.array(index, what)
        if array.dtype.itemsize != 1 or array.dtype.kind not in "iu":
            raise self.refusal(
                f"{what} is not an array of packed codes",
                f"input {index} ('{self.input(index)}') is {array.dtype}",
                "store it as uint8",
            )
        return array.view(np.uint8)

    def refusal(self, what: str, why: str, fix: str) -> UnsupportedQuantization:
        """Returns the error for an encoding that has no counterpart."""
        return UnsupportedQuantization(
            f"{self.op_type}: {what}", where=f"{self.file}, {self.describe()}", why=why, fix=fix
        )

    # ---- making -------------------------------------------------------------------------------

    def enter(self, array: NDArray[Any] | np.generic, hint: str) -> str:
        """Enters a constant; returns its name."""
        name = self.known.fresh(f"{self.proto.output[0]}.{hint}")
        self.known.add_initializer(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(
        self, op_type: str, inputs: Sequence[str], result: str = "", *, domain: str = "",
        outputs: int = 1, **attributes: Any,
    ) -> str:  # fmt: skip
        """Makes a node; returns the name of its first result (the others follow as ``.1`` …).

        Args:
            op_type: The operator.
            inputs: Names; empty ones at the end are dropped.
            result: Name of the first result; a new one where empty.
            domain: The operator's domain.
            outputs: Number of results.
            **attributes: ONNX attributes; None leaves one out.
        """
        first = result or self.known.fresh(f"{self.proto.output[0]}.{op_type}")
        kept = list(inputs)
        while kept and not kept[-1]:
            kept.pop()
        names = [first, *(self.known.fresh(f"{first}.{i}") for i in range(1, outputs))]
        node = helper.make_node(op_type, kept, names, self.name, domain=domain)
        given = {key: value for key, value in attributes.items() if value is not None}
        node.attribute.extend(_attribute(key, value) for key, value in given.items())
        node.metadata_props.extend(self.proto.metadata_props)
        self.known.lowered.append(node)
        return first

    def dequantize(
        self, stored: str, scale: str, zero_point: str = "", *, axis: int | None = None,
        block_size: int | None = None,
    ) -> str:  # fmt: skip
        """Returns ``DequantizeLinear(stored)``."""
        return self.op(
            "DequantizeLinear", [stored, scale, zero_point],
            domain=MICROSOFT, axis=axis, block_size=block_size,
        )  # fmt: skip

    def quantize(self, value: str, scale: str, zero_point: str, like: str, result: str = "") -> str:
        """Returns ``QuantizeLinear(value)``.

        Args:
            value: A float tensor.
            scale: Its scale.
            zero_point: Its zero point; empty for 0.
            like: A tensor of the storage type, for a left-out zero point.
            result: Name of the result; a new one where empty.
        """
        to = None
        if not zero_point:
            to = self.known.element_type(like)
            if not to:
                raise self.refusal(
                    "its storage type is unknown",
                    f"the zero point is left out, and so is the type of '{like}'",
                    "give the zero point, or run shape inference on the model",
                )
        return self.op(
            "QuantizeLinear", [value, scale, zero_point], result, domain=MICROSOFT, output_dtype=to
        )

    def product(self, factors: Sequence[str]) -> str:
        """Returns the float product of constant scales, multiplied from left to right."""
        name = factors[0]
        for factor in factors[1:]:
            name = self.op("Mul", [name, factor])
        return name

    def same_attributes(self, *leave: str) -> dict[str, Any]:
        """Returns the node's attributes but those in ``leave``."""
        return {
            attribute.name: helper.get_attribute_value(attribute)
            for attribute in self.proto.attribute
            if attribute.name not in leave
        }


def _attribute(key: str, value: Any) -> onnx.AttributeProto:
    empty = isinstance(value, list) and not value  # of integers, which all lists here are
    return helper.make_attribute(key, value, attr_type=AttributeProto.INTS if empty else None)
