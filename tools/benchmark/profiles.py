"""The cases: logs of different shapes, each case in one log directory."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tools.benchmark.generate import Profile, write_log

MB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One case. ``logs`` partitions of ``profile`` each; ``dirty_share`` of the log is dirty, the rest clean.

    ``kafka_threads``: the number of Kafka's cleaners; ``target``: the ratio to reach; ``whole_process``: both are timed from
    the start of their processes to the end; ``local``: ours by ``--engine local``.
    """

    name: str
    title: str
    profile: Profile
    logs: int = 1
    dirty_share: float = 1.0
    kafka_threads: int = 1
    target: float = 4.0
    kafka_map_bytes: int = 128 * MB
    whole_process: bool = False
    local: bool = False


_BASE = Profile(total_bytes=3900 * MB, keys=4_000_000)


def cases(scale: float) -> dict[str, Case]:
    """All cases, their sizes multiplied by ``scale``."""

    def sized(profile: Profile) -> Profile:
        return replace(profile, total_bytes=int(profile.total_bytes * scale), keys=max(1, int(profile.keys * scale)))

    listed = [
        Case("a", "3.9 GB, 32 M records, 4 M keys, uncompressed", sized(_BASE), target=12),
        Case("b", "the same, lz4", sized(replace(_BASE, codec=3))),
        Case("c", "the same, zstd", sized(replace(_BASE, codec=4))),
        Case("d", "values of 10 KB", sized(replace(_BASE, value_bytes=10_240, keys=100_000, batch_bytes=65_536)),
        target=2.2),
        # segments of a tenth: each is either dirty or clean
        Case("e", "10 % dirty on a clean log", replace(sized(replace(_BASE, unique=True)), segment_bytes=int(390 * MB * scale)),
        dirty_share=0.1, target=6),
        # segments of which no two fit into one: what is clean stays
        Case("e1", "e, with segments of 600 MB",
        replace(sized(replace(_BASE, unique=True)), segment_bytes=int(600 * MB * scale)), dirty_share=0.1, target=6),
        Case("f", "50 partitions of 80 MB, Kafka on two threads", replace(sized(_BASE), total_bytes=int(80 * MB * scale),
        keys=max(1, int(82_000 * scale))), logs=50, kafka_threads=2),
        Case("g", "46 M distinct keys", sized(replace(_BASE, total_bytes=1920 * MB, value_bytes=20, unique=True)), target=8),
        Case("h", "a, whole processes", sized(_BASE), target=4.5, whole_process=True),
        Case("hl", "h, by worker processes", sized(_BASE), target=7, whole_process=True, local=True),
        Case("h8", "8 GB, whole processes", sized(replace(_BASE, total_bytes=8000 * MB, keys=8_000_000)), target=8,
        whole_process=True),
        Case("hz", "c, whole processes", sized(replace(_BASE, codec=4)), target=4, whole_process=True),
        Case("i", "one segment of 1 GiB", sized(replace(_BASE, total_bytes=1000 * MB, keys=1_000_000))),
        Case("s", "9 MB, whole processes, by worker processes", Profile(total_bytes=9_000_000, keys=10_000), whole_process=True,
        local=True),
        Case("j", "2,000 small partitions", Profile(total_bytes=100_000, keys=200), logs=int(2000 * scale),
        kafka_threads=2, target=4),
        Case("k", "20,000 small partitions, whole processes", Profile(total_bytes=100_000, keys=200), logs=int(20_000 * scale),
        kafka_threads=2, whole_process=True),
    ]  # fmt: skip
    grown = [
        Case(f"{gb:g}GB", f"{gb:g} GB, a million keys a GB", sized(replace(_BASE, total_bytes=int(gb * 1000 * MB),
        keys=int(gb * 1_000_000))), target=8)
        for gb in (0.5, 1, 2, 4, 8)
    ]  # fmt: skip
    return {case.name: case for case in [*listed, *grown]}


def say(text: str) -> None:
    """Print the progress."""
    print(text, file=sys.stderr, flush=True)


def prepared(case: Case, root: Path) -> Path:
    """The case's original log directory below ``root``, created if it does not exist as described."""
    place = root / case.name
    wanted = json.dumps({**asdict(case.profile), "logs": case.logs})
    stamp = place.with_suffix(".json")
    if stamp.exists() and stamp.read_text() == wanted:
        return place
    say(f"{case.name}: making {case.logs} x {case.profile.total_bytes / MB:.0f} MB in {place}")
    if place.exists():
        raise SystemExit(f"{place} holds another log; remove it")
    place.mkdir(parents=True)
    ends = {}
    for partition in range(case.logs):
        ends[f"bench-{partition}"] = write_log(place / f"bench-{partition}", replace(case.profile, seed=partition + 1))
    if case.dirty_share < 1:
        lines = [f"bench {partition} {_first_dirty(place / f'bench-{partition}', case)}" for partition in range(case.logs)]
        (place / "cleaner-offset-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")
    stamp.write_text(wanted)
    return place


def _first_dirty(log: Path, case: Case) -> int:
    """The base offset of the first segment of the dirty share."""
    bases = sorted(int(file.stem) for file in log.glob("*.log"))
    wanted = int(bases[-1] * (1 - case.dirty_share))
    return max(base for base in bases[:-1] if base <= wanted)
