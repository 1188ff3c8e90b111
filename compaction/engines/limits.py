"""The number of worker processes that this process may run: by its CPU affinity, and by CPU quota and memory of its cgroup.

A limit of a cgroup holds for those below it, so the least one between the process's own group and the top that is visible here
counts. ``/proc/self/cgroup`` names the group of each hierarchy, ``/proc/self/mountinfo`` has where hierarchies are mounted, and
which of their groups the mount begins with.

| | version 2 | version 1 |
| --- | --- | --- |
| CPU quota | ``cpu.max``: quota or ``max``, and period | ``cpu.cfs_quota_us`` (-1: none), ``cpu.cfs_period_us`` |
| memory | ``memory.max``: bytes or ``max`` | ``memory.limit_in_bytes`` |
| processes killed for memory | ``oom_kill`` in ``memory.events`` | ``oom_kill`` in ``memory.oom_control`` |
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

#: memory of a worker or of the driver, in bytes: workers of a run over 24 GB needed 494 MiB
WORKER_BYTES = 512 << 20
_CPU, _MEMORY = "cpu", "memory"


def usable_cores(root: Path = Path("/")) -> int:
    """The number of worker processes, at least 1.

    :param root: the directory that has ``proc`` and, by the mount table in it, the cgroups
    """
    # only Linux has it
    affinity = getattr(os, "sched_getaffinity", None)
    limits = [len(affinity(0)) if affinity is not None else os.cpu_count() or 1]
    for group in _groups(root, _CPU):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            # a started core counts
            limits.append(-(-int(quota) // int(period)))
    for group in _groups(root, _MEMORY):
        texts = _text(group / "memory.max"), _text(group / "memory.limit_in_bytes")
        limits += [int(text) // WORKER_BYTES - 1 for text in texts if text.isdigit()]
    return max(1, min(limits))


def oom_kills(root: Path = Path("/")) -> int:
    """The number of processes of this cgroup that the kernel has killed for lack of memory."""
    own = list(_groups(root, _MEMORY))[:1]
    texts = (_text(group / name) for group in own for name in ("memory.events", "memory.oom_control"))
    return sum(int(count) for text in texts for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's cgroup and of those above it, in each hierarchy that may have the controller."""
    paths: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif controller in controllers.split(","):
            paths["cgroup"] = path
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        fields, (kind, _, options) = mount.split(" "), source.split(" ", 2)
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and controller not in options.split(",")):
            continue
        if kind not in paths:
            continue
        top = root / fields[4].lstrip("/")
        # a container may see the name that its group has on the host
        below = os.path.relpath(paths[kind], fields[3])
        group = top if below.startswith("..") else top / below
        while True:
            yield group
            if group == top:
                break
            group = group.parent


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
