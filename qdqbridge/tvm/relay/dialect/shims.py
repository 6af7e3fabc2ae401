"""What Relay's Python side lacks in a distribution, or does in vain.

T-Head's wheel (``hhb-tvm`` 3.2.3) has no ``relay.qnn.op.avg_pool2d`` and ``softmax``, and its
``leaky_relu`` is another operator's. ``FakeQuantizationToInteger`` calls all three, and leaves in
float what raises an error. The wrappers here are upstream's, with upstream's defaults.

A build asks TVM's library how it was compiled once for every extent of every tensor, and gets some
hundred strings each time: a quarter of the time that small networks take to build.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from tvm import relay
from tvm.relay.backend import te_compiler as _te_compiler
from tvm.relay.qnn.op import _make as _make_untyped
from tvm.relay.qnn.op import qnn

_make: Any = _make_untyped
te_compiler: Any = _te_compiler


def avg_pool2d(
    data: Any,
    input_scale: Any,
    input_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
    pool_size: Any = (1, 1),
    strides: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "NHWC",
    out_layout: str = "",
) -> Any:
    """Returns a call of ``qnn.avg_pool2d``; upstream's signature."""
    pairs = [(v, v) if isinstance(v, int) else v for v in (pool_size, strides, dilation, padding)]
    return _make.avg_pool2d(
        data,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        pairs[0],
        pairs[1],
        pairs[3],
        pairs[2],
        ceil_mode,
        count_include_pad,
        layout,
        out_layout,
    )


def softmax(
    x: Any, scale: Any, zero_point: Any, output_scale: Any, output_zero_point: Any, axis: int = -1
) -> Any:
    """Returns a call of ``qnn.softmax``; upstream's signature."""
    return _make.softmax(x, axis, scale, zero_point, output_scale, output_zero_point)


def leaky_relu(
    x: Any,
    alpha: float,
    input_scale: Any,
    input_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
) -> Any:
    """Returns a call of ``qnn.leaky_relu``; upstream's signature."""
    return _make.leaky_relu(
        x, alpha, input_scale, input_zero_point, output_scale, output_zero_point
    )


def install_shims() -> None:
    """Adds the wrappers to ``relay.qnn.op`` where they are missing or another operator's.

    What TVM's library says of itself is asked once from then on.
    """
    for function in (avg_pool2d, softmax, leaky_relu):
        present = getattr(relay.qnn.op, function.__name__, None)
        if present is None or _arity(present) != _arity(function):
            for module in (relay.qnn.op, qnn):
                setattr(module, function.__name__, function)

    if not hasattr(te_compiler.libinfo, "cache_info"):
        te_compiler.libinfo = functools.cache(te_compiler.libinfo)


def _arity(function: Any) -> int:
    return len(inspect.signature(function).parameters)
