"""Recreates ``formats/*.json``: bytes that Kafka 4.3.0's own classes write, and the values that they read from them.

Run it from the repository's root: ``python -m tests.golden.make_formats``. It needs a JDK (not only a JRE) and Kafka's jars,
which Spark resolves. The output is the same at every run on the same JDK.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kafka.gateway import java_executable
from tests.kafka.jars import LOGGING_CONFIG, kafka_classpath

HERE = Path(__file__).with_name("formats")


def main() -> None:
    """Run ``MakeFormats.java`` from source."""
    options = [f"-Dlog4j2.configurationFile={LOGGING_CONFIG}", "-cp", kafka_classpath()]
    subprocess.run([java_executable(), *options, str(HERE / "MakeFormats.java"), str(HERE)], check=True)


if __name__ == "__main__":
    main()
