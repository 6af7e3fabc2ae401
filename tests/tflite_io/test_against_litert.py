"""Single operators: our reading of a TFLite file against LiteRT's own kernels.

Float results agree to a few units in the last place. Quantized ones may be one step off where
TFLite multiplies in fixed point.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, the judge")

import qdqbridge as qb
from tests.tflite_io.tflite_writer import Model

litert: Any = import_module("ai_edge_litert.interpreter")
Array = np.ndarray[Any, Any]
SEEDS = range(4)
FLOAT = "float32"
QUANTIZED = ("int8", "uint8", "int16")


class Case:
    """One operator on random data: its tensors' types follow the seed."""

    def __init__(self, seed: int, name: str, kinds: Sequence[str] = (FLOAT, "int8")) -> None:
        self.rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        self.kind = kinds[seed % len(kinds)]
        self.model = Model()
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    @property
    def quantized(self) -> bool:
        return self.kind != FLOAT

    def params(self, scale: float | None = None, zero: int | None = None) -> dict[str, Any]:
        if not self.quantized:
            return {}
        if zero is None:
            low, high = (90, 166) if self.kind == "uint8" else (-38, 38)
            zero = 0 if self.kind == "int16" else int(self.rng.integers(low, high))
        step = float(self.rng.uniform(0.01, 0.05)) if scale is None else scale
        if self.kind == "int16" and scale is None:
            step /= 128
        return {"scale": step, "zero_point": zero}

    def given(self, *shape: int, dtype: str = "", **params: Any) -> int:
        kind = dtype or self.kind
        known = params or (self.params() if kind == self.kind else {})
        index = self.model.tensor(f"x{len(self.inputs)}", shape, kind, **known)
        self.inputs.append(index)
        return index

    def weight(self, *shape: int, axis: int = 0) -> int:
        if not self.quantized:
            return self.model.constant("w", self.rng.normal(size=shape).astype(np.float32))
        scale = self.rng.uniform(0.005, 0.02, shape[axis]).astype(np.float32)
        data = self.rng.integers(-127, 128, shape).astype(np.int8)
        return self.model.constant("w", data, scale, axis)

    def bias(self, size: int, x: int, w: int) -> int:
        if not self.quantized:
            return self.model.constant("b", self.rng.normal(size=size).astype(np.float32))
        tensors = self.model.tensors
        scale = np.float32(tensors[x].scale) * np.asarray(tensors[w].scale, np.float32)
        dtype = np.int64 if self.kind == "int16" else np.int32
        return self.model.constant("b", self.rng.integers(-500, 500, size).astype(dtype), scale)

    def numbers(self, *numbers: int, dtype: Any = np.int32) -> int:
        return self.model.constant("n", np.asarray(numbers, dtype))

    def made(self, *shape: int, dtype: str = "", **params: Any) -> int:
        kind = dtype or self.kind
        known = params or (self.params(scale=0.2) if kind == self.kind else {})
        index = self.model.tensor(f"y{len(self.outputs)}", shape, kind, **known)
        self.outputs.append(index)
        return index

    def like(self, index: int) -> dict[str, Any]:
        tensor = self.model.tensors[index]
        return {"scale": tensor.scale, "zero_point": tensor.zero_point}

    def op(self, name: str, inputs: Sequence[int], options: str = "", **fields: Any) -> None:
        self.model.operator(name, inputs, self.outputs, options, **fields)

    def feed(self) -> dict[str, Array]:
        fed: dict[str, Array] = {}
        for index in self.inputs:
            tensor = self.model.tensors[index]
            if tensor.dtype == FLOAT:
                fed[tensor.name] = self.rng.normal(size=tensor.shape).astype(np.float32)
            elif tensor.dtype == "bool":
                fed[tensor.name] = self.rng.integers(0, 2, tensor.shape).astype(bool)
            elif tensor.dtype in ("int32", "int64"):
                fed[tensor.name] = self.rng.integers(-20, 20, tensor.shape).astype(tensor.dtype)
            else:
                info = np.iinfo(tensor.dtype)
                drawn = self.rng.integers(info.min, info.max + 1, tensor.shape)
                fed[tensor.name] = drawn.astype(tensor.dtype)
        return fed


def pads(seed: int) -> int:
    return seed & 1


def conv(seed: int) -> Case:
    c = Case(seed, "conv", (FLOAT, "int8", "int16"))
    stride, dilation, act = 1 + seed % 2, 1 + (seed // 2) % 2, seed % 4
    stride = 1 if dilation > 1 else stride
    x, w = c.given(1, 9, 8, 4), c.weight(6, 3, 2, 4)
    height, width = (
        (-(-9 // stride), -(-8 // stride)) if pads(seed) == 0 else
        (-(-(9 - 2 * dilation) // stride), -(-(8 - dilation) // stride))
    )  # fmt: skip
    c.made(1, height, width, 6)
    c.op(
        "CONV_2D", [x, w, c.bias(6, x, w)], "Conv2DOptions", Padding=pads(seed), StrideH=stride,
        StrideW=stride, DilationHFactor=dilation, DilationWFactor=dilation,
        FusedActivationFunction=act,
    )  # fmt: skip
    return c


def depthwise(seed: int) -> Case:
    c = Case(seed, "depthwise", (FLOAT, "int8", "int16"))
    x, w = c.given(1, 7, 8, 3), c.weight(1, 3, 3, 6, axis=3)
    c.made(1, *((4, 4) if pads(seed) == 0 else (3, 3)), 6)
    c.op(
        "DEPTHWISE_CONV_2D", [x, w, c.bias(6, x, w)], "DepthwiseConv2DOptions",
        Padding=pads(seed), StrideH=2, StrideW=2, DepthMultiplier=2, DilationHFactor=1,
        DilationWFactor=1, FusedActivationFunction=(0, 3, 1)[seed % 3],
    )  # fmt: skip
    return c


def transposed(seed: int) -> Case:
    c = Case(seed, "transposed", (FLOAT, "int8"))
    stride, size = 2 + seed % 2, 3 + (seed // 2) % 3
    w, x = c.weight(5, size, size, 4), c.given(1, 4, 5, 4)
    same = pads(seed) == 0
    out = [n * stride if same else (n - 1) * stride + size for n in (4, 5)]
    if not same and seed % 4 == 3:
        out = [n + stride - 1 for n in out]
    c.made(1, *out, 5)
    target = c.numbers(1, *out, 5)
    c.op(
        "TRANSPOSE_CONV", [target, w, x], "TransposeConvOptions", Padding=pads(seed),
        StrideH=stride, StrideW=stride,
    )  # fmt: skip
    return c


def dense(seed: int) -> Case:
    c = Case(seed, "dense", (FLOAT, "int8", "int16"))
    x = c.given(*((3, 10) if seed % 2 else (2, 3, 10)))
    if c.quantized:
        data = c.rng.integers(-127, 128, (4, 10)).astype(np.int8)
        w = c.model.constant("w", data, 0.013)
    else:
        w = c.weight(4, 10)
    keep = seed % 4 == 2
    c.made(*((3, 4) if seed % 2 else (2, 3, 4) if keep else (6, 4)))
    c.op(
        "FULLY_CONNECTED", [x, w, c.bias(4, x, w)], "FullyConnectedOptions", KeepNumDims=keep,
        FusedActivationFunction=(0, 1)[seed % 2],
    )  # fmt: skip
    return c


def batch_matmul(seed: int) -> Case:
    c = Case(seed, "batch_matmul", (FLOAT, "int8"))
    adjoint = bool(seed & 2)
    a, b = c.given(2, 3, 5), c.given(2, *((4, 5) if adjoint else (5, 4)))
    c.made(2, 3, 4)
    c.op("BATCH_MATMUL", [a, b], "BatchMatMulOptions", AdjY=adjoint)
    return c


def binary(name: str, options: str, kinds: Sequence[str] = (FLOAT, "int8")) -> Any:
    def build(seed: int) -> Case:
        c = Case(seed, name, kinds)
        a, b = c.given(2, 3, 4), c.given(*((2, 3, 4), (4,), (3, 1), (1,))[seed % 4])
        c.made(2, 3, 4)
        more = {"FusedActivationFunction": (0, 1, 3)[seed % 3]} if options in _FUSED else {}
        c.op(name, [a, b], options, **more)
        return c

    return build


_FUSED = ("AddOptions", "SubOptions", "MulOptions", "DivOptions")


def same_params(name: str, options: str) -> Any:
    """An operator whose operands and result have one quantization."""

    def build(seed: int) -> Case:
        c = Case(seed, name)
        a = c.given(2, 3, 4)
        b = c.given(2, 3, 4, **c.like(a))
        c.made(2, 3, 4, **c.like(a))
        c.op(name, [a, b], options)
        return c

    return build


def unary(
    name: str, options: str = "", kinds: Sequence[str] = (FLOAT, "int8"), *,
    positive: bool = False, scale: float | None = None, zero: int | None = None, **fields: Any,
) -> Any:  # fmt: skip
    def build(seed: int) -> Case:
        c = Case(seed, name, kinds)
        x = c.given(2, 3, 4, **(c.params(zero=-128) if positive and c.quantized else {}))
        c.made(2, 3, 4, **(c.params(scale, zero) if scale else {}))
        c.op(name, [x], options, **fields)
        return c

    return build


def pool(name: str) -> Any:
    def build(seed: int) -> Case:
        c = Case(seed, name, (FLOAT, "int8", "uint8"))
        x = c.given(1, 6, 7, 3)
        size = 2 if seed & 2 else 3
        out = (3, 4) if pads(seed) == 0 else ((6 - size) // 2 + 1, (7 - size) // 2 + 1)
        c.made(1, *out, 3, **(c.like(x) if c.quantized else {}))
        c.op(
            name, [x], "Pool2DOptions", Padding=pads(seed), StrideH=2, StrideW=2,
            FilterHeight=size, FilterWidth=size, FusedActivationFunction=0,
        )  # fmt: skip
        return c

    return build


def reduced(name: str) -> Any:
    def build(seed: int) -> Case:
        c = Case(seed, name, (FLOAT, "int8"))
        kept = bool(seed & 2)
        x = c.given(2, 4, 5, 3)
        axes = [1, 2] if seed % 4 < 2 else [-1]
        shape = [2, 4, 5, 3]
        out = [1 if i in [a % 4 for a in axes] else n for i, n in enumerate(shape)]
        if not kept:
            out = [n for i, n in enumerate(shape) if i not in [a % 4 for a in axes]]
        extreme = name in ("REDUCE_MAX", "REDUCE_MIN")
        c.made(*out, **(c.like(x) if c.quantized and extreme else {}))
        c.op(name, [x, c.numbers(*axes)], "ReducerOptions", KeepDims=kept)
        return c

    return build


def resized(name: str, options: str) -> Any:
    def build(seed: int) -> Case:
        c = Case(seed, name, (FLOAT, "int8"))
        x = c.given(1, 3, 4, 2)
        out = ((6, 8), (5, 7), (2, 3), (7, 9))[seed % 4]
        c.made(1, *out, 2, **(c.like(x) if c.quantized else {}))
        mode = {} if seed % 3 == 0 else {"HalfPixelCenters" if seed % 3 == 1 else "AlignCorners": 1}
        c.op(name, [x, c.numbers(*out)], options, **mode)
        return c

    return build


def moved(
    name: str, options: str, shape: Ints, out: Ints,
    operands: Callable[[Case], Ints] = lambda c: [], **fields: Any,
) -> Any:  # fmt: skip
    def build(seed: int) -> Case:
        c = Case(seed, name, (FLOAT, "int8"))
        x = c.given(*shape)
        c.made(*out, **(c.like(x) if c.quantized else {}))
        c.op(name, [x, *operands(c)], options, **fields)
        return c

    return build


Ints = Sequence[int]
SLICES: Sequence[tuple[Ints, Ints, Ints, Ints, dict[str, int]]] = (
    ([0, 1, 0], [2, 3, 4], [1, 1, 2], [2, 2, 2], {}),
    ([0, 0, 0], [0, 0, 0], [1, 1, 1], [2, 3, 4], {"EndMask": 7}),
    ([1, 0, 0], [2, 3, 4], [1, 1, 1], [3, 4], {"ShrinkAxisMask": 1}),
    ([-1, 0, -1], [0, 3, 0], [1, 1, 1], [3], {"ShrinkAxisMask": 5}),
    ([0, 0, 3], [2, 3, 0], [1, 1, -1], [2, 3, 3], {}),
    ([0, 0, 3], [2, 3, 0], [1, 1, -1], [2, 3, 4], {"EndMask": 4}),
    ([0, 1], [0, 3], [1, 1], [2, 3, 2], {"EllipsisMask": 1}),
    ([0, 0, 1], [0, 0, 3], [1, 1, 1], [2, 1, 2, 4], {"NewAxisMask": 2, "BeginMask": 1,
                                                      "EndMask": 1}),
)  # fmt: skip


def strided(seed: int) -> Case:
    c = Case(seed, "strided", (FLOAT, "int8"))
    begin, end, step, out, masks = SLICES[seed % len(SLICES)]
    x = c.given(2, 3, 4)
    c.made(*out, **(c.like(x) if c.quantized else {}))
    vectors = [c.numbers(*numbers) for numbers in (begin, end, step)]
    c.op("STRIDED_SLICE", [x, *vectors], "StridedSliceOptions", **masks)
    return c


def concatenated(seed: int) -> Case:
    c = Case(seed, "concat", (FLOAT, "int8"))
    a = c.given(2, 3, 4)
    b = c.given(2, 2, 4, **c.like(a)) if c.quantized else c.given(2, 2, 4)
    c.made(2, 5, 4, **(c.like(a) if c.quantized else {}))
    c.op("CONCATENATION", [a, b], "ConcatenationOptions", Axis=1)
    return c


def packed(seed: int) -> Case:
    c = Case(seed, "pack", (FLOAT, "int8"))
    a = c.given(2, 3)
    b = c.given(2, 3, **c.like(a)) if c.quantized else c.given(2, 3)
    c.made(2, 2, 3, **(c.like(a) if c.quantized else {}))
    c.op("PACK", [a, b], "PackOptions", Axis=1, ValuesCount=2)
    return c


def parts(name: str) -> Any:
    def build(seed: int) -> Case:
        c = Case(seed, name, (FLOAT, "int8"))
        x = c.given(2, 6, 4)
        like = c.like(x) if c.quantized else {}
        if name == "SPLIT":
            for _ in range(3):
                c.made(2, 2, 4, **like)
            c.op(name, [c.numbers(1), x], "SplitOptions", NumSplits=3)
        elif name == "SPLIT_V":
            for size in (1, 3, 2):
                c.made(2, size, 4, **like)
            c.op(name, [x, c.numbers(1, -1, 2), c.numbers(1)], "SplitVOptions", NumSplits=3)
        else:
            for _ in range(2):
                c.made(6, 4, **like)
            c.op(name, [x], "UnpackOptions", Num=2, Axis=0)
        return c

    return build


def integers(name: str, options: str) -> Any:
    def build(seed: int) -> Case:
        c = Case(seed, name, ("int32",))
        a = c.model.tensor("x0", (2, 3), "int32")
        c.inputs.append(a)
        b = c.model.constant("k", np.asarray([[3, -2, 5]], np.int32))
        c.outputs.append(c.model.tensor("y0", (2, 3), "int32"))
        c.op(name, [a, b], options)
        return c

    return build


def comparison(name: str, options: str) -> Any:
    def build(seed: int) -> Case:
        c = Case(seed, name, (FLOAT, "int8"))
        a = c.given(2, 3, 4)
        b = c.given(2, 3, 4, **c.like(a)) if c.quantized else c.given(2, 3, 4)
        c.made(2, 3, 4, dtype="bool")
        c.op(name, [a, b], options)
        return c

    return build


def selected(seed: int) -> Case:
    c = Case(seed, "select", (FLOAT, "int8"))
    condition = c.given(2, 3, 4, dtype="bool")
    a = c.given(2, 3, 4)
    b = c.given(2, 3, 4, **c.like(a)) if c.quantized else c.given(2, 3, 4)
    c.made(2, 3, 4, **(c.like(a) if c.quantized else {}))
    c.op("SELECT_V2", [condition, a, b], "SelectV2Options")
    return c


def requantized(seed: int) -> Case:
    c = Case(seed, "quantize", ("int8",))
    x = c.given(2, 3, 4) if seed % 2 else c.given(2, 3, 4, dtype=FLOAT)
    c.made(2, 3, 4)
    c.op("QUANTIZE", [x], "QuantizeOptions")
    return c


def dequantized(seed: int) -> Case:
    c = Case(seed, "dequantize", QUANTIZED)
    x = c.given(2, 3, 4)
    c.made(2, 3, 4, dtype=FLOAT)
    c.op("DEQUANTIZE", [x], "DequantizeOptions")
    return c


def arg_max(seed: int) -> Case:
    c = Case(seed, "argmax", (FLOAT, "int8"))
    x = c.given(2, 3, 40)
    c.made(2, 3, dtype="int64")
    name = ("ARG_MAX", "ARG_MIN")[seed // 2 % 2]
    options = ("ArgMaxOptions", "ArgMinOptions")[seed // 2 % 2]
    c.op(name, [x, c.numbers(2)], options, OutputType=4)
    return c


CASES: Mapping[str, Callable[[int], Case]] = {
    "conv": conv, "depthwise": depthwise, "transposed": transposed, "dense": dense,
    "batch_matmul": batch_matmul,
    "add": binary("ADD", "AddOptions"), "sub": binary("SUB", "SubOptions"),
    "mul": binary("MUL", "MulOptions"), "div": binary("DIV", "DivOptions", (FLOAT,)),
    "pow": binary("POW", "PowOptions", (FLOAT,)),
    "squared_difference": binary("SQUARED_DIFFERENCE", "SquaredDifferenceOptions"),
    "maximum": same_params("MAXIMUM", "MaximumMinimumOptions"),
    "minimum": same_params("MINIMUM", "MaximumMinimumOptions"),
    "floor_div": integers("FLOOR_DIV", "FloorDivOptions"),
    "floor_mod": integers("FLOOR_MOD", "FloorModOptions"),
    "abs": unary("ABS", "AbsOptions"), "neg": unary("NEG", "NegOptions", (FLOAT,)),
    "ceil": unary("CEIL", "", (FLOAT,)), "floor": unary("FLOOR", "", (FLOAT,)),
    "round": unary("ROUND", "", (FLOAT,)), "cos": unary("COS", "CosOptions", (FLOAT,)),
    "sin": unary("SIN", "", (FLOAT,)), "sign": unary("SIGN", "SignOptions", (FLOAT,)),
    "exp": unary("EXP", "ExpOptions"), "elu": unary("ELU"),
    "gelu": unary("GELU", "GeluOptions"),
    "hard_swish": unary("HARD_SWISH", "HardSwishOptions"),
    "leaky_relu": unary("LEAKY_RELU", "LeakyReluOptions", Alpha=0.125),
    "logistic": unary("LOGISTIC", scale=1 / 256, zero=-128),
    "log_softmax": unary("LOG_SOFTMAX", "LogSoftmaxOptions", scale=16 / 256, zero=127),
    "softmax": unary("SOFTMAX", "SoftmaxOptions", scale=1 / 256, zero=-128, Beta=1.0),
    "softmax_beta": unary("SOFTMAX", "SoftmaxOptions", scale=1 / 256, zero=-128, Beta=0.5),
    "tanh": unary("TANH", scale=1 / 128, zero=0),
    "relu": unary("RELU"), "relu6": unary("RELU6"), "relu_n1": unary("RELU_N1_TO_1"),
    "relu_0_to_1": unary("RELU_0_TO_1"),
    "rsqrt": unary("RSQRT", positive=True), "sqrt": unary("SQRT", "", (FLOAT,)),
    "square": unary("SQUARE", "SquareOptions", (FLOAT,)),
    "l2_normalization": unary("L2_NORMALIZATION", "L2NormOptions", scale=1 / 128, zero=0),
    "average_pool": pool("AVERAGE_POOL_2D"), "max_pool": pool("MAX_POOL_2D"),
    "mean": reduced("MEAN"), "sum": reduced("SUM"), "reduce_max": reduced("REDUCE_MAX"),
    "reduce_min": reduced("REDUCE_MIN"),
    "bilinear": resized("RESIZE_BILINEAR", "ResizeBilinearOptions"),
    "nearest": resized("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    "strided_slice": strided, "concatenation": concatenated, "pack": packed,
    "split": parts("SPLIT"), "split_v": parts("SPLIT_V"), "unpack": parts("UNPACK"),
    "reshape": moved("RESHAPE", "ReshapeOptions", (2, 3, 4), (6, 4),
                     lambda c: [c.numbers(-1, 4)]),
    "squeeze": moved("SQUEEZE", "SqueezeOptions", (2, 1, 4), (2, 4),
                     SqueezeDims=np.asarray([1], np.int32)),
    "expand_dims": moved("EXPAND_DIMS", "ExpandDimsOptions", (2, 3), (2, 3, 1),
                         lambda c: [c.numbers(-1)]),
    "transpose": moved("TRANSPOSE", "TransposeOptions", (2, 3, 4), (4, 2, 3),
                       lambda c: [c.numbers(2, 0, 1)]),
    "pad": moved("PAD", "PadOptions", (2, 3), (3, 6),
                 lambda c: [c.model.constant("p", np.asarray([[1, 0], [1, 2]], np.int32))]),
    "mirror_reflect": moved("MIRROR_PAD", "MirrorPadOptions", (4, 5), (6, 8),
                            lambda c: [c.model.constant("p", np.asarray([[1, 1], [2, 1]],
                                                                        np.int32))], Mode=0),
    "mirror_symmetric": moved("MIRROR_PAD", "MirrorPadOptions", (4, 5), (6, 8),
                              lambda c: [c.model.constant("p", np.asarray([[1, 1], [2, 1]],
                                                                          np.int32))], Mode=1),
    "slice": moved("SLICE", "SliceOptions", (4, 5), (2, 4),
                   lambda c: [c.numbers(1, 1), c.numbers(2, -1)]),
    "gather": moved("GATHER", "GatherOptions", (4, 5), (4, 3), lambda c: [c.numbers(4, 0, 2)],
                    Axis=1),
    "gather_nd": moved("GATHER_ND", "GatherNdOptions", (4, 5), (2,),
                       lambda c: [c.model.constant("i", np.asarray([[1, 2], [3, 4]], np.int32))]),
    "tile": moved("TILE", "TileOptions", (2, 3), (4, 9), lambda c: [c.numbers(2, 3)]),
    "reverse": moved("REVERSE_V2", "ReverseV2Options", (2, 3), (2, 3), lambda c: [c.numbers(1)]),
    "depth_to_space": moved("DEPTH_TO_SPACE", "DepthToSpaceOptions", (1, 2, 3, 8), (1, 4, 6, 2),
                            BlockSize=2),
    "space_to_depth": moved("SPACE_TO_DEPTH", "SpaceToDepthOptions", (1, 4, 6, 2), (1, 2, 3, 8),
                            BlockSize=2),
    "batch_to_space": moved("BATCH_TO_SPACE_ND", "BatchToSpaceNDOptions", (4, 2, 3, 2),
                            (1, 3, 6, 2), lambda c: [c.numbers(2, 2), c.model.constant(
                                "p", np.asarray([[1, 0], [0, 0]], np.int32))]),
    "space_to_batch": moved("SPACE_TO_BATCH_ND", "SpaceToBatchNDOptions", (1, 3, 6, 2),
                            (4, 2, 3, 2), lambda c: [c.numbers(2, 2), c.model.constant(
                                "p", np.asarray([[1, 0], [0, 0]], np.int32))]),
    "equal": comparison("EQUAL", "EqualOptions"),
    "not_equal": comparison("NOT_EQUAL", "NotEqualOptions"),
    "less": comparison("LESS", "LessOptions"),
    "greater_equal": comparison("GREATER_EQUAL", "GreaterEqualOptions"),
    "select": selected, "quantize": requantized, "dequantize": dequantized, "arg_max": arg_max,
}  # fmt: skip


def by_litert(path: Path, feed: Mapping[str, Array]) -> list[Array]:
    # Its reference kernels sum int8 to -1 (LiteRT 2.3) and lack Ceil, Round, Elu.
    kernels = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = litert.Interpreter(
        str(path), num_threads=1, experimental_op_resolver_type=kernels
    )
    interpreter.allocate_tensors()
    interpreter.reset_all_variables()
    for details in interpreter.get_input_details():
        interpreter.set_tensor(details["index"], feed[details["name"]])
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]).copy() for d in interpreter.get_output_details()]


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        agree(CASES[name](seed), tmp_path / f"{seed}.tflite", f"{name} {seed}")


def agree(
    case: Case, path: Path, name: str, feed: Mapping[str, Array] | None = None, *,
    apart: float = 2e-6,
) -> qb.Graph:  # fmt: skip
    """Holds one file against LiteRT, on random data where ``feed`` is none; returns the graph."""
    path.write_bytes(case.model.tobytes(case.inputs, case.outputs))
    feed = case.feed() if feed is None else feed
    wanted = by_litert(path, feed)
    graph = qb.load(path)
    found = list(qb.evaluate(graph, feed).values())
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape, name
        assert ours.dtype == theirs.dtype, name
        if ours.dtype == np.float32:
            # LiteRT adds in another order, and has exponentials of its own.
            np.testing.assert_allclose(ours, theirs, rtol=apart, atol=apart, err_msg=name)
        elif case.quantized and ours.dtype != bool:
            steps = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
            assert steps.max(initial=0) <= 1, (name, int(steps.max()))
        else:
            assert np.array_equal(ours, theirs), name
    return graph
