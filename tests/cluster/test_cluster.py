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
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.stores.manifest import MANIFEST
from tests.cluster.conftest import ROOT, Standalone, bare_environment
from tests.golden import unpack_sample
from tests.object_store.fixtures import Bucket
from tests.object_store.server import ACCESS_KEY, SECRET_KEY

pytestmark = pytest.mark.cluster

AS_OF_MS = 1_767_225_600_000
#: prints where a worker imports this package and a library from
PROBE = """
import sys
from compaction.api.engine_choice import start_session
session = start_session("probe")
def where(_):
    import compaction, numba, os, sys
    from compaction.kernels.reading import batches
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
    return {name: value.replace("build/cluster", str(packed)) for name, value in settings.items()} | own


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


def content(log_dir: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's bytes, and the modification time of segments."""
    files = (path for path in sorted(log_dir.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(log_dir)): (path.read_bytes(), path.stat().st_mtime_ns if path.suffix == ".log" else 0)
        for path in files
        if path.name != ".lock"
    }


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, int]]:
    """The sample, compacted in local mode."""
    home = tmp_path_factory.mktemp("local")
    log_dir = unpack_sample(home)
    before = content(log_dir)
    local = {"spark.master": "local[2]", "spark.pyspark.python": sys.executable}
    done = submit(home, ROOT / "jobs/compact.py", local, *options_for(log_dir))
    assert done.returncode == 0, done.stderr
    after = content(log_dir)
    assert log_bytes(after) < log_bytes(before) / 2
    return after


def log_bytes(found: dict[str, tuple[bytes, int]]) -> int:
    return sum(len(data) for name, (data, _) in found.items() if name.endswith(".log") and name.startswith("orders"))


#: clean everything that can be cleaned
ALL = ("--as-of-ms", str(AS_OF_MS), "--set", "min.cleanable.dirty.ratio=0", "--include-active")


def options_for(log_dir: Path) -> tuple[str, ...]:
    return ("--log-dir", str(log_dir), *ALL, "--report", str(log_dir.parent / "report.json"))


def check_compaction(home: Path, settings: dict[str, str], expected: dict[str, tuple[bytes, int]]) -> None:
    log_dir = unpack_sample(home)
    done = submit(home, ROOT / "jobs/compact.py", settings, *options_for(log_dir))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert json.loads((home / "report.json").read_text())["totals"]["cleaned"] > 5
    assert content(log_dir) == expected


def test_workers_run_only_shipped_code(
    packed: Path, standalone: Callable[[int], Standalone], tmp_path: Path
) -> None:
    settings = settings_for_clusters(packed) | {"spark.master": standalone(2).url}
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


def test_a_cluster_compacts_from_store_to_store_as_one_machine_does_from_disk_to_disk(
    packed: Path, standalone: Callable[[int], Standalone], tmp_path: Path, bucket: Bucket
) -> None:
    log_dir, on_disk = unpack_sample(tmp_path), tmp_path / "on-disk"
    bucket.put_tree(log_dir, "in")
    local = {"spark.master": "local[2]", "spark.pyspark.python": sys.executable}
    done = submit(tmp_path, ROOT / "jobs/compact.py", local, "--log-dir", str(log_dir), "--output-dir", str(on_disk), *ALL)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    settings = settings_for_clusters(packed) | {"spark.master": standalone(2).url}
    # the driver takes its credentials from the environment, the workers take theirs from a file
    variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    (tmp_path / "cluster/.aws").mkdir()
    lines = ["[default]", *(f"{name.lower()} = {value}" for name, value in variables.items())]
    (tmp_path / "cluster/.aws/credentials").write_text("\n".join(lines) + "\n")
    places = ("--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"))
    done = submit(tmp_path, ROOT / "jobs/compact.py", settings, *places, *ALL, **variables)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = bucket.tree("out")
    manifest = json.loads(found.pop(MANIFEST))
    assert found == {str(path.relative_to(on_disk)): path.read_bytes() for path in on_disk.rglob("*") if path.is_file()}
    assert {each["path"]: each["size"] for each in manifest["files"]} == {name: len(data) for name, data in found.items()}
    assert log_bytes(content(on_disk)) < log_bytes(content(log_dir)) / 2


def test_a_local_cluster_without_py_files_writes_the_same_bytes(
    packed: Path, tmp_path: Path, on_one_machine: dict[str, tuple[bytes, int]]
) -> None:
    settings = settings_for_clusters(packed) | {"spark.master": "local-cluster[2,1,1024]"}
    del settings["spark.submit.pyFiles"]
    check_compaction(tmp_path, settings, on_one_machine)


def test_workers_may_join_and_leave_during_a_run(
    packed: Path, standalone: Callable[[int], Standalone], tmp_path: Path, on_one_machine: dict[str, tuple[bytes, int]]
) -> None:
    cluster = standalone(1)
    first_work = tmp_path / "cluster/work-1"
    events: list[str] = []

    def replace_the_worker_once_it_works() -> None:
        deadline = time.monotonic() + 300
        while not list(first_work.glob("app-*/*/stderr")) and time.monotonic() < deadline:
            time.sleep(0.2)
        first = cluster._processes[1]
        cluster.add_worker()
        events.append("second worker")
        first.kill()
        events.append("first worker gone")

    replacing = threading.Thread(target=replace_the_worker_once_it_works)
    replacing.start()
    try:
        check_compaction(tmp_path, settings_for_clusters(packed) | {"spark.master": cluster.url}, on_one_machine)
    finally:
        replacing.join()
    assert events == ["second worker", "first worker gone"]
