"""A real browser: Debian's chromium, headless. Where there is none, its tests are left out."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt install chromium")


@dataclass
class Shown:
    """A page in the browser.

    Attributes:
        page: Playwright's page.
        said: What its console said, and requests that left the file.
    """

    page: Any
    said: list[str] = field(default_factory=list[str])

    def texts(self, selector: str) -> list[str]:
        """Returns the texts of what a selector finds."""
        return self.page.locator(selector).all_inner_texts()

    def drawn(self, selector: str, count: int) -> None:
        """Waits until ``count`` elements are drawn: the page draws with its next frame.

        Raises:
            TimeoutError: Of playwright: there never are so many.
        """
        self.page.wait_for_function(
            "([selector, count]) => document.querySelectorAll(selector).length === count",
            arg=[selector, count],
            timeout=30_000,
        )

    def frame(self) -> float:
        """Returns how long a frame takes while the graph is zoomed and moved, in ms: the median."""
        return self.page.evaluate(_FRAMES)


_FRAMES = """async () => {
    const times = [], picture = document.querySelector('.picture');
    const at = i => ({bubbles: true, cancelable: true, view: window, clientX: 400 + 5 * i,
        clientY: 300 + 8 * i});
    const timed = async event => {
        const begin = performance.now();
        event();
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - begin);
    };
    for (let i = 0; i < 20; i++) {
        const wheel = {...at(0), deltaY: i % 2 ? -30 : 30};
        await timed(() => picture.dispatchEvent(new WheelEvent('wheel', wheel)));
    }
    picture.dispatchEvent(new MouseEvent('mousedown', at(0)));
    for (let i = 0; i < 20; i++) {
        await timed(() => window.dispatchEvent(new MouseEvent('mousemove', at(i % 10))));
    }
    window.dispatchEvent(new MouseEvent('mouseup', at(0)));
    return times.sort((a, b) => a - b)[20];
}"""


@contextmanager
def browser() -> Generator[Any, None, None]:
    """Yields a browser."""
    sync_api: Any = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


def show(browser: Any, path: Path, **options: Any) -> Shown:
    """Opens a page and waits until it has drawn."""
    page = browser.new_page(viewport={"width": 1200, "height": 800}, **options)
    shown = Shown(page)
    page.on("console", lambda message: shown.said.append(message.text))
    page.on("pageerror", lambda error: shown.said.append(str(error)))
    page.on("request", lambda asked: asked.url.startswith("file:") or shown.said.append(asked.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    page.wait_for_selector(".boxes .box, .far path", state="attached")
    return shown
