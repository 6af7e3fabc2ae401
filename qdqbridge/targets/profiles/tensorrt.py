"""What TensorRT requires of a QDQ file.

Sources: onnx-tensorrt docs/operators.md; NVIDIA's "Working with Quantized Types" and "Explicit
Quantization"; the issues named at the rules. Not run here: there is no TensorRT on the machine.
"""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.predicates import DEQUANTIZES, OWN, when
from qdqbridge.targets.profiles.shared_rules import (
    COPIES,
    WEIGHTED,
    bare,
    both_or_none,
    constant_positive_scale,
    float_regions_of,
    onnx_domain,
    per_tensor_activations,
    quantized_while_running,
    storage,
    weight_axis,
)

_SMALL_FLOATS = (DType.FLOAT8_E4M3FN, DType.FLOAT4_E2M1)
_ACTIVATIONS = (DType.INT8, *_SMALL_FLOATS)
_FOUR_BITS = (DType.INT4, DType.FLOAT4_E2M1)
_BEHIND_WEIGHTED = frozenset({"Relu", "Clip", "BatchNormalization"})
"""What is fused with the weighted operator in front of it."""
_COMMUTES = COPIES | {"MaxPool", "Relu"}
"""What DQ is moved behind, and Q in front of."""


def _residual(view: FileView, node: FileNode) -> Reason | None:
    """A weighted result that is rounded before an Add cannot be fused with it."""
    if node.op not in WEIGHTED:
        return None
    for quantized in view.quantized(node.output):
        for dequantize, _ in view.consumers(quantized.node.output):
            if not is_dequantize(dequantize):
                continue
            for add, _ in view.consumers(dequantize.output):
                if add.op == "Add" and not any(view.is_constant(name) for name in add.inputs):
                    text = f"its result is quantized before the residual Add '{add.name}'"
                    return Reason(text, (node.output,))
    return None


def _weighted(view: FileView, tensor: str) -> bool:
    """True for the float result of a weighted operator on stored numbers, and what is fused to it.

    That is an activation, a bias, and one addition.
    """
    added = False
    while (node := view.producer(tensor)) is not None and node.op not in WEIGHTED:
        operands = [name for name in node.inputs if not view.is_constant(name)]
        if node.op == "Add" and len(operands) == 2 and not added:
            stored = [_stored_before(view, name) is not None for name in operands]
            added, operands = True, [n for n, s in zip(operands, stored, strict=True) if not s]
        elif node.op != "Add" and node.op not in _BEHIND_WEIGHTED:
            return False
        if len(operands) != 1:
            return False
        tensor = operands[0]
    return node is not None and all(view.dequantized(name) for name in node.inputs[:2])


def _stored_before(view: FileView, tensor: str) -> FileEncoding | None:
    """Returns the DQ that makes a tensor, in front of what it is moved behind."""
    node = view.producer(tensor)
    while node is not None and node.op in _COMMUTES and node.inputs:
        node = view.producer(node.input(0))
    return view.encoding(node) if node is not None and is_dequantize(node) else None


def _rounded_behind(view: FileView, tensor: str) -> bool:
    """True where everything that reads a tensor is a Q, or one behind what it is moved in front of.

    A result that leaves the graph is not.
    """
    pending, seen = [tensor], set[str]()
    while pending:
        name = pending.pop()
        readers = [reader for reader, _ in view.consumers(name)]
        if name in view.outputs or not readers:
            return False
        for reader in readers:
            if is_quantize(reader):
                continue
            if reader.op not in _COMMUTES | _BEHIND_WEIGHTED:
                return False
            pending += (output for output in reader.outputs if output and output not in seen)
            seen.update(reader.outputs)
    return True


def _skip(view: FileView, node: FileNode) -> Reason | None:
    """The precision of what is added decides that of the fused operator's result."""
    if (
        node.op != "Add"
        or node not in float_regions_of(view)
        or not _rounded_behind(view, node.output)
    ):
        return None
    operands = [name for name in node.inputs if not view.is_constant(name)]
    floats = [name for name in operands if _stored_before(view, name) is None]
    fused = [name for name in floats if _weighted(view, name)]
    if len(operands) != 2 or not fused or len(floats) < 2:
        return None
    skip = next((name for name in floats if name not in fused[:1]), floats[0])
    return Reason(f"'{skip}' is float, and added to the result '{fused[0]}' before that is rounded",
                  (skip,))  # fmt: skip


def _floats(view: FileView, node: FileNode) -> Reason | None:
    """A weighted operator gives floats to what is no part of it, an activation such as SiLU say.

    A Relu or Clip in front of a Q belongs to what gives it floats.
    """
    if (
        node not in float_regions_of(view)
        or bare(node) in WEIGHTED
        or node.op in COPIES | {"MaxPool"}
    ):
        return None
    if node.op in _BEHIND_WEIGHTED and _rounded_behind(view, node.output):
        return None
    operands = [name for name in node.inputs if name and not view.is_constant(name)]
    floats = [name for name in operands if _stored_before(view, name) is None]
    if not floats or _weighted(view, node.output) or _skip(view, node) is not None:
        return None
    return Reason(f"it reads the float '{floats[0]}'", (floats[0],))


def _unrounded(view: FileView, node: FileNode) -> Reason | None:
    """Operators without weights take stored numbers where they give some."""
    if node not in float_regions_of(view) or bare(node) in WEIGHTED or node.op in _COMMUTES:
        return None
    operands = [name for name in node.inputs if name and not view.is_constant(name)]
    if not operands or any(_stored_before(view, name) is None for name in operands):
        return None
    if _rounded_behind(view, node.output):
        return None
    return Reason(f"its operands are dequantized, its result '{node.output}' is float",
                  (node.output,))  # fmt: skip


def _check_concat_scales(view: FileView, node: FileNode) -> Reason | None:
    if node.op != "Concat":
        return None
    found = [(name, view.dequantized(name)) for name in node.inputs]
    found += [(node.output, encoding) for encoding in view.quantized(node.output)]
    known = [(name, encoding) for name, encoding in found if encoding is not None]
    if len(known) < 2:
        return None
    first, encoding = known[0]
    for name, other in known[1:]:
        if encoding.scale is not None and not encoding.same_mapping(other):
            return Reason(f"'{first}' and '{name}' have different scales", (first, name))
    return None


_PLACEMENT = "NVIDIA, Explicit Quantization: Q/DQ layer-placement recommendations"
_OFFER = "quantize symmetrically, or export with --symmetric, which says what that costs"
_TYPES = "onnx-tensorrt operators.md; NVIDIA/TensorRT#2774, #4698"

RULES: tuple[TargetRule, ...] = (
    TargetRule("onnx-domain", "Q and DQ", onnx_domain, "onnx-tensorrt operators.md", Effect.REFUSED,
         "declare opset 21 for 16-bit and 4-bit types"),
    TargetRule("static-quantization", "DynamicQuantizeLinear, MatMulInteger, ConvInteger",
         quantized_while_running, "onnx-tensorrt operators.md", Effect.REFUSED,
         "give fixed parameters: export --data, then quantize symmetrically"),
    TargetRule("signed-8-bit", "Q and DQ",
         storage(_ACTIVATIONS, (*_ACTIVATIONS, *_FOUR_BITS, DType.INT32)),
         _TYPES, Effect.REFUSED, _OFFER),
    TargetRule("zero-point-0", "Q and DQ",
         when(OWN.known & ~OWN.symmetric,
              "the zero point of '{own}' ({own.dtype}) is {own.point}, not 0", "own"),
         _TYPES, Effect.REFUSED, _OFFER),
    TargetRule("float-bias", "DQ",
         when(DEQUANTIZES & OWN.of(DType.INT32),
              "'{own}' is int32; a bias must be a float constant", "own"),
         "onnx-tensorrt#850; microsoft/onnxruntime#14229",
         Effect.REFUSED, "leave the bias in float"),
    TargetRule("constant-positive-scale", "Q and DQ", constant_positive_scale,
         "NVIDIA, Explicit Quantization", Effect.REFUSED, "write scales as initializers"),
    TargetRule("per-tensor-activations", "Q and DQ of activations", per_tensor_activations,
         "NVIDIA, Working with Quantized Types", Effect.REFUSED, "use one scale per activation"),
    TargetRule("blocks-of-4-bits", "Q and DQ",
         when(OWN.blocks & ~OWN.of(*_FOUR_BITS), "'{own}' ({own.dtype}) is quantized in blocks",
              "own"),
         "NVIDIA, Working with Quantized Types",
         Effect.REFUSED, "use per-channel scales"),
    TargetRule("weight-axis", "per-channel weights", weight_axis({"Conv": 0, "ConvTranspose": 0}),
         "NVIDIA/TensorRT#2380, #1694, #1699", Effect.REFUSED,
         "use per-tensor weights for ConvTranspose, output channels elsewhere"),
    TargetRule("both-operands-quantized", "Conv, ConvTranspose, Gemm, MatMul", both_or_none,
         "NVIDIA, Explicit Quantization", Effect.FLOAT, "quantize both operands"),
    TargetRule("no-q-before-residual-add", "weighted operators before Add", _residual,
         "NVIDIA, Explicit Quantization: Q/DQ placement", Effect.FLOAT,
         "quantize only the skip branch of the Add"),
    TargetRule("quantized-skip", "Add behind a weighted operator", _skip,
         _PLACEMENT + " (the fused operator's result has the precision of what is added)",
         Effect.FLOAT, "quantize the other branch of the Add"),
    TargetRule("quantized-operands", "operators without weights between DQ and Q", _floats,
         _PLACEMENT + " (results of weighted operators stay float); NVIDIA/TensorRT#3205",
         Effect.FLOAT, "quantize what it reads, or accept one float operator"),
    TargetRule("quantized-result", "operators without weights behind DQ", _unrounded,
         _PLACEMENT + " (layers without weights and with INT8 inputs require INT8 outputs)",
         Effect.FLOAT, "quantize the result, or leave the operands in float"),
    TargetRule("one-scale-concat", "Concat", _check_concat_scales,
         "NVIDIA, Explicit Quantization: Q/DQ limitations (equal scales are compared); "
         "NVIDIA/TensorRT#3861, #4401", Effect.FLOAT,
         "quantize operands and result with one scale"),
)  # fmt: skip
