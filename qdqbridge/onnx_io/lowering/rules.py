"""The rules by which other encodings are read, and how many operands their operators have."""

from __future__ import annotations

from dataclasses import dataclass

from qdqbridge.core.rewrite import Rule, RulesByOperator
from qdqbridge.onnx_io.lowering import elementwise, packed_weights, products, qonnx, tensorrt
from qdqbridge.onnx_io.lowering.context import MICROSOFT

ENCODINGS: tuple[Rule, ...] = (
    *products.WINDOW_RULES,
    *products.RULES,
    *elementwise.RULES,
    *packed_weights.RULES,
    *elementwise.NORM_RULES,
    *elementwise.RECURRENT_RULES,
    *qonnx.RULES,
    *tensorrt.RULES,
)
"""Every rule, one per operator."""
_RULES = RulesByOperator(ENCODINGS)


def encoding_of(name: str) -> Rule | None:
    """Returns the rule that looks at an operator of a file, by its domain and name."""
    return next(iter(_RULES.of(name)), None)


def is_microsoft(op_type: str) -> bool:
    """True for operators that exist in the domain com.microsoft and are read from there."""
    return encoding_of(f"{MICROSOFT}::{op_type}") is not None


# ---- Encodings of quantization that have no counterpart: what they are, and what to do instead ---
# Nodes of other domains than ONNX's own are kept as they are; what is said here stands in the note
# about them, and in the error of whoever is asked to run one and cannot.


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an operator has no counterpart.

    Attributes:
        what: What it is.
        fix: What the user can do.
    """

    what: str
    fix: str


_PLAIN = "save the model without optimizations for one execution provider (basic level or none)"
_DYNAMIC = "quantize statically, or dynamically with MatMulInteger and without transformer fusions"
_FLOATING = "block floating point: numbers share an exponent, which no scale and zero point express"
_EIGHT = "quantize to int8 instead"

OPERATORS: dict[tuple[str, str], Refusal] = {
    ("com.microsoft", "EPContext"): Refusal(
        "a compiled blob of one execution provider", "start from the model before it was compiled"
    ),
    ("com.microsoft", "QAttention"): Refusal("dynamically quantized attention, fused", _DYNAMIC),
    ("com.microsoft", "QOrderedAttention"): Refusal("attention in GPU tile layouts", _PLAIN),
    ("com.microsoft", "QEmbedLayerNormalization"): Refusal(
        "quantized embeddings and a layer norm, fused", _DYNAMIC
    ),
    ("com.microsoft", "DynamicQuantizeLSTM"): Refusal(
        "an LSTM with quantized weights", "leave the LSTM float"
    ),
    ("com.microsoft", "QMoE"): Refusal("quantized mixture of experts, fused", "leave it float"),
    ("com.microsoft", "MatMulBnb4"): Refusal(
        "4-bit NF4 or FP4 codes, which a table decodes", "quantize to 4-bit integers (MatMulNBits)"
    ),
    ("com.microsoft", "MatMulFpQ4"): Refusal(
        "blocks in an internal layout of onnxruntime 1.16", "quantize with MatMulNBits"
    ),
    ("onnx.brevitas", "FloatQuant"): Refusal("quantization to minifloats", _EIGHT),
    ("qonnx.custom_op.general", "FloatQuant"): Refusal("quantization to minifloats", _EIGHT),
    ("qonnx.custom_op.general", "MultiThreshold"): Refusal(
        "thresholds of a FINN build, after quantization was absorbed",
        "read the model before FINN's streamlining",
    ),
    ("qonnx.custom_op.general", "FixedPoint"): Refusal(
        "fixed-point rounding without parameters of its own", "export Quant nodes"
    ),
}
"""Single operators, by domain and name."""

NAMES: dict[str, Refusal] = {
    "BFPQuantizeDequantize": Refusal(_FLOATING, _EIGHT),
    "MXQuantizeDequantize": Refusal(_FLOATING, _EIGHT),
    "BFPFixNeuron": Refusal(_FLOATING, _EIGHT),
    "MXFixNeuron": Refusal(_FLOATING, _EIGHT),
    "TRT_FP4QDQ": Refusal("float4 of TensorRT", _EIGHT),
    "QuantizeFloating": Refusal("float8 of PPQ", _EIGHT),
    "DequantizeFloating": Refusal("float8 of PPQ", _EIGHT),
}
"""Operators that are told by their name, whatever their domain."""

DOMAINS: dict[str, Refusal] = {
    "com.microsoft.nchwc": Refusal("onnxruntime's blocked layout of one processor", _PLAIN),
    "com.ms.internal.nhwc": Refusal("onnxruntime's internal layout of one provider", _PLAIN),
    "com.amd.quark": Refusal("an operator of Quark's runtime", _EIGHT),
    "com.vai.quantize": Refusal("an operator of Vitis AI's runtime", _EIGHT),
    "trt": Refusal("a TensorRT plugin", "export with ONNX's own Quantize- and DequantizeLinear"),
    "trt.plugins": Refusal(
        "a TensorRT plugin", "export with ONNX's own Quantize- and DequantizeLinear"
    ),
}
"""Domains none of whose other operators has a counterpart."""

PREFIXES: dict[str, Refusal] = {
    "PPQ_": Refusal("an operator of PPQ's own runtime", "export from PPQ for ONNX Runtime")
}


def refusal(domain: str, op_type: str) -> Refusal | None:
    """Returns why an operator has no counterpart, None where nothing is known about it."""
    found = OPERATORS.get((domain, op_type)) or NAMES.get(op_type) or DOMAINS.get(domain)
    if found is None:
        found = next((r for prefix, r in PREFIXES.items() if op_type.startswith(prefix)), None)
    return found
