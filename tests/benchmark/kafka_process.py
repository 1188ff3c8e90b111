"""Kafka's cleaner over a log directory as a process of its own: ``python -m tests.benchmark.kafka_process DIR CASE``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmark.__main__ import kafka_seconds
from tests.benchmark.profiles import cases
from tests.kafka.gateway import Gateway

if __name__ == "__main__":
    jvm = Gateway()
    kafka_seconds(jvm, Path(sys.argv[1]), cases(1.0)[sys.argv[2]])
    jvm.close()
