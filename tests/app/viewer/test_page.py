"""The page of ``view`` in a real browser: it opens, finds, shows, follows the keyboard, prints."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from tests.app.viewer.browser import browser, needs_browser, show
from tests.places import MODELS

pytestmark = needs_browser
INT8, OTHER = (
    MODELS / "digits_cnn_u8s8_per_channel.onnx",
    MODELS / "digits_cnn_s8s8_per_tensor.onnx",
)
HOSTILE = "</script><img src=x onerror=alert(1)>--><!--"


@pytest.fixture(scope="module")
def chromium() -> Generator[Any, None, None]:
    with browser() as started:
        yield started


def chain(path: Path, length: int, name: str = "node") -> Path:
    kinds = ("Sigmoid", "Relu")
    nodes = [
        helper.make_node(kinds[i % 2], [f"v{i}"], [f"v{i + 1}"], name=f"{name}_{i}")
        for i in range(length)
    ]
    ports = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [1, 8]) for i in (0, length)]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_every_node_is_there_and_nothing_is_asked_of_the_network(
    chromium: Any, tmp_path: Path
) -> None:
    graph = qb.load(INT8)
    qb.view(INT8, path=tmp_path / "page.html")
    shown = show(chromium, tmp_path / "page.html")
    drawn = [
        text.partition("\n")[0] for text in shown.page.locator(".node text").all_text_contents()
    ]
    assert sorted(drawn) == sorted(node.op.name for node in graph.nodes)
    assert shown.said == []
    assert shown.page.locator(f"text={graph.digest}").count() == 1


def test_search_finds_and_a_click_shows_parameters_and_histograms(
    chromium: Any, tmp_path: Path
) -> None:
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:8]}
    qb.view(INT8, path=tmp_path / "page.html", data=data)
    shown = show(chromium, tmp_path / "page.html")
    convolutions = [node for node in qb.load(INT8).nodes if node.op.name == "Conv"]
    shown.page.fill("#search", "conv uint8")
    assert shown.page.inner_text("#results") == f"{len(convolutions)} found"
    shown.drawn(".found", len(convolutions))
    shown.page.press("#search", "Enter")
    assert shown.page.inner_text("#panel h2") == "Conv"
    panel = shown.page.inner_text("#panel")
    assert convolutions[0].name in panel
    assert "int8 quantized per channel along axis 0" in panel
    assert shown.page.locator("#panel figure").count() >= 3  # activation, weight, result
    assert "of a run" in panel
    assert "weights" in panel
    shown.page.click("#panel button.link >> nth=-1")
    assert shown.page.inner_text("#panel h2") != ""
    assert shown.said == []


def test_the_keyboard_walks_the_graph(chromium: Any, tmp_path: Path) -> None:
    qb.view(INT8, path=tmp_path / "page.html")
    shown = show(chromium, tmp_path / "page.html")
    shown.page.focus(".picture")
    labels: list[str] = []
    for _ in range(3):
        shown.page.keyboard.press("ArrowDown")
        labels.append(shown.page.evaluate("document.activeElement.getAttribute('aria-label')"))
    assert [label.partition(" ")[0] for label in labels] == ["Conv", "Conv", "Conv"]
    assert all("integer" in label for label in labels)
    shown.page.keyboard.press("Enter")
    assert shown.page.inner_text("#panel h2") == "Conv"
    shown.page.keyboard.press("/")
    assert shown.page.evaluate("document.activeElement.id") == "search"
    names = shown.page.evaluate(
        "[...document.querySelectorAll('button, input, select')]"
        ".filter(e => !(e.textContent || e.ariaLabel || e.labels?.length)).length"
    )
    assert names == 0  # everything that can be operated has a name


def test_two_models_are_shown_with_what_corresponds(chromium: Any, tmp_path: Path) -> None:
    made = qb.view(INT8, OTHER, path=tmp_path / "page.html")
    shown = show(chromium, tmp_path / "page.html")
    assert shown.texts(".side-name") == [INT8.name, OTHER.name]
    assert shown.page.locator("#panel .differences li").count() == len(made.differences) > 0
    shown.page.click(".side >> nth=0 >> .node >> nth=1")
    shown.drawn(".box.chosen", 2)  # in both graphs at once
    panel = shown.page.inner_text("#panel")
    assert "In the other" in panel
    assert "uint8 -> int8" in panel
    assert shown.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_legible(chromium: Any, tmp_path: Path, scheme: str) -> None:
    """The contrast of a box and its text is what WCAG 2.2 wants of text (1.4.3): 4.5 to 1."""
    qb.view(INT8, path=tmp_path / "page.html")
    shown = show(chromium, tmp_path / "page.html", color_scheme=scheme)
    ratios = shown.page.evaluate("""() => {
        const channel = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const luminance = css => {
            const [r, g, b] = css.match(/[\\d.]+/g).map(Number).map(v => channel(v / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        return [...document.querySelectorAll('.node')].map(node => {
            const pair = ['rect', 'text'].map(
                name => luminance(getComputedStyle(node.querySelector(name)).fill) + 0.05);
            return Math.max(...pair) / Math.min(...pair);
        });
    }""")
    assert ratios
    assert min(ratios) >= 4.5


def test_ten_thousand_nodes_open_within_two_seconds(chromium: Any, tmp_path: Path) -> None:
    qb.view(chain(tmp_path / "chain.onnx", 10_000), path=tmp_path / "page.html")
    shown = show(chromium, tmp_path / "page.html")
    assert int(shown.page.get_attribute("html", "data-ready")) < 2000
    shown.page.fill("#search", "node_9876")
    shown.page.press("#search", "Enter")
    assert shown.page.inner_text("#results") == "1 of 1"
    assert (
        shown.page.locator(".box.chosen").get_attribute("aria-label") == "Sigmoid node_9876, float"
    )
    shown.page.click("#open")
    shown.page.click("#fit")
    shown.page.wait_for_selector(".far path", state="attached")
    places = [shown.page.get_attribute(".picture > g", "transform")]
    frame = shown.frame()
    places.append(shown.page.get_attribute(".picture > g", "transform"))
    assert places[0] != places[1]
    assert frame < 250  # a frame of all nodes on a busy machine without a GPU; 20 to 60 ms alone
    assert shown.said == []


def test_a_graph_without_nodes_is_a_page_too(chromium: Any, tmp_path: Path) -> None:
    port = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    onnx.save(
        helper.make_model(helper.make_graph([], "nothing", port, port)), tmp_path / "nothing.onnx"
    )
    qb.view(tmp_path / "nothing.onnx", path=tmp_path / "page.html")
    page = chromium.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    for button in ("open", "fit", "close", "larger", "smaller", "about"):
        page.click(f"#{button}")
    page.focus(".picture")
    for key in ("ArrowDown", "Enter", "+", "0", "n"):
        page.keyboard.press(key)
    page.wait_for_timeout(200)  # two frames are drawn
    assert "Input x" in page.inner_text("#panel")
    assert said == []


def test_names_are_text_and_never_markup(chromium: Any, tmp_path: Path) -> None:
    qb.view(chain(tmp_path / "model.onnx", 3, HOSTILE), path=tmp_path / "page.html")
    shown = show(chromium, tmp_path / "page.html")
    shown.page.on("dialog", lambda dialog: shown.said.append(dialog.message))
    shown.page.focus(".picture")
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("Enter")
    assert "<img src=x onerror" in shown.page.inner_text("#panel")
    assert shown.page.locator("img").count() == 0
    assert shown.said == []


def test_it_prints_the_graph_and_what_is_known_of_it(chromium: Any, tmp_path: Path) -> None:
    qb.view(INT8, path=tmp_path / "page.html")
    shown = show(chromium, tmp_path / "page.html")
    shown.page.emulate_media(media="print")
    assert shown.page.locator(".picture").is_visible()
    assert shown.page.locator("#panel").is_visible()
    assert not shown.page.locator("#open").is_visible()
    assert len(shown.page.pdf()) > 5000


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The report page of a quantization, and what was quantized."""
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:24]}
    made = quantization(MODELS / "digits_cnn_float.onnx", data, repair=("bias",))
    path = tmp_path_factory.mktemp("report") / "report.html"
    made.report(path, model=HOSTILE, data="x.npz")
    return path, made


def test_the_report_of_a_quantization_is_told_and_leads_to_both_graphs(
    chromium: Any, told: tuple[Path, Any]
) -> None:
    path, made = told
    shown = show(chromium, path)
    report = shown.page.inner_text("#report")
    assert f"{HOSTILE} quantized for ort" in report
    assert made.graph.digest in report
    assert shown.page.get_attribute("#told", "aria-pressed") == "true"
    assert shown.page.evaluate("document.getElementById('pictures').inert")
    sections = shown.page.locator("#report section")
    assert sections.count() == 7
    assert shown.page.locator("#report svg[role=img]").count() > 5
    layer = made.graph.nodes[2].name
    shown.page.click(f"#culprits button:has(code:text-is('{layer}'))")
    assert not shown.page.is_visible("#report")
    shown.drawn(".box.chosen", 2)
    panel = shown.page.inner_text("#panel")
    assert layer in panel
    assert "Error that a layer adds" in panel
    assert "Outputs where only this layer is quantized" in panel
    assert "Who decided the range" in panel
    shown.page.click("#told")
    shown.page.wait_for_selector("#report h1", state="visible")
    assert shown.page.text_content("#tensors figcaption >> nth=0")
    assert shown.said == []


def test_a_report_is_read_without_scripts_and_printed(
    chromium: Any, told: tuple[Path, Any], tmp_path: Path
) -> None:
    path, _ = told
    page = chromium.new_context(java_script_enabled=False).new_page()
    page.goto(path.as_uri())
    assert page.is_visible("#report h1")
    assert page.is_visible("#weights table")
    shown = show(chromium, path)
    shown.page.click("#told")
    shown.page.emulate_media(media="print")
    assert shown.page.is_visible("#report h1")
    assert shown.page.is_visible(".picture >> nth=0")
    shown.page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    assert shown.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_legible(chromium: Any, told: tuple[Path, Any], scheme: str) -> None:
    shown = show(chromium, told[0], color_scheme=scheme)
    ratio = shown.page.evaluate("""() => {
        const channel = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const luminance = css => {
            const [r, g, b] = css.match(/[\\d.]+/g).map(Number).map(v => channel(v / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const report = document.getElementById('report');
        const paper = luminance(getComputedStyle(report).backgroundColor);
        return Math.min(...[...report.querySelectorAll('td, th, dt, dd, a, p, code')]
            .map(each => luminance(getComputedStyle(each).color) + 0.05)
            .map(ink => Math.max(ink, paper + 0.05) / Math.min(ink, paper + 0.05)));
    }""")
    assert ratio >= 4.5
