"""Kafka's cleaner over a log directory in a JVM of its own: ``python -m tools.benchmark.kafka_process DIR CASE``.

Prints the seconds from the start of the JVM to its end, without the time of Python.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.kafka.gateway import Gateway
from tests.kafka.jars import require_kafka_classpath
from tools.benchmark.kafka_cleaner import clean_all
from tools.benchmark.profiles import cases

if __name__ == "__main__":
    require_kafka_classpath()
    begun = time.perf_counter()
    jvm = Gateway()
    clean_all(jvm, Path(sys.argv[1]), cases(1.0)[sys.argv[2]])
    jvm.close()
    print(time.perf_counter() - begun)
