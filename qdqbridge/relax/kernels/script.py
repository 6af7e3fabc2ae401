"""TVM's builder of TIR, which has no types worth checking, and the frame of every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import ir_builder
from tvm.tirx.script.builder import ir

T: Any = ir
"""The statements of TIR."""


def prim_func(body: Callable[[], None]) -> Any:
    """Returns the PrimFunc whose arguments and statements ``body`` emits."""
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True})
        body()
    return builder.get()
