"""Why engines are wrong about conformance cases, each cause with what proves it.

A cause is a calculation: what comes out where it holds. It is proven of a case where that is what
the engine computed, bit for bit; or where the engine is right once the cause is taken away; or
where ``qdqbridge compare --local`` explains each value that differs on the engine's own operands.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from qdqbridge.app import pipeline
from qdqbridge.app.conforming import ConformanceResult
from qdqbridge.app.judging import opened
from qdqbridge.targets.conformance.case import ConformanceCase
from qdqbridge.targets.conformance.exact import TYPES, Array, ends, spread
from qdqbridge.targets.conformance.situations import cases

# ---- How engines quantize and dequantize ---------------------------------------------------------
# ``quantize(x, scale, zero, kind, precision)``: real numbers, with a scale and an int64 zero point
# for each; the type of the result; the attribute, or nothing.

Quantize: TypeAlias = Callable[[Array, Array, Array, str, str], Array]
Dequantize: TypeAlias = Callable[[Array, Array, Array, str], Array]
_F: Any = np.float32
_D: Any = np.float64


def saturated(values: Array, kind: str) -> Array:
    low, high = ends(kind)
    return np.clip(values, low, high).astype(np.int64).astype(TYPES[kind])


def away(values: Array) -> Array:
    """Rounds ties away from zero."""
    return np.sign(values) * np.floor(np.abs(values) + 0.5)


def quotient(x: Array, scale: Array, precision: str) -> Array:
    """Divides as the text says."""
    kind = TYPES[precision or scale.dtype.name]
    return (x.astype(_F).astype(kind) / scale.astype(kind)).astype(_D)


def by_the_text(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    return saturated(np.rint(quotient(x, scale, precision)) + zero, kind)


def wrapped(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    """Converts the quotient to int32 as x86 does: what does not fit is the least number."""
    rounded, least = np.rint(quotient(x, scale, precision)), -(2.0**31)
    fits = (rounded >= least) & (rounded < -least)
    return saturated(np.where(fits, rounded, least) + zero, kind)


def promoted(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    """Divides in the type that NumPy promotes both to."""
    del precision
    return saturated(np.rint((x / scale).astype(_D)) + zero, kind)


def in_float32(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    del precision
    return by_the_text(x.astype(_F), scale.astype(_F), zero, kind, "float32")


def zero_first(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    """Adds the zero point before it rounds."""
    return saturated(np.rint(quotient(x, scale, precision).astype(_F) + zero.astype(_F)), kind)


def as_codes(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    """Takes numbers for codes, as :func:`codes` gives them."""
    del scale, zero, precision
    return saturated(x, kind)


def half_up(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    return saturated(np.floor(quotient(x, scale, precision) + 0.5) + zero, kind)


def half_away(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    return saturated(away(quotient(x, scale, precision)) + zero, kind)


def by_the_reciprocal(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    del precision
    return saturated(np.rint(x.astype(_F) * (_F(1) / scale.astype(_F))) + zero, kind)


def as_litert(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    """The reciprocal in blocks of 8; behind them the quotient of doubles, ties away from zero."""
    del precision
    x, scale = x.astype(_F), scale.astype(_F)
    if (scale != scale.flat[0]).any():  # scales along an axis
        return saturated(away(x / scale) + zero, kind)
    blocks = np.arange(x.size).reshape(x.shape) < x.size // 8 * 8
    rounded = np.where(blocks, np.rint(x * (_F(1) / scale)), away(x.astype(_D) / scale.astype(_D)))
    return saturated(rounded + zero, kind)


def fake_quantized(x: Array, scale: Array, zero: Array, kind: str, precision: str) -> Array:
    """OpenVINO's FakeQuantize between the ends of the range, and its conversion to integers.

    Shifts of scales along an axis, and those without a zero point, have the result's low end in
    them, and are whole where they nearly are. Where ranges are equal and there are 65536 levels,
    none is left: the conversion alone drops fractions and wraps.
    """
    del precision
    low, high = ends(kind)
    x, scale, levels = x.astype(_F), scale.astype(_F), _F(high - low)
    least, most = (low - zero).astype(_F) * scale, (high - zero).astype(_F) * scale
    if high - low > 255 and (least == low).all() and (scale == 1).all():
        dropped = np.trunc(x + zero.astype(_F)).astype(np.int64)
        return ((dropped - low) % (high - low + 1) + low).astype(TYPES[kind])
    clipped = np.minimum(np.maximum(x, least), most)
    factor, shift = levels / (most - least), -least * levels / (most - least)
    if (scale != scale.flat[0]).any() or not (zero.any() or kind.startswith("u") or levels > 255):
        whole = np.rint(shift + _F(low))
        near = np.abs(shift + _F(low) - whole) < 1e-4  # a guard of the engine's own
        shift = np.where(near, whole, shift + _F(low)).astype(_F)
        return saturated(np.rint(clipped * factor + shift), kind)
    return saturated(np.rint(clipped * factor + shift) + low, kind)


def as_signed(values: Array) -> Array:
    """Takes the bits of uint8 for int8."""
    return values.view(np.int8)


def product(x: Array, scale: Array, zero: Array, to: str) -> Array:
    """Multiplies as the text says."""
    return ((x.astype(np.int64) - zero).astype(_F) * scale.astype(_F)).astype(TYPES[to])


def codes(x: Array, scale: Array, zero: Array, to: str) -> Array:
    del scale, zero
    return x.astype(TYPES[to])


def product_in_float32(x: Array, scale: Array, zero: Array, to: str) -> Array:
    del to
    return (x.astype(np.int64) - zero).astype(_F) * scale.astype(_F)


def difference_of_products(x: Array, scale: Array, zero: Array, to: str) -> Array:
    """Subtracts ``zero * scale`` in a fused multiplication; what is not float32 stays float32."""
    if to != "float32":
        return product_in_float32(x, scale, zero, to)
    rounded = (zero.astype(_F) * scale.astype(_F)).astype(_D)
    return (x.astype(_D) * scale.astype(_D) - rounded).astype(_F)


def of_signed_codes(x: Array, scale: Array, zero: Array, to: str) -> Array:
    """LiteRT's: codes with a sign, and ``zero * scale`` rounded by itself."""
    half = {"uint8": 128, "uint4": 8}.get(x.dtype.name, 0)
    x, zero = x.astype(np.int64) - half, zero - half
    rounded = zero.astype(_F) * scale.astype(_F)
    return (x.astype(_F) * scale.astype(_F) - rounded).astype(TYPES[to])


# ---- A case computed with one of them ------------------------------------------------------------


def operators(
    quantize: Quantize = by_the_text,
    dequantize: Dequantize = product,
    behind: frozenset[str] | None = None,
    factor: Callable[[Array], Array] = np.asarray,
    reciprocal: bool = False,
) -> list[type[OpRun]]:
    """Returns operators of ONNX's reference implementation that compute so.

    Args:
        quantize: How QuantizeLinear and the QLinear operators do it.
        dequantize: How DequantizeLinear does it.
        behind: QuantizeLinear does it where one of these tensors is its input; everywhere if None.
        factor: What codes of MatMulInteger and QLinearMatMul become first.
        reciprocal: DynamicQuantizeLinear multiplies by 1/255, and by 1 over the range.
    """

    class QuantizeLinear(OpRun):
        op_domain = ""

        def _run(
            self, x: Any, scale: Any, zero: Any = None, axis: Any = 1, saturate: Any = 1,
            block_size: Any = 0, output_dtype: Any = None, precision: Any = None,
        ) -> tuple[Array]:  # fmt: skip
            del saturate
            own = self.onnx_node.input[0]
            made = quantize if behind is None or own in behind else by_the_text
            kind = _type(output_dtype, "uint8") if zero is None else zero.dtype.name
            wide = _spread(x, scale, zero, axis, block_size)
            return (made(x, *wide, kind, _type(precision, "")),)

    class DequantizeLinear(OpRun):
        op_domain = ""

        def _run(
            self, x: Any, scale: Any, zero: Any = None, axis: Any = 1, block_size: Any = 0,
            output_dtype: Any = None,
        ) -> tuple[Array]:  # fmt: skip
            wide = _spread(x, scale, zero, axis, block_size)
            return (dequantize(x, *wide, _type(output_dtype, scale.dtype.name)),)

    class QLinearConv(OpRun):
        op_domain = ""

        def _run(
            self, x: Any, xs: Any, xz: Any, w: Any, ws: Any, wz: Any, ys: Any, yz: Any,
            bias: Any = None, **attributes: Any,
        ) -> tuple[Array]:  # fmt: skip
            lined = (-1, *[1] * (w.ndim - 1))
            terms = x.astype(_D) - xz.astype(_D), w.astype(_D) - wz.astype(_D).reshape(lined)
            del attributes  # those of the node are as they are written
            sums = _sums(self.onnx_node, *terms, *(() if bias is None else (bias.astype(_D),)))
            real = sums * xs.astype(_D) * ws.astype(_D).reshape(lined[:-1])
            return (_of_sums(quantize, real, ys, yz),)

    class QLinearMatMul(OpRun):
        op_domain = ""

        def _run(
            self, a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, ys: Any, yz: Any
        ) -> tuple[Array]:
            left, right = ((factor(v).astype(_D) - z) * s for v, z, s in ((a, za, sa), (b, zb, sb)))
            return (_of_sums(quantize, left @ right, ys, yz),)

    class MatMulInteger(OpRun):
        op_domain = ""

        def _run(self, a: Any, b: Any, za: Any = 0, zb: Any = 0) -> tuple[Array]:
            left, right = (factor(v).astype(_D) - z for v, z in ((a, za), (b, zb)))
            return ((left @ right).astype(np.int32),)

    class DynamicQuantizeLinear(OpRun):
        op_domain = ""

        def _run(self, x: Any) -> tuple[Array, Array, Array]:
            low = min(x.min(), _F(0))
            whole = max(x.max(), _F(0)) - low
            scale = np.asarray(whole * (_F(1) / _F(255)) if reciprocal else whole / _F(255))
            zero = saturated(np.rint(-low / scale), "uint8")
            codes = x * _F(255) * (_F(1) / whole) if reciprocal else x / scale
            return saturated(np.rint(codes) + zero, "uint8"), scale, zero

    return [
        QuantizeLinear, DequantizeLinear, QLinearConv, QLinearMatMul, MatMulInteger,
        DynamicQuantizeLinear,
    ]  # fmt: skip


def _sums(node: Any, *operands: Array) -> Array:
    """Convolves in doubles, with a node's attributes."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    names = ["x", "w", "b"][: len(operands)]
    double = onnx.TensorProto.DOUBLE
    graph = helper.make_graph(
        [helper.make_node("Conv", names, ["y"], **given)],
        "sums",
        [helper.make_tensor_value_info(name, double, None) for name in names],
        [helper.make_tensor_value_info("y", double, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
    found: Any = ReferenceEvaluator(model).run(None, dict(zip(names, operands, strict=True)))
    return np.asarray(found[0])


def _type(number: Any, otherwise: str) -> str:
    return str(helper.tensor_dtype_to_np_dtype(number).name) if number else otherwise


def _spread(x: Array, scale: Array, zero: Any, axis: Any, block: Any) -> tuple[Array, Array]:
    zeros = np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
    place = 1 if axis is None else int(axis)
    return spread(scale, x.shape, place, block or 0), spread(zeros, x.shape, place, block or 0)


def _of_sums(quantize: Quantize, real: Array, scale: Array, zero: Array) -> Array:
    """Rounds exact sums: doubles, whose quotients doubles have as well."""
    codes = real / scale.astype(_D)
    ones, zeros = np.ones(real.shape, _D), np.broadcast_to(zero.astype(np.int64), real.shape)
    return quantize(codes, ones, zeros, zero.dtype.name, "float64")


TYPES.setdefault("float64", np.float64)


# ---- The causes, and what proves each ------------------------------------------------------------

Proof: TypeAlias = Callable[[str, ConformanceCase, Sequence[Array]], bool]
"""Takes an engine, a case, and what the engine computed of it."""


def predicted(*ways: Mapping[str, Any]) -> Proof:
    """Returns a proof: one of these calculations gives what the engine computed."""

    def proof(engine: str, case: ConformanceCase, found: Sequence[Array]) -> bool:
        del engine
        return any(_equal(_computed(case, operators(**way)), found) for way in ways)

    return proof


def fused(quantize: Quantize) -> Proof:
    """Returns a proof: of onnxruntime, what stands behind an Add or a Mul is quantized so."""

    def proof(engine: str, case: ConformanceCase, found: Sequence[Array]) -> bool:
        del engine
        nodes = case.body.model.graph.node
        behind = frozenset(node.output[0] for node in nodes if node.op_type in ("Add", "Mul"))
        return _equal(_computed(case, operators(quantize, behind=behind)), found)

    return proof


def remover(engine: str, case: ConformanceCase, found: Sequence[Array]) -> bool:
    """Of onnxruntime: without DoubleQDQPairsRemover it is right, with it it computes this."""
    del engine
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    outputs: list[list[Array]] = []
    for disabled in ([], ["DoubleQDQPairsRemover"]):
        session: Any = ort.InferenceSession(
            case.body.model.SerializeToString(), options, disabled_optimizers=disabled
        )
        outputs.append(list(session.run(None, dict(case.body.inputs))))
    return _equal(outputs[0], found) and _equal(outputs[1], case.body.allowed[0][1])


def without_condition(engine: str, case: ConformanceCase, found: Sequence[Array]) -> bool:
    """Of ONNX's reference implementation: a Loop with the condition True is right."""
    del engine, found
    model = onnx.ModelProto()
    model.CopyFrom(case.body.model)
    model.graph.initializer.append(helper.make_tensor("always", onnx.TensorProto.BOOL, (), [True]))
    for node in model.graph.node:
        if node.op_type == "Loop":
            node.input[1] = "always"
    return _equal(_run(model, case, []), case.body.allowed[0][1])


def clamped_codes(engine: str, case: ConformanceCase, found: Sequence[Array]) -> bool:
    """Of OpenVINO: the ends of a clamp become codes, whose fractions are dropped."""
    del engine
    known = {t.name: onnx.numpy_helper.to_array(t) for t in case.body.model.graph.initializer}
    (x,) = case.body.inputs.values()
    low, high = (known[end] / known["in_scale"] + known["in_zero"] for end in ("low", "high"))
    return _equal([np.trunc(np.clip(x, low, high)).astype(x.dtype)], found)


def explained(engine: str, case: ConformanceCase, found: Sequence[Array]) -> bool:
    """Returns whether ``qdqbridge compare --local`` explains every value that differs."""
    del found
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "model.onnx"
        path.write_bytes(case.body.fixed())
        graph = pipeline.load(path)
        ours: Any = graph
        if engine in ("litert", "tosa"):
            ours, theirs = pipeline.litert(graph, engine=engine)
        else:
            theirs = stack.enter_context(opened(engine, path, graph))
        told = pipeline.compare(ours, theirs, dict(case.body.inputs), local=True)
        return bool(told.values) and not told.unexplained and not told.misread


def _computed(case: ConformanceCase, ops: list[type[OpRun]]) -> list[Array] | None:
    try:
        return _run(case.body.model, case, ops)
    except Exception:  # an operator that these do not compute: another proof has to do
        return None


def _run(model: onnx.ModelProto, case: ConformanceCase, ops: list[type[OpRun]]) -> list[Array]:
    session: Any = ReferenceEvaluator(model, new_ops=ops)
    with np.errstate(all="ignore"):
        return list(session.run(None, dict(case.body.inputs)))


def _equal(some: Sequence[Array] | None, others: Sequence[Array]) -> bool:
    return some is not None and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(some, others, strict=True)
    )


@dataclass(frozen=True)
class Cause:
    """Why cells are wrong.

    Attributes:
        letter: What cells say.
        engines: Whose.
        cases: Patterns of the names of cases.
        said: The cause.
        proof: What proves it; None where nothing does yet.
    """

    letter: str
    engines: tuple[str, ...]
    cases: tuple[str, ...]
    said: str
    proof: Proof | None


_HEXAGON = ("qnn-htp", "qnn-htp-v73")
_OPTIMIZED = ("onnxruntime-optimized", "onnxruntime-avx2", "onnxruntime-web", "onnxruntime-arm",
              "onnxruntime-optimized, exported")  # fmt: skip
_TFLITE = ("litert", "tosa")
CAUSES = (
    Cause("q", ("onnx.reference",), ("quantize_far*", "quantize_infinity*"),
          "the quotient becomes int32 before it is clipped, and wraps",
          predicted({"quantize": wrapped})),
    Cause("t", ("onnx.reference", "tvm-importer"),
          ("quantize_mixed_types*", "quantize_float32_by_float16*"),
          "divides in the wider of the two types, not in that of y_scale",
          predicted({"quantize": promoted}, {"quantize": in_float32})),
    Cause("i", ("onnx.reference",), ("quantize_large_int32*",),
          "int32 is divided in float64", predicted({"quantize": promoted})),
    Cause("l", ("onnx.reference",), ("body_*_loop",),
          "a Loop without a condition runs no iteration", without_condition),
    Cause("z", ("onnx.reference",), ("qlinear*",),
          "rounds after it adds the zero point: ties beside an odd one go to the other number",
          predicted({"quantize": zero_first})),
    Cause("d", ("onnxruntime-basic", *_OPTIMIZED, *_HEXAGON), ("fake_quantize*",),
          "DoubleQDQPairsRemover: two pairs of roundings become one", remover),
    Cause("p", ("onnxruntime-avx2",), ("conv*", "qlinearconv*", "matmulinteger_large*"),
          "pairs of products of bytes are added in 16 bits, which saturate", explained),
    Cause("j", ("onnxruntime-arm",),
          ("arithmetic_between*", "shared_dequantize*", "quantize_constant*"),
          "QLinearAdd and QLinearMul round halves away from zero", fused(half_away)),
    Cause("r", _OPTIMIZED, ("arithmetic_between*", "shared_dequantize*", "quantize_constant*"),
          "QLinearAdd and QLinearMul, made of DQ, Add or Mul, Q, add the zero point before they "
          "round: ties beside an odd one go to the other number", fused(zero_first)),
    Cause("h", ("onnxruntime-web", "iree"),
          ("quantize_*float16*", "quantize_precision*", "quantize_mixed_types*",
           "dequantize_float_types*"),
          "computes in float32 what the text computes in float16 or bfloat16",
          predicted({"quantize": in_float32, "dequantize": product_in_float32})),
    Cause("w", ("onnxruntime-web", "litert"), ("quantize_far*", "quantize_infinity*"),
          "the quotient becomes int32 before it is clipped, and wraps",
          predicted({"quantize": wrapped})),
    Cause("o", ("openvino",), ("quantize_saturates_after_zero_point*uint16", "*int16_1_0"),
          "of 16 bits with scale 1 and no zero point no FakeQuantize is left: the conversion "
          "drops fractions, and wraps",
          predicted({"quantize": fake_quantized})),
    Cause("x", ("openvino",), ("dequantize*",),
          "computes x · scale - (zero_point · scale), or float32 where the text has bfloat16",
          predicted({"dequantize": difference_of_products})),
    Cause("s", ("litert",), ("dequantize*",),
          "codes get a sign, and zero_point · scale is rounded by itself",
          predicted({"dequantize": of_signed_codes})),
    Cause("e", ("openvino",), ("dynamic_quantize*",),
          "multiplies the range by 1/255, and x · 255 by 1 over the range",
          predicted({"reciprocal": True})),
    Cause("f", ("openvino",), ("*",),
          "a FakeQuantize stands for QuantizeLinear: it adds the zero point before it rounds, "
          "multiplies by levels / (high - low), and adds a shift, in float32",
          predicted({"quantize": fake_quantized})),
    Cause("y", ("openvino",), ("clamp_between*same_grid",),
          "of a clamp between two pairs of one grid the conversion drops the fractions of the "
          "ends", clamped_codes),
    Cause("a", ("litert",), ("quantize_*", "clamp_before_quantize*"),
          "multiplies by the reciprocal of y_scale; what is left over from vectors, and scales of "
          "an axis, round halves away from zero",
          predicted({"quantize": as_litert})),
    Cause("m", ("tosa",), ("quantize_*", "clamp_before_quantize*"),
          "multiplies by the reciprocal of y_scale", predicted({"quantize": by_the_reciprocal})),
    Cause("g", _TFLITE, ("*",),
          "multipliers are fixed-point numbers of 31 bits, and rounded half up or away from zero",
          explained),
    Cause("v", _HEXAGON, ("move_between*space_to_depth*",),
          "SpaceToDepth moves codes and gives them the encoding of the result",
          predicted({"quantize": as_codes, "dequantize": codes})),
    Cause("u", _HEXAGON, ("*",), "rounds halves up", predicted({"quantize": half_up})),
    Cause("b", _HEXAGON, ("conv_qdq_bias*",),
          "an Add of a stored bias behind the convolution is computed as another operator", None),
    Cause("k", _HEXAGON, ("*",),
          "kernels of the NPU round in ways of their own, at most a few steps off", None),
    Cause("n", ("iree",), ("matmulinteger*", "qlinearmatmul*"),
          "unsigned codes are multiplied as signed ones", predicted({"factor": as_signed})),
)  # fmt: skip
"""The first one that is proven of a case; else the first that fits."""


@cache
def _by_name() -> dict[str, ConformanceCase]:
    return {case.name: case for case in cases()}


def cause_of(engine: str, result: ConformanceResult) -> tuple[str, bool]:
    """Returns the letter of what makes an engine wrong about a case, and whether it is proven.

    Raises:
        LookupError: No row of ``CAUSES`` fits: look what it is.
    """
    fitting = list(_fitting(engine, result.name))
    case = _by_name()[result.name]
    for cause in fitting:
        if cause.proof is not None and cause.proof(engine, case, result.computed):
            return cause.letter, True
    if not fitting:
        raise LookupError(f"nobody has said why {engine} is wrong about {result.name}")
    return next((c.letter for c in fitting if c.proof is None), fitting[0].letter), False


def _fitting(engine: str, name: str) -> Iterator[Cause]:
    for cause in CAUSES:
        if engine in cause.engines and any(fnmatchcase(name, each) for each in cause.cases):
            yield cause
