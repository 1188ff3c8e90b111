"""Calls of commands as transcripts: what a user types, and what must follow. Files ``calls/*.txt`` have these lines:

| line | meaning |
| --- | --- |
| ``== TITLE`` | a test, in an empty directory, which its outputs call ``HERE`` |
| ``given logs NAME [ARGUMENT ...]`` | makes logs: ``NAME`` is a function of ``tests/commands/named_logs.py`` |
| ``given log DIR`` | writes a log: the indented lines below are of the language of ``tests/scenarios/language.py`` |
| ``given file NAME`` | writes a file: the indented lines below |
| ``given time TIME`` | the clock from here on; before, it is 2027-01-01T00:00Z |
| ``$ COMMAND ARGUMENT ...`` | calls a command in this process: ``compact``, ``count``, ``dump-log``, ... |
| ``$ json FILE FIELD ...`` | prints fields of a JSON file: ``totals/failed``, ``logs/*/status`` |
| ``$ LINE`` | any other line is the shell's; so is what follows `` | `` |
| any line below a call | its standard output; ``...`` alone is any lines, ``…`` any part of a line |
| ``! LINE`` | its standard error, after standard output |
| ``[N]`` | its exit code, if it is not 0 |

``#`` begins a comment at the top of a file or below a title. Beside what a transcript says, each call has to obey the rules of
``check``. ``pytest --rewrite-golden tests/commands/test_transcripts.py`` writes outputs that differ into the files: read them.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compaction.cli.console import COMMANDS, main
from compaction.options import inputs
from compaction.options.values import iso_time_ms
from tests.commands import named_logs
from tests.scenarios.language import parse
from tests.scenarios.runner import files

CALLS = Path(__file__).with_name("calls")
NAMES = set(COMMANDS)
#: commands that only read
READERS = {"count", "doctor", "dry-run", "dump-log", "verify"}
#: options whose values are files that a call writes
_WRITTEN = ("--report", "--metrics", "--html", "--certificate")
NOW = "2027-01-01T00:00Z"
#: what differs between two calls: how fast a pass is and what takes long, the time since the start, durations, the clock
_UNSTABLE = [
    (re.compile(pattern, re.MULTILINE), shown)
    for pattern, shown in (
        (r"^(?:pass \d: .*|.* \.\.\.)\n", ""),
        (r"^ {0,7}\d[\d. hmins]*  (?=[a-z])", "… s  "),
        (r"\b\d+\.\d s\b", "… s"),
        (r'"time": "[^"]*"', '"time": "…"'),
    )
]
_STEP = re.compile(r"(?:\$|given (?:logs|log|file|time)) ")


@dataclass(frozen=True)
class Step:
    """A line that does something, with the lines below it: its input, or the expected output."""

    line: str
    below: list[str]


@dataclass(frozen=True)
class Called:
    """The result of a call."""

    out: str
    err: str
    code: int

    def lines(self) -> list[str]:
        code = [f"[{self.code}]"] if self.code else []
        return [*self.out.splitlines(), *(f"! {line}".rstrip() for line in self.err.splitlines()), *code]


def transcripts() -> list[tuple[str, str]]:
    """The file and title of each test."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(CALLS.glob("*.txt"))}
    return [(file, title) for file, text in texts.items() for title, _ in _sections(text)]


def _sections(text: str) -> list[tuple[str, list[Step]]]:
    found = []
    for section in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        title, *lines = section.splitlines()
        found.append((title, list(_steps(lines))))
    return found


def _steps(lines: Sequence[str]) -> Iterator[Step]:
    steps: list[Step] = []
    for line in lines:
        if _STEP.match(line):
            steps.append(Step(line, []))
        elif steps:
            steps[-1].below.append(line)
    for step in steps:
        while step.below and not step.below[-1]:
            step.below.pop()
        yield step


class Transcript:
    """Runs the calls of a test in a directory."""

    def __init__(self, here: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]) -> None:
        self.here, self._patch, self._capture = here, patch, capture
        patch.chdir(here)
        patch.setattr("sys.argv", [""])
        # what a terminal of the developer says
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            patch.delenv(name, raising=False)
        patch.setenv("LC_ALL", "C.UTF-8")
        self._set_clock(NOW)

    def _set_clock(self, time: str) -> None:
        now_ns = iso_time_ms(time) * 1_000_000
        self._patch.setattr(inputs, "time", SimpleNamespace(time_ns=lambda: now_ns))

    def run(self, file: str, title: str, *, rewrite: bool) -> None:
        """Runs one test; with ``rewrite`` outputs that differ are written into the file."""
        path = CALLS / f"{file}.txt"
        steps = dict(_sections(path.read_text(encoding="utf-8")))[title]
        differences = []
        for step in steps:
            if not step.line.startswith("$ "):
                _, kind, rest = step.line.split(" ", 2)
                self._prepare(kind, rest, step.below)
                continue
            found = self._called(step.line[2:])
            if matches(step.below, found):
                continue
            difference = difflib.unified_diff(step.below, found, "expected", "found", lineterm="", n=1)
            differences.append("\n".join([step.line, *difference]))
            step.below[:] = found
        if differences and not rewrite:
            pytest.fail("\n\n".join([f"{path}: {title}", *differences]), pytrace=False)
        if differences:
            _write(path, title, steps)

    def _prepare(self, kind: str, rest: str, below: Sequence[str]) -> None:
        if kind == "time":
            self._set_clock(rest)
        elif kind == "logs":
            name, *arguments = rest.split()
            getattr(named_logs, name.replace("-", "_"))(self.here, *arguments)
        elif kind == "log":
            partition = self.here / rest
            partition.mkdir(parents=True, exist_ok=True)
            files(partition, parse([*(line.strip() for line in below), "clean"]), 0)
        else:
            text = "".join(f"{line.removeprefix('  ')}\n" for line in below)
            (self.here / rest).write_text(text, encoding="utf-8")

    def _called(self, line: str) -> list[str]:
        call, *pipe = line.split(" | ", 1)
        word = call.partition(" ")[0]
        if word in NAMES or word == "json":
            words = shlex.split(call.replace("HERE", str(self.here)))
            called = self._command(words) if word in NAMES else Called(_fields(self.here / words[1], words[2:]), "", 0)
        else:
            pipe, called = [line], Called("", "", 0)
        for command in pipe:
            done = subprocess.run(["/bin/sh", "-c", command], input=called.out, capture_output=True, text=True, check=False)
            called = Called(done.stdout, called.err + done.stderr, called.code or done.returncode)
        return Called(self._shown(called.out), self._shown(called.err), called.code).lines()

    def _command(self, words: Sequence[str]) -> Called:
        before = self._tree()
        self._capture.readouterr()
        with self._patch.context() as patch:
            # log lines as in a process of its own
            patch.setattr(logging.root, "handlers", [])
            code = main(words)
        out, err = (each.decode() for each in self._capture.readouterr())
        called = Called(out, err, code)
        check(words, called, before, self._tree())
        return called

    def _shown(self, text: str) -> str:
        text = text.replace(str(self.here), "HERE")
        for pattern, shown in _UNSTABLE:
            text = pattern.sub(shown, text)
        return text

    def _tree(self) -> dict[str, tuple[bytes, int]]:
        files = (path for path in self.here.rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path.relative_to(self.here)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def check(words: Sequence[str], called: Called, before: dict[str, Any], after: dict[str, Any]) -> None:
    """The rules of all calls: a usage error is one line and changes nothing; commands that only read, and dry runs, write only
    the files that are asked for."""
    if called.code == 2:
        one_line = r'error: .*\n|\{.*"level": "ERROR".*\}\n'
        assert called.out == "" and (re.fullmatch(one_line, called.err) or "--verbose" in words), called
        assert after == before
    if words[0] in READERS or "--dry-run" in words:
        written = {value for option, value in zip(words, words[1:], strict=False) if option in _WRITTEN}
        assert {name: after[name] for name in after if name not in written} == {
            name: before[name] for name in before if name not in written
        }


def matches(expected: Sequence[str], found: Sequence[str]) -> bool:
    """Whether an output is the expected one."""
    patterns = (r"(?:.*\n)*?" if line == "..." else f"{re.escape(line).replace('…', '.*?')}\n" for line in expected)
    return re.fullmatch("".join(patterns), "".join(f"{line}\n" for line in found)) is not None


def _fields(file: Path, paths: Sequence[str]) -> str:
    document = json.loads(file.read_text(encoding="utf-8"))
    found = {path: json.dumps(_find(document, path.split("/")), ensure_ascii=False) for path in paths}
    return "".join(f"{path}: {value}\n" for path, value in found.items())


def _find(value: Any, path: Sequence[str]) -> Any:
    if not path:
        return value
    if path[0] == "*":
        return [_find(each, path[1:]) for each in value]
    return _find(value[int(path[0])] if isinstance(value, list) else value.get(path[0]), path[1:])


def _write(path: Path, title: str, steps: Sequence[Step]) -> None:
    """Writes a test anew; comments below its title remain."""
    text = path.read_text(encoding="utf-8")
    head, section = text.split(f"== {title}\n", 1)
    section, mark, rest = section.partition("\n== ")
    comments = [line for line in section.split("\n$ ")[0].splitlines() if line.startswith("#")]
    lines = [*comments, *(line for step in steps for line in (step.line, *step.below))]
    path.write_text(f"{head}== {title}\n" + "".join(f"{line}\n" for line in lines) + mark + rest, encoding="utf-8")
