"""Operators of one operand on Relay; the tests are those of every host."""

from tests.dialect.unary import *  # noqa: F403
