"""The project's quantized network, compiled once for all tests of a process that only run it."""

from __future__ import annotations

from functools import cache

import qdqbridge as qb
from qdqbridge.tvm.relax.executable import Executable
from tests.places import MODELS

MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"


@cache
def digits(threads: int = 1) -> Executable:
    """The network on the host, with fast kernels; running it changes nothing of it."""
    return qb.compile(qb.load(MODEL), threads=threads)
