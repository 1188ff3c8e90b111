"""Every command line that the help, the documents and the messages quote is one that its command takes."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from compaction.cli.console import COMMANDS
from compaction.cli.help_text import PROGRAM, SUBMIT
from compaction.cli.parser import APPLICATIONS, Parser

ROOT = Path(__file__).resolve().parents[2]
PARSERS = {name: f"compaction.commands.{module}" for name, module, _ in COMMANDS}
MODULES = {module: name for name, module, _ in COMMANDS}
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "conf").rglob("*.md")])
#: a call with its continuation lines, up to a comment, a pipe, or the end of a quoted command
CALL = re.compile(rf"^(?:\S+=\S+ )*(?:[\d*]+ +)*((?:{PROGRAM} [a-z]|{SUBMIT} jobs/)(?:[^\n\\]|\\\n|\\.)*)", re.MULTILINE)


def parser_of(command: str) -> Parser:
    return Parser(import_module(PARSERS[command]).OPTIONS)


def calls(text: str) -> list[str]:
    return [re.split(r" +# | [|>](?: |$)|\)\"$", call.replace("\\\n", " "))[0] for call in CALL.findall(text)]


def parse(call: str) -> argparse.Namespace:
    """:raises UsageError: the command does not take it"""
    call = re.sub(r"\$\(date [^)]*\)", "2026-11-22T02:00Z", call).replace("${DAY}", "2026-11-22").replace("…", "")
    words = shlex.split(call)
    command = words[1]
    if words[0] == SUBMIT:
        command = MODULES[Path(command).stem]
    return parser_of(command).parse_args(words[2:])


@pytest.mark.parametrize("name", PARSERS)
def test_every_call_in_the_help_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = PARSERS[name].rpartition(".")[2]
    shown = {f"{PROGRAM} {name}": f"{PROGRAM} {name}", f"/x/jobs/{module}.py": f"{SUBMIT} jobs/{module}.py"}
    for started, expected in shown.items():
        monkeypatch.setattr("sys.argv", [started])
        if started.endswith(".py") and module not in APPLICATIONS:
            continue
        text = re.sub("^ +", "", parser_of(name).format_help(), flags=re.MULTILINE)
        assert text.startswith(f"usage: {expected} ")
        quoted = calls(text)
        assert len(quoted) >= 2 or name in ("warm-up", "completion")
        for call in quoted:
            assert f"{call} ".startswith(f"{expected} ")
            parse(call)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_call_in_a_document_is_one_and_has_one_spelling(document: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    for call in (call for block in blocks for call in calls(block)):
        assert call.startswith(PROGRAM), f"{call}: spark-submit is for clusters, and has --master"
        parse(call)


def test_the_documents_have_calls() -> None:
    assert sum(len(calls(document.read_text())) for document in DOCUMENTS) > 30


def test_every_command_that_a_message_names_exists() -> None:
    sources = [path for part in ("compaction", "jobs", "conf") for path in (ROOT / part).rglob("*.py")]
    named = {word for path in sources for word in re.findall(rf"{PROGRAM} ([a-z][a-z-]*)\b", path.read_text())}
    # "... in which kafka-log-compaction is installed", and the end of an address in an example
    assert named - set(PARSERS) <= {"is", "python"}
    assert {"count", "dry-run", "warm-up"} <= named


def test_no_document_or_message_installs_this_package_from_an_index() -> None:
    """No index has it: what is installed is a wheel, or a checkout."""
    files = [*DOCUMENTS, *(path for part in ("compaction", "jobs", "conf") for path in (ROOT / part).rglob("*.py"))]
    pattern = re.compile(rf"(?:install|--from) ['\"]?{PROGRAM}(?!-)")
    assert [path.name for path in files if pattern.search(path.read_text())] == []
