"""Other encodings of quantization, rewritten into Q/DQ nodes around ONNX's operators.

Done on the file, node by node in topological order, before shapes are inferred, so that everything
behind it sees one idiom: a QLinearConv reads exactly as DQ -> Conv -> Q with the same parameters.
A node whose encoding has no such meaning stays as it is: an opaque node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from qdqbridge.core.graph.graph import Note
from qdqbridge.errors import UnsupportedQuantization
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.lowering.context import MICROSOFT, Known, LoweringContext, transposed
from qdqbridge.onnx_io.lowering.table import lowering_of
from qdqbridge.onnx_io.reading.model_file import default_opset


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a lowered file does not show any more.

    Attributes:
        variants: How the file writes what makes a tensor, by the tensor's name, where a writer may
            have to write it so again.
        notes: The nodes that stay as they are though others of their kind are rewritten, and why.
    """

    variants: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[Note, ...] = ()


def lower(model: onnx.ModelProto, folder: Path, file: str) -> Lowered:
    """Replaces every node that has a lowering (those in subgraphs stay).

    Args:
        model: A checked model with sorted nodes; changed in place.
        folder: Where its external data lies.
        file: File name, for messages.

    Raises:
        InvalidModelError: A node contradicts itself.
    """
    opset = default_opset(model)
    if not any(lowering_of(node, opset) for node in model.graph.node):
        return Lowered()
    if not any(entry.domain == MICROSOFT for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    known = Known(model, folder, file)
    notes: list[Note] = []
    for node in model.graph.node:
        row = lowering_of(node, opset)
        if row is not None:
            mark = known.mark()
            try:
                row.apply(LoweringContext(node, known))
            except UnsupportedQuantization as error:
                known.take_back(mark)
                known.lowered.append(node)
                notes.append(_carried(node, error))
        elif node.op_type == "Transpose" and node.domain in ONNX_DOMAINS:
            _transpose(node, known)
        else:
            known.lowered.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in known.lowered]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return Lowered(known.variants, tuple(notes))


def _carried(node: onnx.NodeProto, error: UnsupportedQuantization) -> Note:
    name = node.name or node.output[0]
    reason = f"{error.what} ({error.why}); it is kept as it is; to read it: {error.fix}"
    return Note("opaque-operator", name, reason, (name,))


def _transpose(node: onnx.NodeProto, known: Known) -> None:
    """Keeps a Transpose, or takes the source where it undoes another one."""
    context = LoweringContext(node, known)
    perm = context.ints("perm", None)
    if perm is None:
        known.lowered.append(node)
        return
    source = transposed(context, node.input[0], perm)
    context.op("Identity", [source], node.output[0])
    if source in known.layouts:
        known.layouts[node.output[0]] = known.layouts[source]


# ---- Encodings of quantization that have no counterpart: what they are, and what to do instead
#
# Nodes of other domains than ONNX's own are kept as they are; what is said here stands in the
# note about them, and in the error of whoever is asked to run one and cannot.


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
    "TRT_FP8QuantizeLinear": Refusal("float8 of TensorRT", "export ONNX QuantizeLinear (opset 19)"),
    "TRT_FP8DequantizeLinear": Refusal(
        "float8 of TensorRT", "export ONNX DequantizeLinear (opset 19)"
    ),
    "TRT_INT4QuantizeLinear": Refusal(
        "4-bit blocks of TensorRT", "export ONNX QuantizeLinear with block_size (opset 21)"
    ),
    "TRT_INT4DequantizeLinear": Refusal(
        "4-bit blocks of TensorRT", "export ONNX DequantizeLinear with block_size (opset 21)"
    ),
    "TRT_FP4QDQ": Refusal("float4 of TensorRT", _EIGHT),
    "TRT_FP4DynamicQuantize": Refusal("float4 of TensorRT", _EIGHT),
    "TRT_MXFP8QuantizeLinear": Refusal("float8 blocks with shared exponents", _EIGHT),
    "TRT_MXFP8DequantizeLinear": Refusal("float8 blocks with shared exponents", _EIGHT),
    "TRT_MXFP8DynamicQuantize": Refusal("float8 blocks with shared exponents", _EIGHT),
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
