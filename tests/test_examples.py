"""The command examples of the documents and of the help end with 0: on the sample logs, and with a log that needs workers.

Places that exist here are put for those that the examples name.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from compaction.cli import console
from compaction.cli.console import PROGRAM, SUBMIT
from compaction.cli.parser import APPLICATIONS, Parser
from tests.golden import unpack_sample
from tests.large_log import replace_log, write_large_log

ROOT = Path(__file__).resolve().parent.parent
MODULES = {name: console.application(name) for name in console.COMMANDS}
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "conf").rglob("*.md")])
#: a call with its continuation lines, up to a comment, a pipe, or the end of a quoted command
CALL = re.compile(rf"^(?:\S+=\S+ )*(?:[\d*]+ +)*((?:{PROGRAM} [a-z]|{SUBMIT} jobs/)(?:[^\n\\]|\\\n|\\.)*)", re.MULTILINE)


def parser_of(command: str) -> Parser:
    return Parser(console.load(command).OPTIONS)


def calls(text: str) -> list[str]:
    return [re.split(r" +# | [|>](?: |$)|\)\"$", call.replace("\\\n", " "))[0] for call in CALL.findall(text)]


@pytest.mark.parametrize("name", MODULES)
def test_every_call_in_the_help_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command and as an application of ``spark-submit``."""
    module = MODULES[name]
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
            call = re.sub(r"\$\(date [^)]*\)", "2026-11-22T02:00Z", call).replace("…", "")
            parser_of(name).parse_args(shlex.split(call)[2:])


def test_every_command_that_a_message_names_exists() -> None:
    sources = [path for part in ("compaction", "jobs", "conf") for path in (ROOT / part).rglob("*.py")]
    named = {word for path in sources for word in re.findall(rf"{PROGRAM} ([a-z][a-z-]*)\b", path.read_text())}
    # "... in which kafka-log-compaction is installed", and the end of an address in an example
    assert named - set(MODULES) <= {"is", "python"}
    assert {"count", "dry-run", "warm-up"} <= named


def test_no_document_or_message_installs_this_package_from_an_index() -> None:
    """No index has it: what is installed is a wheel, or a checkout."""
    files = [*DOCUMENTS, *(path for part in ("compaction", "jobs", "conf") for path in (ROOT / part).rglob("*.py"))]
    pattern = re.compile(rf"(?:install|--from) ['\"]?{PROGRAM}(?!-)")
    assert [path.name for path in files if pattern.search(path.read_text())] == []


#: what an example has that cannot be had here, and why
NOT_HERE = {"endpoint_override=minio": "its host is another machine; tests/object_store runs such servers"}
#: times: those of the sample's records begin on 2025-10-09
_TIMES = {r"\$\(date [^)]*\)": "2026-11-22T02:00Z", r"\$\{DAY\}|\$DAY\b": "2026-11-22", "2024-12-03T": "2025-10-11T"}
#: names and offsets that the sample has, for those of examples
_NAMES = {"page-views": "sessions", "__consumer_offsets-7": "__consumer_offsets-0", "orders-0:4711": "orders-0:3", "4711": "3"}
_EXPORTS = {"aiven+s3://tiered/kafka-1": "aiven", "backup+s3://backups/kafka/nightly": "backup"}
#: files that commands write, in the working directory
_FILES = ("--html", "--report", "--metrics")
_BROKER_LOG = "[2026-11-22 02:00:01,001] INFO Starting the log cleaner (org.apache.kafka.storage.internals.log.LogCleaner)\n"
#: a copy of a log directory has the same files of at least this size
_LINKED_BYTES = 1 << 20
#: runs a command with these arguments in a directory, and returns its exit code
Run = Callable[[list[str], Path], int]


def examples() -> list[tuple[str, str]]:
    """Every example, as the document or command that has it and its words on one line."""
    texts = {page.name: page.read_text() for page in DOCUMENTS}
    helps = {name: re.sub("^ +", "", parser_of(name).format_help(), flags=re.MULTILINE) for name in MODULES}
    found = ((source, " ".join(call.split())) for source, text in {**texts, **helps}.items() for call in calls(text))
    return sorted(set(found))


def runs_here(call: str) -> bool:
    return not any(part in call for part in NOT_HERE)


@dataclass
class Places:
    """Log directories with the topics that examples name, and what other commands have to make of them first.

    :ivar logs: the log directory for a topic; not to be changed
    :ivar directory: for what is made once for all examples
    """

    logs: Callable[[str], Path]
    directory: Path
    run: Run
    _made: dict[tuple[str, ...], Path] = field(default_factory=dict)

    def arguments(self, call: str, place: Path) -> list[str]:
        """The arguments of a call that runs in ``place``, for which all that it reads has been made."""
        for pattern, known in _TIMES.items():
            call = re.sub(pattern, known, call)
        return _Example(self, place, shlex.split(call)[1:]).arguments()

    def made(self, *arguments: str) -> Path:
        """The output of a command, which is run once for the same arguments."""
        if arguments not in self._made:
            output = self._made[arguments] = self.directory / f"made-{len(self._made)}"
            self.must_run([*arguments, "--output-dir", str(output)], self.directory)
        return self._made[arguments]

    def compacted(self, logs: Path) -> Path:
        """A copy of a log directory that was compacted in place."""
        key = ("in place", str(logs))
        if key not in self._made:
            self._made[key] = own = self.directory / f"made-{len(self._made)}"
            copied(logs, own)
            self.must_run(["compact", "--log-dir", str(own)], self.directory)
        return self._made[key]

    def export(self, layout: str, logs: Path) -> str:
        """The address of an export of a topic."""
        losses = ["--accept-loss"] if layout == "backup" else []
        policy = ["--topic", "orders", "--set", "cleanup.policy=delete"]
        output = self.made("compact", "--log-dir", str(logs), *policy, "--output-layout", layout, *losses)
        return f"{layout}+file://{output}"

    def must_run(self, arguments: list[str], place: Path) -> None:
        assert self.run(arguments, place) == 0, arguments


def copied(logs: Path, own: Path) -> None:
    """Copies a log directory; a command replaces large segments, and never writes to them."""

    def copy(source: str, target: str) -> str:
        large = Path(source).stat().st_size >= _LINKED_BYTES
        (os.link if large else shutil.copy2)(source, target)
        return target

    shutil.copytree(logs, own, copy_function=copy)


@dataclass
class _Example:
    """One example: its words are given values that exist here."""

    places: Places
    place: Path
    words: list[str]

    def arguments(self) -> list[str]:
        values, option = [self.words[0]], ""
        for word in self.words[1:]:
            option = word if word.startswith("--") else option
            values.append(word if word.startswith("--") else self._value(option, word))
        self._prepare(values)
        return values

    @property
    def _logs(self) -> Path:
        """The log directory in which the topic of the example is the large one, if any is."""
        topic = re.search(r"(?:--topic|--explain|--files) \S*?(customers|page-views|__consumer_offsets)", " ".join(self.words))
        return self.places.logs(_NAMES.get(topic[1], topic[1]) if topic else "orders")

    def _value(self, option: str, word: str) -> str:
        """The value of an option for the example's own one."""
        if option in ("--log-dir", "--before", "--metadata"):
            return self._source(option, word)
        if option == "--in-place":
            return str(self._own() if "--certificate" in self.words else self.places.compacted(self._logs))
        if option == "--files":
            return self._file(word)
        if option in ("--output-dir", "--since", "--after"):
            return str(self.place / option.strip("-"))
        return Path(word).name if option in _FILES else _NAMES.get(word, self._written(option, word))

    def _source(self, option: str, word: str) -> str:
        if word in _EXPORTS:
            return self.places.export(_EXPORTS[word], self._logs)
        in_place = self.words[0] in ("compact", "expire", "erase") and not {"--output-dir", "--dry-run"} & set(self.words)
        return str(self._own() if in_place and option == "--log-dir" else self._logs)

    def _own(self) -> Path:
        """A log directory that the example may change."""
        own = self.place / "logs"
        if not own.exists():
            copied(self._logs, own)
        return own

    def _file(self, word: str) -> str:
        for address, layout in _EXPORTS.items():
            if word.startswith(address):
                return self.places.export(layout, self._logs) + word.removeprefix(address)
        name = re.findall(r"(?:orders|__consumer_offsets)-.*", word)[0]
        return str(self._logs / re.sub("^__consumer_offsets-[^/]*", "__consumer_offsets-0", name))

    def _written(self, option: str, word: str) -> str:
        """A file that the example reads, or any other word as it is."""
        # a key that remains in the last segments is an error
        key = "customers-00009" if "--include-active" in self.words or self.words[0] == "verify" else "nobody"
        texts = {"--config": "log.retention.hours=168\n", "--broker-log": _BROKER_LOG, "--keys": f"{key}\n"}
        if option not in texts:
            return word
        file = self.place / Path(word).name
        if file.suffix == ".parquet":
            parquet.write_table(pa.table({self.words[self.words.index("--keys-column") + 1]: [key]}), file)
        else:
            file.write_text(texts[option])
        return file.name

    def _prepare(self, values: list[str]) -> None:
        """Runs what the example has to find."""
        given = dict(zip(values, values[1:], strict=False))
        if "--after" in given:
            others = [*values[1:]]
            for option in ("--before", "--after"):
                del others[others.index(option) : others.index(option) + 2]
            values[values.index("--after") + 1] = str(self.places.made("compact", "--log-dir", given["--before"], *others))
        if "--since" in given:
            first = ["compact", "--log-dir", given["--log-dir"], "--output-dir", given["--since"], "--replace"]
            self.places.must_run(first, self.place)
        if values[0] == "verify" and "--certificate" in given:
            keys = ["--keys", given["--keys"], "--include-active", "--certificate", given["--certificate"]]
            self.places.must_run(["erase", "--log-dir", given["--in-place"], *keys], self.place)


_EXAMPLES = [each for each in examples() if runs_here(each[1])]
#: objects are in local directories here
_PATH = re.compile(r'(?<!\S)(?:(?:s3:/)?/\S+|"\$\w+"\S*)')
#: those that differ in more than their paths
_DIFFERENT = {_PATH.sub("PATH", call): (source, call) for source, call in reversed(_EXAMPLES)}
#: their commands read whole logs, unless an option in _READS_LITTLE is given
_READ_LOGS = ("compact", "count", "dry-run", "erase", "verify")
#: an unchanged log is not read, and an explanation reads segments
_READS_LITTLE = re.compile(r"--since|--explain")
#: of one command
_LIMIT_S = 120


def _cases(chosen: list[tuple[str, str]]) -> list[object]:
    return [pytest.param(call, id=f"{source}: {call[21:70]}") for source, call in chosen]


def test_no_example_is_left_out_without_a_reason() -> None:
    left_out = [call for _, call in examples() if not runs_here(call)]
    for call in left_out:
        parser_of(shlex.split(call)[1]).parse_args(shlex.split(call)[2:])
    assert [sum(part in call for call in left_out) for part in NOT_HERE] == [1] * len(NOT_HERE) == [1] * len(left_out)
    for chosen in (_EXAMPLES, list(_DIFFERENT.values())):
        assert {shlex.split(call)[1] for _, call in chosen} == set(MODULES)
    assert len(_EXAMPLES) > 75
    assert len(_DIFFERENT) > 60


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """The sample."""
    place = tmp_path_factory.mktemp("small")
    logs = unpack_sample(place)
    return Places(lambda _: logs, place, _run_here)


@pytest.mark.parametrize("call", _cases(_EXAMPLES))
def test_an_example_runs(call: str, small: Places, tmp_path: Path) -> None:
    assert _run_here(small.arguments(call, tmp_path), tmp_path) == 0


def _run_here(arguments: list[str], place: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("COLUMNS", "80")
        return console.main(arguments)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """The sample, in which the first log of an example's topic is replaced by one that needs worker processes."""
    place = tmp_path_factory.mktemp("large")
    sample, log = unpack_sample(place), write_large_log(place / "log", step_ms=60_000) / "orders-0"

    def logs(topic: str) -> Path:
        made = place / topic
        if not made.exists():
            copied(sample, made)
            replace_log(made, topic, log)
        return made

    return Places(logs, place, lambda *call: _run_as_a_user(*call)[0])


@pytest.mark.slow
@pytest.mark.parametrize("call", _cases(list(_DIFFERENT.values())))
def test_an_example_runs_as_its_user_runs_it_on_a_log_that_needs_workers(call: str, large: Places, tmp_path: Path) -> None:
    """Of examples that differ only in their paths, one runs: all take two and a half minutes of processor time."""
    arguments = large.arguments(call, tmp_path)
    code, workers = _run_as_a_user(arguments, tmp_path)
    assert code == 0
    assert workers == (arguments[0] in _READ_LOGS and not _READS_LITTLE.search(call))


def _run_as_a_user(arguments: list[str], place: Path) -> tuple[int, bool]:
    """The exit code of a command, and whether it had processes of its own."""
    workers, until = False, time.monotonic() + _LIMIT_S
    command = [sys.executable, "-m", "compaction", *arguments]
    with subprocess.Popen(command, cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if time.monotonic() > until:
                process.kill()
                pytest.fail(f"takes more than {_LIMIT_S} s: {arguments}")
            workers = workers or _has_children(process.pid)
            time.sleep(0.02)
    return process.returncode, workers


def _has_children(process: int) -> bool:
    try:
        return any(file.read_text() for file in Path(f"/proc/{process}/task").glob("*/children"))
    except OSError:
        return False  # a thread, or the process, has just ended
