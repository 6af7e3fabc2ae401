"""What the page looks like: pictures of it beside those that are kept.

A kept picture is the mean colours of 30 by 40 parts, so that other fonts or another edge smoothing
change it little; boxes that move, colours that change or edges that are missing change it much.
``QDQBRIDGE_KEEP_PICTURES=1 pytest tests/app/viewer/test_pictures.py`` keeps new ones.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from tests.app.viewer.browser import browser, needs_browser, show
from tests.places import MODELS

pytestmark = needs_browser
KEPT = Path(__file__).resolve().parent / "pictures.npz"
INT8, OTHER, ATTENTION = (
    MODELS / f"digits_{name}.onnx"
    for name in ("cnn_u8s8_per_channel", "cnn_s8s8_per_tensor", "attention_u8s8_per_channel")
)
MEAN, WORST = 1.0, 40.0
"""Of 255: how far colours may be apart, in the mean and in one part. Measured: a serif font in all
boxes moves the mean by 0.3 and a part by 16; another model of the same look, by 2 and by 70."""


SIZE = 30, 40
MEANS = """async ([picture, height, width]) => {
    const image = new Image();
    image.src = 'data:image/png;base64,' + picture;
    await image.decode();
    const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
    context.drawImage(image, 0, 0);
    const seen = context.getImageData(0, 0, image.width, image.height).data;
    const rows = Math.floor(image.height / height), columns = Math.floor(image.width / width);
    const means = new Array(height * width * 3).fill(0);
    for (let y = 0; y < rows * height; y++)
        for (let x = 0; x < columns * width; x++)
            for (let colour = 0; colour < 3; colour++)
                means[(Math.floor(y / rows) * width + Math.floor(x / columns)) * 3 + colour]
                    += seen[(y * image.width + x) * 4 + colour] / (rows * columns);
    return means;
}"""
"""The mean colours of equal parts of a picture: what fonts and edges do is lost."""


@pytest.fixture(scope="module")
def chromium() -> Generator[Any, None, None]:
    with browser() as started:
        yield started


def _plain(page: Any) -> None:
    del page


def _chosen(page: Any) -> None:
    page.fill("#search", "Conv")
    page.press("#search", "Enter")


PICTURES: dict[str, tuple[tuple[Path, ...], str, Callable[[Any], None]]] = {
    "cnn": ((INT8,), "light", _plain),
    "cnn dark": ((INT8,), "dark", _plain),
    "found and chosen": ((INT8,), "light", _chosen),
    "attention": ((ATTENTION,), "light", _plain),
    "two": ((INT8, OTHER), "light", _plain),
}


def picture(chromium: Any, folder: Path, name: str) -> np.ndarray:
    models, scheme, act = PICTURES[name]
    qb.view(*models, path=folder / "page.html")
    shown = show(chromium, folder / "page.html", color_scheme=scheme, reduced_motion="reduce")
    act(shown.page)
    shown.page.wait_for_timeout(500)
    seen = base64.b64encode(shown.page.screenshot()).decode()
    shown.page.close()
    page = chromium.new_page()
    means = page.evaluate(MEANS, [seen, *SIZE])
    page.close()
    return np.reshape(means, (*SIZE, 3))


@pytest.fixture(scope="module")
def pictured(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    return cache(lambda name: picture(chromium, tmp_path_factory.mktemp("page"), name))


@pytest.mark.parametrize("name", PICTURES)
def test_the_page_looks_as_it_did(pictured: Callable[[str], Any], name: str) -> None:
    seen = pictured(name)
    if os.environ.get("QDQBRIDGE_KEEP_PICTURES"):
        kept: dict[str, Any] = dict(np.load(KEPT)) if KEPT.exists() else {}
        kept[name] = np.rint(seen).astype(np.uint8)
        np.savez_compressed(KEPT, **kept)
    with np.load(KEPT) as pictures:
        gap = np.abs(seen - pictures[name])
    assert gap.mean() < MEAN
    assert gap.max() < WORST


def test_another_picture_is_another_one(pictured: Callable[[str], Any]) -> None:
    """The tolerance tells apart what it has to: another model, and other colours."""
    seen = pictured("cnn")
    with np.load(KEPT) as kept:
        for name in ("cnn dark", "attention", "two"):
            gap = np.abs(seen - kept[name])
            assert gap.mean() >= MEAN
            assert gap.max() >= WORST
