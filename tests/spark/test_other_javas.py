"""The job runs on each Java of this machine that Spark supports, beside the one on the path, and writes the same bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.golden import unpack_sample
from tests.kafka.jars import spark_home

_HOMES = Path("/usr/lib/jvm")
#: of 25, earlier ones are refused
_SUPPORTED = re.compile(r'version "(17|21|25\.0\.([3-9]|\d\d)|25\.[1-9])')


def javas() -> list[Path]:
    """The homes of supported Javas, one for each directory that is no link."""
    found = []
    for home in sorted(_HOMES.glob("*")):
        if home.is_symlink() or not (home / "bin/java").exists():
            continue
        told = subprocess.run([home / "bin/java", "-version"], capture_output=True, text=True, check=False).stderr
        if _SUPPORTED.search(told):
            found.append(home)
    return found


def files(log_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in log_dir.rglob("0*.*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.spark
def test_every_java_of_this_machine_gives_the_same_bytes(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    rules = ["--as-of-ms", "1798761600000", "--include-active"]
    submit = [str(spark_home() / "bin/spark-submit"), "--master", "local[2]", str(ROOT / "jobs/compact.py")]
    submit += ["--log-dir", str(log_dir)]
    outputs = []
    for home in javas():
        outputs.append(tmp_path / home.name)
        own = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        command = [*submit, *rules, "--output-dir", str(outputs[-1])]
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    assert outputs
    assert all(files(output) == files(outputs[0]) != {} for output in outputs)
