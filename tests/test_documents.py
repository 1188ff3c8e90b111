"""What the documents name exists: files, modules, links, make targets, options, packages and identifiers."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

import compaction
from compaction.cli import console
from compaction.exports import GROUP

if sys.version_info >= (3, 11):
    pass
else:
    pass

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for part in ("conf", "docs", "tests") for path in (ROOT / part).rglob("*.md"))])
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
#: documents that name identifiers of the code
ABOUT_THE_CODE = [CONTRIBUTING, ROOT / "docs" / "architecture.md"]
COMMANDS = {name: module for name, module, _ in console.COMMANDS}

PATH = re.compile(r"(?<![\w/.@-])(?:compaction|conf|docs|jobs|notebooks|tests|\.ci)/[\w./*-]*")
MODULE = re.compile(r"(?<![\w/.-])(?:compaction|jobs|tests)(?:\.[A-Za-z_]\w*)+")
MODULE_FILE = re.compile(r"(?<![\w/.>])[a-z_]+/[\w/]+\.py")
IMPORT = re.compile(r"from ((?:compaction|jobs)[\w.]*) import ([\w, ]+)")
MAKE = re.compile(r"(?<![\w-])make ([a-z][a-z-]*)")
LINK = re.compile(r"\[[^\]]*\]\((?!https?://)([^)#]*)(#[^)]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
IDENTIFIER = re.compile(r"`((?:[a-z]\w*_\w+|[A-Z]\w*[a-z]\w*[A-Z]\w*|_?[a-z]\w*(?=\(\)))(?:\(\))?)`")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_of(document: Path) -> str:
    """The code blocks and inline code of a document."""
    return "\n".join(CODE.findall(document.read_text()))


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


@cache
def words_of_the_code() -> frozenset[str]:
    sources = [path for part in ("compaction", "jobs") for path in (ROOT / part).rglob("*.py")]
    return frozenset(word for path in sources for word in re.findall(r"\w+", path.read_text()))


@pytest.mark.parametrize("pattern", [PATH, MODULE, MODULE_FILE, IMPORT, MAKE, LINK, CODE, IDENTIFIER])
def test_some_document_has_what_is_checked(pattern: re.Pattern[str]) -> None:
    assert any(pattern.search(document.read_text()) for document in [*DOCUMENTS, *NOTEBOOKS])


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_path_in_a_document_exists(document: Path) -> None:
    paths = {found.rstrip("./") for found in PATH.findall(document.read_text())}
    assert [path for path in sorted(paths) if not any(ROOT.glob(path))] == []


@pytest.mark.parametrize("document", ABOUT_THE_CODE, ids=relative)
def test_every_module_path_in_a_document_about_the_code_exists(document: Path) -> None:
    """Also those that leave out ``compaction/``."""
    for path in MODULE_FILE.findall(document.read_text()):
        assert (ROOT / path).exists() or (ROOT / "compaction" / path).exists(), path


@pytest.mark.parametrize("document", [*DOCUMENTS, *NOTEBOOKS], ids=relative)
def test_every_module_in_a_document_exists(document: Path) -> None:
    named = set(MODULE.findall(document.read_text())) - {GROUP}
    assert [name for name in sorted(named) if not is_module_or_attribute(name)] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, *NOTEBOOKS], ids=relative)
def test_everything_that_a_document_imports_exists(document: Path) -> None:
    for module, names in IMPORT.findall(document.read_text()):
        for name in names.split(", "):
            assert is_module_or_attribute(f"{module}.{name}"), f"{module}.{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_link_in_a_document_leads_to_a_file_and_a_heading(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target + anchor


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_make_target_in_a_document_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(MAKE.findall(code_of(document))) - targets == set()


@pytest.mark.parametrize("document", ABOUT_THE_CODE, ids=relative)
def test_every_identifier_in_a_document_about_the_code_is_in_the_code(document: Path) -> None:
    names = {found.removesuffix("()") for found in IDENTIFIER.findall(document.read_text())}
    assert names - words_of_the_code() == set()


def test_the_map_of_packages_has_every_package() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", CONTRIBUTING.read_text(), re.MULTILINE)
    packages = {relative(path.parent) for part in ("compaction", "jobs") for path in (ROOT / part).rglob("__init__.py")}
    assert packages - {"compaction"} <= set(rows)


def test_the_readme_is_one_page_that_begins_with_a_run_and_the_tests() -> None:
    text = README.read_text()
    assert len(text.split()) <= 900
    assert MAKE.findall(code_of(README))[:2] == ["run", "test"]


def test_the_readme_leads_to_every_page() -> None:
    linked = {target for target, _ in LINK.findall(README.read_text())}
    assert [page.name for page in (ROOT / "docs").glob("*.md") if relative(page) not in linked] == []


def test_the_page_of_the_python_api_has_every_function_result_and_error() -> None:
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "python.md").read_text()))
    assert set(compaction.__all__) - named == set()
