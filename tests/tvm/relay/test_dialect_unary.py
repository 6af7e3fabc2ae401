"""Operators of one operand on Relay; the tests are those of every host."""

from tests.tvm.dialect.unary import *  # noqa: F403
