"""Files that a stranger sends, through verbs of the command line: a code, and no remains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzzing.adversarial import adversarial
from tests.fuzzing.measured import run
from tests.fuzzing.target import put_through_verbs
from tests.onnx_models import conv_model

pytestmark = pytest.mark.filterwarnings("ignore")


def test_adversarial_files_end_in_a_code_and_leave_nothing(tmp_path: Path) -> None:
    run(conv_model().SerializeToString(), tmp_path, put_through_verbs)  # imports are not the files'
    told = {name: run(data, tmp_path, put_through_verbs) for name, data in adversarial()}
    wrong = {name: found["finding"] for name, found in told.items() if found["finding"]}
    assert not wrong, "\n".join(f"{name}: {finding[-600:]}" for name, finding in wrong.items())
    assert len(told) > 150
    refused = sum("3" in found["result"] for found in told.values())
    assert 100 < refused < len(told)
