"""What onnxruntime's CPU provider requires of a QDQ file before it computes on integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.accumulator import BIAS_MOVES
from qdqbridge.core.ops.matmul import OWN_ORDER, PackedProduct
from qdqbridge.core.ops.shapes import reaching
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Check, Effect, Reason, TargetRule
from qdqbridge.targets.profiles.ort.fusion import (
    REDUNDANT,
    bias_add,
    fed,
    is_bias_add,
    on_x86,
    propagates,
    result_of,
    rounds_weight,
    source,
    target,
)
from qdqbridge.targets.profiles.ort.pairs import (
    RULE,
    quantized_factors,
    stored_factors,
    unfit_pairs,
)
from qdqbridge.targets.profiles.predicates import domain, op, when, where
from qdqbridge.targets.profiles.shared_rules import (
    COMPUTED,
    COPIES,
    bias_ratio,
    float_regions_of,
    sums_leave_int32,
)

_SELECTORS = "onnxruntime qdq_selectors.cc; measured on 1.31.1"
_UNARY = frozenset({"AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"})
_DROPPED = frozenset({"MaxPool", "ReduceMax", "ReduceMin", "Resize"})
_BINARY = frozenset({"Add", "Mul"})
_ACCUMULATES = frozenset({"Conv", "Gemm", "MatMul"})
_KERNELS = _UNARY | _DROPPED | _BINARY | _ACCUMULATES | {"Concat", "Where"}
_CLAMPS = frozenset({"Relu", "Clip"})
_FLOAT_RESULT = frozenset({"Gemm", "MatMul"})
_SCALARS = _BINARY | {"AveragePool", "Concat"}
_NEAR = 0.01
_DOMAINS = frozenset(
    {"", "com.microsoft", "ai.onnx.ml", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
)
_EIGHT = (DType.INT8, DType.UINT8)
_BYTE, _NIBBLE, _MATRIX = 8, 4, 2
_UNTAKEN_BITS = (2, 32)
_UNSAID = {"AveragePool": Effect.REFUSED}
_PACKED_PRODUCT = "com.microsoft::MatMulNBits"


def _data(node: FileNode) -> Iterator[str]:
    """Yields the operands that must be dequantized, bias left out."""
    if node.op in _UNARY | _DROPPED:
        yield node.input(0)
    elif node.op == "Where":
        yield from node.inputs[1:3]
    elif node.op == "Concat":
        yield from node.inputs
    else:
        yield from node.inputs[:2]


def _has_kernel(view: FileView, node: FileNode) -> bool:
    return node.op in _KERNELS and not is_bias_add(view, node)


def _operands(view: FileView, node: FileNode) -> Reason | None:
    if not _has_kernel(view, node):
        return None
    for index, name in enumerate(_data(node)):
        if source(view, name) is not None or _quantized_for_us(view, node, index):
            continue
        made = view.producer(name)
        origin = "a graph input" if made is None else f"made by {made.op} '{made.name}'"
        origin = "a float constant" if view.is_constant(name) else origin
        return Reason(f"operand {index} is not dequantized: '{name}' is {origin}", (name,))
    return None


def _quantized_for_us(view: FileView, node: FileNode, index: int) -> bool:
    """True for float operands that onnxruntime quantizes itself."""
    if node.op == "Where":  # where_dummy_dq.cc: one constant scalar gets a DQ of its own
        pair = [source(view, name) is not None for name in node.inputs[1:3]]
        constant = view.constant(node.inputs[1 + index])
        folded = view.is_folded(node.inputs[1 + index])
        return any(pair) and folded and constant is not None and constant.size == 1
    return index == 1 and node.op != "ConvTranspose" and rounds_weight(view, node)


def _result_rejection_reason(view: FileView, node: FileNode) -> Reason | None:
    if not _has_kernel(view, node):
        return None
    # Q and DQ are moved past it, so that nothing is missing behind it.
    if node.op in _DROPPED and propagates(view, node) and source(view, node.input(0)):
        return None
    found = target(view, result_of(view, node))
    add = bias_add(view, node)
    # A MatMul becomes a Gemm with the bias behind it, and a QGemm of a float result where that
    # bias is stored.
    stored = add is None or any(view.dequantized(n) and view.is_constant(n) for n in add.inputs)
    floating = node.op in _FLOAT_RESULT and stored
    if found.encoding is not None or (found.floating and floating):
        return None
    return Reason(found.problem, (node.output,))


def _encodings(view: FileView, node: FileNode) -> Iterator[tuple[str, FileEncoding, DType | None]]:
    """Yields tensor, parameters and stored type of each operand and of the result."""
    # A Gemm made of MatMul and Add stands between two Reshapes, past which Q and DQ are pushed.
    reshaped = bias_add(view, node) is not None and view.rank(node.input(0)) != 2
    for index, name in enumerate(_data(node)):
        found = source(view, name)
        if found is not None:
            alone = reshaped and index == 0
            dtype = on_x86(found.encoding, 1) if alone else found.dtype
            yield name, found.encoding, dtype
    behind = target(view, result_of(view, node))
    # Scales along an axis are not pushed past a Reshape: the Gemm's own result stays float.
    if behind.encoding is not None and (behind.encoding.per_tensor or not reshaped):
        dtype = on_x86(behind.encoding, 1) if reshaped else behind.dtype
        yield result_of(view, node), behind.encoding, dtype


def _types(view: FileView, node: FileNode) -> Reason | None:
    if not _has_kernel(view, node):
        return None
    found = [(name, dtype) for name, _, dtype in _encodings(view, node) if dtype is not None]
    wide = [(name, dtype) for name, dtype in found if dtype not in _EIGHT]
    if wide:
        listed = ", ".join(f"'{name}' is {dtype}" for name, dtype in wide)
        # Said by the rule weight-types, whose effect is worse.
        if _untaken_weight(view, node) is not None:
            return None
        return Reason(f"integer kernels take 8 bits: {listed}", tuple(name for name, _ in wide))
    activations = [pair for i, pair in enumerate(found) if i != 1 or node.op not in _ACCUMULATES]
    if len({dtype for _, dtype in activations}) > 1:
        listed = ", ".join(f"'{name}' {dtype}" for name, dtype in activations)
        return Reason(f"operands and result differ in type on x86: {listed}")
    # with a bias a MatMul is a Gemm, which takes int8 twice
    gemm = [dtype for _, dtype in found[1:2]] == [DType.INT8] and bias_add(view, node) is not None
    unsigned = node.op == "Conv" or (node.op == "MatMul" and not gemm)
    if unsigned and found and found[0][1] is DType.INT8:
        return Reason(
            f"'{found[0][0]}' stays int8 on x86, where {node.op} takes uint8 activations: only a "
            "Q/DQ pair with one reader is turned into uint8", (found[0][0],),
        )  # fmt: skip
    return None


def _untaken_weight(view: FileView, node: FileNode) -> Reason | None:
    """A weight of 2, 16 or 32 bits that is handed to a kernel which has no place for the type."""
    if not _has_kernel(view, node) or node.op not in _ACCUMULATES:
        return None
    found = [(name, dtype) for name, _, dtype in _encodings(view, node) if dtype is not None]
    wide = [(name, dtype) for name, dtype in found if dtype not in _EIGHT]
    if not wide or wide != found[1:2]:
        return None
    ((name, dtype),) = wide
    gemm = node.op == "Gemm" or bias_add(view, node) is not None
    if dtype.bits not in _UNTAKEN_BITS or not dtype.is_integer:
        return None
    if not gemm and target(view, node.output).encoding is None:
        return None
    # Then it is not fused, and runs in float.
    if any(check(view, node) for check in (_operands, _check_int32_bias, _zero_points)):
        return None
    return Reason(f"'{name}' is {dtype}, and integer kernels take weights of 8 bits", (name,))


def _refuse_quant_params(view: FileView, node: FileNode) -> Reason | None:
    if not _has_kernel(view, node):
        return None
    for index, (name, found, _) in enumerate(_encodings(view, node)):
        weight = node.op in _ACCUMULATES and index == 1
        # What is decided while a file is loaded needs parameters that are known then.
        if node.op in _DROPPED or (node.op == "Conv" and node.input(2)):
            if not view.is_folded(found.node.input(1)):
                return Reason(f"the scale of '{name}' is not an initializer", (name,))
            if found.explicit and not view.is_folded(found.node.input(2)):
                return Reason(f"the zero point of '{name}' is not an initializer", (name,))
        if found.scale is None:
            continue
        if found.scale.dtype != np.float32 and node.op != "Concat":
            return Reason(f"the scale of '{name}' is {found.scale.dtype}", (name,))
        # onnxruntime does not look at these before it fuses: no refusal, but wrong numbers
        # (``_unsaid``).
        if _fused_unasked(view, node):
            continue
        if found.block_size and weight:
            return Reason(f"'{name}' is quantized in blocks of {found.block_size}", (name,))
        if not found.per_tensor and not weight:
            return Reason(f"'{name}' is quantized per channel ({found.scale.size} scales)", (name,))
    return None


def _fused_unasked(view: FileView, node: FileNode) -> bool:
    """True for what becomes an integer kernel whatever its scales are along."""
    if node.op not in _UNARY | _ACCUMULATES | {"Where"} or _operands(view, node):
        return False
    if _result_rejection_reason(view, node) or _types(view, node) or _check_int32_bias(view, node):
        return False
    gemm = node.op == "Gemm" or bias_add(view, node) is not None
    if gemm:  # QGemm is not given what is not per tensor, but for scales of its second operand
        found = [encoding for _, encoding, _ in _encodings(view, node)]
        return all(each.per_tensor for each in (*found[:1], *found[2:])) and not any(
            each.block_size for each in found
        )
    return node.op != "MatMul" or target(view, node.output).encoding is None


def _unsaid(view: FileView, node: FileNode) -> Reason | None:
    """Looks for parameters that the kernel has no place for."""
    if not _has_kernel(view, node) or not _fused_unasked(view, node):
        return None
    for index, (name, found, _) in enumerate(_encodings(view, node)):
        if found.scale is None or found.per_tensor:
            continue
        weight = node.op in _ACCUMULATES and index == 1
        if not weight or found.block_size:
            kind = f"in blocks of {found.block_size}" if found.block_size else "per channel"
            return Reason(f"'{name}' is quantized {kind} ({found.scale.size} scales)", (name,),
                          effect=_UNSAID.get(node.op))  # fmt: skip
        axis, wanted = _axis_at(view, name, found), _weight_output_axis(view, node)
        if axis is not None and axis != wanted:
            side = "and is no matrix" if wanted is None else f"not {wanted}"
            return Reason(f"the weight '{name}' has scales along axis {axis}, {side}", (name,))
    return None


def _axis_at(view: FileView, tensor: str, found: FileEncoding) -> int | None:
    """Returns the axis of a tensor along which its scales are, behind the Transposes between."""
    rank = view.rank(tensor)
    if rank is None:
        return None
    orders: list[Sequence[int]] = []
    while tensor != found.node.output:
        node = view.producer(tensor)
        if node is None or node.op != "Transpose":
            return None
        # onnxruntime pushes the pair past Transposes, and the scales' axis with it.
        orders.append(list(node.attributes.get("perm", range(rank)[::-1])))
        tensor = node.input(0)
    axis = found.axis % rank
    for order in reversed(orders):
        axis = order.index(axis)
    return axis


def _weight_output_axis(view: FileView, node: FileNode) -> int | None:
    """Returns the axis of a product's second operand along which its results are."""
    if node.op == "Conv":
        return 0
    rank = view.rank(node.input(1))
    if rank != _MATRIX:
        return None
    return 0 if node.attributes.get("transB", 0) else 1


def _check_int32_bias(view: FileView, node: FileNode) -> Reason | None:
    name = node.input(2)
    if node.op not in ("Conv", "Gemm") or not name:
        return None
    beta = node.attributes.get("beta", 1.0)
    # QGemm, which takes its place, has an alpha and no beta.
    if beta != 1.0:
        return Reason(f"beta is {beta}", (name,))
    found = view.dequantized(name)
    if found is not None:
        if found.dtype is not DType.INT32:
            return Reason(f"the bias '{name}' is {found.dtype}, it must be int32", (name,))
        return _bias_scale(view, node, found) if node.op == "Conv" else None
    if view.is_folded(name) and target(view, node.output).encoding is not None:
        return None
    kind = "a float constant" if view.is_folded(name) else "computed"
    return Reason(f"the bias '{name}' is {kind}, and nothing quantizes the result", (name,))


def _bias_scale(view: FileView, node: FileNode, bias: FileEncoding) -> Reason | None:
    """Compares the scale of a bias with the product it must be, to one percent (#28229)."""
    x, w = (source(view, name) for name in node.inputs[:2])
    if x is None or w is None:
        return None
    weight = w.encoding.scale
    if weight is not None and not (weight > 0).all():
        return Reason(f"a scale of the weight '{node.input(1)}' is not positive", (node.input(1),))
    worst = bias_ratio(x.encoding, w.encoding, bias)
    # As near as onnxruntime itself asks for.
    if worst is None or abs(worst - 1) < _NEAR:
        return None
    text = f"the scale of the bias is {worst:.6g} times scale x * scale w"
    return Reason(text, (node.input(2),))


def _zero_points(view: FileView, node: FileNode) -> Reason | None:
    if node.op != "Gemm":
        return None
    for name, found, _ in _encodings(view, node):
        if not found.explicit:
            return Reason(f"the zero point of '{name}' is left out", (name,))
    return None


def _drop(view: FileView, node: FileNode) -> Reason | None:
    if node.op not in _DROPPED:
        return None
    found, behind = source(view, node.input(0)), target(view, node.output).encoding
    if found is None or behind is None:
        return None
    before = found.encoding
    if not before.same_mapping(behind):
        return Reason(f"'{node.input(0)}' and '{node.output}' are quantized differently")
    # onnxruntime compares initializers: one that is left out equals none.
    if not (before.explicit and behind.explicit):
        return Reason("a zero point is left out, and the pair is only dropped with both written")
    if before.scale is not None and node.op != "Resize" and not (before.scale > 0).all():
        return Reason("a scale that is not positive turns the order of the values round")
    return None


def _scalars(view: FileView, node: FileNode) -> Reason | None:
    checks = (_operands, _result_rejection_reason, _types)
    if (
        node.op not in _SCALARS
        or not _has_kernel(view, node)
        or any(check(view, node) for check in checks)
    ):
        return None
    for name, found, _ in _encodings(view, node):
        if found.scale is not None and found.scale.dtype != np.float32 and node.op == "Concat":
            return Reason(f"the scale of '{name}' is {found.scale.dtype}")
        rank = view.rank(found.node.input(1))
        if rank and (found.scale is None or found.per_tensor):
            return Reason(f"the scale of '{name}' has {rank} axes, the fused operator wants none")
    return None


def _clash(view: FileView, node: FileNode) -> Reason | None:
    """From opset 21 on, a Q with ``output_dtype`` whose zero point is turned into uint8."""
    # Before, QuantizeLinear has no output_dtype that could contradict the zero point.
    if view.opset < 21:
        return None
    if is_quantize(node):
        found = view.encoding(node)
        written = node.attributes.get("output_dtype", 0) and found.explicit
        readers = sum(len(view.consumers(n.output)) for n, _ in view.consumers(node.output))
        if written and found.dtype is DType.INT8 and found.per_tensor and readers == 1:
            return Reason("output_dtype is int8 and the zero point becomes uint8 on x86")
        return None
    fused = bias_add(view, node)
    if fused is not None and view.rank(node.input(0)) != 2:
        found_source = source(view, node.input(0))
        if found_source is not None and found_source.encoding.dtype is DType.INT8:
            return Reason(
                f"MatMul and Add '{fused.name}' become a Gemm behind a Reshape, and the int8 pair "
                f"before '{node.input(0)}' is pushed past that", (node.input(0),),
            )  # fmt: skip
    behind = target(view, node.output).encoding if node.outputs[:1] != ("",) else None
    passed = node.op in COPIES and (propagates(view, node) or behind is not None)
    for name in (*(() if passed else node.inputs[:1]), *view.outputs.intersection(node.outputs)):
        found_source = source(view, name)
        if found_source is None or not found_source.moved:
            continue
        encoding = found_source.encoding
        leaves = name in view.outputs and not view.consumers(name)
        dtype = on_x86(encoding, 1) if leaves else found_source.dtype
        if encoding.dtype is DType.INT8 and dtype is DType.UINT8:
            return Reason(f"the int8 pair before '{name}' is pushed past data movement", (name,))
    return None


def _wide_clash(view: FileView, node: FileNode) -> Reason | None:
    """No QuantizeLinear gives int32, and past data movement there is one for each DQ."""
    if not propagates(view, node) or node.op == "MaxPool":
        return None
    origin = fed(view, node.input(0), any_scale=True)
    found = None if origin is None else origin.encoding
    if found is None or found.dtype is not DType.INT32:
        return None
    running = found.per_tensor and not view.is_constant(node.input(0))
    if not running and node.op != "Transpose":  # by which any is passed
        return None
    readers = [reader for reader, _ in view.consumers(node.output)]
    ends = node.output in view.outputs or not readers
    if not ends and all(propagates(view, reader) or _one_scale(view, reader) for reader in readers):
        return None
    name = node.input(0)
    return Reason(f"the int32 DequantizeLinear before '{name}' is pushed past {node.op}", (name,))


def _one_scale(view: FileView, node: FileNode) -> bool:
    return is_quantize(node) and view.encoding(node).per_tensor


def _scale_type(view: FileView, node: FileNode) -> Reason | None:
    if not (is_quantize(node) or is_dequantize(node)) or "::" in node.op:
        return None
    dtype = view.dtype(node.input(1))
    if dtype is not None and dtype is not DType.FLOAT32 and view.opset < 19:
        return Reason(f"the scale is {dtype}, which opset {view.opset} does not have")
    if dtype in (DType.FLOAT8_E8M0, DType.BFLOAT16):
        return Reason(f"no kernel takes a scale of {dtype}", (node.input(1),))
    if is_quantize(node) and view.dtype(node.input(0)) is DType.INT32:
        return Reason("no kernel quantizes int32", (node.input(0),))
    return None


def _dilations(view: FileView, node: FileNode) -> Reason | None:
    checks = (_operands, _result_rejection_reason, _types)
    if node.op != "AveragePool" or "dilations" not in node.attributes:
        return None
    if any(check(view, node) for check in checks):
        return None
    return Reason("QLinearAveragePool does not have the attribute dilations", (node.output,))


def _counted_beyond(view: FileView, node: FileNode) -> Reason | None:
    given = node.attributes
    if node.op != "AveragePool" or not given.get("ceil_mode"):
        return None
    if not given.get("count_include_pad") or any(
        c(view, node) for c in (_operands, _result_rejection_reason)
    ):
        return None
    kernel = given["kernel_shape"]
    rank = len(kernel)
    strides, pads = given.get("strides") or [1] * rank, given.get("pads") or [0] * 2 * rank
    image = (view.shape(node.input(0)) or (None,) * (2 + rank))[2:]
    for axis, extent in enumerate(image):
        both = (pads[axis], pads[rank + axis])
        if not isinstance(extent, int):
            return Reason("its last windows may reach beyond the padding", (node.output,))
        # The integer kernel divides by all elements of a window; ONNX does not count what lies
        # beyond the padding.
        if reaching(extent, kernel[axis], strides[axis], 1, both) > both[1]:
            return Reason(f"its last windows reach beyond the padding of axis {axis + 2}, and all "
                          "their elements are counted", (node.output,))  # fmt: skip
    return None


def _handed_on(view: FileView, node: FileNode) -> Reason | None:
    """A Resize whose scales round to the extents that there are (upsample.cc)."""
    scales = view.constant(node.input(2)) if node.op == "Resize" and node.input(2) else None
    if scales is None or not scales.size or (scales == 1).all():
        return None
    if node.attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        return None
    shape = view.shape(node.input(0))
    if shape is None or len(shape) != scales.size or node.attributes.get("axes"):
        return None
    scaled = [(n, scale) for n, scale in zip(shape, scales, strict=True) if scale != 1]
    if any(not isinstance(n, int) or int(n * scale) != n for n, scale in scaled):
        return None
    return Reason("it keeps every extent, and hands its input on", (node.output,))


def _rounded_activation(view: FileView, node: FileNode) -> Reason | None:
    """A product by a dequantized matrix becomes MatMulNBits, which rounds what it multiplies."""
    if node.op not in ("MatMul", "Gemm") or node.attributes.get("transB"):
        return None
    turned = view.producer(node.input(1))
    turned = turned if turned is not None and turned.op == "Transpose" else None
    x = view.dequantized(node.input(0))
    w = view.dequantized(node.input(1) if turned is None else turned.input(0))
    if w is None or w.dtype is None or not view.is_constant(w.node.input(0)):
        return None
    if x is not None and x.dtype in _EIGHT and (x.per_tensor or x.scale is None):
        return None
    shape, alone = view.shape(w.node.input(0)), len(view.consumers(w.node.output)) == 1
    small = not w.dtype.is_float and w.dtype.bits <= _BYTE
    if turned is not None and (node.op != "MatMul" or w.dtype.bits != _BYTE):
        return None
    if shape is None or len(shape) != _MATRIX or not small or not alone:
        return None
    name = node.input(0)
    kind = "a float" if x is None else str(x.dtype)
    return Reason(f"'{name}' ({kind}) is rounded to 8 bits while the model runs", (name,))


def _scales_of_run_time(view: FileView, node: FileNode) -> Reason | None:
    """The kernel packs scales and zero points into a constant weight when it is made, or never."""
    if node.op != _PACKED_PRODUCT or not view.is_folded(node.input(1)):
        return None
    given, zeros = node.attributes, view.dtype(node.input(3)) if node.input(3) else None
    said = PackedProduct(
        given.get("accuracy_level"),
        "float" if zeros is not None and zeros.is_float else "",
        OWN_ORDER if node.input(4) else "",
        block_size=given["block_size"],
    )
    late = tuple(name for name in node.inputs[2:4] if name and not view.is_folded(name))
    if not late or not said.rounds(given.get("bits", _NIBBLE)):
        return None
    return Reason(f"only the run knows {' and '.join(map(repr, late))}", late)


def _small_floats(view: FileView, node: FileNode) -> Reason | None:
    if node.op not in ("Conv", "Gemm", "MatMul") or _operands(view, node):
        return None
    found = [(name, dtype) for name, _, dtype in _encodings(view, node)]
    if len(found) < 3 or any(dtype is None or not dtype.is_float for _, dtype in found):
        return None
    return Reason(f"'{found[0][0]}' is {found[0][1]}, and fusions do not look at that")


def _float_bias(view: FileView, node: FileNode) -> Reason | None:
    """A float bias becomes int32 with scale x * scale w (weight_bias_quantization.cc)."""
    name = node.input(2)
    real = view.constant(name) if name else None
    if node.op not in ("Conv", "ConvTranspose", "Gemm") or real is None or view.dequantized(name):
        return None
    x, w = (source(view, operand) for operand in node.inputs[:2])
    y = target(view, node.output).encoding
    if x is None or w is None or y is None or not view.is_constant(node.input(1)):
        return None
    ours = w.encoding.scale, x.encoding.scale, y.scale
    if any(scale is None or not (scale > 0).all() for scale in ours) or real.dtype.kind != "f":
        return None
    w_scale, x_scale, step = (np.asarray(scale, np.float64) for scale in ours)
    units = w_scale * x_scale.reshape(-1)[:1]
    if x_scale.size != 1 or step.size != 1 or units.size not in (1, real.size):
        return None
    bias, units = real.reshape(-1).astype(np.float64), units.reshape(-1)
    ends = np.iinfo(np.int32)
    stored = np.clip(np.rint(bias / units), ends.min, ends.max)
    moved = float(np.abs(bias - stored * units).max(initial=0.0) / step.reshape(()))
    if moved <= BIAS_MOVES:
        return None
    return Reason(f"the float bias '{name}' is rounded, which moves the result by {moved:.3g} LSB",
                  (name,))  # fmt: skip


def _float_weight(view: FileView, node: FileNode) -> Reason | None:
    """A float weight becomes int8 with one scale (weight_bias_quantization.cc)."""
    if not rounds_weight(view, node):
        return None
    return Reason(f"the float weight '{node.input(1)}' is rounded to 8 bits of the whole tensor",
                  (node.input(1),))  # fmt: skip


def _bias_units(view: FileView, node: FileNode) -> Reason | None:
    """An int32 bias is added as it is: the scales are compared to one percent, a Gemm's never."""
    name = node.input(2) if node.op in ("Conv", "Gemm") else _added(view, node)
    bias = view.dequantized(name)
    x, w = source(view, node.input(0)), source(view, node.input(1))
    if bias is None or x is None or w is None or bias.dtype is not DType.INT32:
        return None
    checks = (
        _operands,
        _types,
        _refuse_quant_params,
        _check_int32_bias,
        *((_result_rejection_reason,) if node.op == "Conv" else ()),
    )
    if any(check(view, node) for check in checks):
        return None
    codes, y = view.constant(bias.node.input(0)), target(view, result_of(view, node)).encoding
    scales = [x.encoding.scale, w.encoding.scale, bias.scale, None if y is None else y.scale]
    if codes is None or any(scale is None for scale in scales[:3]):
        return None
    sx, sw, sb = (np.asarray(scale, np.float64).reshape(-1) for scale in scales[:3])
    if sx.size != 1 or not {sw.size, sb.size} <= {1, codes.size}:
        return None
    units = sx * sw
    step = units if scales[3] is None else np.asarray(scales[3], np.float64).reshape(-1)[:1]
    off = codes.reshape(-1).astype(np.float64) * (sb - units) / step
    moved = float(np.abs(off).max(initial=0.0))
    if moved <= BIAS_MOVES:
        return None
    return Reason(f"the bias '{name}' is taken as one of scale x * scale w, which moves the result "
                  f"by {moved:.3g} LSB", (name,))  # fmt: skip


def _room(view: FileView, node: FileNode) -> Reason | None:
    """The kernels add in 32 bits, and wrap."""
    if node.op not in _ACCUMULATES or not _fused(view, node):
        return None
    name = node.input(2) if node.op in ("Conv", "Gemm") else _added(view, node)
    if not sums_leave_int32(view, node, name):
        return None
    text = f"with the bias '{name}' its" if name else "its"
    return Reason(f"{text} sums are more than 32 bits hold", (name or node.input(1),))


def _fused(view: FileView, node: FileNode) -> bool:
    checks = (_operands, _types, *((_result_rejection_reason,) if node.op == "Conv" else ()))
    return not any(check(view, node) for check in checks)


def _added(view: FileView, node: FileNode) -> str:
    """Returns the bias that an Add behind a MatMul adds, empty where there is none."""
    add = bias_add(view, node)
    return "" if add is None else add.input(1 - add.inputs.index(node.output))


def _two_roundings(view: FileView, node: FileNode) -> Reason | None:
    """Q, DQ, Q, DQ become one Q and DQ of another scale (double_qdq_pairs_remover.cc)."""
    between = view.dequantized(node.input(0)) if is_quantize(node) else None
    if between is None:
        return None
    first = view.producer(between.node.input(0))
    if first is None or not is_quantize(first):
        return None
    own, readers = view.encoding(node), [n for n, _ in view.consumers(node.output)]
    alone = all(len(view.consumers(n.output)) == 1 for n in (first, between.node))
    leaves = {first.output, between.node.output, node.output} & view.outputs
    if leaves or not alone or not readers or not all(is_dequantize(n) for n in readers):
        return None
    if own.dtype is not between.dtype or own.same_mapping(between):
        return None
    text = f"'{first.output}' and '{node.output}' are rounded once, to another scale than either"
    return Reason(text, (first.output, node.output))


def _clamped_float8(op: str) -> Check:
    """Looks for a float8 with a zero point, behind a Relu or Clip that is fused into its Q."""

    def check(view: FileView, node: FileNode) -> Reason | None:
        readers = [reader for reader, _ in view.consumers(node.output)]
        if node.op != op or len(readers) != 1 or not is_quantize(readers[0]):
            return None
        if node.output in view.outputs or (op == "Clip" and view.producer(node.input(0)) is None):
            return None
        found = view.encoding(readers[0])
        if not found.explicit or found.dtype is None or not found.dtype.is_small_float:
            return None
        text = f"'{readers[0].output}' is {found.dtype}, and its zero point is read as an integer"
        return Reason(text, (node.output,))

    return check


def _pairs(view: FileView, node: FileNode) -> Reason | None:
    """Products of uint8 and int8, whose pairs saturate without VNNI."""
    if node.op not in _ACCUMULATES:
        return unfit_pairs(node, [*stored_factors(view, node)])
    if node not in float_regions_of(view) or any(
        check(view, node)
        for check in (_operands, _result_rejection_reason, _types, _refuse_quant_params)
    ):
        return None  # it stays float
    return unfit_pairs(node, [*quantized_factors(view, node)])


def _rule(
    name: str, applies_to: str, check: Callable[[FileView, FileNode], Reason | None], fix: str
) -> TargetRule:
    return TargetRule(name, applies_to, where(COMPUTED, check), _SELECTORS, Effect.FLOAT, fix)


_WITHOUT_ZERO_POINT = "from opset 21 on, write output_dtype and no zero point"

ROUNDED_ACTIVATION = TargetRule(
    "rounded-activation", "MatMul and Gemm by a dequantized matrix", _rounded_activation,
    "measured on 1.32: up to 1 % of the largest result off, some hundred steps of 16 bits",
    Effect.OTHER, "put a Reshape behind the DequantizeLinear, or run with the option "
    "session.qdq_matmulnbits_accuracy_level = 0",
)  # fmt: skip
ROOM_FOR_SUMS = TargetRule(
    "room-for-sums",
    "8-bit Conv, Gemm, MatMul",
    _room,
    "measured on 1.32: the sign turns round",
    Effect.OTHER,
    "scale the weights of that channel up; or export, which keeps it in float",
)
UNSAID_PARAMETERS = TargetRule(
    "unsaid-parameters", "8-bit products, AveragePools, Sigmoid, LeakyRelu, Softmax, Where",
    _unsaid, "measured on 1.32: other numbers, or an error in the run", Effect.OTHER,
    "use one scale per activation, and scales of weights along the results; or export, which "
    "keeps the operator in float",
)  # fmt: skip
BIAS_UNITS = TargetRule(
    "bias-units", "Conv, Gemm, MatMul + Add", _bias_units,
    "onnxruntime qdq_selectors.cc; measured on 1.32", Effect.OTHER,
    "give the bias scale x * scale w",
)  # fmt: skip
PAIRS_FIT = TargetRule(
    RULE, "products of uint8 by int8, on x86 with AVX2 and without VNNI",
    _pairs, "onnxruntime mlas QgemmU8S8KernelAvx2, ConvSymKernelAvx2; measured on 1.32",
    Effect.PROCESSOR,
    "quantize with --avoid-pairs, which costs up to a bit of these weights; compare --engine "
    "onnxruntime-avx2 tells what is lost",
)  # fmt: skip
RULES: tuple[TargetRule, ...] = (
    TargetRule(
        "integer-kernel", "float compute between DQ and Q",
        when(COMPUTED & ~op(*_KERNELS) & ~(op(*_CLAMPS) & REDUNDANT),
             "there is no integer {node.op} on the CPU", "output"),
        "onnxruntime qdq_selector_action_transformer.cc", Effect.NO_KERNEL,
        "leave the operator's neighbours in float, or accept one float operator",
    ),
    _rule("operands-dequantized", "operators with an integer kernel", _operands,
          "quantize the operand"),
    _rule("result-quantized", "operators with an integer kernel", _result_rejection_reason,
          "quantize the result, once, for all of its readers"),
    _rule("element-types", "operators with an integer kernel", _types,
          "use one 8-bit type for activations, int8 weights"),
    TargetRule(
        "weight-types", "Conv, Gemm, MatMul", _untaken_weight,
        "onnxruntime qdq_selectors.cc; measured on 1.32: 'Type Error'", Effect.REFUSED,
        "store weights in 8 bits; or export, which keeps the operator in float",
    ),
    _rule("constant-scalar-parameters", "operators with an integer kernel", _refuse_quant_params,
          "write scale and zero point as initializers"),
    _rule("bias-int32", "Conv, Gemm", _check_int32_bias,
        "quantize the bias to int32, scale x * scale w"),
    _rule("zero-points-written", "Gemm", _zero_points, "write the zero points"),
    _rule("pair-can-be-dropped", "MaxPool, ReduceMax, ReduceMin, Resize", _drop,
          "give input and output one scale and an explicit zero point"),
    TargetRule(
        "registered-operator", "every node",
        when(~domain(*_DOMAINS), "the domain '{node.domain}' is not registered"),
        "onnxruntime 1.31.1",
        Effect.REFUSED,
        "export without custom operators",
    ),
    TargetRule(
        "known-types", "Q and DQ", _scale_type,
        "onnxruntime 1.32: 'Type Error', 'Could not find an implementation'", Effect.REFUSED,
        "write float32 scales and data, or declare the opset that brought the type; export casts "
        "int32",
    ),
    TargetRule(
        "no-dilations", "AveragePool", where(COMPUTED, _dilations),
        "onnxruntime 1.31.1: 'Unrecognized attribute: dilations'", Effect.REFUSED,
        "leave the attribute out",
    ),
    TargetRule(
        "counted-padding", "AveragePool", where(COMPUTED, _counted_beyond),
        "onnxruntime qlinear_pool.cc; measured on 1.32: up to 44 % of a result in a corner",
        Effect.OTHER, "leave out ceil_mode or count_include_pad, or run without optimizations",
    ),
    TargetRule(
        "resized-in-place", "Resize by scales other than 1 that keep every extent", _handed_on,
        "onnxruntime upsample.cc; measured on 1.32", Effect.OTHER, "scale by 1, or by more",
    ),
    ROUNDED_ACTIVATION,
    UNSAID_PARAMETERS,
    ROOM_FOR_SUMS,
    TargetRule(
        "scales-of-run-time", "MatMulNBits with accuracy_level 4", _scales_of_run_time,
        "onnxruntime matmul_nbits.cc; measured on 1.32: 0 for a product, or zero points left out",
        Effect.OTHER, "make scales and zero points initializers, or leave accuracy_level out",
    ),
    TargetRule(
        "no-small-floats", "Conv, Gemm, MatMul", where(COMPUTED, _small_floats),
        "onnxruntime up to 1.31: 'Type Error'", Effect.REFUSED, "quantize to integers",
    ),
    TargetRule(
        "int8-past-movers", "int8 pairs from opset 21 on", _clash,
        "onnxruntime 1.31.1: 'output_dtype INT8 does not match y_zero_point type UINT8'",
        Effect.REFUSED, "quantize behind data movement as well, or declare an opset below 21",
    ),
    TargetRule(
        "int32-past-movers", "Reshape, Transpose, Squeeze, Unsqueeze, Slice", _wide_clash,
        "onnxruntime qdq_propagation.cc; measured on 1.32: 'Type Error'", Effect.REFUSED,
        "dequantize behind the data movement, as an export does",
    ),
    TargetRule(
        "rank-0-parameters", "Add, Mul, Concat, Where, unary operators", where(COMPUTED, _scalars),
        "onnxruntime up to 1.31: 'Scale and Zero-point must be a scalar'", Effect.REFUSED,
        "reshape scale and zero point to rank 0",
    ),
    TargetRule(
        "float-weight-kept", "Conv, ConvTranspose, Gemm, MatMul", _float_weight,
        "onnxruntime weight_bias_quantization.cc; measured on 1.32: 36.1 dB for 41.5", Effect.OTHER,
        "export it again, which puts a Max with -inf behind it, or quantize the weight",
    ),
    TargetRule(
        "float-bias-kept", "Conv, ConvTranspose, Gemm", _float_bias,
        "onnxruntime weight_bias_quantization.cc; measured on 1.32", Effect.OTHER,
        "add the bias behind the operator, or run without graph optimizations",
    ),
    BIAS_UNITS,
    TargetRule(
        "clamped-float8", "Relu in front of Q", _clamped_float8("Relu"),
        "onnxruntime relu_quantizelinear.cc; measured on 1.32: up to 22 on outputs of 26",
        Effect.OTHER, _WITHOUT_ZERO_POINT,
    ),
    TargetRule(
        "refused-float8", "Clip in front of Q", _clamped_float8("Clip"),
        "onnxruntime clip_quantizelinear.cc:79; measured on 1.32", Effect.REFUSED,
        _WITHOUT_ZERO_POINT,
    ),
    TargetRule(
        "two-roundings", "Q behind DQ", _two_roundings,
        "onnxruntime double_qdq_pairs_remover.cc; measured on 1.32", Effect.OTHER,
        "use one scale, or run without graph optimizations",
    ),
    PAIRS_FIT,
)  # fmt: skip
_UNOPTIMIZED = {
    "known-types", "no-dilations", "no-small-floats", "rank-0-parameters", "registered-operator",
    "resized-in-place", "scales-of-run-time",
}  # fmt: skip
FUSED_WRONGLY = tuple(
    rule
    for rule in RULES
    if rule.effect in (Effect.REFUSED, Effect.OTHER)
    and rule is not ROUNDED_ACTIVATION
    and rule.name not in _UNOPTIMIZED
)
"""What no file may hold that onnxruntime opens with its optimizations, whoever else reads it."""
