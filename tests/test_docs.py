"""What the pages say is so: links lead somewhere, named files exist, blocks run and print that."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from tests.places import ROOT

DOCS = ROOT / "docs"
SCRIPTS = ROOT / "scripts"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", SCRIPTS / "README.md", *DOCS.rglob("*.md")]
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(
    r"`\.?/?((?:qdqbridge|tests|scripts|docs|models|examples|\.ci|\.github)/[\w./-]*)"
)


def prose(page: Path) -> str:
    """Returns a page without its blocks of code."""
    return _FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Returns the names of a page's headings, as renderers make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def named(page: Path) -> Any:
    return pytest.param(page, id=page.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("page", [*map(named, PAGES)])
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", [*map(named, PAGES)])
def test_named_files_exist(page: Path) -> None:
    for name in _PATH.findall(prose(page)):
        assert (ROOT / name).exists(), f"{page.name}: {name}"


@pytest.mark.parametrize(
    "page", [*map(named, [*PAGES, *sorted((ROOT / "qdqbridge").rglob("*.md"))])]
)
def test_what_pages_call_of_the_package_is_there(page: Path) -> None:
    for name in re.findall(r"\b(?:qb|qdqbridge)\.([a-z_]+)\(", page.read_text("utf-8")):
        assert hasattr(qb, name), f"{page.name}: qdqbridge.{name}"


def test_every_script_is_in_the_index_of_scripts() -> None:
    index = prose(SCRIPTS / "README.md")
    for script in SCRIPTS.rglob("*"):
        if script.is_file() and script.suffix in ("", ".py", ".sh"):
            assert re.search(rf"`{re.escape(script.stem)}(\.\w+)?`", index), script.name


@pytest.mark.parametrize("name", ["adding_a_rule"])
def test_blocks_run_and_print_what_the_page_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    printed, compared = "", 0
    for language, text in _FENCE.findall((DOCS / f"{name}.md").read_text("utf-8")):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, f"{name}.md", "exec"), names)
            printed = out.getvalue()
        elif language == "text":
            assert printed.splitlines() == text.splitlines()
            compared += 1
    assert compared


HOW_TO = [
    (title, language, block)
    for title, text in re.findall(
        r"^### (.+?)\n(.*?)(?=^##|\Z)", (DOCS / "how_to.md").read_text("utf-8"), re.M | re.S
    )
    for language, block in _FENCE.findall(text)
]
_LONG = ("quantize ", "blame ", "to-tvm ", "partition ", "compare ", "qb.quantize")
"""What takes seconds: these blocks run with the slow tests."""


@pytest.mark.parametrize(
    ("language", "block"),
    [
        pytest.param(
            language,
            block,
            id=title,
            marks=[pytest.mark.slow] if any(w in block for w in _LONG) else [],
        )
        for title, language, block in HOW_TO
    ],
)
def test_how_to_blocks_run(
    language: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("models", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    if language == "python":
        exec(compile(block, "how_to.md", "exec"), {"__name__": "page"})
        return
    for line in block.replace("\\\n", "").splitlines():
        command, _, otherwise = line.partition(" || ")
        name, *arguments = shlex.split(command)
        assert name == "qdqbridge"
        assert run(arguments) in ((0, 1) if otherwise else (0,)), line


def test_the_rows_on_the_page_are_those_that_a_test_adds() -> None:
    tested = (ROOT / "tests" / "core" / "ops" / "new_rows.py").read_text("utf-8")
    blocks = [text for language, text in _FENCE.findall(
        (DOCS / "adding_an_operator.md").read_text("utf-8")) if language == "python"]  # fmt: skip
    assert len(blocks) == 10
    assert all(block in tested for block in blocks)


GENERATED = (
    "docs/operators.md", "docs/rules.md", "docs/byoc_reference.md", "docs/conformance.md",
    "docs/engine_*.md", "tests/conformance/README.md", "qdqbridge/onnx_io/README.md",
)  # fmt: skip
"""Pages that a script writes whole; parts of others stand between comments."""
_TUTORIALS = ("how_to", "gallery", "deploy", "tflite", "relay", "view", "blame")
TEACHING = [
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in _TUTORIALS),
    *(ROOT / "qdqbridge" / room / "README.md" for room in ("autoquant", "tvm/byoc")),
]


def test_pages_by_hand_have_at_most_35_000_words() -> None:
    words: dict[str, int] = {}
    folders = (".github", "docs", "qdqbridge", "scripts", "tests")
    for page in (*ROOT.glob("*.md"), *(p for f in folders for p in (ROOT / f).rglob("*.md"))):
        name = page.relative_to(ROOT)
        if "node_modules" in name.parts or any(name.match(pattern) for pattern in GENERATED):
            continue
        made = r"<!-- (.+?) -->.*?<!-- end of the \1 -->"
        hand = re.sub(made, "", page.read_text("utf-8"), flags=re.DOTALL)
        words[name.as_posix()] = len(hand.split())
    assert sum(words.values()) <= 35_000, sorted((n, name) for name, n in words.items())


@pytest.mark.parametrize("page", [*map(named, TEACHING)])
def test_tutorials_and_how_tos_are_easy_to_read(page: Path) -> None:
    """Flesch's reading ease, without code and tables; a group of vowels is a syllable."""
    text = re.sub(r"`[^`]*`|^\|.*$|\]\([^)]*\)", " ", prose(page), flags=re.MULTILINE)
    text = re.sub(r"\n\s*(\n|[-*] |\d+\. )", ". ", text)
    words = re.findall(r"[a-z]+", text.lower())
    syllables = sum(
        len(re.findall(r"[aeiouy]+", re.sub(r"(?<=[^aeiouyl])e$", "", w))) or 1 for w in words
    )
    sentences = len(re.findall(r"[a-z][^.:;?!]*[.:;?!]", text, re.IGNORECASE))
    ease = 206.835 - 1.015 * len(words) / sentences - 84.6 * syllables / len(words)
    assert ease > 45, f"{page.name}: {ease:.0f}"


def script(name: str) -> ModuleType:
    """Returns a script of ``scripts/generators/`` as a module."""
    return importlib.import_module(f"scripts.generators.{name}")


@pytest.mark.parametrize("name", ["operator_table", "rules_doc", "byoc_reference"])
def test_a_generated_page_is_current(name: str) -> None:
    module = script(name)
    assert module.PAGE.read_text("utf-8") == module.page(), (
        f"run python scripts/generators/{name}.py"
    )


def test_the_pages_of_engines_are_current() -> None:
    module = script("engine_pages")
    for runtime in module.RUNTIMES:
        text = runtime.page.read_text("utf-8")
        assert text == module.page(runtime), "run python scripts/generators/engine_pages.py"


@pytest.mark.relax
def test_the_table_of_relax_operators_is_current() -> None:
    pytest.importorskip("tvm")
    module = script("support_table")
    assert module.TABLE.read_text("utf-8") == module.page(), (
        "run python scripts/generators/support_table.py"
    )


def test_the_page_of_the_interface_has_every_public_name() -> None:
    table, _, reference = (DOCS / "api.md").read_text("utf-8").partition("## Reference")
    for name in set(qb.__all__) - {"QdqBridgeError"}:
        assert re.search(rf"\b{name}\b", table), name
        assert re.search(rf"^( +- {name}|::: qdqbridge\.[\w.]+\.{name})$", reference, re.M), name


def test_the_site_has_every_page_and_no_broken_link() -> None:
    module = script("site_pages")
    navigation = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert len(navigation) == len(set(navigation))
    own = {page.relative_to(DOCS).as_posix(): page for page in DOCS.rglob("*.md")}
    pages = own | {page: ROOT / source for source, page in module.PAGES.items()}
    assert set(pages) == set(navigation)
    for name, source in pages.items():
        text = _FENCE.sub("", module.rewritten(source.read_text("utf-8"), name))
        for link in _LINK.findall(text):
            target = link.partition("#")[0]
            there = target in pages or (DOCS / target).is_file()  # a page, or a picture
            assert not target or "://" in target or there, f"{name}: {link}"


def tiny_decoder(path: Path, *, positions: bool) -> None:
    """Saves a decoder of one GroupQueryAttention with a cache, named as exporters do.

    Args:
        path: Where to.
        positions: It asks for the positions of tokens, too.
    """
    rng = np.random.default_rng(0)
    arrays = {
        "table": rng.normal(size=(32, 8)).astype(np.float32),
        "head": rng.normal(size=(8, 32)).astype(np.float32),
        "one": np.array([1], np.int64),
        "last": np.array(1, np.int64),
    }
    arrays |= {name: rng.normal(size=(8, 8)).astype(np.float32) for name in ("wq", "wk", "wv")}
    node = onnx.helper.make_node
    past, present = (
        [f"{kind}.0.{part}" for part in ("key", "value")] for kind in ("past_key_values", "present")
    )
    arrays |= {"places": rng.normal(size=(16, 8)).astype(np.float32)} if positions else {}
    x = "placed" if positions else "x"
    placed = [
        node("Gather", ["places", "position_ids"], ["place"]),
        node("Add", ["x", "place"], ["placed"]),
    ]
    nodes = [
        node("Gather", ["table", "input_ids"], ["x"]),
        *(placed if positions else ()),
        *(node("MatMul", [x, f"w{name}"], [name]) for name in "qkv"),
        node("ReduceSum", ["attention_mask", "one"], ["counts"]),
        node("Sub", ["counts", "one"], ["before"]),
        node("Cast", ["before"], ["seqlens"], to=onnx.TensorProto.INT32),
        node("Shape", ["attention_mask"], ["shape"]),
        node("Gather", ["shape", "last"], ["whole"]),
        node("Cast", ["whole"], ["total"], to=onnx.TensorProto.INT32),
        node("GroupQueryAttention", ["q", "k", "v", *past, "seqlens", "total"], ["y", *present],
             domain="com.microsoft", num_heads=1, kv_num_heads=1),
        node("MatMul", ["y", "head"], ["logits"]),
    ]  # fmt: skip
    value, whole, real = onnx.helper.make_tensor_value_info, 7, 1
    inputs = [
        value("input_ids", whole, ["batch", "sequence"]),
        value("attention_mask", whole, ["batch", "total"]),
        *([value("position_ids", whole, ["batch", "sequence"])] if positions else ()),
        *(value(name, real, ["batch", 1, "past", 8]) for name in past),
    ]
    outputs = [
        value("logits", real, ["batch", "sequence", 32]),
        *(value(name, real, ["batch", 1, "total", 8]) for name in present),
    ]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.relax
@pytest.mark.parametrize("positions", [False, True])
def test_the_loop_on_the_page_of_language_models_decodes(
    positions: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are those of the interpreter, which is given the whole text in every step."""
    pytest.importorskip("tvm")
    monkeypatch.chdir(tmp_path)
    tiny_decoder(tmp_path / "decoder.onnx", positions=positions)
    page = (DOCS / "language_models.md").read_text("utf-8")
    (block,) = (text for language, text in _FENCE.findall(page) if language == "python")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, "language_models.md", "exec"), names)
    graph, text = qb.load("decoder.onnx"), [1, 2, 3]
    empty = {
        f"past_key_values.0.{part}": np.zeros((1, 1, 0, 8), np.float32) for part in ("key", "value")
    }
    for token in names["text"]:
        tokens = {
            "input_ids": np.array([text]),
            "attention_mask": np.ones((1, len(text)), np.int64),
        }
        tokens |= {"position_ids": np.arange(len(text))[None]} if positions else {}
        assert qb.evaluate(graph, tokens | empty)["logits"][0, -1].argmax() == token
        text.append(token)
