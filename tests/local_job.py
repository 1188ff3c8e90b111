"""Runs of the cleaner over one log directory, in this process, with or without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from compaction.config.entries import topic_entry
from compaction.config.request import CompactionRequest
from compaction.config.resolver import Resolver
from compaction.config.sources import Origin, Setting, Source, TomlSettings
from compaction.files.filesystem import FileSystem
from compaction.files.local import LocalFileSystem
from compaction.log.discover import Selector, discover
from compaction.names import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, LogLocation
from compaction.report import LogReport
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.kafka.jars import REFERENCE_RULES
from tests.local_passes import LocalPasses

TopicConfigs = Mapping[str, Mapping[str, str]]
#: the version of the Kafka classes that most tests compare with
KAFKA = REFERENCE_RULES
#: a partition's directory name is ``<topic>-0`` in all of these tests
OFFSET_FILES = {
    "log_starts": LOG_STARTS,
    "high_watermarks": HIGH_WATERMARKS,
    "cleaner_offsets": CLEANER_OFFSETS,
    "recovery_points": RECOVERY_POINTS,
}


def resolver_of(topics: TopicConfigs) -> Resolver:
    """Topic-level settings by topic, as a TOML file would give them."""
    return Resolver(tomls=(TomlSettings(topics={topic: tuple(map(_setting, c, c.values())) for topic, c in topics.items()}),))


def _setting(name: str, text: str) -> Setting:
    entry = topic_entry(name)
    assert entry is not None, name
    return Setting(name, entry.read(text, path=None, where=""), Source(Origin.TOML_TOPIC, name))


def logs_in(
    log_dir: Path | str, topics: Iterable[str] = (), fs: FileSystem | None = None
) -> tuple[tuple[str], tuple[LogLocation, ...]]:
    """A log directory, and its logs of some topics, by default of all."""
    selector = Selector.parse([re.escape(topic) for topic in topics])
    return (str(log_dir),), discover(fs or LocalFileSystem(), (str(log_dir),), selector)


def request_for(
    log_dir: Path, now_ms: int, topics: TopicConfigs, *, fs: FileSystem | None = None, **fields: Any
) -> CompactionRequest:
    """A request over exactly these topics, keyless records or not; ``fields`` are others of it."""
    fields = {"allow_keyless": True, "kafka_version": KAFKA, **fields}
    return CompactionRequest(*logs_in(log_dir, topics, fs), as_of_ms=now_ms, resolver=resolver_of(topics), **fields)


def clean_locally(
    log_dir: Path, now_ms: int, topics: TopicConfigs, sizes: Sizes | None = None, **fields: Any
) -> dict[str, LogReport]:
    """Runs the cleaner; its reports by topic. ``.deleted`` files are kept, as for ``file.delete.delay.ms``."""
    report = clean_logs(LocalPasses, request_for(log_dir, now_ms, topics, **fields), sizes=sizes)
    return {log.topic: log for log in report.logs}


def topics_file(path: Path, topics: TopicConfigs) -> Path:
    """Writes a configuration file for ``--config`` with these topic-level settings."""
    lines = []
    for topic, config in topics.items():
        lines += [f'[topics."{topic}"]', *(f'"{name}" = "{value}"' for name, value in config.items()), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_offsets(log_dir: Path, **files: Mapping[str, int | None]) -> None:
    """Writes checkpoint files (``log_starts``, ``high_watermarks``, ``cleaner_offsets``) with one offset per topic."""
    for name, offsets in files.items():
        lines = [f"{topic} 0 {offset}" for topic, offset in offsets.items() if offset is not None]
        (log_dir / OFFSET_FILES[name]).write_text("\n".join(["0", str(len(lines)), *lines, ""]), encoding="utf-8")


def read_offsets(log_dir: Path, name: str) -> dict[str, int]:
    """A checkpoint file's offsets by topic."""
    rows = (log_dir / OFFSET_FILES[name]).read_text(encoding="utf-8").splitlines()[2:]
    return {topic: int(offset) for topic, _, offset in (row.split() for row in rows)}
