"""A broker's log directory, written by a real Kafka 4.3.0 and, except for one topic, never cleaned; see ``make_sample``."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.oracle.records import decode

SAMPLE = Path(__file__).with_name("sample-logs.tar.gz")
#: the sample's ``payments-0``, as Aiven's plugin stores it; see ``README.md``
AIVEN_OBJECTS = Path(__file__).with_name("aiven-objects.tar.gz")
#: a topic in sets of kafka-backup, and what a consumer saw of it; see ``README.md``
_BACKUP_SETS = Path(__file__).with_name("backup-sets.tar.gz")
#: what brokers left that were killed, and what Kafka makes of it; see ``make_killed``
KILLED = Path(__file__).with_name("killed-brokers.tar.gz")
KILLED_DIRS = ("default", "preallocating")
#: the one directory at the top of the archive
SAMPLE_ROOT = "kafka-logs"


def unpack_sample(destination: Path, *logs: str) -> Path:
    """Unpacks the sample into ``destination`` with its modification times; returns the log directory.

    :param logs: the beginnings of the names of the logs; by default all
    """
    sample, log_dir = _sample(), destination / SAMPLE_ROOT
    log_dir.mkdir(parents=True)
    chosen = [entry for entry in sample.iterdir() if not entry.is_dir() or entry.name.startswith(logs or "")]
    # a third of the time of ``shutil.copytree``
    subprocess.run(["cp", "-a", *chosen, log_dir], check=True)
    shutil.copystat(sample, log_dir)
    return log_dir


@cache
def _sample() -> Path:
    """The sample, unpacked once in a process."""
    place = mkdtemp(prefix="sample-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(place, filter="data")
    return Path(place) / SAMPLE_ROOT


def unpack_backup_sets(destination: Path) -> Path:
    """Unpacks the backup sets into ``destination``; returns the directory that has ``none``, ``zstd``, ``lz4`` and
    ``consumed.json``."""
    with tarfile.open(_BACKUP_SETS) as archive:
        archive.extractall(destination, filter="data")
    return destination / "backup-sets"


def unpack_killed(destination: Path) -> dict[str, Any]:
    """Unpacks the log directories ``KILLED_DIRS`` of brokers that were killed into ``destination``.

    Returns by directory ``as_of_ms``, the topics' ``config``, and ``logs``: by topic, what ``served_by`` found after Kafka had
    recovered and cleaned them.
    """
    with tarfile.open(KILLED) as archive:
        archive.extractall(destination, filter="data")
    found: dict[str, Any] = json.loads((destination / "expected.json").read_text())
    return found


def served_by(log: Path) -> dict[str, Any]:
    """What a broker serves of a log: the base offsets of its segments, records (offset, key, value) including markers, and
    transaction indexes, bytes in hex. Zeros after the last batch are preallocated."""
    segments = sorted(log.glob("*.log"))
    records = [
        [record.offset, _hex(record.key), _hex(record.value)]
        for segment in segments
        for batch in decode(_written(segment.read_bytes()))
        for record in batch.records()
    ]
    aborted = {index.name: index.read_bytes().hex() for index in sorted(log.glob("*.txnindex")) if index.stat().st_size}
    return {"segments": [segment.name for segment in segments], "records": records, "aborted": aborted}


def _written(log: bytes) -> bytes:
    """The batches of a segment, without zeros that were preallocated after them."""
    at = 0
    while size := int.from_bytes(log[at + 8 : at + 12], "big"):
        at += 12 + size
    return log[:at]


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()
