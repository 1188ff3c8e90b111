"""A hook of MkDocs: adds the pages that have no file in ``docs/``. README.md and the other documents are added
here, the pages from the code by ``reference.py``. Links between documents are made to lead to the pages.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import compaction

ROOT = Path(__file__).resolve().parents[2]

DOCUMENTS = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: what pictures that are no links are called
_IN_README, _ON_SITE = '"docs/pictures/', '"pictures/'
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Shows the version at the foot of each page."""
    config.copyright = f"kafka-log-compaction {compaction.__version__}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages."""
    pages = {name: page() for name, page in _reference().items()}
    pages |= {name: (ROOT / document).read_text(encoding="utf-8") for document, name in DOCUMENTS.items()}
    for asset in ("site.css", "iframe-worker.js"):
        pages[asset] = Path(__file__).with_name(asset).read_text(encoding="utf-8")
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Leads links to documents to their pages, and leaves only the text of links to other files of the project."""
    return _LINK.sub(_page_link, markdown).replace(_IN_README, _ON_SITE)


def _page_link(link: re.Match[str]) -> str:
    image, text, target, anchor = link.groups()
    name = target.rsplit("docs/", 1)[-1] if "docs/" in target else target.removeprefix("../")
    if name in DOCUMENTS:
        return f"[{text}]({DOCUMENTS[name]}{anchor or ''})"
    if image or ("/" not in name and name.endswith(".md")):
        return f"{image}[{text}]({name}{anchor or ''})"
    return text


def _reference() -> dict[str, Callable[[], str]]:
    spec = importlib.util.spec_from_file_location("reference", Path(__file__).with_name("reference.py"))
    assert spec is not None and spec.loader is not None  # noqa: S101 - a file beside this one
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, Callable[[], str]] = module.PAGES
    return pages
