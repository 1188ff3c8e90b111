"""A hook of MkDocs: adds the pages that have no file in ``docs/``. Those from sections of README.md and the other documents are
made here, those from the code in ``reference.py``. Links between documents are made to lead to the pages.

Tested by ``tests/test_site.py``.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]

#: sections of README.md, and their pages
SECTIONS = {
    "Quick start": "index.md",
    "Ways to use it": "uses.md",
    "Options": "options.md",
    "Figures": "figures.md",
    "What can go wrong": "what-can-go-wrong.md",
}
DOCUMENTS = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
_ANCHORS = {"#" + title.lower().replace(" ", "-"): page for title, page in SECTIONS.items()}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://|#)([^)#\s]*)(#[^)\s]*)?\)")
_LEAD = re.compile(r"^\*\*([^*]+?)\.?\*\*\s+", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages."""
    readme = sections(ROOT / "README.md")
    reference = _reference()
    pages = {name: f"# {title}\n\n{readme[title]}" for title, name in SECTIONS.items()}
    pages["index.md"] = f"{readme['']}\n\n## Quick start\n\n{readme['Quick start']}"
    pages["uses.md"] = "# Ways to use it\n\n" + _LEAD.sub(r"## \1\n\n", readme["Ways to use it"])
    pages["options.md"] += "\n" + reference["options.md"]()
    pages |= {name: page() for name, page in reference.items() if name not in pages}
    for document, name in DOCUMENTS.items():
        pages.setdefault(name, (ROOT / document).read_text(encoding="utf-8"))
    for asset in ("site.css", "iframe-worker.js"):
        pages[asset] = Path(__file__).with_name(asset).read_text(encoding="utf-8")
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Leads links to documents to their pages, and leaves only the text of links to other files of the project."""
    return _LINK.sub(_page_link, markdown)


def _page_link(link: re.Match[str]) -> str:
    text, target, anchor = link.groups()
    name = target.rsplit("docs/", 1)[-1] if "docs/" in target else target.removeprefix("../")
    if name == "README.md" and anchor in _ANCHORS:
        return f"[{text}]({_ANCHORS[anchor]})"
    if name in DOCUMENTS:
        return f"[{text}]({DOCUMENTS[name]}{anchor or ''})"
    return f"[{text}]({name}{anchor or ''})" if "/" not in name and name.endswith(".md") else text


def sections(document: Path) -> dict[str, str]:
    """The sections of second level by title; under the empty one, what precedes them."""
    parts = re.split(r"^## (.+)\n", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: text.strip() + "\n" for title, text in zip(["", *parts[1::2]], parts[::2], strict=True)}


def _reference() -> dict[str, Callable[[], str]]:
    spec = importlib.util.spec_from_file_location("reference", Path(__file__).with_name("reference.py"))
    assert spec is not None and spec.loader is not None  # noqa: S101 - a file beside this one
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, Callable[[], str]] = module.PAGES
    return pages
