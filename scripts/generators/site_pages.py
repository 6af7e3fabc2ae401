"""A hook of mkdocs: pages that lie beside the code they are about are pages of the site as well.

Links between pages, which are written so that they work in the repository, are made to work on the
site; links to what is no page of it become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "qdqbridge/autoquant/README.md": "quantizing.md",
    "qdqbridge/tvm/byoc/README.md": "byoc.md",
    "qdqbridge/onnx_io/README.md": "idioms.md",
    "qdqbridge/tvm/relax/README.md": "relax.md",
    "tests/conformance/README.md": "node_suite.md",
}
"""``file in the repository -> page of the site``; what lies in ``docs/`` needs no entry."""
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that do not lie in ``docs/``."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Points links at pages of the site."""
    del config, files
    return rewritten(markdown, page.file.src_uri)


def rewritten(markdown: str, page: str) -> str:
    """Returns a page's text with links as the site wants them."""
    source = _SOURCES.get(page, f"docs/{page}")

    def replaced(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in PAGES:
            return f"[{text}]({PAGES[path]}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})"
        return text

    return _LINK.sub(replaced, markdown)
