"""These tests run where TVM has Relay (``scripts/relay_env``); elsewhere they are not collected."""

from importlib.util import find_spec

import pytest

from tests.tvm.dialect.contract import Host

_HAS_RELAY = find_spec("tvm") is not None and find_spec("tvm.relay") is not None
collect_ignore_glob = [] if _HAS_RELAY else ["test_*.py"]


@pytest.fixture
def host() -> Host:
    from tests.tvm.relay.relay_cases import TARGETS, Cases, constant

    return Host(Cases, constant, (TARGETS[0], TARGETS[1]))
