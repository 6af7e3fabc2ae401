"""What onnxruntime's QNN provider requires of a QDQ file.

Sources: the provider's documentation and the issues named at the rules; for clamps, what the host
build of Hexagon's backend computes (onnxruntime-qnn 2.7.0 on onnxruntime 1.32, x86: no phone).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import params_of_interval
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.unary import HARD_SIGMOID, SIGMOID, TANH
from qdqbridge.targets.profiles.file_view import (
    FileEncoding,
    FileNode,
    FileView,
    is_dequantize,
    is_quantize,
)
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.hexagon.floats import (
    FLOAT_RULES,
    is_added_behind,
    is_fused_on_v73,
    is_padded,
    wide_weight_on_v73,
)
from qdqbridge.targets.profiles.hexagon.products import (
    behind_clamp,
    is_of_integers,
    moved_factor,
    wide_arithmetic,
    wide_arithmetic_of_v73,
)
from qdqbridge.targets.profiles.hexagon.units import (
    DYNAMIC_RULES,
    OPERATOR_RULES,
    UNIT_RULES,
    behind_bias,
    bias_granularity,
    is_bias,
    is_clamped_gemm,
    stored_bias,
)
from qdqbridge.targets.profiles.shared_rules import (
    WEIGHTED,
    active_ends,
    bias_ratio,
    clamp_bounds,
    constant_positive_scale,
    encoding_of,
    fixed_shapes,
    float_regions_of,
    is_parameter,
    per_tensor_activations,
    storage,
    stored_tensor,
    sums_leave_int32,
    weight_axis,
)

# ---- What onnxruntime's QNN provider refuses whatever the numbers are: axes, element types, ends
#
# Found by the tables that winml-cli measured on an NPU, and run again on the host build.

_REFUSALS_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon; winml-cli 0.4.0, an NPU"
_MOST_AXES = 5
_NO_CASTS = frozenset({DType.INT8, DType.INT16, DType.UINT16, DType.UINT64})
"""Element types that a Cast neither reads nor makes."""
_INSIDE_ONLY = (DType.FLOAT64, DType.INT64)
"""Element types that it has between operators; of int64 it takes inputs."""


def _six_axes(view: FileView, node: FileNode) -> Reason | None:
    """More axes than the backend has, but for those that only a Transpose between Reshapes sees."""
    if node.outputs and view.is_constant(node.output):
        return None
    for name in (*node.inputs, *node.outputs):
        rank = (view.rank(name) or 0) if name else 0
        if rank > _MOST_AXES and not _between_reshapes(view, node, name):
            return Reason(f"'{name}' has {rank} axes", (name,))
        outside = view.producer(name) is None and not view.is_constant(name)
        if rank == _MOST_AXES and outside and view.dtype(name) is DType.INT64:
            return Reason(f"the input '{name}' is int64 and has {rank} axes", (name,))
    return None


def _between_reshapes(view: FileView, node: FileNode, name: str) -> bool:
    """True where a Transpose of six axes between Reshapes leaves an axis of extent 1 in its place.

    The provider leaves that axis out, of all three at once.
    """
    turned = node
    if node.op == "Reshape":
        turned = _reader(view, name) if name in node.outputs else _maker(view, name)
    elif is_quantize(node) or is_dequantize(node):
        around = (_maker(view, node.input(0)), _reader(view, node.output))
        turned = next((n for n in around if n is not None and n.op == "Transpose"), None)
    if turned is None or turned.op != "Transpose":
        return False
    before, behind = _maker(view, turned.input(0)), _reader(view, turned.output)
    if before is None or behind is None or {before.op, behind.op} != {"Reshape"}:
        return False
    shape = view.shape(turned.input(0)) or ()
    perm = turned.attributes.get("perm", ())
    known = len(shape) == len(perm) == _MOST_AXES + 1
    return known and any(dim == 1 and perm[axis] == axis for axis, dim in enumerate(shape))


def _maker(view: FileView, name: str) -> FileNode | None:
    """Returns what makes a tensor, a Q/DQ pair in between left aside."""
    node = view.producer(name)
    while node is not None and (is_quantize(node) or is_dequantize(node)):
        node = view.producer(node.input(0))
    return node


def _reader(view: FileView, name: str) -> FileNode | None:
    """Returns what alone reads a tensor, a Q/DQ pair in between left aside."""
    while len(readers := view.consumers(name)) == 1:
        node = readers[0][0]
        if not (is_quantize(node) or is_dequantize(node)):
            return node
        name = node.output
    return None


def _refuse_cast(view: FileView, node: FileNode) -> Reason | None:
    if node.op != "Cast" or view.is_constant(node.output):
        return None
    if view.dtype(node.input(0)) is view.dtype(node.output):
        return None  # onnxruntime leaves it out
    for name in (node.input(0), node.output):
        dtype, outside = view.dtype(name), name in view.outputs
        outside = outside or (view.producer(name) is None and dtype is DType.FLOAT64)
        if dtype in _NO_CASTS or (outside and dtype in _INSIDE_ONLY):
            return Reason(f"'{name}' is {dtype}", (name,))
    return None


def _given(view: FileView, node: FileNode) -> Reason | None:
    """Shapes, axes and the like that are made while the model runs."""
    for index in _GIVEN.get(node.op, ()):
        name = node.input(index)
        empty = node.op == "Resize" and view.shape(name) == (0,)
        if name and not empty and not _is_constant_or_shape(view, name):
            return Reason(f"operand {index} '{name}' is made while the model runs", (name,))
    return None


_GIVEN = {
    "Clip": (1, 2), "CumSum": (1,), "Expand": (1,), "Pad": (1, 2), "ReduceL2": (1,),
    "ReduceMax": (1,), "ReduceMean": (1,), "ReduceMin": (1,), "ReduceSum": (1,), "Reshape": (1,),
    "Resize": (2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,),
    "TopK": (1,), "Unsqueeze": (1,),
}  # fmt: skip
"""The operands that have to be initializers."""


def _is_constant_or_shape(view: FileView, name: str) -> bool:
    """True for a constant, and for what is computed of constants and shapes alone."""
    pending, seen = [name], set[str]()
    while pending:
        current = pending.pop()
        node = view.producer(current)
        if current in seen or view.is_constant(current):
            continue
        if node is None:
            return False
        seen.add(current)
        if node.op not in _OF_SHAPES:
            pending += [operand for operand in node.inputs if operand]
    return True


_OF_SHAPES = frozenset({"Shape", "Size"})


def _form(view: FileView, node: FileNode) -> Reason | None:
    """Forms of operators that the provider says it does not have."""
    check = _FORMS.get(node.op)
    text = check(view, node) if check is not None and not view.is_constant(node.output) else ""
    return Reason(text, (node.output,)) if text else None


def _cumulative(view: FileView, node: FileNode) -> str:
    others = [name for name in ("exclusive", "reverse") if node.attributes.get(name, 0)]
    if others:
        return f"its attribute {others[0]} is 1"
    found, rank = view.dequantized(node.input(0)), view.rank(node.input(0))
    wide = found is not None and found.dtype is DType.UINT16 and rank == _MOST_AXES
    return f"it is of uint16 and has {rank} axes" if wide else ""


def _refuse_wrap_pad(view: FileView, node: FileNode) -> str:
    del view
    return "its mode is wrap" if node.attributes.get("mode") in (b"wrap", "wrap") else ""


def _refusals_norm(view: FileView, node: FileNode) -> str:
    del view
    power = node.attributes.get("p", 2)
    return "" if power == 2 else f"its power is {power}, not 2"


def _expand(view: FileView, node: FileNode) -> str:
    return "its shape has no axes" if view.shape(node.input(1)) == (0,) else ""


def _refuse_crossed_clip(view: FileView, node: FileNode) -> str:
    low, high = (_dequantized_scalar(view, node.input(index)) for index in (1, 2))
    crossed = low is not None and high is not None and low > high
    return f"its lower end {low:g} lies above its upper end {high:g}" if crossed else ""


def _dequantized_scalar(view: FileView, name: str) -> float | None:
    """Returns a constant number, also where it is stored."""
    found = view.dequantized(name) if name else None
    array = view.constant(name if found is None else found.node.input(0)) if name else None
    if array is None or array.size != 1:
        return None
    number = float(array.reshape(-1)[0])
    if found is None:
        return number
    if found.scale is None or found.scale.size != 1:
        return None
    return (number - found.zero()) * float(found.scale.reshape(-1)[0])


def _choice(view: FileView, node: FileNode) -> str:
    """Of signed numbers, one side of which is repeated along axes and is no single number."""
    sides, shape = node.inputs[1:], view.shape(node.output) or ()
    found = [view.dequantized(name) for name in sides]
    if not all(side is not None and side.dtype in (DType.INT8, DType.INT16) for side in found):
        return ""
    for name in sides:
        own = view.shape(name)
        leading = len(shape) == _MOST_AXES and own == shape[-len(own or ()) :]
        if own is not None and own != shape and any(dim != 1 for dim in own) and not leading:
            return f"'{name}' is signed, and repeated along axes"
    return ""


def _gather(view: FileView, node: FileNode) -> str:
    rank = view.rank(node.output) or 0
    x, first = view.rank(node.input(0)), node.attributes.get("axis", 0) == 0
    quantized = view.dequantized(node.input(0)) is not None
    wrong = quantized and rank == _MOST_AXES and (x == 1 or (x == _IMAGE and first))
    return f"its result has {rank} axes, its operand {x}" if wrong else ""


def _gather_elements(view: FileView, node: FileNode) -> str:
    found = view.dequantized(node.input(0))
    signed = found is not None and found.dtype in (DType.INT8, DType.INT16)
    return f"its operand is {found.dtype}" if found is not None and signed else ""


def _scatter(view: FileView, node: FileNode) -> str:
    reduction = node.attributes.get("reduction", b"none")
    reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
    if reduction in ("min", "max"):
        return f"its reduction is {reduction}"
    if reduction == "none" and view.dequantized(node.input(0)) is not None:
        return "it writes stored numbers, and adds or multiplies none"
    axes, indices = view.rank(node.input(0)) or 0, view.shape(node.input(1)) or ()
    one = len(indices) == 1 and axes > 1 and view.dequantized(node.input(0)) is not None
    few = axes == _MOST_AXES and indices in ((2,), (3,))
    return "its indices have one axis" if one and not few else ""


def _resize(view: FileView, node: FileNode) -> str:
    if node.attributes.get("antialias", 0):
        return "it smooths (antialias)"
    rank = view.rank(node.input(0)) or _IMAGE
    return f"it has {rank} axes" if rank < _IMAGE - 1 else ""


def _gemm(view: FileView, node: FileNode) -> str:
    rank = view.rank(node.input(2)) if view.dequantized(node.input(2)) is not None else 1
    shape = view.shape(node.input(2)) or ()
    rows = rank == 2 and shape[:1] == (1,)
    return f"its stored bias has {rank} axes, not one" if rank != 1 and not rows else ""


def _convolution(view: FileView, node: FileNode) -> str:
    """With a bias of run time it is not taken, over volumes only as a unit of 8-bit weights."""
    x, weight, bias = (view.dequantized(node.input(index)) for index in range(3))
    name = node.input(2)
    whole = x is not None and weight is not None and bool(view.quantized(node.output))
    narrow = weight is not None and weight.dtype in (DType.INT8, DType.UINT8)
    signed = x is not None and x.dtype in (DType.INT8, DType.INT16)
    unit = whole and narrow and not (signed and weight and weight.dtype is DType.UINT8)
    if unit and name and bias is None and not view.is_constant(name):
        return f"its bias '{name}' is made while the model runs"
    stored = bias is None or bias.dtype is DType.INT32
    volume = x is not None and (view.rank(node.input(0)) or 0) > _IMAGE
    return "it is no unit of integers, over three axes" if volume and not (unit and stored) else ""


def _power(view: FileView, node: FileNode) -> str:
    sides = [view.dequantized(name) for name in node.inputs]
    wide = all(side is not None and side.dtype is DType.INT16 for side in sides)
    if wide and view.is_constant(node.input(0)) and not view.is_constant(node.input(1)):
        return "base and exponent are int16"
    base, result = view.shape(node.input(0)), view.shape(node.output) or ()
    repeated = len(result) == _MOST_AXES and base not in (None, (), result)
    return "its base is repeated along five axes" if repeated else ""


def _refuse_uint16_matmul(view: FileView, node: FileNode) -> str:
    sides = [view.dequantized(name) for name in node.inputs]
    wide = all(side is not None and side.dtype is DType.UINT16 for side in sides)
    known = view.is_constant(node.input(0)) and not view.is_constant(node.input(1))
    return "it multiplies a constant of uint16 by uint16" if wide and known else ""


_FORMS = {
    "Clip": _refuse_crossed_clip, "Conv": _convolution, "ConvTranspose": _convolution,
    "CumSum": _cumulative,
    "Expand": _expand, "Gather": _gather, "GatherElements": _gather_elements, "Gemm": _gemm,
    "LpNormalization": _refusals_norm, "MatMul": _refuse_uint16_matmul, "Pad": _refuse_wrap_pad,
    "Pow": _power, "Resize": _resize,
    "ScatterND": _scatter, "Where": _choice,
}  # fmt: skip


REFUSAL_RULES: tuple[TargetRule, ...] = (
    TargetRule("up-to-five-axes", "operators on six axes and more", _six_axes,
           f"{_REFUSALS_HOST}: 'Failed to add node'", Effect.ELSEWHERE,
           "join axes that stay beside each other; leave an axis of extent 1 in its place in a "
           "Transpose between two Reshapes"),
    TargetRule("cast-types", "Cast", _refuse_cast,
           f"{_REFUSALS_HOST}: 'Failed to create Cast node'", Effect.ELSEWHERE,
           "cast from and to float32, float16, int32, uint32, uint8 or bool"),
    TargetRule("given-operands", "shapes, axes, pads, ends and the like", _given,
           f"{_REFUSALS_HOST}: 'Cannot get shape', 'must be an initializer'", Effect.ELSEWHERE,
           "write them as initializers"),
    TargetRule("no-such-form", "Clip, convolutions, CumSum, Expand, Gather, GatherElements, Gemm, "
           "LpNormalization, MatMul, Pad, Pow, Resize, ScatterND and Where", _form,
           f"{_REFUSALS_HOST}: 'only supports', 'Failed to add node'",
           Effect.ELSEWHERE, "write it otherwise, or leave it to the CPU"),
)  # fmt: skip


_WIDE = (DType.INT16, DType.UINT16)
_NARROW = (DType.INT4, DType.UINT4)
_ACTIVATIONS = (DType.UINT8, DType.INT8, *_WIDE)
_FLOAT8 = tuple(dtype for dtype in DType if dtype.is_float and dtype.bits == 8)
_STORED = (*_ACTIVATIONS, *_FLOAT8)
_CONTRIB_BELOW, _HALVES_SINCE = 21, 19
_NEAR, _SAME = 0.01, 2 / (1 << 16)
"""How near scales are: of biases, and of results of 16 bits (two steps of the largest)."""


def _domain(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or view.opset >= _CONTRIB_BELOW or "::" in node.op:
        return None
    tensor, real = stored_tensor(node), view.dtype(node.input(1))
    if view.opset < _HALVES_SINCE and real in (DType.FLOAT16, DType.BFLOAT16):
        text = f"the scale of '{tensor}' is {real}, which opset {view.opset} does not have"
        return Reason(text, (tensor,))
    if found.dtype not in (*_WIDE, *_NARROW):
        return None
    text = f"'{tensor}' is {found.dtype}, which opset {view.opset} does not have"
    return Reason(text, (tensor,))


def _positive_scale(view: FileView, node: FileNode) -> Reason | None:
    known = view.is_constant(node.input(1))
    return constant_positive_scale(view, node) if known else None  # else it is left to the CPU


def _float8(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or found.dtype not in _FLOAT8:
        return None
    tensor = stored_tensor(node)
    return Reason(f"'{tensor}' is {found.dtype}", (tensor,))


def _symmetric_channels(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not is_parameter(view, node) or found.scale is None or found.per_tensor:
        return None
    signed = found.dtype is not None and found.dtype.is_signed
    if (signed and found.symmetric) or _around_half(view, node, found):
        return None
    tensor = stored_tensor(node)
    zero = 0 if found.zero_point is None else int(np.abs(found.zero_point.astype(np.int64)).max())
    text = f"the per-channel constant '{tensor}' is {found.dtype} with zero points up to {zero}"
    return Reason(text, (tensor,))


def _around_half(view: FileView, node: FileNode, found: FileEncoding) -> bool:
    """True for weights of uint8 around 128 that products read: they are taken."""
    if found.dtype is not DType.UINT8 or found.zero_point is None:
        return False
    readers = view.consumers(node.output)
    weights = all(reader.op in WEIGHTED and index == 1 for reader, index in readers)
    return weights and not (found.zero_point.astype(np.int64) != _HALF_BYTE).any()


_HALF_BYTE = 128


def _refuse_bias_encoding(view: FileView, node: FileNode) -> Reason | None:
    """A bias that is not int32, or of other scales beside a matrix of channels.

    A bias of one scale, and one of a convolution, is converted rightly. Beside a matrix of
    channels it is taken as it is stored, for one of scale x * scale w.
    """
    name, x = stored_bias(view, node), view.dequantized(node.input(0))
    found = view.dequantized(name) if name else None
    if found is None or x is None:
        return None  # floats are quantized by the provider
    if found.dtype is not DType.INT32:
        return Reason(f"the bias '{found.node.input(0)}' is {found.dtype}, not int32", (name,))
    w = view.dequantized(node.input(1))
    worst = None if w is None else bias_ratio(x, w, found)
    if w is None or worst is None or abs(worst - 1) < _NEAR:
        return None
    if (node.op in ("Conv", "ConvTranspose") or w.per_tensor) and 0 < worst < np.inf:
        return None
    off = _misread_bias(view, node, (x, w, found))
    if off is not None and off < _ROUNDED_AWAY:
        return None
    text = f"the scale of the bias is {worst:.6g} times scale x * scale w"
    return Reason(text, (name,), 0 if off is None else 1 + math.ceil(off))


_ROUNDED_AWAY = 0.5
"""Steps of the result below which a bias may be off: with its rounding it is one step off then."""


def _misread_bias(
    view: FileView, node: FileNode, units: tuple[FileEncoding, FileEncoding, FileEncoding]
) -> float | None:
    """Returns by how many steps of the result a bias is off that is read in scale x * scale w."""
    stored = view.constant(units[2].node.input(0))
    result = view.quantized(node.output) or behind_clamp(view, node) or behind_bias(view, node)
    if stored is None or not result or result[0].scale is None:
        return None
    if stored.size not in (1, max(unit.scale.size for unit in units if unit.scale is not None)):
        return None
    sx, sw, sb = (
        np.zeros(1) if unit.scale is None else unit.scale.astype(np.float64) for unit in units
    )
    off = np.abs(stored.reshape(-1) * (sb - sx * sw).reshape(-1)).max(initial=0)
    steps = float(off / result[0].scale.min())
    return steps if math.isfinite(steps) else None


def _no_blocks(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or not found.block_size:
        return None
    tensor = stored_tensor(node)
    return Reason(f"'{tensor}' is quantized in blocks of {found.block_size}", (tensor,))


def _node_unit(view: FileView, node: FileNode) -> Reason | None:
    if node not in float_regions_of(view) or _implied(view, node) or _fused(view, node):
        return None
    if is_bias(view, node) or behind_bias(view, node):
        return None
    for index, name in enumerate(node.inputs):
        if name and not view.is_constant(name) and view.dequantized(name) is None:
            if view.dtype(name) is DType.BOOL:
                continue
            return Reason(f"operand {index} '{name}' is not dequantized", (name,))
    if view.quantized(node.output) or behind_clamp(view, node):
        return None
    return Reason(f"its result '{node.output}' is not quantized", (node.output,))


def _implied(view: FileView, node: FileNode) -> bool:
    """True for a clamp to what its Q can store, or to more: onnxruntime leaves it out."""
    found, clamps = view.quantized(node.output), node.op in ("Relu", "Clip")
    return clamps and bool(found) and active_ends(view, node, found[0]) == (False, False)


def _clamp_before(view: FileView, node: FileNode) -> Reason | None:
    made, found = view.producer(node.input(0)), view.quantized(node.output)
    if node.op not in ("Relu", "Clip") or made is None or is_dequantize(made) or not found:
        return None
    if len(view.consumers(node.input(0))) > 1 or node not in float_regions_of(view):
        return None
    if found[0].dtype in _FLOAT8:
        return None
    if _implied(view, node) or not (made.op in WEIGHTED or is_clamped_gemm(view, made)):
        return None
    if _fused_rightly(view, made, found[0]):
        return None
    text = f"{node.op} stands between {made.op} '{made.name}' and its QuantizeLinear"
    return Reason(text, (node.output,))


def _fused(view: FileView, node: FileNode) -> bool:
    """True for a clamp that is taken with the product in front of it."""
    made, found = view.producer(node.input(0)), view.quantized(node.output)
    if node.op not in ("Relu", "Clip") or made is None or not found:
        return False
    return made.op not in WEIGHTED or _fused_rightly(view, made, found[0])


def _fused_rightly(view: FileView, made: FileNode, result: FileEncoding) -> bool:
    """A product without bias and channels keeps a clamp in front of its Q, mostly.

    A Conv of 8 bits does so where the zero point is an end of the type, a Gemm never.
    """
    if made.op not in WEIGHTED or view.dequantized(made.input(1)) is None:
        return False
    if _has_bias_or_channel_scales(view, made):
        return False
    if made.op != "Conv" or result.dtype in _WIDE:
        return made.op != "Gemm"
    return result.zero() in (_low(result), _top(result))


_MATRIX = 2
"""The rank of products that become fully connected layers."""


def _clip_behind(view: FileView, node: FileNode) -> Reason | None:
    found = view.quantized(node.output)
    source = view.dequantized(node.input(0))
    if node.op != "Clip" or source is None or not found:
        return None
    made = view.producer(source.node.input(0))
    made = None if made is None else view.producer(made.input(0))
    if (
        made is None
        or made.op == "Concat"
        or (made.op == "MatMul" and (view.rank(node.input(0)) or 0) > _MATRIX)
        or _apart(view, made, source)
        or _nothing_left(view, made, source)
    ):
        return None  # nothing stands before it that it could be fused with, or that it clips
    active = active_ends(view, node, found[0])
    if active is None or not any(active):
        return None
    if not all(active):
        end = "lower" if active[0] else "upper"
        text = f"only its {end} end lies inside the range of the result"
        return Reason(text, (node.output,), _let_out(view, node, found[0]))
    wide = found[0].dtype in _WIDE
    return Reason(f"it clips {found[0].dtype}", (node.output,)) if wide else None


def _let_out(view: FileView, node: FileNode, result: FileEncoding) -> int:
    """Returns how many steps of 8 bits lie outside a clip, and one; 0 of 16 bits."""
    low, high = clamp_bounds(view, node)
    if result.dtype is None or result.dtype in _WIDE or result.scale is None:
        return 0
    scale, zero = float(result.scale.reshape(-1)[0]), result.zero()
    below = 0.0 if low is None else low / scale + zero - int(result.dtype.qmin)
    above = 0.0 if high is None else int(result.dtype.qmax) - zero - high / scale
    return 1 + round(max(below, above, 0.0))


def _apart(view: FileView, made: FileNode, result: FileEncoding) -> bool:
    """True for a product of int8 matrices with weights per channel: it is joined with nothing."""
    weight = view.dequantized(made.input(1))
    channels = weight is not None and not weight.per_tensor
    return made.op in ("Gemm", "MatMul") and channels and result.dtype is DType.INT8


def _nothing_left(view: FileView, made: FileNode, result: FileEncoding) -> bool:
    """True for a product of numbers up to 0, stored as numbers up to 0: all of them are 0."""
    sides = [result, *filter(None, map(view.dequantized, made.inputs))]
    return made.op == "Mul" and all(side.zero() == _top(side) for side in sides)


def _norm(view: FileView, node: FileNode) -> Reason | None:
    """A norm whose gain is not uint8 wants a bias of 8 bits or of floats, and not none."""
    if node.op != "LayerNormalization":
        return None
    axis, rank = int(node.attributes.get("axis", -1)), view.rank(node.input(0))
    if axis != -1 and (rank is None or axis != rank - 1):
        return Reason(f"it normalizes from axis {axis} on, not along the last one")
    gain, bias = (view.dequantized(node.input(index)) for index in (1, 2))
    if gain is not None and gain.dtype is DType.INT32:
        return Reason(f"its scale '{gain.node.input(0)}' is int32", (gain.node.input(0),))
    x = _signed_operand(view, node)
    if x is not None and gain is not None and gain.dtype is DType.UINT8:
        return Reason(f"its operand is {x.dtype}, its scale uint8", (node.input(1),))
    other = gain is not None and gain.dtype in (DType.INT8, *_WIDE)
    if bias is not None and bias.dtype is DType.INT32 and (other or gain is None):
        return Reason(f"its bias '{bias.node.input(0)}' is int32", (bias.node.input(0),))
    if other and gain is not None and not node.input(2):
        return Reason(f"its scale is {gain.dtype}, and it has no bias", (node.input(1),))
    for name, own in zip(node.inputs[1:], (gain, bias), strict=False):
        if own is not None and not own.per_tensor:
            return Reason(f"its parameter '{name}' has a scale for each channel", (name,))
    return None


_UNLOADABLE = frozenset(
    {"AveragePool", "GlobalAveragePool", "Resize", "DepthToSpace", "HardSwish", "SpaceToDepth"}
)
"""Operators of which a file with int16 does not even load."""


def _signed_operand(view: FileView, node: FileNode) -> FileEncoding | None:
    found = view.dequantized(node.input(0))
    return found if found is not None and found.dtype in (DType.INT8, DType.INT16) else None


def _int16(view: FileView, node: FileNode) -> Reason | None:
    found = _signed_operand(view, node)
    if found is None or found.dtype is not DType.INT16:
        return None
    depthwise = node.op == "Conv" and node.attributes.get("group", 1) > 1
    depthwise = depthwise and (view.shape(node.input(1)) or (0, 1))[1] == 1
    depthwise = (depthwise and bool(view.quantized(node.output))) or _is_volume(view, node)
    if not depthwise and (node.op not in _UNLOADABLE or _is_blurred_image(view, node)):
        return None
    tensor = found.node.input(0)
    return Reason(f"'{tensor}' is int16", (tensor,))


def _is_blurred_image(view: FileView, node: FileNode) -> bool:
    """True for a Resize of an image that interpolates, which is taken of int16."""
    nearest = node.attributes.get("mode", b"nearest") in (b"nearest", "nearest")
    return node.op == "Resize" and not nearest and view.rank(node.input(0)) in (None, _IMAGE)


def _is_volume(view: FileView, node: FileNode) -> bool:
    """True for a convolution over three axes."""
    return node.op in ("Conv", "ConvTranspose") and (view.rank(node.input(0)) or 0) > _IMAGE


_IMAGE = 4


def _unsigned(view: FileView, node: FileNode) -> Reason | None:
    """What is taken of unsigned activations only, or of one signedness on both sides."""
    found, result = _signed_operand(view, node), view.quantized(node.output)
    if found is None:
        return _signed_result(view, node, result)
    tensor, dtype = found.node.input(0), found.dtype
    signed = not result or result[0].dtype is dtype
    wide = node.op == "Clip" or _int16_constant(view, node)
    wide = wide or (node.op == "MatMul" and _of_two_int16(view, node))
    if (
        dtype is DType.INT16
        and node.op in WEIGHTED
        and not signed
        and _has_bias_or_channel_scales(view, node)
    ):
        return Reason(f"'{tensor}' is int16, its result is {result[0].dtype}", (tensor,))
    mixed = result and {dtype, result[0].dtype} == {DType.INT8, DType.UINT8}
    if mixed and _apart_wrongly(view, node, found):
        return Reason(f"'{tensor}' is int8, its result is {result[0].dtype}", (tensor,))
    stored = bool(result) or bool(behind_clamp(view, node))
    if stored and _unsigned_weight(view, node):
        effect = _beside_unsigned(view, node, found)
        if effect is not None:
            text = f"'{tensor}' is {dtype}, its weight is uint8"
            return Reason(text, (tensor,), effect=effect)
    if (node.op == "LeakyRelu" and signed) or (wide and dtype is DType.INT16):
        return Reason(f"'{tensor}' is {dtype} with zero point {found.zero()}", (tensor,))
    return None


def _unsigned_on_v73(view: FileView, node: FileNode) -> Reason | None:
    """The same, but for a weight of uint8 beside a bias in floats, which v73 takes."""
    taken = _unsigned_weight(view, node) and is_fused_on_v73(view, node)
    return None if taken else _unsigned(view, node)


def _of_two_int16(view: FileView, node: FileNode) -> bool:
    """True for a product with activations of int16, of which none is a constant of another type."""
    if view.is_constant(node.input(1)):
        return False
    other = view.dequantized(node.input(1))
    return not view.is_constant(node.input(0)) or other is None or other.dtype is DType.INT16


def _beside_unsigned(view: FileView, node: FileNode, x: FileEncoding) -> Effect | None:
    """Returns what happens to a product of signed numbers by a weight of uint8."""
    weight = view.dequantized(node.input(1))
    channels = weight is not None and not weight.per_tensor
    if not is_added_behind(view, node) and (node.input(2) or x.dtype is DType.INT16 or channels):
        return Effect.ELSEWHERE
    return Effect.OTHER if is_padded(node) and x.zero() != _low(x) else None


def _unsigned_weight(view: FileView, node: FileNode) -> bool:
    weight = view.dequantized(node.input(1)) if node.op in WEIGHTED else None
    return weight is not None and weight.dtype is DType.UINT8 and view.is_constant(node.input(1))


def _int16_constant(view: FileView, node: FileNode) -> bool:
    """True for a Max or Min with a constant of int16."""
    constants = [
        name for name in node.inputs if node.op in ("Max", "Min") and view.is_constant(name)
    ]
    sides = [view.dequantized(name) for name in constants]
    return any(side is not None and side.dtype is DType.INT16 for side in sides)


def _apart_wrongly(view: FileView, node: FileNode, x: FileEncoding) -> bool:
    """True for a product that is no unit: its parameters are left, or its padding is wrong."""
    if node.op in WEIGHTED and _has_bias_or_channel_scales(view, node):
        return True
    return is_padded(node) and x.zero() != _low(x)


def _signed_result(view: FileView, node: FileNode, result: Sequence[FileEncoding]) -> Reason | None:
    """A product of uint8 that is int8: it is a unit where a MatMul has one scale and no bias."""
    x = view.dequantized(node.input(0))
    mixed = x is not None and x.dtype is DType.UINT8 and result and result[0].dtype is DType.INT8
    if not mixed or x is None or not _apart_wrongly(view, node, x):
        return None
    tensor = result[0].node.output
    return Reason(f"'{tensor}' is int8, its operand is uint8", (tensor,))


def _has_bias_or_channel_scales(view: FileView, node: FileNode) -> bool:
    """True for a product that has a bias, or scales per channel."""
    weight = view.dequantized(node.input(1))
    return bool(node.input(2)) or (weight is not None and not weight.per_tensor)


def _low(found: FileEncoding) -> int:
    assert found.dtype is not None
    return int(found.dtype.qmin)


def _padding(view: FileView, node: FileNode) -> Reason | None:
    """Signed activations are padded with the wrong number."""
    found = _signed_operand(view, node)
    constant = node.attributes.get("mode", b"constant") in (b"constant", "constant")
    if node.op != "Pad" or not constant or found is None or found.zero() in (0, _top(found)):
        return None
    tensor = found.node.input(0)
    return Reason(f"'{tensor}' is {found.dtype} with zero point {found.zero()}", (tensor,))


def _top(found: FileEncoding) -> int:
    assert found.dtype is not None
    return int(found.dtype.qmax)


def _fixed_encoding(view: FileView, node: FileNode) -> Reason | None:
    """Results of integers that lie in [0, 1] or [-1, 1] have encodings of their own."""
    found = view.quantized(node.output)
    if node.op not in _ENCODED or not found or found[0].dtype is None:
        return None
    if not is_of_integers(view, node):
        return None
    own, tensor = found[0], found[0].node.output
    if node.op == "Softmax" and own.dtype in (DType.UINT8, DType.INT8):
        right = (own.dtype.qmin, 128) if own.dtype is DType.UINT8 else (own.dtype.qmin,)
        if own.zero() not in right:
            return Reason(f"'{tensor}' is {own.dtype} with zero point {own.zero()}", (tensor,))
    if (
        node.op in ("Sigmoid", "HardSigmoid", "Tanh")
        and own.dtype in _WIDE
        and own.scale is not None
    ):
        scale, encoding = (
            float(own.scale.reshape(-1)[0]),
            params_of_interval(_ENCODED[node.op], own.dtype),
        )
        zero = int(encoding.zero_point)
        other = own.zero() != zero or (own.dtype is DType.INT16 and node.op != "Tanh")
        if abs(scale / float(encoding.scale) - 1) > _SAME or (other and tensor in view.outputs):
            return Reason(f"'{tensor}' is {own.dtype} with scale {scale:.6g}", (tensor,))
    return None


_ENCODED = {
    row.name: row.interval for row in (SOFTMAX, SIGMOID, HARD_SIGMOID, TANH) if row.interval
}
"""Operators whose results the backend lets fill their interval, where they have 16 bits."""


def _lone_transpose(view: FileView, node: FileNode) -> Reason | None:
    source, found = view.dequantized(node.input(0)), view.quantized(node.output)
    if node.op != "Transpose" or source is None or not found:
        return None
    if (
        tuple(node.attributes.get("perm", ())) != (0, 2, 1)
        or found[0].node.output not in view.outputs
    ):
        return None
    if view.producer(source.node.input(0)) is not None:
        return None
    return Reason("it is all there is between an input and an output", (node.output,))


_DOCS = "onnxruntime, QNN Execution Provider"
_HEXAGON = "onnxruntime-qnn 2.7.0, host build of Hexagon: not taken, or up to 254 LSB wrong"

_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon"

_ROOM = "room-for-sums"


def _refuse_full_sums(view: FileView, node: FileNode) -> Reason | None:
    """Sums of 32 bits wrap; products of 16 bits are added otherwise."""
    if node.op not in ("Conv", "Gemm", "MatMul"):
        return None
    x = view.dequantized(node.input(0))
    if x is None or x.dtype is None or x.dtype.bits != 8:
        return None
    bias = "" if node.op == "MatMul" else node.input(2)
    if not sums_leave_int32(view, node, bias):
        return None
    text = f"with the bias '{bias}' its" if bias else "its"
    return Reason(f"{text} sums are more than 32 bits hold", (bias or node.input(1),))


RULES: tuple[TargetRule, ...] = (
    TargetRule("fixed-shapes", "what reads the inputs", fixed_shapes, _DOCS, Effect.ELSEWHERE,
         "give numbers when exporting: --extent batch=1"),
    TargetRule("contrib-domain", "Q and DQ of 16 and 4 bits, and of half floats", _domain,
         "ONNX: QuantizeLinear-21, QuantizeLinear-19", Effect.REFUSED,
         "use com.microsoft, or declare opset 21"),
    TargetRule("storage", "Q and DQ", storage(_STORED, (*_STORED, *_NARROW, DType.INT32)),
         _DOCS, Effect.REFUSED, "use 8 or 16 bits for activations"),
    TargetRule("float8", "Q and DQ", _float8, _HOST, Effect.ELSEWHERE, "quantize to integers"),
    TargetRule("constant-positive-scale", "Q and DQ", _positive_scale, _DOCS, Effect.REFUSED,
         "write scales as initializers"),
    TargetRule("per-tensor-activations", "Q and DQ of activations", per_tensor_activations, _DOCS,
         Effect.REFUSED, "use one scale per activation"),
    TargetRule("symmetric-per-channel", "DQ of per-channel constants", _symmetric_channels,
         "microsoft/onnxruntime#20154", Effect.REFUSED, "use int8 with zero point 0"),
    TargetRule("weight-axis", "per-channel weights", weight_axis({"Conv": 0, "ConvTranspose": 1}),
         "microsoft/onnxruntime#20154", Effect.REFUSED, "use the axis of the output channels"),
    TargetRule("bias-int32", "Conv, ConvTranspose, Gemm, MatMul with a bias", _refuse_bias_encoding,
         f"microsoft/onnxruntime#26709; {_HOST}: other scales beside a matrix of channels: up to "
         "199 LSB off", Effect.OTHER, "quantize the bias to int32, scale x * scale w"),
    TargetRule("bias-granularity", "Conv, ConvTranspose, Gemm, MatMul with a bias",
        bias_granularity,
         f"{_HOST}: up to 255 LSB off", Effect.OTHER,
         "give the bias one scale where the weight has one, else one for each channel"),
    TargetRule(_ROOM, "8-bit Conv, Gemm, MatMul", _refuse_full_sums,
         f"{_HOST}: the sign turns round; with htp_arch 73 it does not", Effect.OTHER,
         "scale the weights of that channel up, or quantize its bias again"),
    TargetRule("no-blocks", "DQ of weights", _no_blocks, "onnxruntime-qnn#650", Effect.FLOAT,
         "use per-channel scales"),
    TargetRule("whole-node-unit", "float compute between DQ and Q", _node_unit, _DOCS, Effect.FLOAT,
         "quantize every operand and the result"),
    TargetRule("clamp-behind-pair", "Relu and Clip behind an operator", _clamp_before, _HEXAGON,
         Effect.REFUSED, "quantize the result, dequantize it, clamp, and quantize again"),
    TargetRule("clip-of-two-ends", "Clip between DQ and Q", _clip_behind, _HEXAGON,
         Effect.REFUSED, "use Relu, or Max and Min with dequantized numbers"),
    TargetRule("norm-parameters", "LayerNormalization", _norm, _HOST, Effect.ELSEWHERE,
         "normalize along the last axis, with a float bias and one scale for each parameter"),
    TargetRule("no-int16", "Conv by groups, pools, Resize, DepthToSpace, HardSwish", _int16, _HOST,
         Effect.REFUSED, "use uint16, zero points shifted by 32768: the same numbers"),
    TargetRule("unsigned", "LeakyRelu, products of two types, Max, Min and Clip of int16",
        _unsigned,
         _HOST,
         Effect.ELSEWHERE, "use unsigned types, zero points shifted by half the range"),
    TargetRule("unsigned-padding", "Pad of signed types", _padding, _HOST, Effect.OTHER,
         "use unsigned types, zero points shifted by half the range"),
    TargetRule("fixed-encodings", "results of Softmax, Sigmoid, HardSigmoid and Tanh",
        _fixed_encoding,
         _HOST, Effect.OTHER,
         "use the type's smallest number as zero point, and scale 1/256 or 1/65536"),
    TargetRule("lone-transpose", "Transpose by 0, 2, 1 alone", _lone_transpose, _HOST,
        Effect.ELSEWHERE,
         "leave it to what stands before or behind"),
    TargetRule("wide-arithmetic", "results of 16 bits, MatMul of two of uint8", wide_arithmetic,
         _HOST, Effect.OTHER, "expect such differences, or use 8 bits"),
    TargetRule("moved-factor", "the second of two activations of a MatMul", moved_factor,
         f"{_HOST}: numbers more than 127 steps from the zero point saturate", Effect.OTHER,
         "put a Max with the smallest number that can be stored in front"),
    *DYNAMIC_RULES,
    *UNIT_RULES,
    *OPERATOR_RULES,
    *REFUSAL_RULES,
    *FLOAT_RULES,
)  # fmt: skip

_OF_V73 = (
    TargetRule("unsigned", "LeakyRelu, products of two types, Max, Min and Clip of int16",
         _unsigned_on_v73, f"{_HOST}, htp_arch 73", Effect.ELSEWHERE,
         "use unsigned types, zero points shifted by half the range"),
    TargetRule("wide-arithmetic", "results of 16 bits, MatMul of two of uint8",
        wide_arithmetic_of_v73,
         f"{_HOST}, htp_arch 73", Effect.OTHER, "expect such differences, or use 8 bits"),
    TargetRule("wide-weights", "weights of 16 bits", wide_weight_on_v73,
         f"{_HOST}, htp_arch 73: 'fails the backend's validation, code 3110'", Effect.ELSEWHERE,
         "store them in 8 bits, or as int16 around 0 beside activations of uint16"),
)  # fmt: skip
RULES_OF_V73: tuple[TargetRule, ...] = tuple(
    {own.name: own for own in _OF_V73}.get(rule.name, rule) for rule in RULES if rule.name != _ROOM
)
"""The same for v73 and later, which has other products of 16 bits."""
