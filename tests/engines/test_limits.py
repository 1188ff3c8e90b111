"""The number of workers fits the CPUs, the quota and the memory that a container has, in each version of cgroups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from compaction.engine_choice import choose
from compaction.engines import limits
from compaction.engines.limits import WORKER_BYTES, oom_kills, usable_cores
from compaction.errors import UsageError
from compaction.options.table import AUTO, LOCAL, SPARK

CPUS = 64
V2 = "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 25 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "35 25 0:31 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)
GIB = 1 << 30
UNLIMITED = "9223372036854771712"


def machine(root: Path, group: str, mounts: str, files: Mapping[str, object]) -> Path:
    """A directory with the files under ``proc`` and ``sys`` of a process in ``group``."""
    own = root / "proc/self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(group)
    (own / "mountinfo").write_text(mounts)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


@pytest.fixture(autouse=True)
def _affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(CPUS)), raising=False)


@pytest.mark.parametrize(
    ("group", "mounts", "files", "cores"),
    [
        ("", "", {}, CPUS),
        ("0::/\n", V2, {}, CPUS),
        ("0::/\n", V2, {"cpu.max": "max 100000", "memory.max": "max"}, CPUS),
        ("0::/\n", V2, {"cpu.max": "200000 100000"}, 2),
        # a started core
        ("0::/\n", V2, {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", V2, {"cpu.max": "20000 100000"}, 1),
        # 4 GiB: one part for the driver
        ("0::/\n", V2, {"cpu.max": "max 100000", "memory.max": 4 * GIB}, 7),
        ("0::/\n", V2, {"memory.max": WORKER_BYTES // 2}, 1),
        # the least of all levels counts
        ("0::/a/b\n", V2, {"a/b/memory.max": 8 * GIB, "a/memory.max": 2 * GIB, "memory.max": "max"}, 3),
        ("0::/a/b\n", V2, {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        # a group that is not visible here
        ("0::/../../other\n", V2, {"cpu.max": "500000 100000"}, 5),
        (
            "4:memory:/\n3:cpu,cpuacct:/\n", V1.format(top="/"),
            {"memory/memory.limit_in_bytes": UNLIMITED, "cpu,cpuacct/cpu.cfs_quota_us": -1}, CPUS,
        ),
        (
            "4:memory:/\n3:cpu,cpuacct:/\n", V1.format(top="/"),
            {"cpu,cpuacct/cpu.cfs_quota_us": 400_000, "cpu,cpuacct/cpu.cfs_period_us": 100_000}, 4,
        ),
        (
            "4:memory:/a/b\n", V1.format(top="/"),
            {"memory/a/b/memory.limit_in_bytes": UNLIMITED, "memory/a/memory.limit_in_bytes": GIB}, 1,
        ),
        # a container without a namespace of cgroups: the name is that on the host, the mount begins with it
        ("4:memory:/docker/1f\n", V1.format(top="/docker/1f"), {"memory/memory.limit_in_bytes": 3 * GIB}, 5),
        # both versions, as systemd mounts them
        ("4:memory:/s\n0::/s\n", V1.format(top="/") + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
         {"memory/s/memory.limit_in_bytes": 2 * GIB, "unified/s/cgroup.procs": 1}, 3),
    ],
)  # fmt: skip
def test_workers_fit_their_container(group: str, mounts: str, files: Mapping[str, object], cores: int, tmp_path: Path) -> None:
    assert usable_cores(machine(tmp_path, group, mounts, files)) == cores


@pytest.mark.parametrize(
    ("group", "mounts", "files", "kills"),
    [
        ("0::/a\n", V2, {"a/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0", "memory.events": "oom_kill 9"}, 2),
        ("4:memory:/\n", V1.format(top="/"), {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5"}, 5),
        ("", "", {}, 0),
    ],
)
def test_processes_killed_for_memory_are_counted(
    group: str, mounts: str, files: Mapping[str, object], kills: int, tmp_path: Path
) -> None:
    assert oom_kills(machine(tmp_path, group, mounts, files)) == kills


def test_this_machine_has_limits() -> None:
    assert 1 <= usable_cores() <= CPUS
    assert oom_kills() >= 0


@pytest.mark.parametrize(("given", "cores"), [(None, CPUS), (3, 3), (1000, CPUS)])
def test_a_caller_may_lower_the_number_of_workers(given: int | None, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: CPUS)
    assert choose(LOCAL, "count", cores=given).passes()().cores == cores


@pytest.mark.parametrize(
    ("engine", "cores", "text"),
    [
        (LOCAL, 0, "0 is not a number"),
        (AUTO, -1, "-1 is not a number"),
        (AUTO, True, "True is not"),
        (SPARK, 2, "engine is spark"),
    ],
)
def test_a_number_of_workers_that_cannot_be_is_refused(engine: str, cores: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        choose(engine, "count", cores=cores)
