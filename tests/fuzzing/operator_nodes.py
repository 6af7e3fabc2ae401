"""The nodes that random graphs of ONNX's operators are made of, a function for each kind."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzzing.graph_grower import Draft, Grower
from tests.fuzzing.operators.control_flow import branch, loop, scan
from tests.fuzzing.operators.elementwise import binary, cast, clip, unary, where
from tests.fuzzing.operators.indexing import (
    eye,
    gather,
    gather_elements,
    gather_nd,
    one_hot,
    picked,
    range_,
    scatter,
    trilu,
)
from tests.fuzzing.operators.norms import norm, softmax
from tests.fuzzing.operators.products import einsum, gemm, matmul
from tests.fuzzing.operators.quantization import (
    dequantized,
    dynamic,
    integer_product,
    quantized,
    quantized_product,
)
from tests.fuzzing.operators.reductions import arg, reduction, running, top
from tests.fuzzing.operators.shapes import (
    concat,
    depth_space,
    expand,
    flatten,
    pad,
    reshape,
    reverse,
    shape,
    shape_arithmetic,
    slice_,
    split,
    squeeze,
    tile,
    transpose,
    unsqueeze,
)
from tests.fuzzing.operators.windows import conv, conv_transpose, pool, resize

Kind = Callable[[Grower], Draft | None]


MAKERS: tuple[Kind, ...] = (
    *(unary,) * 8, *(binary,) * 10, *(where,) * 2, *(clip,) * 2, *(reduction,) * 5, *(arg,) * 2,
    running, *(top,) * 2, *(reshape,) * 4, *(shape,) * 2, shape_arithmetic, *(expand,) * 2,
    *(squeeze,) * 2, *(unsqueeze,) * 2, *(flatten,) * 2, *(transpose,) * 4, *(slice_,) * 4,
    *(pad,) * 3, *(split,) * 2, *(concat,) * 3, *(tile,) * 2, *(gather,) * 3,
    *(gather_elements,) * 2, *(gather_nd,) * 2, *(scatter,) * 3, one_hot, trilu, range_,
    *(picked,) * 2, eye, reverse, depth_space, *(cast,) * 5, *(matmul,) * 3, *(gemm,) * 2,
    *(einsum,) * 2, *(conv,) * 2, conv_transpose, *(pool,) * 3, *(resize,) * 2, *(norm,) * 3,
    *(softmax,) * 2, *(quantized,) * 8, *(dequantized,) * 2, dynamic, integer_product,
    *(quantized_product,) * 4, branch, loop, scan,
)  # fmt: skip
"""What has many forms is there several times."""
