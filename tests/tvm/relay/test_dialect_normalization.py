"""Softmax and the normalizations on Relay; the tests are those of every host."""

from tests.tvm.dialect.normalization import *  # noqa: F403
