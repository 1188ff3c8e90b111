"""Checks the files of a copied log directory that a broker reads first: ``meta.properties``, ``.kafka_cleanshutdown`` and
``__cluster_metadata-0`` equal those of before. A file that before does not have, or has malformed, is not required.

Mirrors the start of ``LogManager`` (Kafka 4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from compaction.certifier.checks.log_pair import LogPair
from compaction.certifier.kept_files.parsed_files import HINT, directories, parsed_pair, text_of
from compaction.formats.properties import as_dict, parse_properties
from compaction.names import CLEAN_SHUTDOWN, CLUSTER_METADATA_TOPIC, META_PROPERTIES
from compaction.storage.filesystem import FileSystem, join, parent
from compaction.storage.mixed import file_system
from compaction.storage.text_files import read_small

_METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_STEP_BYTES = 8 << 20


@dataclass(frozen=True)
class DirectoryCertificate:
    """The violations in the broker's files of a log directory of ``after``."""

    log_dir: str
    violations: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Its object in the JSON document."""
        return {**asdict(self), "violations": list(self.violations)}

    def lines(self) -> list[str]:
        """The violations as lines of text."""
        return [f"{self.log_dir}: {violation}" for violation in self.violations]


def check_directories(pairs: Iterable[LogPair]) -> tuple[DirectoryCertificate, ...]:
    """Check the copied log directories; returns those with violations."""
    certificates = []
    for old, new in dict.fromkeys((parent(old), parent(new)) for old, new in map(directories, pairs) if old != new):
        fs = file_system([old, new])
        problems = (*_properties_problems(fs, old, new), *_shutdown_problems(fs, old, new), *_metadata_problems(fs, old, new))
        if problems:
            certificates.append(DirectoryCertificate(new, problems))
    return tuple(certificates)


def _properties_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, actual = parsed_pair(_properties, fs, old, new)
    if expected is not None and actual is None:
        yield f"{META_PROPERTIES} is missing or malformed"
    elif fs.stat(join(old, META_PROPERTIES)) is None and fs.stat(join(new, META_PROPERTIES)) is not None:
        yield f"{META_PROPERTIES} is not in the source"
    elif expected is not None and actual is not None and expected != actual:
        name = min(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
        yield f"{META_PROPERTIES} has {name}={actual.get(name)}, expected {expected.get(name)}"


def _properties(fs: FileSystem, log_dir: str) -> dict[str, str] | None:
    path = join(log_dir, META_PROPERTIES)
    text = text_of(fs, path, "latin-1")
    return None if text is None else as_dict(parse_properties(text, path))


def _shutdown_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, actual = parsed_pair(_shutdown, fs, old, new)
    if actual is None and expected is not None:
        yield f"{CLEAN_SHUTDOWN} is missing: a broker recovers every log"
    elif expected is None and actual is not None:
        yield f"{CLEAN_SHUTDOWN} is not in the source: a broker recovers no log"
    elif expected != actual:
        yield f"{CLEAN_SHUTDOWN} has other contents"


def _shutdown(fs: FileSystem, log_dir: str) -> bytes | None:
    path = join(log_dir, CLEAN_SHUTDOWN)
    return None if fs.stat(path) is None else read_small(fs, path, HINT)


def _metadata_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    """The metadata log has the same files with the same bytes."""
    expected, actual = (_files(fs, join(path, _METADATA_LOG)) for path in (old, new))
    if expected is None:
        return
    if actual is None:
        yield f"{_METADATA_LOG} is missing: a broker takes every log for a stray"
        return
    for name in sorted(expected.keys() | actual.keys()):
        paths = [join(log_dir, _METADATA_LOG, name) for log_dir in (old, new)]
        if expected.get(name) != actual.get(name) or not _same(fs, expected[name], *paths):
            yield f"{_METADATA_LOG}/{name} differs from the source"


def _files(fs: FileSystem, directory: str) -> dict[str, int] | None:
    """The sizes of a directory's files by name; ``None`` if it is missing."""
    stat = fs.stat(directory)
    if stat is None or not stat.is_dir:
        return None
    stats = ((name, fs.stat(join(directory, name))) for name in fs.listdir(directory))
    return {name: status.size for name, status in stats if status is not None and status.is_file}


def _same(fs: FileSystem, size: int, *paths: str) -> bool:
    steps = range(0, size, _STEP_BYTES)
    return all(
        len({fs.read_bytes(path, position, min(_STEP_BYTES, size - position)) for path in paths}) == 1 for position in steps
    )
