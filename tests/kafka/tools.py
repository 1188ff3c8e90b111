"""Kafka's command line tools, run as commands."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.kafka.gateway import java_executable
from tests.kafka.jars import LOGGING_CONFIG, require_tools_classpath


def dump_log(files: Sequence[Path], *options: str) -> str:
    """The output of Kafka's ``DumpLogSegments`` for ``files``, e.g. with ``--print-data-log``; raises if it fails."""
    command = [java_executable(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={LOGGING_CONFIG}"]
    command += ["-cp", require_tools_classpath(), "org.apache.kafka.tools.DumpLogSegments"]
    command += ["--files", ",".join(map(str, files)), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
