"""What OpenVINO requires of a QDQ file.

Sources: the issues named at the rules, and what OpenVINO 2026.4.1 does on the CPU: its runtime
model says in which precision a layer runs.
"""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS
from qdqbridge.onnx_io.writer.clamps import COARSE, ON_A_STEP
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Check, Effect, Reason, TargetRule
from qdqbridge.targets.profiles.openvino.reductions import (
    averaged_products,
    reduced_axes,
    reduced_products,
    rounded_extremes,
)
from qdqbridge.targets.profiles.predicates import OWN, PARAMETER, constant, domain, op, when, where
from qdqbridge.targets.profiles.shared_rules import (
    COMPUTED,
    COPIES,
    WEIGHTED,
    active_ends,
    both_or_none,
    clamp_bounds,
    constant_positive_scale,
    encoding_of,
    has_products,
    is_parameter,
    per_tensor_activations,
    storage,
    stored_tensor,
    weight_axis,
)

FLOAT_KERNELS = frozenset({"Softmax", "LayerNormalization"})
"""Operators that it computes on floats, whatever they read."""
SECOND_FACTOR = DType.INT8
"""What operand 1 of a MatMul of two activations has to be, with zero point 0, as operand 0."""
UNSHIFTED = frozenset({"ConvTranspose"})
"""Products with a weight that run on integers where their activation has zero point 0."""
_EIGHT = (DType.UINT8, DType.INT8)
_ENGINE = "OpenVINO 2026.4.1"
_TRANSFORMATIONS = "OpenVINO, Low Precision Transformations"


_DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml", "org.openvinotoolkit")
_CONTRIB = frozenset(
    {
        "Attention", "BiasAdd", "BiasGelu", "DequantizeLinear", "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul", "EmbedLayerNormalization", "FastGelu", "FusedConv", "FusedGemm",
        "FusedMatMul", "GatherBlockQuantized", "GatherND", "Gelu", "GroupNorm",
        "GroupQueryAttention", "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "Pad",
        "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearLeakyRelu", "QLinearMul",
        "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QuantizeLinear",
        "QuickGelu", "Range", "RotaryEmbedding", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization", "Trilu",
    }
)  # fmt: skip
"""What of onnxruntime's own operators it converts; all were tried."""


def _blocks_of_results(view: FileView, node: FileNode) -> Reason | None:
    """Blocks of the weight of a product of matrices run along the terms of the sum."""
    found = view.dequantized(node.input(1)) if node.op in ("Gemm", "MatMul") else None
    if found is None or not found.block_size or view.rank(node.input(1)) != _MATRIX:
        return None
    transposed = node.op == "Gemm" and bool(node.attributes.get("transB", 0))
    # The terms of a MatMul's sum are axis 0 of its weight, those of a Gemm with transB axis 1.
    if found.axis % _MATRIX == int(transposed):
        return None
    name = found.node.input(0)
    return Reason(f"the weight '{name}' has blocks along axis {found.axis}, of results", (name,))


def _whole_blocks(view: FileView, node: FileNode) -> Reason | None:
    found, shape = encoding_of(view, node), view.shape(stored_tensor(node))
    if found is None or not found.block_size or shape is None:
        return None
    extent = shape[found.axis % len(shape)]
    if not isinstance(extent, int) or extent % found.block_size == 0:
        return None
    tensor = stored_tensor(node)
    text = f"blocks of {found.block_size} do not divide the {extent} elements of '{tensor}'"
    return Reason(text, (tensor,))


def _stored_term(view: FileView, node: FileNode) -> Reason | None:
    """A sum with a stored vector, cut up by a Reshape, ends its process."""
    pair = [view.dequantized(name) for name in node.inputs] if node.op in ("Add", "Sub") else []
    vector = next((p for p in pair if p is not None and _is_per_axis_vector(view, p)), None)
    if vector is None or any(p is None for p in pair):
        return None
    other = next((p for p in pair if p is not None and p is not vector), None)
    made = None if other is None else view.producer(other.node.input(0))
    if made is None or not is_quantize(made):
        return None
    rank, name = view.rank(node.output), vector.node.input(0)
    for reader, _ in view.consumers(node.output):
        larger = view.rank(reader.output)
        if reader.op in ("Reshape", "Unsqueeze") and rank and larger and larger > rank:
            text = f"'{name}' is stored as {vector.dtype} in front of '{reader.name}'"
            return Reason(text, (name,))
    return None


def _is_per_axis_vector(view: FileView, found: FileEncoding) -> bool:
    name = found.node.input(0)
    shape = view.shape(name)
    return (
        is_parameter(view, found.node)
        and found.dtype in _EIGHT
        and shape is not None
        and len(shape) == 1
        and shape[0] != 1
    )


def _made_of_integers(view: FileView, node: FileNode) -> Reason | None:
    """A product of two activations runs on integers where nothing has to be subtracted first."""
    if node.op != "MatMul":
        return None
    pair = [view.dequantized(name) for name in node.inputs[:2]]
    if any(found is None or is_parameter(view, found.node) for found in pair):
        return None
    for index, found in enumerate(pair):
        assert found is not None
        tensor = found.node.input(0)
        if not found.symmetric:
            text = f"operand {index} '{tensor}' has zero point {found.zero()}"
            return Reason(text, (tensor,))
        if index == 1 and found.dtype is not SECOND_FACTOR:
            text = f"operand 1 '{tensor}' is {found.dtype}, not {SECOND_FACTOR}"
            return Reason(text, (tensor,))
    return None


def _non_int8_weight(view: FileView, node: FileNode) -> FileEncoding | None:
    """Returns the parameters of a product's quantized weight that are not int8 around 0."""
    x = view.dequantized(node.input(0)) if node.op in WEIGHTED else None
    found = None if x is None else view.dequantized(node.input(1))
    if found is None or not is_parameter(view, found.node) or found.dtype not in _EIGHT:
        return None
    return None if found.dtype is DType.INT8 and found.symmetric else found


def _float_weight(view: FileView, node: FileNode) -> Reason | None:
    found = _non_int8_weight(view, node)
    if found is None:
        return None
    name = found.node.input(0)
    return Reason(f"the weight '{name}' is {found.dtype} with zero point {found.zero()}", (name,))


def _wrong_weight(view: FileView, node: FileNode) -> Reason | None:
    """Convolutions of shifted weights are transposed wrongly, those of uint8 do not compile."""
    found, x = _non_int8_weight(view, node), view.dequantized(node.input(0))
    if found is None or x is None:
        return None
    wrong = node.op == "ConvTranspose" and x.symmetric and not found.symmetric
    refused = node.op == "Conv" and found.dtype is DType.UINT8 and found.symmetric
    if wrong or (refused and not x.symmetric):
        return _float_weight(view, node)
    return None


def _signed_concat(view: FileView, node: FileNode) -> Reason | None:
    """What a Concat makes of int8 is stored as uint8 in front of a Conv, and not shifted."""
    if node.op != "Conv" or node.attributes.get("group", 1) != 1:
        return None
    x, tensor = view.dequantized(node.input(0)), _shifted_in_steps(view, node.input(0))
    if x is not None and x.dtype is DType.INT8:
        tensor = x.node.input(0)
    rounding = view.producer(tensor)
    if rounding is None or not is_quantize(rounding):
        return None
    made = view.producer(rounding.input(0))
    if made is None or made.op != "Concat":
        return None
    return Reason(f"'{tensor}' is int8, made by the Concat '{made.name}'", (tensor,))


def _shifted_in_steps(view: FileView, tensor: str) -> str:
    """Returns the int8 numbers that Cast, Sub and Mul dequantize to a tensor; else ``""``."""
    for step in ("Mul", "Sub", "Cast"):
        made = view.producer(tensor)
        if made is not None and made.op == step:
            tensor = made.input(0)
        elif step != "Sub":
            return ""
    return tensor if view.dtype(tensor) is DType.INT8 else ""


def _shifted(view: FileView, node: FileNode) -> Reason | None:
    """Some products of an activation and a weight subtract the zero point in float, or all is."""
    x = view.dequantized(node.input(0))
    if x is None or (node.op not in ("Conv", "MatMul") and node.op not in UNSHIFTED):
        return None
    if node.op == "Conv" and x.dtype is not DType.INT8:
        return None
    tensor = x.node.input(0)
    if node.op == "MatMul":
        weight, rank = view.dequantized(node.input(1)), view.rank(tensor)
        if weight is None or not is_parameter(view, weight.node):
            return None
        # Below that rank the zero point is folded into the product.
        if rank is None or rank < _BATCHED:
            return None
        if not weight.per_tensor and any(r.op == "Relu" for r, _ in view.consumers(node.output)):
            return Reason("a Relu stands between its scales per channel and its QuantizeLinear")
    return None if x.symmetric else Reason(f"'{tensor}' has zero point {x.zero()}", (tensor,))


_BATCHED = 4
"""The rank from which OpenVINO does not fold the zero point into a product with a weight."""


def _rounded_twice(view: FileView, node: FileNode) -> Reason | None:
    """A Concat that is rounded, and rounded again with nothing to do in between."""
    source = _before_idle(view, node) if is_quantize(node) else None
    source = None if source is None else view.dequantized(source)
    if source is None or source.symmetric:
        return None
    stored = source.node.input(0)
    rounding, readers = view.producer(stored), view.consumers(stored)
    if rounding is None or len(readers) > 1 or len(view.consumers(source.node.output)) > 1:
        return None
    made = view.producer(rounding.input(0))
    # What stands between both roundings may be rounded or cut off itself.
    while made is not None and (made.op == "Relu" or is_dequantize(made) or is_quantize(made)):
        made = view.producer(made.input(0))
    if made is None or made.op != "Concat" or stored in view.outputs:
        return None
    return Reason(f"the Concat '{made.name}' is quantized already", (stored,))


def _before_idle(view: FileView, node: FileNode) -> str | None:
    """Returns what a QuantizeLinear reads, in front of one operator that changes nothing."""
    tensor = node.input(0)
    maker = view.producer(tensor)
    if maker is None or maker.op not in (*_CLAMPS, *_VIEWS):
        return tensor
    if maker.op in _CLAMPS:
        source = view.dequantized(maker.input(0))
        idle = source is not None and active_ends(view, maker, source) == (False, False)
    else:
        shapes = [view.shape(name) for name in (maker.input(0), tensor)]
        idle = shapes[0] is not None and shapes[0] == shapes[1]
    return maker.input(0) if idle else None


_CLAMPS = ("Relu", "Clip")
_VIEWS = ("Flatten", "Reshape", "Slice")
_MATRIX = 2


def _extremes(view: FileView, node: FileNode) -> Reason | None:
    """Max and Min of a product with zero point 0 are computed on its float result."""
    if node.op not in ("Max", "Min") or not view.quantized(node.output):
        return None
    for name in node.inputs:
        found = view.dequantized(name)
        if found is not None and found.symmetric and _behind_product(view, found):
            return Reason(f"'{found.node.input(0)}' is that of a product", (name,))
    return None


def _shared_zero(view: FileView, node: FileNode) -> FileEncoding | None:
    """Returns the parameters of an operand whose zero point is the very initializer of the result.

    OpenVINO then moves the wrong one of the two subtractions.
    """
    x, found = view.dequantized(node.input(0)), view.quantized(node.output)
    if x is None or x.symmetric or not found or x.node.input(2) != found[0].node.input(2):
        return None
    return x


def _padding(view: FileView, node: FileNode) -> Reason | None:
    """What reads a zero point of its own is padded with it; else with the number 0."""
    x = _shared_zero(view, node) if node.op == "Pad" else None
    if x is None or x.dtype is None or x.zero() in (x.dtype.qmin, x.dtype.qmax):
        return None
    if not view.consumers(view.quantized(node.output)[0].node.output):
        return None
    return Reason(*_zero_of_both(x, node))


def _own_zero(view: FileView, node: FileNode) -> Reason | None:
    """Before what moves elements, a pool or a clamp is rounded in float."""
    x = _shared_zero(view, node) if node.op in _ROUNDED else None
    rank = view.rank(node.output)
    if x is None or (rank is not None and rank <= _MATRIX) or _padding(view, node):
        return None
    if node.op == "Clip" and not _behind_product(view, x):
        return None
    stored = view.quantized(node.output)[0].node.output
    reals = [reader.output for reader, _ in view.consumers(stored) if is_dequantize(reader)]
    readers = [reader for real in reals for reader, _ in view.consumers(real)]
    if not any(reader.op in COPIES or "Pool" in reader.op for reader in readers):
        return None
    return Reason(*_zero_of_both(x, node))


_ROUNDED = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "Pad", "Clip"})


def _cut_between_steps(view: FileView, node: FileNode) -> Reason | None:
    """A Clip is computed on the stored numbers of its operand, which its ends are rounded to."""
    found = view.quantized(node.output) if node.op == "Clip" else []
    x, result = _moved(view, node.input(0)), found[0] if found else None
    if x is None or result is None or x.scale is None or result.scale is None:
        return None
    if not (x.per_tensor and result.per_tensor) or x.dtype is None or result.dtype is None:
        return None
    # Only where a step of the operand is much coarser than one of the result does the rounded end
    # show.
    step, own = (float(each.scale.reshape(())) for each in (x, result) if each.scale is not None)
    if step <= COARSE * own or not (step > 0 and own > 0):
        return None
    active = active_ends(view, node, result) or (False, False)
    bounds = clamp_bounds(view, node)
    for end, counts in zip(bounds, active, strict=True):
        place = 0.0 if end is None or not counts else end / step
        inside = x.dtype.qmin <= place + x.zero() <= x.dtype.qmax
        if inside and abs(place - round(place)) > ON_A_STEP:
            text = f"{end:.6g} is {place:.2f} steps of its operand '{x.node.input(0)}'"
            return Reason(text, (node.input(0),))
    return None


def _moved(view: FileView, tensor: str) -> FileEncoding | None:
    """Returns the parameters of stored numbers that are moved, or averaged, to a tensor."""
    made = view.producer(tensor)
    while made is not None and (made.op in COPIES or "Pool" in made.op):
        tensor = made.input(0)
        made = view.producer(tensor)
    found = view.dequantized(tensor)
    return None if found is None or is_parameter(view, found.node) else found


def _behind_product(view: FileView, x: FileEncoding) -> bool:
    rounding = view.producer(x.node.input(0))
    made = None if rounding is None else view.producer(rounding.input(0))
    return made is not None and made.op in WEIGHTED


def _zero_of_both(x: FileEncoding, node: FileNode) -> tuple[str, tuple[str, ...]]:
    name = x.node.input(2)
    return f"'{name}' is the zero point of its operand and of its result", (name, node.output)


def _stored_constant(view: FileView, node: FileNode) -> Reason | None:
    """Constants that a Q makes are what its transformations of sums and products fail at.

    That is, beside a product; and in sums where they are no number for each channel.
    """
    if node.op not in ("Mul", "Add") or not has_products(view):
        return None
    pair = [view.dequantized(name) for name in node.inputs]
    product = any(found is not None and _behind_product(view, found) for found in pair)
    for found in pair:
        made = None if found is None else view.producer(found.node.input(0))
        if made is None or not is_quantize(made) or not view.is_constant(made.input(0)):
            continue
        shape = view.shape(made.input(0)) or ()
        if product or (node.op == "Add" and sum(extent != 1 for extent in shape) > 1):
            text = f"the constant '{made.input(0)}' is quantized by a node of the file"
            return Reason(text, (made.input(0),))
    return None


def _refuses(rule: str, what: str, check: Check, source: str, fix: str) -> TargetRule:
    return TargetRule(rule, what, check, source, Effect.REFUSED, fix)


def _runs_on_floats(
    rule: str, what: str, check: Check, fix: str, source: str = f"{_ENGINE}, runtime model"
) -> TargetRule:
    return TargetRule(rule, what, check, source, Effect.FLOAT, fix)


def _has_scale_1(own: FileEncoding) -> bool:
    """True where the range is that of the type: no FakeQuantize is left, and nothing rounds."""
    return own.scale is not None and bool((own.scale == 1).all())


def _computes_otherwise(rule: str, what: str, check: Check, measured: str, fix: str) -> TargetRule:
    return TargetRule(rule, what, check, f"{_ENGINE}: {measured}", Effect.OTHER, fix)


RULES: tuple[TargetRule, ...] = (
    _refuses("known-operators", "every node",
        when(
            ~domain(*_DOMAINS) & ~op(*(f"com.microsoft::{name}" for name in _CONTRIB)),
            "there is no conversion rule for '{node.domain}.{node.bare}'"),
        "OpenVINO 2026.4.1, ONNX frontend",
        "write operators of ONNX: export does where it knows the meaning"),
    _computes_otherwise("dynamic-activations", "DynamicQuantizeMatMul",
        when(op("com.microsoft::DynamicQuantizeMatMul"), "'{inputs[0]}' is not quantized",
             "inputs[0]"),
        "up to 1.1 % of the largest result off; its reader makes a product of floats of it",
        "write DynamicQuantizeLinear and MatMulInteger, as export does: it computes these exactly"),
    _refuses("blocks-of-terms", "Gemm and MatMul of weights in blocks", _blocks_of_results,
        "OpenVINO 2026.4.1: ConvertFullyConnectedToFullyConnectedCompressed",
        "use blocks along the terms, or float weights"),
    _runs_on_floats("constant-scale", "Q and DQ",
        when(OWN.known & ~constant(1), "the scale '{inputs[1]}' is computed at run time",
             "inputs[1]"), "write scales as initializers"),
    _refuses("positive-scale", "Q and DQ of activations",
        where(constant(1) & ~PARAMETER, constant_positive_scale),
        "openvino ONNX frontend, quantize_linear.cpp",
        "use positive scales; those of weights may be negative"),
    _runs_on_floats("8-bit-activations", "Q and DQ",
        storage(_EIGHT, (*_EIGHT, DType.INT4, DType.UINT4, DType.INT32)), "quantize to 8 bits",
        _TRANSFORMATIONS),
    _computes_otherwise("range-of-16-bits", "Q of 16 bits",
        when(op("QuantizeLinear") & OWN.of(DType.INT16, DType.UINT16) & OWN.zero_in(0)
             & OWN.has(_has_scale_1), "its scale is 1 and its zero point 0", "output"),
        "fractions are dropped, and what is beyond the type wraps", "use another scale"),
    _runs_on_floats("per-tensor-activations", "Q and DQ of activations", per_tensor_activations,
        "use one scale per activation", _TRANSFORMATIONS),
    _computes_otherwise("weight-axis", "per-channel weights",
        weight_axis({"Conv": 0, "ConvTranspose": 1}), "products of matrices up to 122 LSB wrong",
        "use the axis of the output channels"),
    _refuses("stored-constants", "Mul and Add of products and constants", _stored_constant,
        "OpenVINO 2026.4.1: MultiplyPartialTransformation, index '0' out of range",
        "store the constant as integers, with a DequantizeLinear only"),
    _refuses("whole-blocks", "Q and DQ in blocks", _whole_blocks,
        "openvino ONNX frontend, dequantize_linear.cpp", "use blocks that divide the extent"),
    _refuses("stored-terms", "Add and Sub of a vector, before a Reshape", _stored_term,
        "OpenVINO 2026.4.1: it crashes (SIGFPE)", "store the vector as floats"),
    _runs_on_floats("products-of-activations", "MatMul of two activations", _made_of_integers,
        "use zero point 0 for both operands, and int8 for the second"),
    _runs_on_floats("shifted-products", "Conv of int8, ConvTranspose, MatMul of rank 4", _shifted,
        "use zero point 0; for a Conv uint8 will do"),
    _runs_on_floats("signed-weights", "Conv, ConvTranspose, Gemm, MatMul", _float_weight,
        "use int8 with zero point 0"),
    _computes_otherwise("weights-of-convolutions", "Conv and ConvTranspose of shifted weights",
        _wrong_weight, "up to 255 LSB wrong, or not compiled",
        "use int8 with zero point 0, or float weights"),
    _computes_otherwise("unsigned-concat", "Conv of a Concat", _signed_concat, "up to 51 LSB wrong",
        "use uint8, zero points shifted by 128"),
    _refuses("rounded-once", "QuantizeLinear of a Concat that was quantized already",
        _rounded_twice, "OpenVINO 2026.4.1: it crashes (SIGSEGV)",
        "quantize the Concat once, or put a Max with a very low number in between"),
    _computes_otherwise("rounded-extremes", "ReduceMax and ReduceMin of floats", rounded_extremes,
        "up to 248 LSB wrong, half an integer or beyond the ends of the type",
        "put a Max with a very low number behind it, or quantize in front of it"),
    _computes_otherwise("averaged-products", "ReduceMean and ReduceSum of a MatMul, to a matrix",
        averaged_products, "up to 255 LSB wrong",
        "use keepdims, or put a Max with a very low number behind it"),
    _runs_on_floats("reduced-products", "ReduceMean and ReduceSum of products", reduced_products,
        "quantize the product's result as well"),
    _computes_otherwise("reduced-axes", "ReduceL1, ReduceLogSum, ReduceLogSumExp below opset 18",
        reduced_axes, "all axes are reduced", "write opset 18, where axes are an input"),
    _runs_on_floats("clamps-of-products", "Max and Min behind a product with zero point 0",
        _extremes, "use Relu or Clip"),
    _computes_otherwise("clip-on-a-step", "Clip between DequantizeLinear and QuantizeLinear",
        _cut_between_steps, "up to 5 LSB wrong, as many as one step of the operand has",
        "put a Max with a very low number in front of it"),
    _computes_otherwise("padding", "Pad between DequantizeLinear and QuantizeLinear", _padding,
        "up to 127 LSB wrong", "give operand and result a zero point each, equal as they may be"),
    _runs_on_floats("own-zero-point", "averages, Pad and Clip before pools and data movement",
        _own_zero, "give operand and result a zero point each, equal as they may be"),
    TargetRule("float-kernels", "Softmax, LayerNormalization",
        when(op(*FLOAT_KERNELS) & COMPUTED, "{node.op} has float kernels only"),
        "OpenVINO 2026.4.1, runtime model", Effect.NO_KERNEL, "nothing: it is the engine's"),
    _runs_on_floats("both-operands-quantized", "Conv, ConvTranspose, Gemm, MatMul", both_or_none,
        "quantize both operands", _TRANSFORMATIONS),
)  # fmt: skip
