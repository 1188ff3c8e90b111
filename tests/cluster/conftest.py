"""The packed environment that the executors of a cluster run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jvm import spark_variables
from tests.kafka.jars import spark_home

ROOT = Path(__file__).resolve().parents[2]


def bare_environment(home: Path) -> dict[str, str]:
    """The environment of a machine on which nothing of this project is installed."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME") if name in os.environ}
    java = shutil.which("java")
    path = [*([str(Path(java).parent)] if java else []), "/usr/local/bin", "/usr/bin", "/bin"]
    spark = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home())}
    return {**kept, **spark, **spark_variables(), "PATH": os.pathsep.join(path), "HOME": str(home)}


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty cache: the first processes compile the kernels, on a worker too, and the later ones use them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the output of ``conf/cluster/pack``."""
    target = tmp_path_factory.mktemp("packed")
    done = subprocess.run(
        [str(ROOT / "conf/cluster/pack"), str(target)],
        # the least compression: the archive is read from the same disk
        env={**os.environ, "PYTHON": sys.executable, "GZIP": "-1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return target
