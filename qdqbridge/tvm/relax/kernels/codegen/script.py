"""TVM's builder of TIR, which has no types worth checking, and the frame of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from tvm.script import ir_builder
from tvm.tirx.script.builder import ir

from qdqbridge.tvm.relax.kernels.codegen.passes import KERNEL

T: Any = ir
"""The statements of TIR."""


def prim_func(body: Callable[[], None]) -> Any:
    """Returns the PrimFunc whose arguments and statements ``body`` emits."""
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_attr({"tirx.noalias": True, KERNEL: True})
        body()
    return builder.get()


@contextmanager
def root() -> Generator[None]:
    """Opens the block that is a whole kernel.

    Nobody asks what it reads and writes, so it says nothing of that: where a block leaves it open,
    TVM 0.27 looks for it, two seconds in a product of open extents.
    """
    with T.sblock("root"):
        T.reads()
        T.writes()
        yield
