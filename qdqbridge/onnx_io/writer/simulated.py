"""A simulated rounding as ONNX nodes: an If around Q and DQ whose parameters are tensors.

QuantizeLinear and DequantizeLinear store int16, whichever type is simulated: codes are shifted so
that the smallest one is the smallest int16, and what lies above the largest one is cut off before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.simulated import FLOAT_CODES, SimulatedAttrs
from qdqbridge.onnx_io.tensors import dtype_to_onnx
from qdqbridge.onnx_io.writer.rows import RowWriter
from qdqbridge.onnx_io.writer.spec import NodeRow

_SMALLEST = -(2**15)
_INT16 = 21
"""The opset whose QuantizeLinear stores int16; onnxruntime's own does so at every opset."""
_MICROSOFT = "com.microsoft"


def simulated_row(writer: RowWriter, node: Node) -> None:
    """Adds the row of one ``SimulateQuantization``.

    Args:
        writer: Where it goes.
        node: ``SimulateQuantization(x, code, scale, zero_point, low, high)``.
    """
    names = [writer.stored(node.operand(index)) for index in range(6)]
    output, x = writer.tensors.of(node.output), node.operand(0)
    name = writer.node_names.take(f"{output}_If")
    condition = writer.free.take(f"{names[1]}_condition")
    bool_ = {"to": TensorProto.BOOL}
    writer.spec.nodes.append(NodeRow("Cast", [names[1]], [condition], bool_, f"{name}_Cast"))
    attributes, rank = node.record(SimulatedAttrs), x.rank or 0
    body = _BranchBody(writer, output)
    if attributes.floats:
        body.rounded_to_either(names, attributes.axis, rank)
    else:
        body.rounded(names, attributes.axis, rank)
    other = _BranchBody(writer, output)
    other.add("Identity", [names[0]], "same")
    proto = helper.make_node(
        "If", [condition], [output], then_branch=body.graph(x.rank), else_branch=other.graph(x.rank)
    )
    writer.spec.nodes.append(NodeRow("If", [condition], [output], {}, name, (), proto))
    writer.spec.types[output] = TensorType(node.output.type.dtype, node.output.type.shape)


class _BranchBody:
    """A branch: nodes that read tensors around it, and initializers of the whole model."""

    def __init__(self, writer: RowWriter, stem: str) -> None:
        self._writer, self._stem = writer, stem
        self._nodes: list[NodeProto] = []

    def add(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Adds a node with one result; returns its tensor."""
        output = self._writer.free.take(f"{self._stem}_{name}")
        self._nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def rounded(self, names: Sequence[str], axis: int | None, rank: int) -> None:
        """Adds Q and DQ of what is not above the largest code."""
        x, _, scale, zero_point, low, high = names
        smallest = self._writer.array(np.array(_SMALLEST, np.int32), "smallest_int16")
        reach = self.add("Sub", [high, zero_point], "reach")
        steps = self.add("Cast", [reach], "steps", to=TensorProto.FLOAT)
        largest = self.add("Mul", [steps, scale], "largest")
        depth = self.add("Sub", [low, zero_point], "depth")
        shifted = self.add("Sub", [smallest, depth], "shifted")
        zero = self.add("Cast", [shifted], "zero_point", to=TensorProto.INT16)
        if axis is None:
            cut = self.add("Clip", [x, "", largest], "cut")
        else:
            axes = self._writer.array(
                np.array([i for i in range(rank) if i != axis], np.int64), "other_axes"
            )
            cut = self.add("Min", [x, self.add("Unsqueeze", [largest, axes], "bound")], "cut")
        along: dict[str, Any] = {} if axis is None else {"axis": axis}
        if self._writer.opset < _INT16:
            along["domain"] = _MICROSOFT
            self._writer.spec.imports.setdefault(_MICROSOFT, 1)
        codes = self.add("QuantizeLinear", [cut, scale, zero], "codes", **along)
        self.add("DequantizeLinear", [codes, scale, zero], "rounded", **along)

    def rounded_to_either(self, names: Sequence[str], axis: int | None, rank: int) -> None:
        """Adds an If that tells integers from floats, and a branch for each."""
        code = names[1]
        kinds: dict[str, _BranchBody] = {}
        for kind in ("integers", *(dtype.label for dtype in FLOAT_CODES)):
            kinds[kind] = _BranchBody(self._writer, f"{self._stem}_{kind}")
        kinds["integers"].rounded(names, axis, rank)
        found = kinds["integers"]
        for dtype, number in FLOAT_CODES.items():
            kinds[dtype.label].rounded_to_float(dtype, names, axis, rank)
            outer = _BranchBody(self._writer, f"{self._stem}_or_{dtype.label}")
            wanted = self._writer.array(np.array(number, np.int32), f"code_{dtype.label}")
            chosen = outer.add("Equal", [code, wanted], "chosen")
            branches = {
                "then_branch": kinds[dtype.label].graph(rank), "else_branch": found.graph(rank),
            }  # fmt: skip
            outer.add("If", [chosen], "either", **branches)
            found = outer
        self._nodes = found._nodes

    def rounded_to_float(
        self, dtype: DType, names: Sequence[str], axis: int | None, rank: int
    ) -> None:
        """Adds what stores multiples of the scale as a small float, and reads them back."""
        x, scale = names[0], names[2]
        if axis is not None:
            axes = np.array([i for i in range(rank) if i != axis], np.int64)
            scale = self.add("Unsqueeze", [scale, self._writer.array(axes, "other_axes")], "scales")
        steps = self.add("Div", [x, scale], "steps")
        stored = self.add("Cast", [steps], "stored", to=dtype_to_onnx(dtype))
        read = self.add("Cast", [stored], "read", to=TensorProto.FLOAT)
        self.add("Mul", [read, scale], "rounded")

    def graph(self, rank: int | None) -> Any:
        """Returns the branch; its result is that of its last node."""
        name = self._nodes[-1].output[0]
        shape = None if rank is None else [None] * rank
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        return helper.make_graph(self._nodes, f"{self._stem}_branch", [], [result])
