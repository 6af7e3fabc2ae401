"""What onnxruntime's QNN provider refuses whatever the numbers are: axes, element types, ends.

Found by the tables that winml-cli measured on an NPU, and run again on the host build.
"""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import FileNode, FileView, is_dequantize, is_quantize
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule

_HOST = "onnxruntime-qnn 2.7.0, host build of Hexagon; winml-cli 0.4.0, an NPU"
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


def _norm(view: FileView, node: FileNode) -> str:
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


_IMAGE = 4


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
    "LpNormalization": _norm, "MatMul": _refuse_uint16_matmul, "Pad": _refuse_wrap_pad,
    "Pow": _power, "Resize": _resize,
    "ScatterND": _scatter, "Where": _choice,
}  # fmt: skip


REFUSAL_RULES: tuple[TargetRule, ...] = (
    TargetRule("up-to-five-axes", "operators on six axes and more", _six_axes,
           f"{_HOST}: 'Failed to add node'", Effect.ELSEWHERE,
           "join axes that stay beside each other; leave an axis of extent 1 in its place in a "
           "Transpose between two Reshapes"),
    TargetRule("cast-types", "Cast", _refuse_cast, f"{_HOST}: 'Failed to create Cast node'",
        Effect.ELSEWHERE,
           "cast from and to float32, float16, int32, uint32, uint8 or bool"),
    TargetRule("given-operands", "shapes, axes, pads, ends and the like", _given,
           f"{_HOST}: 'Cannot get shape', 'must be an initializer'", Effect.ELSEWHERE,
           "write them as initializers"),
    TargetRule("no-such-form", "Clip, convolutions, CumSum, Expand, Gather, GatherElements, Gemm, "
           "LpNormalization, MatMul, Pad, Pow, Resize, ScatterND and Where", _form,
           f"{_HOST}: 'only supports', 'Failed to add node'",
           Effect.ELSEWHERE, "write it otherwise, or leave it to the CPU"),
)  # fmt: skip
