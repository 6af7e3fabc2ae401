"""Products of activations that are quantized while the model runs, as onnxruntime's tools do it.

``DynamicQuantizeLinear``, once for all that read its operand; ``MatMulInteger``, a Cast, the
product of both scales, and theirs; and an Add of the bias.
"""

from __future__ import annotations

import numpy as np

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import TensorType
from qdqbridge.onnx_io.tensors import dtype_to_onnx
from qdqbridge.onnx_io.writer.names import stem
from qdqbridge.onnx_io.writer.rows import RowWriter
from qdqbridge.onnx_io.writer.sheet import NodeRow
from qdqbridge.ops.dynamic import DYNAMIC_DENSE

Quantized = tuple[str, str, str]
"""The tensors of codes, scale and zero point."""


def dynamic_rows(writer: RowWriter, node: Node, target: str, type_: TensorType) -> None:
    """Adds the rows of one product.

    Args:
        writer: Where they go.
        node: ``DynamicDense(x, w[N, K], bias[N])``.
        target: The float tensor to write.
        type_: Its type.

    Raises:
        UnsupportedTargetError: ONNX has no such operator for parameters of every row.
    """
    attributes = DYNAMIC_DENSE.of(node)
    if attributes is not None and attributes.rows:
        raise UnsupportedTargetError(
            "ONNX cannot quantize rows of an activation by themselves while the model runs",
            where=f"node '{node.name}'",
            fix="quantize it per tensor, or statically",
        )
    codes, scale, zero_point = _quantized(writer, node.operand(0))
    w, points, scales = _weight(writer, node.operand(1))
    inputs = [codes, w, zero_point, *([points] if points else [])]

    def taken(what: str) -> str:
        return writer.free.take(f"{target}_{what}")

    plain = TensorType(DType.INT32, type_.shape)
    total = writer.row("MatMulInteger", inputs, taken("quantized"), plain, None, node)
    to = {"to": dtype_to_onnx(DType.FLOAT32)}
    real = writer.row("Cast", [total], taken("cast"), type_, to)
    shape = scales[1]
    both = TensorType(DType.FLOAT32, shape)
    factor = writer.row("Mul", [scale, scales[0]], taken("scales"), both)
    bias = node.optional(2)
    product = target if bias is None else taken("product")
    writer.row("Mul", [real, factor], product, type_)
    if bias is not None:
        writer.row("Add", [product, writer.real(bias, DType.FLOAT32)], target, type_)


def _quantized(writer: RowWriter, x: Value) -> Quantized:
    """Returns what DynamicQuantizeLinear makes of a value, which is done once."""
    if x not in writer.dynamic:
        source = writer.real(x, DType.FLOAT32)
        base = stem(source)
        names = [
            writer.free.take(f"{base}_{what}") for what in ("quantized", "scale", "zero_point")
        ]
        name = writer.node_names.take(f"{base}_QuantizeLinear")
        writer.sheet.nodes.append(NodeRow("DynamicQuantizeLinear", [source], names, {}, name, ()))
        types = (
            TensorType(DType.UINT8, x.type.shape), TensorType(DType.FLOAT32, ()),
            TensorType(DType.UINT8, ()),
        )  # fmt: skip
        writer.sheet.types.update(zip(names, types, strict=True))
        writer.dynamic[x] = (names[0], names[1], names[2])
    return writer.dynamic[x]


def _weight(writer: RowWriter, w: Value) -> tuple[str, str, tuple[str, tuple[int, ...]]]:
    """Returns the tensors of a weight (K, N), its zero point, and its scale with that shape."""
    assert w.constant is not None and w.quant is not None
    params: QuantParams = w.quant.params
    columns = w.constant.map(np.transpose, shape=w.constant.shape[::-1])
    stored = writer.constant(columns, writer.tensors.of(w))
    base = stem(writer.tensors.of(w))
    points = params.zero_point.astype(params.storage_dtype.numpy)
    scale = params.scale.astype(np.float32)
    return (
        stored, writer.array(points, f"{base}_zero_point"),
        (writer.array(scale, f"{base}_scale"), scale.shape),
    )  # fmt: skip
