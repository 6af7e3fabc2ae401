"""Every lowering, by domain and operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx

from qdqbridge.onnx_io.domains import plain_domain
from qdqbridge.onnx_io.lowering import (
    elementwise,
    matrix,
    normalization,
    packed_weights,
    qonnx,
    recurrent,
    windows,
)
from qdqbridge.onnx_io.lowering.context import MICROSOFT, LoweringContext

_MANY = 1 << 30


@dataclass(frozen=True, slots=True)
class Lowering:
    """How one operator is lowered.

    Attributes:
        domain: Its domain.
        op_type: Its name.
        least: Inputs it needs.
        most: Inputs it may have.
        apply: Makes the nodes that stand for it.
        before: The default-domain opset since which the operator is ONNX's own; 0 for never.
        optional: Inputs among the first ``least`` that may be left out by an empty name.
        unless: The attribute without which, or with 0 for it, a node is read as it is.
    """

    domain: str
    op_type: str
    least: int
    most: int
    apply: Callable[[LoweringContext], None]
    before: int = 0
    optional: tuple[int, ...] = ()
    unless: str = ""

    def takes(self, node: onnx.NodeProto, opset: int) -> bool:
        """Returns whether a node of the operator is lowered."""
        if self.before and opset >= self.before:
            return False
        return not self.unless or any(a.name == self.unless and a.i for a in node.attribute)


def _microsoft(
    op_type: str, least: int, most: int, apply: Callable[[LoweringContext], None], *optional: int
) -> Lowering:
    return Lowering(MICROSOFT, op_type, least, most, apply, optional=optional)


_QONNX_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
_QUARK = (
    ("com.amd.quark", "ExtendedQuantizeLinear", "QuantizeLinear"),
    ("com.amd.quark", "ExtendedDequantizeLinear", "DequantizeLinear"),
    ("com.vai.quantize", "VitisQuantizeLinear", "QuantizeLinear"),
    ("com.vai.quantize", "VitisDequantizeLinear", "DequantizeLinear"),
)

LOWERINGS: tuple[Lowering, ...] = (
    Lowering("", "QLinearConv", 8, 9, windows.qlinear_conv),
    _microsoft("QLinearConv", 8, 9, windows.qlinear_conv),
    Lowering("", "ConvInteger", 2, 4, windows.conv_integer),
    _microsoft("FusedConv", 2, 4, windows.fused_conv),
    Lowering("", "LSTM", 3, 8, recurrent.steps_first, unless="layout"),
    Lowering("", "GRU", 3, 6, recurrent.steps_first, unless="layout"),
    Lowering("", "RNN", 3, 6, recurrent.steps_first, unless="layout"),
    Lowering("", "MatMulInteger", 2, 4, matrix.matmul_integer),
    Lowering("", "QLinearMatMul", 8, 8, matrix.qlinear_matmul),
    _microsoft("QLinearMatMul", 8, 8, matrix.qlinear_matmul),
    _microsoft("QGemm", 6, 9, matrix.qgemm),
    _microsoft("MatMulIntegerToFloat", 4, 7, matrix.integer_to_float),
    _microsoft("DynamicQuantizeMatMul", 3, 5, matrix.dynamic_matmul),
    _microsoft("FusedMatMul", 2, 2, matrix.fused_matmul),
    _microsoft("FusedGemm", 2, 3, matrix.fused_gemm),
    _microsoft("QLinearAdd", 7, 8, elementwise.binary("Add"), 2, 5),
    _microsoft("QLinearMul", 7, 8, elementwise.binary("Mul"), 2, 5),
    _microsoft("QLinearConcat", 5, _MANY, elementwise.concat),
    _microsoft("QLinearWhere", 9, 9, elementwise.where),
    _microsoft("QLinearSigmoid", 4, 5, elementwise.unary("Sigmoid"), 2),
    _microsoft("QLinearLeakyRelu", 4, 5, elementwise.unary("LeakyRelu", "alpha"), 2),
    _microsoft("QLinearSoftmax", 4, 5, elementwise.softmax, 2),
    _microsoft("QLinearReduceMean", 4, 5, elementwise.reduce_mean, 2),
    _microsoft("QLinearAveragePool", 4, 5, windows.average_pool, 2),
    _microsoft("QLinearGlobalAveragePool", 4, 5, windows.global_average_pool, 2),
    _microsoft("NhwcMaxPool", 1, 1, windows.nhwc_max_pool),
    _microsoft("MatMulNBits", 3, 6, packed_weights.matmul_nbits),
    _microsoft("GatherBlockQuantized", 3, 4, packed_weights.gather_block_quantized),
    _microsoft("SkipLayerNormalization", 3, 5, normalization.skip_norm(centred=True)),
    _microsoft("SkipSimplifiedLayerNormalization", 3, 4, normalization.skip_norm(centred=False)),
    _microsoft("BiasGelu", 2, 2, normalization.bias_gelu),
    _microsoft("FastGelu", 1, 2, normalization.fast_gelu),
    _microsoft("RelativePositionBias", 3, 3, recurrent.relative_position_bias),
    *(Lowering(domain, "Quant", 4, 4, qonnx.quant) for domain in _QONNX_DOMAINS),
    *(Lowering(domain, "IntQuant", 4, 4, qonnx.quant) for domain in _QONNX_DOMAINS),
    *(Lowering(domain, "BipolarQuant", 2, 2, qonnx.bipolar_quant) for domain in _QONNX_DOMAINS),
    *(Lowering(domain, "Trunc", 5, 7, qonnx.trunc) for domain in _QONNX_DOMAINS),
    *(Lowering(domain, name, 2, 3, qonnx.extended(plain)) for domain, name, plain in _QUARK),
)

_BY_NAME: Mapping[tuple[str, str], Lowering] = MappingProxyType(
    {(row.domain, row.op_type): row for row in LOWERINGS}
)


def lowering_of(node: onnx.NodeProto, opset: int) -> Lowering | None:
    """Returns how a node is lowered, None where it is read as it is.

    Args:
        node: The node.
        opset: The model's default-domain opset.
    """
    domain = plain_domain(node.domain)
    row = _BY_NAME.get((domain, node.op_type))
    return row if row is not None and row.takes(node, opset) else None


def is_microsoft(op_type: str) -> bool:
    """True for operators that exist in the domain com.microsoft and are lowered from there."""
    return (MICROSOFT, op_type) in _BY_NAME
