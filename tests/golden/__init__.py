"""A broker's log directory, written by a real Kafka 4.3.0 and, except for one topic, never cleaned; see ``make_sample``."""

from __future__ import annotations

import tarfile
from pathlib import Path

SAMPLE = Path(__file__).with_name("sample-logs.tar.gz")
#: the sample's ``payments-0``, as Aiven's plugin stores it; see ``README.md``
AIVEN_OBJECTS = Path(__file__).with_name("aiven-objects.tar.gz")
#: the one directory at the top of the archive
SAMPLE_ROOT = "kafka-logs"


def unpack_sample(destination: Path) -> Path:
    """Unpacks the sample into ``destination`` with its modification times; returns the log directory."""
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(destination, filter="data")
    return destination / SAMPLE_ROOT
