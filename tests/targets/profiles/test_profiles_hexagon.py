"""What profile ``qnn`` says of forms of operators that Hexagon takes, and of those it does not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqbridge.app.pipeline import check
from qdqbridge.targets.profiles.finding import Effect, Finding
from tests.onnx_io.hexagon_forms import REFUSED, TAKEN, int8_by_int16_padded

REFUSALS = (Effect.REFUSED, Effect.ELSEWHERE)


def findings(model: onnx.ModelProto, folder: Path) -> list[Finding]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return check(path, "qnn")


@pytest.mark.parametrize("form", TAKEN)
def test_what_is_taken_is_not_called_refused(form: str, tmp_path: Path) -> None:
    found = findings(TAKEN[form], tmp_path)
    assert not {f.rule for f in found if f.effect in REFUSALS}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_refused_is_named(form: str, tmp_path: Path) -> None:
    rule, model = REFUSED[form]
    assert rule in {f.rule for f in findings(model, tmp_path) if f.effect in REFUSALS}


def test_a_rule_says_other_numbers_where_these_are_what_comes_of_it(tmp_path: Path) -> None:
    (found,) = findings(int8_by_int16_padded(), tmp_path)
    assert (found.rule, found.effect) == ("wide-weights", Effect.OTHER)
