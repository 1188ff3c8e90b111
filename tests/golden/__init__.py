"""A broker's log directory, written by a real Kafka 4.3.0 and, except for one topic, never cleaned; see ``make_sample``."""

from __future__ import annotations

import tarfile
from pathlib import Path

SAMPLE = Path(__file__).with_name("sample-logs.tar.gz")
#: the sample's ``payments-0``, as Aiven's plugin stores it; see ``README.md``
AIVEN_OBJECTS = Path(__file__).with_name("aiven-objects.tar.gz")
#: a topic in sets of kafka-backup, and what a consumer saw of it; see ``README.md``
_BACKUP_SETS = Path(__file__).with_name("backup-sets.tar.gz")
#: the one directory at the top of the archive
SAMPLE_ROOT = "kafka-logs"


def unpack_sample(destination: Path) -> Path:
    """Unpacks the sample into ``destination`` with its modification times; returns the log directory."""
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(destination, filter="data")
    return destination / SAMPLE_ROOT


def unpack_backup_sets(destination: Path) -> Path:
    """Unpacks the backup sets into ``destination``; returns the directory that has ``none``, ``zstd``, ``lz4`` and
    ``consumed.json``."""
    with tarfile.open(_BACKUP_SETS) as archive:
        archive.extractall(destination, filter="data")
    return destination / "backup-sets"
