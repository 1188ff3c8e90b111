"""Jobs on clusters of separate processes whose executors have nothing installed write the same bytes as on one machine.

The settings are those of ``conf/spark-defaults.conf`` for clusters.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compaction.commands import compact
from compaction.files.manifest import MANIFEST
from tests.cluster.conftest import ROOT, bare_environment
from tests.cluster.standalone import Standalone, standalone
from tests.golden import unpack_sample
from tests.jvm import executor_options
from tests.object_store.fixtures import Bucket
from tests.object_store.server import ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

AS_OF_MS = 1_767_225_600_000
#: prints where a worker imports this package and a library from
PROBE = """
import sys
from compaction.engine_choice import start_session
session = start_session("probe")
def where(_):
    import compaction, numba, os, sys
    from compaction.kernels import batches
    return [(compaction.__file__, numba.__file__, sys.executable, os.environ.get("PYTHONPATH", ""))]
sc = session.sparkContext
for each in sc.parallelize(range(4), 4).flatMap(where).collect():
    print("|".join(each))
"""


def settings_for_clusters(packed: Path) -> dict[str, str]:
    """The commented settings of the file, with the archives that were packed for this test."""
    text = (ROOT / "conf/spark-defaults.conf").read_text()
    settings = dict(re.findall(r"^# (spark\.[\w.]+)\s+(\S+)$", text, re.MULTILINE))
    assert {"spark.master", "spark.archives", "spark.pyspark.python", "spark.submit.pyFiles"} <= set(settings)
    own = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.pyspark.driver.python": sys.executable}
    return {name: value.replace("build/cluster", str(packed)) for name, value in settings.items()} | own | executor_options()


def submit(
    home: Path, script: Path, settings: dict[str, str], *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs an application by spark-submit with these settings and environment variables only, the project on the driver's
    path."""
    properties = home / "spark.conf"
    properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    environment = bare_environment(home) | {"PYTHONPATH": str(ROOT)} | variables
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--properties-file", str(properties), str(script), *options]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    place = tmp_path_factory.mktemp("two-workers") / "cluster"
    with standalone(place, bare_environment(place)) as cluster:
        yield cluster


def log_bytes(log_dir: Path) -> int:
    return sum(path.stat().st_size for path in log_dir.glob("orders*/*.log"))


#: clean everything that can be cleaned
ALL = ("--as-of-ms", str(AS_OF_MS), "--set", "min.cleanable.dirty.ratio=0", "--include-active")


def test_workers_run_only_shipped_code(packed: Path, two_workers: Standalone, tmp_path: Path) -> None:
    settings = settings_for_clusters(packed) | {"spark.master": two_workers.url, "spark.cores.max": "1"}
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    done = submit(tmp_path, probe, settings)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    assert len(found) == 4
    for package, library, python, path in found:
        assert re.search(r"^(\./|.*/cluster/work-\d+/.*/)kafka-log-compaction(-driver)?\.zip/compaction/__init__\.py$", package)
        assert re.search(r"/cluster/work-\d+/.*/environment/lib/.*/numba/__init__\.py$", library)
        assert python.endswith("/environment/bin/python")
        assert str(ROOT) not in path.split(os.pathsep)


#: a call on a session whose executors no worker of the cluster can start
TOO_LARGE = """
import sys, compaction
from pyspark.sql import SparkSession
settings = {"spark.executor.cores": "64", "spark.executor.memory": "700m", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master(sys.argv[1]).config(map=settings).getOrCreate()
print("session", flush=True)
compaction.count(sys.argv[2], spark=spark)
"""


def test_executors_that_no_worker_can_start_are_said_after_half_a_minute(two_workers: Standalone, tmp_path: Path) -> None:
    """The call waits: a worker may join."""
    environment = bare_environment(tmp_path) | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    del environment["SPARK_HOME"]
    output = tmp_path / "output"
    with output.open("wb") as file:
        command = [sys.executable, "-c", TOO_LARGE, two_workers.url, str(unpack_sample(tmp_path))]
        call = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: b"no task has started" in output.read_bytes() or call.poll() is not None, 240)
        assert call.poll() is None, output.read_text()[-3000:]
    finally:
        call.kill()
        call.wait()
    (line,) = re.findall("no task has started.*", output.read_text())
    assert line == (
        f"no task has started for 30 s: no executor has registered with {two_workers.url}. Each was requested with "
        "spark.executor.cores=64, spark.executor.memory=700m: does a worker have that free?"
    )


def executors(cluster: Standalone) -> set[Path]:
    """The output files of all executors so far."""
    return set(cluster.place.glob("work-*/app-*/*/stderr"))


@contextmanager
def worker_replaced(cluster: Standalone) -> Iterator[None]:
    """Once a worker has begun another executor, a new worker joins, and that one dies."""
    before = executors(cluster)
    events: list[str] = []

    def replace() -> None:
        deadline = time.monotonic() + 300
        while not (begun := executors(cluster) - before) and time.monotonic() < deadline:
            time.sleep(0.2)
        work = begun.pop().relative_to(cluster.place).parts[0]
        cluster.add_worker()
        events.append("another worker")
        cluster.processes[int(work.removeprefix("work-"))].kill()
        events.append("first worker gone")

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        yield
    finally:
        replacing.join()
    assert events == ["another worker", "first worker gone"]


def test_a_cluster_compacts_from_store_to_store_as_one_machine_does_from_disk_to_disk(
    packed: Path, two_workers: Standalone, tmp_path: Path, bucket: Bucket
) -> None:
    """Workers may join and leave meanwhile, and the archive has the package, too: there are no ``--py-files``."""
    log_dir, on_disk = unpack_sample(tmp_path), tmp_path / "on-disk"
    bucket.put_tree(log_dir, "in")
    assert compact.main(["--log-dir", str(log_dir), "--output-dir", str(on_disk), *ALL]) == 0
    settings = settings_for_clusters(packed) | {"spark.master": two_workers.url}
    del settings["spark.submit.pyFiles"]
    # the driver takes its credentials from the environment, the workers take theirs from a file
    variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    (two_workers.place / ".aws").mkdir()
    lines = ["[default]", *(f"{name.lower()} = {value}" for name, value in variables.items())]
    (two_workers.place / ".aws/credentials").write_text("\n".join(lines) + "\n")
    places = ("--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"))
    with worker_replaced(two_workers):
        done = submit(tmp_path, ROOT / "jobs/compact.py", settings, *places, *ALL, **variables)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = bucket.tree("out")
    manifest = json.loads(found.pop(MANIFEST))
    assert found == {str(path.relative_to(on_disk)): path.read_bytes() for path in on_disk.rglob("*") if path.is_file()}
    assert {each["path"]: each["size"] for each in manifest["files"]} == {name: len(data) for name, data in found.items()}
    assert log_bytes(on_disk) < log_bytes(log_dir) / 2
