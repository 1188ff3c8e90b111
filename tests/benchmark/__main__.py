"""``python -m tests.benchmark``: our job against Kafka's own ``Cleaner``, in turns, on the same data; a table of medians and
ratios.

Both clean a copy that shares the segments' bytes with the pristine log (hard links: neither changes a segment in place), in
the page
cache, in a process that is warm. Kafka's time is that of ``Cleaner.doClean`` on an opened log; ours that of the whole job on
a running
session: discovery, recovery, planning, both passes, swap.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.benchmark.profiles import Case, cases, prepared
from tests.kafka.cleaner import clean_open_log
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening

NOW_MS = 1_800_000_000_000
_SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}


@dataclass(frozen=True)
class Measured:
    """One case: seconds of every run, and the largest resident set of a Python worker."""

    case: Case
    total_bytes: int
    kafka_s: list[float]
    ours_s: list[float]
    worker_mib: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.kafka_s) / statistics.median(self.ours_s)


def copied(pristine: Path, place: Path) -> Path:
    """A copy whose ``.log`` files are hard links."""
    shutil.rmtree(place, ignore_errors=True)

    def link(source: str, target: str) -> str:
        if source.endswith(".log") and Path(source).stat().st_size:
            os.link(source, target)
        else:
            shutil.copy2(source, target)
        return target

    return Path(shutil.copytree(pristine, place, copy_function=link))


def warm(pristine: Path) -> None:
    """Reads everything once, so that it lies in the page cache."""
    buffer = bytearray(1 << 24)
    for file in pristine.rglob("*.log"):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def kafka_seconds(gateway: Gateway, log_dir: Path, case: Case) -> float:
    """The time of Kafka's cleaner over all logs; the map takes what its threads share."""
    checkpoint = log_dir / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    start = {f"{topic}-{partition}": int(offset) for topic, partition, offset in (line.split() for line in lines)}
    map_bytes = case.kafka_map_bytes // case.kafka_threads

    def clean(path: Path) -> float:
        log = KafkaLog(gateway, path, Opening(NOW_MS, dict(_SETTINGS), clean_shutdown=True))
        begun, done = time.perf_counter(), start.get(path.name, 0)
        while True:
            cleaned = clean_open_log(log, done, map_bytes)
            if cleaned.end_offset >= cleaned.selected.first_uncleanable_offset:
                break
            done = cleaned.end_offset
        seconds = time.perf_counter() - begun
        log.close()
        return seconds

    with ThreadPoolExecutor(case.kafka_threads) as pool:
        paths = sorted(path for path in log_dir.iterdir() if path.is_dir())
        return sum(pool.map(clean, paths)) / case.kafka_threads


class Peak:
    """The largest resident set of any Python worker while it watches (``VmHWM`` counts from a worker's start)."""

    def __init__(self) -> None:
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _workers(self) -> Iterator[psutil.Process]:
        for process in psutil.Process().children(recursive=True):
            try:
                if "python" in process.name():
                    yield process
            except psutil.NoSuchProcess:
                continue

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            for process in self._workers():
                try:
                    self.mib = max(self.mib, process.memory_info().rss / (1 << 20))
                except psutil.NoSuchProcess:
                    continue


def ours_seconds(spark: Any, log_dir: Path) -> float:
    """The time of the whole job on a running session."""
    from jobs import compact

    argv = ["--log-dir", str(log_dir), "--as-of-ms", str(NOW_MS)]
    argv += [word for name, value in _SETTINGS.items() for word in ("--set", f"{name}={value}")]
    reports: list[Any] = []

    def run(_: Any, request: Any) -> Any:
        reports.append(compact.compact(lambda: spark, request))
        return reports[0]

    begun = time.perf_counter()
    with Path(os.devnull).open("w") as quiet:
        stdout, sys.stdout = sys.stdout, quiet
        try:
            code = compact.main(argv, run=run)
        finally:
            sys.stdout = stdout
    seconds = time.perf_counter() - begun
    if code or reports[0].totals["cleaned"] == 0:
        raise SystemExit(f"our job failed: {reports[0].to_json()}")
    return seconds


def process_seconds(*command: str) -> float:
    """The time of a whole process."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    return time.perf_counter() - begun


def measure_processes(case: Case, pristine: Path, work: Path, runs: int, *, with_kafka: bool) -> Measured:
    """Alternate runs of both as processes of their own."""
    total = sum(file.stat().st_size for file in pristine.rglob("*.log"))
    warm(pristine)
    settings = [word for name, value in _SETTINGS.items() for word in ("--set", f"{name}={value}")]
    kafka, ours = [], []
    with Peak() as peak:
        for _ in range(runs):
            if with_kafka:
                kafka.append(process_seconds("-m", "tests.benchmark.kafka_process", str(copied(pristine, work)), case.name))
            place = str(copied(pristine, work))
            ours.append(process_seconds("jobs/compact.py", "--log-dir", place, "--as-of-ms", str(NOW_MS), *settings))
    shutil.rmtree(work)
    return Measured(case, total, kafka or [float("nan")], ours, peak.mib)


def measure(case: Case, pristine: Path, work: Path, runs: int, spark: Any, gateway: Gateway | None) -> Measured:
    """Alternate runs of both."""
    total = sum(file.stat().st_size for file in pristine.rglob("*.log"))
    warm(pristine)
    kafka: list[float] = []
    ours: list[float] = []
    with Peak() as peak:
        ours_seconds(spark, copied(pristine, work))
        for _ in range(runs):
            if gateway is not None:
                kafka.append(kafka_seconds(gateway, copied(pristine, work), case))
            ours.append(ours_seconds(spark, copied(pristine, work)))
    shutil.rmtree(work)
    return Measured(case, total, kafka or [float("nan")], ours, peak.mib)


def table(results: list[Measured]) -> str:
    """Markdown."""
    names = ("case", "what", "GB", "Kafka, s", "ours, s", "ratio", "target", "GB/s", "worker, MiB")
    head = f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n"
    rows = []
    for each in results:
        kafka, ours = statistics.median(each.kafka_s), statistics.median(each.ours_s)
        size = each.total_bytes / 1e9
        rows.append(
            f"| {each.case.name} | {each.case.title} | {size:.2f} | {kafka:.2f} | {ours:.2f} | {each.ratio:.1f} |"
            f" {each.case.target:g} | {size / ours:.2f} | {each.worker_mib:.0f} |"
        )
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return head + "\n".join(rows) + f"\n\nMedians; {machine}.\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmark", description=__doc__)
    parser.add_argument("--cases", default="a", help="comma-separated: a to j, 0.5GB to 8GB, or all")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes and keys")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark"))
    parser.add_argument("--no-kafka", action="store_true", help="time our job only")
    parser.add_argument("--keep", action="store_true", help="keep the logs for the next run")
    parser.add_argument("--out", type=Path, help="write FILE.md and FILE.json")
    arguments = parser.parse_args(argv)
    known = cases(arguments.scale)
    chosen = list(known) if arguments.cases == "all" else arguments.cases.split(",")
    from jobs._cli import start_session

    spark = start_session("benchmark")
    gateway = None if arguments.no_kafka else Gateway()
    root, results = arguments.work.resolve() / f"{arguments.scale:g}", []
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    for name in chosen:
        pristine = prepared(known[name], root, say)
        work = root / "work"
        if known[name].whole_process:
            result = measure_processes(known[name], pristine, work, arguments.runs, with_kafka=gateway is not None)
        else:
            result = measure(known[name], pristine, work, arguments.runs, spark, gateway)
        times = f"Kafka {result.kafka_s}, ours {result.ours_s}"
        say(f"{name}: {times}, ratio {result.ratio:.1f}, worker {result.worker_mib:.0f} MiB")
        results.append(result)
        if not arguments.keep:
            shutil.rmtree(pristine)
            pristine.with_suffix(".json").unlink()
    print(table(results))
    if arguments.out:
        arguments.out.with_suffix(".md").write_text(table(results))
        rows = [
            {"case": r.case.name, "bytes": r.total_bytes, "kafka_s": r.kafka_s, "ours_s": r.ours_s, "worker_mib": r.worker_mib}
            for r in results
        ]
        arguments.out.with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n")
    spark.stop()
    if gateway is not None:
        gateway.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
