"""Operators of one operand on Relax; the tests are those of every host."""

from tests.dialect.unary import *  # noqa: F403
