"""Softmax and the normalizations on Relax; the tests are those of every host."""

from tests.dialect.normalization import *  # noqa: F403
