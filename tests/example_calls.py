"""The command examples of the documents and of the help, with places that exist here for those that they name."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.test_help import DOCUMENTS, PARSERS, calls, parser_of

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
    helps = {name: re.sub("^ +", "", parser_of(name).format_help(), flags=re.MULTILINE) for name in PARSERS}
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
        for pattern, time in _TIMES.items():
            call = re.sub(pattern, time, call)
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
            write_keys(file, self.words[self.words.index("--keys-column") + 1], key)
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


def write_keys(file: Path, column: str, key: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({column: [key]}), file)
