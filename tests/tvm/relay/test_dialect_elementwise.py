"""qnn.add and its relatives on Relay; the tests are those of every host."""

from tests.tvm.dialect.elementwise import *  # noqa: F403
