"""Opens pages of ``qdqbridge view`` in chromium: how large they are, how long they take.

A frame is the median of 40 while the graph is zoomed and moved, at the first look and with all
groups open and the whole graph in sight. Run as ``python -m scripts.benches.view_times`` with
playwright and chromium installed; it prints a table and writes the pictures of ``docs/view.md``.
Further models are arguments: ``NAME=PATH``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import qdqbridge as qb
from tests.app.viewer.browser import Shown, browser, show
from tests.app.viewer.large_models import llama
from tests.app.viewer.test_page import chain

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
INT8, OTHER = (
    ROOT / "models" / f"digits_{name}.onnx"
    for name in ("attention_u8s8_per_channel", "cnn_s8s8_per_tensor")
)


def measured(started: Any, name: str, model: Path, folder: Path) -> tuple[str, Shown]:
    graph = qb.load(model)
    page = folder / f"{name.replace(' ', '_').replace(',', '')}.html"
    begin = time.perf_counter()
    qb.view(graph, path=page)
    seconds = time.perf_counter() - begin
    shown = show(started, page)
    ready = shown.page.get_attribute("html", "data-ready")
    assert not shown.said, shown.said
    size = page.stat().st_size / 1e6
    first = shown.frame()
    shown.page.click("#open")
    shown.page.click("#fit")
    shown.page.wait_for_timeout(500)
    facts = (
        name, len(graph.nodes), f"{seconds:.2f} s", f"{size:.2f} MB", f"{ready} ms",
        f"{first:.0f} ms", f"{shown.frame():.0f} ms",
    )  # fmt: skip
    return f"| {' | '.join(map(str, facts))} |", shown


def pictures(started: Any, folder: Path) -> None:
    with np.load(ROOT / "models" / "digits_test.npz") as arrays:
        data = {"input": arrays["x"][:64]}
    qb.view(INT8, path=folder / "one.html", data=data)
    one = show(started, folder / "one.html").page
    one.fill("#search", "MatMul")
    one.press("#search", "Enter")
    one.wait_for_timeout(300)
    one.screenshot(path=IMAGES / "view.png")
    qb.view(
        str(OTHER).replace("s8s8_per_tensor", "u8s8_per_channel"), OTHER, path=folder / "2.html"
    )
    two = show(started, folder / "2.html", color_scheme="dark").page
    two.click(".side >> nth=0 >> .node >> nth=2")
    two.wait_for_timeout(300)
    two.screenshot(path=IMAGES / "view_two.png")


def main() -> int:
    models = {path.stem: path for path in sorted((ROOT / "models").glob("*.onnx"))}
    models |= {name: Path(path) for name, _, path in (a.partition("=") for a in sys.argv[1:])}
    rows = [
        "| model | nodes | written in | page | drawn after | frame | frame, whole graph |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name, browser() as started:
        folder = Path(name)
        models["chain of 10,000"] = chain(folder / "chain.onnx", 10_000)
        models["language model"], count = llama(folder)
        named = {"language model": f"language model of {count / 1e9:.1f} billion parameters"}
        for title, path in track(models.items(), "pages", disable=not sys.stderr.isatty()):
            row, shown = measured(started, named.get(title, title), path, folder)
            shown.page.close()
            rows.append(row)
        pictures(started, folder)
    print(*rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
