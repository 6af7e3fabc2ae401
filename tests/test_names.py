"""Names: a class has one of its own, and no module, class or function has a private word for it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from tests.places import MODELS
from tests.syntax import FILES, PACKAGE, tree

MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"
PRIVATE = frozenset(
    ("carried", "chains", "claim", "claimed", "claims", "composed", "filling", "given", "joins",
     "mover", "movers", "moving", "own", "picking", "placing", "rearranging", "reroll", "rerolled",
     "settle", "settled", "shaping", "sides", "spelled", "spelling", "spellings", "thing", "things",
     "told", "turned", "turning", "wholes")
)  # fmt: skip
"""Words of ours for what the field has words for: docs/glossary.md says which."""
PHRASES = {"_ComparedSides", "absorb_both_sides", "linear_sides"}
"""Names in which such a word means what it means everywhere."""

Definition: TypeAlias = "ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef"


def definitions(node: ast.AST) -> Iterator[Definition]:
    """Yields what a module and its classes define, not what functions define for themselves."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from definitions(child)


def private_words(name: str) -> set[str]:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return {part.lower() for part in parts} & PRIVATE


def test_a_class_name_says_which_class_it_is():
    names = Counter(
        d.name for path in FILES for d in definitions(tree(path)) if isinstance(d, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_modules_have_the_words_of_the_field():
    parts = [path.relative_to(PACKAGE).with_suffix("").parts for path in FILES]
    assert [names for names in parts if any(map(private_words, names))] == []


def test_classes_and_public_functions_have_the_words_of_the_field():
    found = [
        f"{path.relative_to(PACKAGE)}:{d.lineno} {d.name}"
        for path in FILES
        for d in definitions(tree(path))
        if (isinstance(d, ast.ClassDef) or not d.name.startswith("_")) and d.name not in PHRASES
        if private_words(d.name)
    ]
    assert found == []


@pytest.mark.parametrize("name", ["mover", "settle_storage", "_Sides", "KernelClaims"])
def test_a_private_word_is_seen(name: str):
    assert private_words(name)


def test_old_names_of_patterns_work_and_warn():
    from qdqbridge.tvm import byoc

    with pytest.warns(DeprecationWarning, match="byoc.Call is CallPattern now"):
        assert getattr(byoc, "Call") is byoc.CallPattern  # noqa: B009
    with pytest.raises(AttributeError, match="has no attribute 'Calls'"):
        getattr(byoc, "Calls")  # noqa: B009


def test_the_old_name_of_data_movement_records_works_and_warns():
    from qdqbridge.tvm.byoc import Constraints, Limits, records

    with pytest.warns(DeprecationWarning, match=r"records.Mover is DataMovement now"):
        assert getattr(records, "Mover") is records.DataMovement  # noqa: B009
    with pytest.warns(DeprecationWarning, match="'mover' is 'data_movement' now") as told:
        constraints = Constraints(families={"mover": Limits(batch=1)})
    assert told[0].filename == __file__
    assert constraints.of(records.DataMovement.family).batch == 1
    assert records.DataMovement.family == "data_movement"
