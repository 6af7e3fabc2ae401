"""The host that tests of the dialect run on."""

import pytest
from tvm import relax

from tests.dialect.contract import Host
from tests.relax.dialect_cases import Cases
from tests.relax.targets import TARGETS


@pytest.fixture
def host() -> Host:
    return Host(Cases, relax.const, TARGETS)
