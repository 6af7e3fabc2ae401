"""Products of activations that are quantized while the model runs: codes first, then the product.

Products that read one activation share its codes, so each becomes two nodes before kernels are
chosen: its codes, scale and zero point, and the product of these with the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Origin, Value
from qdqbridge.core.graph.operator import (
    NO_ATTRIBUTES,
    Array,
    Attributes,
    Flow,
    NoAttributes,
    Operands,
    Operator,
    Row,
)
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.accumulator import centered
from qdqbridge.core.ops.attributes import CastAttrs, ConvAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.dynamic import (
    DYNAMIC_CONV,
    DYNAMIC_DENSE,
    dynamic_codes,
    dynamic_parameters,
)
from qdqbridge.core.ops.elementwise import ADD, MUL, SUB
from qdqbridge.core.ops.stored import present
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    divided,
    fence,
    flat,
    intrinsic,
    load,
    narrowed,
    nearest,
    number,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import GRAIN, turns
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Scaled, ScaledWriter
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Extras
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace, Open, any_open
from qdqbridge.tvm.relax.kernels.products.convolution import Rows, rows_of
from qdqbridge.tvm.relax.kernels.tiles.direct import loops_of, opened, packed_weights
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from qdqbridge.tvm.relax.kernels.tiles.packing import in_tiles, pack, per_lane

_LAST = 255
_LANES = 64
_USUAL = 1e-30, 1e30
"""Scales between these are divided by with a reciprocal; see :func:`~.lanes.divided`."""
_MOST = 1 << 31
_EXACT = 1 << 24
"""The end of float32's integers."""
_REAL = CastAttrs(DType.FLOAT32)


# ---- two nodes of one ---------------------------------------------------------------------------


def _compute_dynamic_quantize(attributes: NoAttributes, operands: Operands) -> tuple[Array, ...]:
    del attributes
    (x,) = present(operands, 1)
    scale, zero_point = dynamic_parameters(x, rows=False)
    return dynamic_codes(x, scale, zero_point), scale.reshape(1), zero_point.reshape(1)


def _no_reference_compute(attributes: NoAttributes, operands: Operands) -> tuple[Array, ...]:
    raise AssertionError("it is made where it has a kernel")


DYNAMIC_CODES = Row(
    name="DynamicCodes", flow=Flow.FLOAT, attributes=NoAttributes,
    compute=_compute_dynamic_quantize, data=(0,),
)  # fmt: skip
"""``x -> codes, scale[1], zero_point[1]``."""
DYNAMIC_PRODUCT = Row(
    name="DynamicProduct", flow=Flow.FLOAT, attributes=NoAttributes, compute=_no_reference_compute,
    data=(),
)  # fmt: skip
"""``codes, scale[1], zero_point[1], w, bias -> y``."""


def codes_of(x: Value, origin: Origin) -> list[Value]:
    """Returns the codes of an activation, their scale and their zero point, as a node's results."""
    types = (
        TensorType(DType.UINT8, x.type.shape), TensorType(DType.FLOAT32, (1,)),
        TensorType(DType.INT32, (1,)),
    )  # fmt: skip
    names = ("codes", "scale", "zero_point")
    results = [Value(t, f"{x.name}_{n}") for t, n in zip(types, names, strict=True)]
    Node(DYNAMIC_CODES, NO_ATTRIBUTES, [x], results, origin)
    return results


def product_of_codes(node: Node, codes: Sequence[Value]) -> Value:
    """Returns the result of a product that has a kernel, of the codes of its activation."""
    operands = [*codes, *node.inputs[1:]]
    output = node.output
    return result(DYNAMIC_PRODUCT, NO_ATTRIBUTES, operands, output.type, node.origin, output.name)


def in_floats(node: Node) -> bool:
    """True for a convolution of dynamic codes whose sums float32 holds, in any order of terms."""
    w = node.operand(1) if node.op is DYNAMIC_CONV else None
    if w is None or w.constant is None or w.quant is None:
        return False
    if any_open(node.operand(0).type.shape) is None:
        return False  # its codes would have no kernel
    bias = node.optional(2)
    codes = centered(w.constant.numpy(), w.quant.params).astype(np.int64)
    reach = np.abs(codes).reshape(len(codes), -1).sum(axis=1).max(initial=0)
    return _LAST * int(reach) < _EXACT and (bias is None or bias.constant is not None)


def float_convolution(node: Node, codes: Sequence[Value]) -> Value:
    """Returns the result of a convolution of dynamic codes, as one of floats that are integers."""
    attributes, w, output = node.record(ConvAttrs), node.operand(1), node.output
    assert w.constant is not None and w.quant is not None
    origin, params = node.origin, w.quant.params

    def step(op: Operator, attributes: Attributes, operands: list[Value], like: Value) -> Value:
        return result(op, attributes, operands, TensorType(DType.FLOAT32, like.type.shape), origin)

    stored, scale, zero_point = codes
    real, point = (step(CAST, _REAL, [value], value) for value in (stored, zero_point))
    shifted = step(SUB, NO_ATTRIBUTES, [real, point], stored)
    kernel = constant(centered(w.constant.numpy(), params).astype(np.float32), None, w.name)
    total = step(CONV, attributes, [shifted, kernel], output)
    column = (-1, *[1] * len(attributes.strides))
    scales = params.scale.astype(np.float32)
    scales = scales.reshape(column) if scales.ndim else scales.reshape(1)
    factors = constant(scales, None, f"{w.name}_scale")
    factor = step(MUL, NO_ATTRIBUTES, [scale, factors], factors)
    y = step(MUL, NO_ATTRIBUTES, [total, factor], output)
    bias = node.optional(2)
    if bias is None or bias.constant is None:
        return y
    added = constant(bias.constant.numpy().reshape(column), None, bias.name)
    return step(ADD, NO_ATTRIBUTES, [y, added], output)


def has_kernel(node: Node, place: KernelPlace) -> bool:
    """True for a dynamically quantized product that has a kernel."""
    attributes = DYNAMIC_DENSE.of(node)
    if attributes is None or attributes.rows or rows_of(node) is None:
        return False
    bias = node.optional(2)
    if bias is not None and bias.constant is None:
        return False
    return _weight_and_sums(place.cpu, node.operand(1)) is not None


def _weight_and_sums(cpu: Cpu, w: Value) -> tuple[Array, Array] | None:
    """Returns the centred weight (N, K) and its sums; None where a sum could leave int32."""
    if w.constant is None or w.quant is None:
        return None
    params = w.quant.params
    if not params.storage_dtype.is_integer or params.storage_dtype.bits > 8:
        return None
    stored = w.constant.numpy()
    symmetric = params.symmetric and params.storage_dtype is DType.INT8
    centred = stored if symmetric else centered(stored, params).astype(np.int16)
    reach = int(np.abs(centred.astype(np.int32)).sum(axis=1, dtype=np.int64).max(initial=0))
    sums = centred.sum(axis=1, dtype=np.int64)
    return None if 2 * _LAST * reach >= _MOST else (centred, sums)


# ---- codes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DynamicCodes:
    """Codes of a tensor by its own extremes.

    Attributes:
        shape: Its extents; None for open ones.
        tasks: How many threads the work is to be spread over.
    """

    cpu: Cpu
    shape: Open
    tasks: int


def match_codes(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of the codes of an activation."""
    shape = any_open(node.operand(0).type.shape)
    if node.op is not DYNAMIC_CODES or shape is None:
        return None
    description = DynamicCodes(place.cpu, shape, place.threads)
    inputs, outputs = (node.operand(0),), tuple(node.outputs)
    return Kernel("dynamic_codes", description, build_codes, inputs, (), outputs)


def build_codes(d: DynamicCodes) -> Any:
    """Returns the PrimFunc ``(x, codes, scale, zero_point)``."""

    def body() -> None:
        names = [tirx.Var(f"n{axis}", "int64") for axis in range(len(d.shape))]
        shape = [name if e is None else e for name, e in zip(names, d.shape, strict=True)]
        x, y = T.arg("x", T.buffer(shape, "float32")), T.arg("y", T.buffer(shape, "uint8"))
        scale = T.arg("scale", T.buffer((1,), "float32"))
        zero_point = T.arg("zero_point", T.buffer((1,), "int32"))
        count: Prim = 1
        for extent in shape:
            count = extent * count
        with root():
            _DynamicCodeLoops(d, flat(x), flat(y), count).write(scale, zero_point)

    return prim_func(body)


class _DynamicCodeLoops:
    """Writes the loops: extremes of every thread's share, those of all, and the codes."""

    def __init__(self, d: DynamicCodes, x: Buffer, y: Buffer, count: Prim) -> None:
        self.d, self.x, self.y, self.count = d, x, y, count
        known = isinstance(count, int)
        self.tasks = 1 if known and count < 2 * GRAIN else d.tasks

    def write(self, scale: Buffer, zero_point: Buffer) -> None:
        ends = T.alloc_buffer((2 * self.tasks,), "float32")
        zero = tirx.const(0.0, "float32")
        with turns(self.tasks, parallel=self.tasks > 1) as task:
            self._extremes(task, ends)
        # The range holds 0 whatever the data are: DynamicQuantizeLinear wants a code for 0.0.
        low, high = zero, zero
        for task in range(self.tasks):
            low = tirx.min(load(ends, 2 * task, 1), low)
            high = tirx.max(load(ends, 2 * task + 1, 1), high)
        low, high = bound(low), bound(high)
        last = bound(fence(tirx.const(float(_LAST), "float32")))  # TVM would multiply by 1 / 255
        span = (high - low) / last
        # A tensor of zeros has no range: onnxruntime's scale is 1 then, where ONNX's formula gives
        # 0.
        store(scale, 0, tirx.Select(high <= low, tirx.const(1.0, "float32"), span), 1)
        step = bound(load(scale, 0, 1))
        place = bound(zero - low / step)
        clipped = tirx.min(tirx.max(place, zero), last)
        point = tirx.nearbyint(tirx.Select(tirx.isnan(place), last, clipped))
        store(zero_point, 0, point.astype("int32"), 1)
        shift = bound(load(zero_point, 0, 1))
        usual = tirx.all(step > _USUAL[0], step < _USUAL[1])
        with turns(self.tasks, parallel=self.tasks > 1) as task:
            if not self.d.cpu.fuses:
                self._quantize(task, step, shift, None)
                return
            # A reciprocal and one fused correction give the quotient's own bits, except near the
            # ends of float32, where the reciprocal or the remainder has lost some.
            inverse = bound(tirx.const(1.0, "float32") / step)
            with T.If(usual):
                with T.Then():
                    self._quantize(task, step, shift, inverse)
                with T.Else():
                    self._quantize(task, step, shift, None)

    def _pieces(self, task: Prim, body: Any) -> None:
        """Emits ``body(start, lanes)`` over a thread's share of the elements."""
        blocks = self.count // _LANES
        first = bound(task * blocks // self.tasks) if self.tasks > 1 else 0
        last = bound((task + 1) * blocks // self.tasks) if self.tasks > 1 else blocks
        with turns(last - first) as i:
            body((first + i) * _LANES, _LANES)
        rest = self.count % _LANES
        if isinstance(rest, int) and not rest:
            return
        mine = rest if self.tasks == 1 else tirx.Select(task == self.tasks - 1, rest, rest - rest)
        with turns(mine, blocks * _LANES) as at:
            body(at, 1)

    def _extremes(self, task: Prim, ends: Buffer) -> None:
        vectors = [T.alloc_buffer((_LANES,), "float32") for _ in range(2)]
        singles = [T.alloc_buffer((1,), "float32") for _ in range(2)]
        for vector, single in zip(vectors, singles, strict=True):
            store(vector, 0, number(0.0, "float32", _LANES), _LANES)
            store(single, 0, tirx.const(0.0, "float32"), 1)

        def piece(start: Prim, lanes: int) -> None:
            value = bound(load(self.x, start, lanes))
            rooms = vectors if lanes == _LANES else singles
            # of a comparison with what is not a number the second operand remains
            for room, pick in zip(rooms, (tirx.min, tirx.max), strict=True):
                store(room, 0, pick(value, load(room, 0, lanes)), lanes)

        self._pieces(task, piece)
        names = ("llvm.vector.reduce.fmin", "llvm.vector.reduce.fmax")
        for i, pick in enumerate((tirx.min, tirx.max)):
            found = intrinsic(names[i], "float32", load(vectors[i], 0, _LANES))
            store(ends, 2 * task + i, pick(found, load(singles[i], 0, 1)), 1)

    def _quantize(self, task: Prim, step: Prim, shift: Prim, inverse: Prim | None) -> None:
        def piece(start: Prim, lanes: int) -> None:
            value = load(self.x, start, lanes)
            reciprocal = None if inverse is None else splat(inverse, lanes)
            quotient = divided(bound(value), splat(step, lanes), reciprocal)
            whole = nearest(bound(quotient), lanes) + splat(shift, lanes)
            store(self.y, start, narrowed(bound(whole), "uint8", lanes), lanes)

        self._pieces(task, piece)


# ---- products -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DynamicProduct:
    """A product of codes whose scale and zero point are tensors."""

    direct: Direct


def match_product(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a product of codes with a constant weight."""
    if node.op is not DYNAMIC_PRODUCT:
        return None
    rows, w = rows_of(node), node.operand(3)
    found = _weight_and_sums(place.cpu, w)
    if rows is None or found is None or w.quant is None:
        return None
    centred, sums = found
    packed = pack(place.cpu, centred[None, :, None], 0, None)
    if packed is None:
        return None
    bias, units = node.optional(4), len(centred)
    form = Scaled(added=bias is not None)
    direct = rows.direct(place, units, packed.parts, form, signed=False)
    scale = np.broadcast_to(w.quant.params.scale.astype(np.float32), (units,))
    weights = in_tiles(packed.weights, direct.side_by_side)
    constants = [weights, per_lane(place.cpu, sums.astype(np.int32), 1)]
    constants.append(per_lane(place.cpu, np.ascontiguousarray(scale), 1))
    if bias is not None and bias.constant is not None:
        constants.append(per_lane(place.cpu, bias.constant.numpy(), 1))
    inner = centred.shape[1]
    return Kernel(
        f"dynamic_dense_{inner}x{units}", DynamicProduct(direct), build_product,
        tuple(node.operand(i) for i in range(3)), tuple(constants), (node.output,),
        _work(rows, inner, units),
    )  # fmt: skip


def _work(rows: Rows, inner: int, units: int) -> int:
    return 2 * (1 if rows.open else rows.count) * inner * units


def build_product(description: DynamicProduct) -> Any:
    """Returns the PrimFunc ``(codes, scale, zero_point, weights, sums, scales, bias, y)``."""
    d = description.direct
    assert isinstance(d.form, Scaled)
    added = d.form.added

    def body() -> None:
        (given, taken), batch = opened(d)
        x = T.arg("x", T.buffer(given, "uint8"))
        scale = T.arg("scale", T.buffer((1,), "float32"))
        zero_point = T.arg("zero_point", T.buffer((1,), "int32"))
        weights, sums = packed_weights(d, 0)
        scales = T.arg("scales", T.buffer((d.lanes,), "float32"))
        bias = T.arg("bias", T.buffer((d.lanes,), "float32")) if added else None
        y = T.arg("y", T.buffer(taken, "float32"))
        with root():
            start = T.alloc_buffer((d.lanes,), "int32")
            multiplier = T.alloc_buffer((d.lanes,), "float32")
            lanes = d.cpu.lanes
            code, factor = bound(load(zero_point, 0, 1)), bound(load(scale, 0, 1))
            shift = bound(code - d.cpu.dot.centre) if d.cpu.dot.centre else code
            with turns(d.lanes // lanes) as i:
                at = i * lanes
                offset = load(sums, at, lanes) * splat(-shift, lanes)
                store(start, at, offset, lanes)
                store(multiplier, at, load(scales, at, lanes) * splat(factor, lanes), lanes)
            extras = Extras(multiplier=multiplier, factors=bias)
            writer = ScaledWriter(d.cpu, Scaled(added), extras, flat(y))
            loops_of(d)(d, flat(x), flat(weights), start, code, writer).write(batch)

    return prim_func(body)
