"""The host that tests of the dialect run on."""

import pytest
from tvm import relax

from tests.tvm.dialect.contract import Host
from tests.tvm.relax.dialect_cases import Cases
from tests.tvm.relax.targets import TARGETS


@pytest.fixture
def host() -> Host:
    return Host(Cases, relax.const, TARGETS)
