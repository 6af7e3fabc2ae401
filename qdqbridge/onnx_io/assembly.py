"""A model put together node by node in ONNX's words, for readers of other formats.

What is assembled goes through the ONNX reader: its operators, shapes, foldings and checks are the
same, wherever the nodes come from. Data that lie in the source file stay there and are mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import Shape
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import opaque_operator
from qdqbridge.onnx_io.reading.reader import read_proto
from qdqbridge.onnx_io.tensors import dtype_to_onnx, proto_from_constant

OPSET = 21
"""The opset of assembled nodes: the first with 4-bit and blocked quantization."""
_OF_2_BITS = 25
"""The first opset with types of 2 bits."""
_IR_VERSION = 10
_MAPPED = 1024
"""Bytes from which data stay in the file; smaller ones may be shapes, which inference looks at."""


class Assembly:
    """Nodes, tensors and the interface of a model that is being read.

    Args:
        file: The file they come from; tensors that :meth:`stored` names lie in it.
        outer: The assembly around this one, for the body of an If or a Scan.
    """

    def __init__(self, file: Path, outer: Assembly | None = None) -> None:
        self.file = file
        self._outer = outer
        self._graph = onnx.GraphProto(name=file.stem)
        # A body shares the names of what is around it: one that a body defines again would hide an
        # outer tensor.
        self._names: dict[str, int] = {} if outer is None else outer._names
        """Names that are taken, and the number behind the last one made of each."""
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    # ---- tensors ------------------------------------------------------------------------------

    def name(self, wish: str = "") -> str:
        """Returns a name that no tensor has yet, ``wish`` where that is free."""
        wish = wish or "t"
        name, count = wish, self._names.get(wish, 0)
        # Counted on from where the last one of this wish stopped: a file with thousands of tensors
        # of one name would be searched from 1 for each.
        while name in self._names:
            count += 1
            name = f"{wish}_{count}"
        self._names[wish] = count
        self._names[name] = 0
        return name

    def input(self, name: str, dtype: DType, shape: Shape) -> str:
        """Adds an input."""
        name = self.name(name)
        self._graph.input.append(_info(name, dtype, shape))
        return name

    def constant(self, numbers: ArrayLike, name: str = "") -> str:
        """Adds a small constant; equal ones without a name are one."""
        array = np.asarray(numbers)
        key = (str(array.dtype), array.shape, array.tobytes())
        if not name and key in self._shared:
            return self._shared[key]
        given = self.name(name or "constant")
        self._graph.initializer.append(proto_from_constant(given, Constant.of(array)))
        if not name:
            self._shared[key] = given
        return given

    def stored(
        self, name: str, dtype: DType, shape: Sequence[int], data: bytes, offset: int, nbytes: int
    ) -> str:
        """Adds a constant whose bytes lie in the source file.

        Args:
            name: The wished name.
            dtype: Its element type.
            shape: Its extents.
            data: The file's bytes.
            offset: Where the constant begins.
            nbytes: How many bytes it has.
        """
        name = self.name(name)
        tensor = TensorProto(name=name, data_type=dtype_to_onnx(dtype), dims=shape)
        if nbytes < _MAPPED:
            tensor.raw_data = data[offset : offset + nbytes]
        else:
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": self.file.name, "offset": offset, "length": nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
        self._graph.initializer.append(tensor)
        return name

    # ---- nodes --------------------------------------------------------------------------------

    def node(
        self, op_type: str, operands: Sequence[str], *, label: str = "", result: str = "",
        domain: str = "", **attributes: Any,
    ) -> str:  # fmt: skip
        """Adds a node with one result and returns that.

        Args:
            op_type: ONNX's name of the operator.
            operands: Names of its operands, empty where one is left out.
            label: The node's name: where it comes from.
            result: The wished name of its result.
            domain: The operator's domain.
            attributes: ONNX's attributes.
        """
        return self.nodes(
            op_type, operands, 1, label=label, results=(result,), domain=domain, **attributes
        )[0]

    def nodes(
        self, op_type: str, operands: Sequence[str], count: int, *, label: str = "",
        results: Sequence[str] = (), domain: str = "", **attributes: Any,
    ) -> list[str]:  # fmt: skip
        """Adds a node with ``count`` results and returns these; arguments as for :meth:`node`."""
        overrides = [*results, *[""] * (count - len(results))]
        names = [self.name(wish or f"{label or op_type}:{i}") for i, wish in enumerate(overrides)]
        node = helper.make_node(op_type, operands, names, name=label, domain=domain, **attributes)
        self._graph.node.append(node)
        return names

    def branch(
        self, condition: str, bodies: Sequence[Callable[[Assembly], Sequence[str]]], count: int,
        *, label: str = "",
    ) -> list[str]:  # fmt: skip
        """Adds an If.

        Args:
            condition: A boolean scalar.
            bodies: What adds the nodes of the branches, taken and not, and returns their results.
            count: How many results they have.
            label: The node's name.
        """
        graphs: list[onnx.GraphProto] = []
        for body in bodies:
            inner = Assembly(self.file, self)
            results = body(inner)
            # An Identity gives each result a name of the body's own: a branch may return a tensor
            # from around it, or one twice.
            for name in results:
                own = inner.node("Identity", [name])
                inner._graph.output.add(name=own)
            graphs.append(inner._graph)
        taken, other = graphs
        return self.nodes(
            "If", [condition], count, label=label, then_branch=taken, else_branch=other
        )

    def scan(
        self, states: Sequence[str], sequence: str,
        step: Callable[[Assembly, Sequence[str], str], tuple[Sequence[str], str]],
        *, backwards: bool = False, label: str = "",
    ) -> str:  # fmt: skip
        """Adds a Scan of floats over a leading axis; returns what the steps give, in their order.

        Args:
            states: What the first step begins with.
            sequence: What each step gets a part of.
            step: Adds the nodes of a step: from states and a part to the next states and a result.
            backwards: The last part comes first, and its result is the last.
            label: The node's name.
        """
        inner = Assembly(self.file, self)
        before = [inner.input("state", DType.FLOAT32, None) for _ in states]
        after, made = step(inner, before, inner.input("part", DType.FLOAT32, None))
        for name in (*after, made):
            inner._graph.output.append(_info(inner.node("Identity", [name]), DType.FLOAT32, None))
        sides = ("scan_input_directions", "scan_output_directions")
        order: dict[str, Any] = {side: [1] for side in sides} if backwards else {}
        results = self.nodes(
            "Scan", [*states, sequence], len(states) + 1, label=label, body=inner._graph,
            num_scan_inputs=1, **order,
        )  # fmt: skip
        return results[-1]

    # ---- the whole ----------------------------------------------------------------------------

    def graph(
        self,
        outputs: Sequence[tuple[str, str, DType, Shape]],
        metadata: Mapping[str, str],
        normal: Callable[[Graph], Graph],
    ) -> Graph:
        """Returns the raw graph, read as an ONNX model is.

        Args:
            outputs: Tensor, interface name, element type and shape of each output.
            metadata: The model's properties.
            normal: As for :func:`qdqbridge.onnx_io.reading.reader.read`.
        """
        for tensor, name, dtype, shape in outputs:
            self._graph.node.append(helper.make_node("Identity", [tensor], [name]))
            self._graph.output.append(_info(name, dtype, shape))
        # The newest opset only where a type of 2 bits asks for it.
        narrow = {dtype_to_onnx(DType.INT2), dtype_to_onnx(DType.UINT2)}
        stored = any(tensor.data_type in narrow for tensor in self._graph.initializer)
        opset = _OF_2_BITS if stored else OPSET
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(self._graph, opset_imports=imports, ir_version=_IR_VERSION)
        for key, value in metadata.items():
            model.metadata_props.add(key=key, value=value)
        return read_proto(model, self.file, normal)


def _info(name: str, dtype: DType, shape: Shape) -> onnx.ValueInfoProto:
    extents = None if shape is None else list(shape)
    return helper.make_tensor_value_info(name, dtype_to_onnx(dtype), extents)


# ---- Operators of ONNX without a row in the table, made by readers of other formats

STANDARD_OPSET = 17
"""The opset at which these operators are written: the oldest that has all of those used."""

Attribute = int | float | str | Sequence[int] | Sequence[float]


def standard_operator(
    op_type: str,
    operands: int,
    results: int = 1,
    *,
    opset: int = STANDARD_OPSET,
    attributes: Mapping[str, Attribute] = MappingProxyType({}),
) -> tuple[Operator, OpaqueAttrs]:
    """Returns an operator of ONNX, and the attributes of its node.

    Args:
        op_type: Its name in ONNX's own domain.
        operands: How many operands it gets.
        results: How many results it gives.
        opset: The opset whose meaning it has.
        attributes: ONNX's attributes.
    """
    names = [f"in_{i}" for i in range(operands)], [f"out_{i}" for i in range(results)]
    node = helper.make_node(op_type, *names)
    node.attribute.extend(helper.make_attribute(name, attributes[name]) for name in attributes)
    record = opaque_attributes(node, opset)
    return opaque_operator(record.domain, record.op_type), record
