"""What the documents name exists: files, modules, links, make targets, packages, and messages."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import compaction
from compaction.exports import GROUP

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for part in ("conf", "docs", "tests") for path in (ROOT / part).rglob("*.md"))])
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"

PATH = re.compile(r"(?<![\w/.@-])(?:compaction|conf|docs|jobs|notebooks|tests|\.ci)/[\w./*-]*|(?<![\w/.>@-])[a-z_]+/[\w/]+\.py")
MODULE = re.compile(r"(?<![\w/.-])(?:compaction|jobs|tests)(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"from ((?:compaction|jobs)[\w.]*) import ([\w, ]+)")
MAKE = re.compile(r"(?<![\w-])make ([a-z][a-z-]*)")
LINK = re.compile(r"\[[^\]]*\]\((?!https?://)([^)#]*)(#[^)]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_module_or_attribute(name: str) -> bool:
    """``a.b.c`` names a package, a module, or something that a module or package defines or exports."""
    if name.removeprefix("compaction.") in compaction.__all__:
        return True
    # a wheel has the applications below compaction
    path = ROOT.joinpath(*re.sub(r"^compaction\.jobs", "jobs", name).split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = path.parent.with_suffix(".py")
    exported, defined = '^    .*"{}"', r"^(?:class |def )?{}(?!\w)"
    source, pattern = (module, defined) if module.exists() else (path.parent / "__init__.py", f"{exported}|{defined}")
    return source.exists() and re.search(pattern.format(path.name, path.name), source.read_text(), re.MULTILINE) is not None


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_paths(document: Path) -> set[str]:
    """Also of modules that leave out ``compaction/`` or ``tests/``."""
    paths = {found.rstrip("./") for found in PATH.findall(document.read_text())}
    return {path for path in paths if not any(any(ROOT.glob(f"{above}{path}")) for above in ("", "compaction/", "tests/"))}


def missing_modules(document: Path) -> set[str]:
    """Of those that a document names or imports."""
    text = document.read_text()
    imported = (f"{module}.{name}" for module, names in IMPORT.findall(text) for name in names.split(", "))
    return {name for name in {*MODULE.findall(text), *imported} - {GROUP} if not is_module_or_attribute(name)}


def missing_targets_of_links(document: Path) -> set[str]:
    """Files and headings."""
    found = set()
    for target, anchor in LINK.findall(document.read_text()):
        path = document.parent / target if target else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.add(target + anchor)
    return found


def missing_make_targets(document: Path) -> set[str]:
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(MAKE.findall("\n".join(CODE.findall(document.read_text())))) - set(targets)


#: what finds names that do not exist, by pattern, and the documents that it reads
NAMES: dict[Callable[[Path], set[str]], tuple[re.Pattern[str], list[Path]]] = {
    missing_paths: (PATH, DOCUMENTS),
    missing_modules: (MODULE, [*DOCUMENTS, *NOTEBOOKS]),
    missing_targets_of_links: (LINK, DOCUMENTS),
    missing_make_targets: (MAKE, DOCUMENTS),
}


@pytest.mark.parametrize("missing", NAMES, ids=lambda missing: missing.__name__)
def test_what_documents_name_exists(missing: Callable[[Path], set[str]]) -> None:
    pattern, documents = NAMES[missing]
    assert any(pattern.search(document.read_text()) for document in documents)
    assert {relative(document): names for document in documents if (names := missing(document))} == {}


def test_the_map_of_packages_has_every_package() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", CONTRIBUTING.read_text(), re.MULTILINE)
    packages = {relative(path.parent) for part in ("compaction", "jobs") for path in (ROOT / part).rglob("__init__.py")}
    assert packages - {"compaction"} <= set(rows)


def test_the_readme_leads_to_every_page() -> None:
    linked = {target for target, _ in LINK.findall(README.read_text())}
    assert [page.name for page in (ROOT / "docs").glob("*.md") if relative(page) not in linked] == []


def test_the_page_of_the_python_api_has_every_function_result_and_error() -> None:
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "python.md").read_text()))
    assert set(compaction.__all__) - named == set()


#: messages of the operating system
SYSTEM = {os.strerror(number) for number in errno.errorcode}
#: names in messages of the program
PLACEHOLDERS = {
    "{LOCK}": ".lock",
    "{CLUSTER_METADATA_TOPIC}": "__cluster_metadata",
    "{MANIFEST}": "_manifest.json",
    "{OLDEST_JAVA}": "17",
}


def test_the_page_of_errors_quotes_messages_of_the_program() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "compaction").rglob("*.py"))
    for placeholder, name in PLACEHOLDERS.items():
        sources = sources.replace(placeholder, name)
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = [line.removeprefix("| ") for line in page.splitlines() if line.startswith("| ")][2:]
    quoted = re.findall(r"`([^`]+)`", "\n".join(row.partition(" | ")[0] for row in rows))
    parts = [part.strip(" :%()") for message in quoted for part in re.split("…|process", message)]
    sentences = [part for part in parts if " " in part and part not in SYSTEM]
    assert len(sentences) >= 8
    # "cannot" precedes the failed action
    assert [each for each in sentences if each.removeprefix("cannot ") not in sources] == []
