"""``python -m tools.benchmark.increments``: a copy with ``--since`` after a night in which 5 % of the segments are new, beside
a full copy of the same source.

Complete processes of the console command, alternating, in the page cache. The logs were not cleaned before, and the new
segments are too few for the default dirty ratio. Prints the medians and their ratio. The segments of the previous copy are
compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from pathlib import Path

from compaction.formats.producer_snapshot import write_snapshot
from tools.benchmark.__main__ import apart, warm
from tools.benchmark.generate import Profile, write_log
from tools.benchmark.kafka_cleaner import NOW_MS
from tools.benchmark.machine import machine
from tools.benchmark.processes import SUBMIT, adopt_orphans, timed
from tools.benchmark.profiles import MB, say

#: of a log before the night, and in it
_SEGMENTS, _NEW = 20, 1
_SEGMENT_BYTES = 66 * MB
_KINDS = (".log", ".index", ".timeindex")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.increments", description=__doc__)
    parser.add_argument("--logs", type=int, default=2, help="of 1.4 GB each")
    parser.add_argument("--keys", type=int, default=3_000_000, help="of a log with 10 million records")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark/increments"))
    arguments = parser.parse_args()
    root = arguments.work.resolve()
    times: dict[str, list[float]] = {"full": [], "since": []}
    shutil.rmtree(root, ignore_errors=True)
    source, first = root / "source", root / "first"
    for number in range(arguments.logs):
        apart(write_log, root / "made" / f"t{number}-0", profile(arguments.keys, number))
        grow(root / "made" / f"t{number}-0", source / f"t{number}-0", _SEGMENTS)
    adopt_orphans()
    seconds(source, first, 0, "--if-done", "skip")
    for number in range(arguments.logs):
        grow(root / "made" / f"t{number}-0", source / f"t{number}-0", _SEGMENTS + _NEW)
    for number in range(arguments.runs):
        for name, options in (("full", ()), ("since", ("--since", str(first)))):
            for log_dir in (source, first):
                warm(log_dir)
            shutil.rmtree(root / name, ignore_errors=True)
            os.sync()
            times[name].append(seconds(source, root / name, number + 1, *options))
    for file in first.rglob("*.log"):
        if file.stat().st_size:
            assert file.read_bytes() == (root / "since" / file.relative_to(first)).read_bytes(), file
    full, since = (statistics.median(times[name]) for name in ("full", "since"))
    size = sum(file.stat().st_size for file in source.rglob("*.log")) / 1e9
    say(f"{size:.2f} GB: full copy {full:.2f} s, since the previous one {since:.2f} s, ratio {since / full:.2f}; {times}")
    say(machine())
    shutil.rmtree(root)


def profile(keys: int, seed: int) -> Profile:
    return Profile((_SEGMENTS + _NEW) * _SEGMENT_BYTES, keys, segment_bytes=_SEGMENT_BYTES, seed=seed)


def grow(made: Path, log: Path, segments: int) -> None:
    """The first segments of a log, and an empty active one."""
    log.mkdir(parents=True, exist_ok=True)
    bases = sorted(int(file.stem) for file in made.glob("*.log"))
    segments = min(segments, len(bases) - 1)
    for base in bases[:segments]:
        for kind in _KINDS:
            name = f"{base:020d}{kind}"
            if not (log / name).exists() or (log / name).stat().st_size == 0:
                (log / name).unlink(missing_ok=True)
                os.link(made / name, log / name)
        (log / f"{base:020d}.snapshot").write_bytes(write_snapshot([]))
    for kind in _KINDS:
        (log / f"{bases[segments]:020d}{kind}").touch()
    (log / f"{bases[segments]:020d}.snapshot").write_bytes(write_snapshot([]))


def seconds(source: Path, target: Path, day: int, *options: str) -> float:
    """The time of a copy."""
    settings = ("--set", "cleanup.policy=compact", "--as-of-ms", str(NOW_MS + day * 86_400_000))
    command = (SUBMIT.with_name("kafka-log-compaction"), "compact", "--engine", "local")
    return timed(*command, "--log-dir", source, "--output-dir", target, *settings, *options).wall_s


if __name__ == "__main__":
    main()
