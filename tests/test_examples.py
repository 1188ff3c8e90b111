"""The command examples of the documents and of the help run, on copies of the sample logs, and end with 0."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import compaction
from compaction.cli import console
from tests.cli.test_help import DOCUMENTS, PARSERS, calls, parser_of
from tests.golden import unpack_sample

#: what an example needs that this test does not have; other tests run those, or their page's own tests do
_NEEDS = re.compile(
    r"s3://|gs://|hdfs|aiven|tiered|backup\+|/exports/|\$\{|\$\(|…|spark-submit|--(tail|private-key|keys|where|certificate|broker-log|files"
    r"|output-layout|since|over-time|config \S+\.toml)\b|completion|warm-up|compaction.strategy"
)
_FILES = ("--html", "--report", "--metrics")
#: names in examples that the sample does not have
_NAMES = {"orders-0:4711": "orders-0:3", "page-views": "sessions", "__consumer_offsets-7": "__consumer_offsets-0"}


def examples() -> Iterator[tuple[str, str]]:
    texts = {page.name: page.read_text() for page in DOCUMENTS if page.name != "over-time.md"}
    helps = {name: re.sub("^ +", "", parser_of(name).format_help(), flags=re.MULTILINE) for name in PARSERS}
    for source, text in {**texts, **helps}.items():
        yield from ((source, " ".join(call.split())) for call in calls(text) if not _NEEDS.search(call))


EXAMPLES = sorted(set(examples()))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sample, a compacted copy of it, and the sample after it was compacted in place."""
    place = tmp_path_factory.mktemp("examples")
    made = {name: unpack_sample(place / name) for name in ("logs", "in place")}
    compaction.compact(made["logs"], output_dir=place / "copy", engine="local")
    compaction.compact(made["in place"], engine="local")
    return {**made, "copy": place / "copy"}


def test_there_are_examples_of_most_commands() -> None:
    assert {shlex.split(call)[1] for _, call in EXAMPLES} >= {"compact", "expire", "dry-run", "verify", "count", "doctor"}
    assert len(EXAMPLES) > 30


@pytest.mark.parametrize(("source", "call"), EXAMPLES, ids=[f"{source}: {call[21:70]}" for source, call in EXAMPLES])
def test_an_example_runs(
    source: str, call: str, logs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    arguments: list[str] = []
    option = ""
    for word in shlex.split(call)[1:]:
        option = word if word.startswith("--") else option
        command = arguments[0] if arguments else ""
        arguments.append(word if word.startswith("--") else given(option, word, logs, tmp_path, command))
    assert console.main(arguments) == 0


def given(option: str, word: str, logs: dict[str, Path], place: Path, command: str) -> str:
    """The value of an option for the example's own one."""
    if option in ("--log-dir", "--before", "--metadata"):
        if command not in ("compact", "expire") or option != "--log-dir":
            return str(logs["logs"])
        own = place / "logs"
        if not own.exists():
            shutil.copytree(logs["logs"], own)
        return str(own)
    if option == "--config":
        (place / "server.properties").write_text("log.retention.hours=168\n")
        return "server.properties"
    places = {"--after": str(logs["copy"]), "--in-place": str(logs["in place"]), "--output-dir": str(place / "out")}
    return places.get(option, Path(word).name if option in _FILES else _NAMES.get(word, word))
