"""``python -m tools.benchmark``: the job and Kafka's own ``Cleaner``, alternating on the same data; a table of medians and
ratios.

Both clean a copy that shares the segments' bytes with the original log (hard links: neither changes a segment in place), in the
page cache. Kafka's time is that of ``Cleaner.doClean`` on opened logs in a warm JVM; the job's time includes everything on a
running session: discovery, recovery, planning, both passes, swap. Cases of complete processes are timed from start to end of
the process. The results are compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.executed import executed
from tests.kafka.gateway import Gateway
from tests.kafka.jars import REFERENCE_RULES
from tools.benchmark.kafka_cleaner import NOW_MS, SETTINGS, clean_all
from tools.benchmark.machine import machine
from tools.benchmark.memory import DRIVER, JVM, WORKER, Peaks
from tools.benchmark.outputs import compare
from tools.benchmark.profiles import Case, cases, prepared, say

T = TypeVar("T")

#: copies of so many logs stay until their case ends: where ext4 has no journal, creating a file takes up to 1 ms for minutes
#: after thousands were deleted (``recently_deleted`` of ``ialloc.c``), 40 times as long as usual
_MANY_LOGS = 100

_JOB = [
    "--as-of-ms", str(NOW_MS), "--kafka-version", REFERENCE_RULES,
    *(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")),
]  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One case: seconds of every run, Kafka's number of rounds, peak memory, and the comparison of the outputs."""

    case: Case
    total_bytes: int
    kafka_s: list[float] = field(default_factory=list)
    ours_s: list[float] = field(default_factory=list)
    rounds: int = 0
    mib: dict[str, float] = field(default_factory=dict)
    outputs: str = "not compared"

    @property
    def kafka(self) -> float:
        """The median."""
        return statistics.median(self.kafka_s) if self.kafka_s else float("nan")

    @property
    def ours(self) -> float:
        """The median."""
        return statistics.median(self.ours_s)

    @property
    def ratio(self) -> float:
        """Kafka's median divided by the job's."""
        return self.kafka / self.ours


def apart(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """The result of a call in a separate process, so that its memory is not the driver's."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **options).result()


def copied(pristine: Path, place: Path) -> Path:
    """A copy whose ``.log`` files are hard links, in the page cache, and flushed to disk."""
    shutil.rmtree(place, ignore_errors=True)

    def link(source: str, target: str) -> str:
        if source.endswith(".log") and Path(source).stat().st_size:
            os.link(source, target)
        else:
            shutil.copy2(source, target)
        return target

    shutil.copytree(pristine, place, copy_function=link)
    warm(place)
    os.sync()
    return place


def warm(place: Path) -> None:
    """Read everything once."""
    buffer = bytearray(1 << 24)
    for file in place.rglob("*.log"):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def ours_seconds(spark: Any, log_dir: Path) -> float:
    """The time of the complete job on a running session."""
    from compaction.commands import compact
    from compaction.engine_choice import EngineChoice
    from compaction.options.table import SPARK

    reports: list[Any] = []
    execute = compact.execute

    def run(_: Any, request: Any) -> Any:
        reports.append(execute(EngineChoice(SPARK, "", "compact", session=spark), request))
        return reports[0]

    begun = time.perf_counter()
    with Path(os.devnull).open("w") as quiet:
        stdout, sys.stdout = sys.stdout, quiet
        try:
            code = executed(compact, ["--log-dir", str(log_dir), *_JOB], run)
        finally:
            sys.stdout = stdout
    seconds = time.perf_counter() - begun
    if code or reports[0].totals["cleaned"] == 0:
        raise SystemExit(f"our job failed: {reports[0].to_json()}")
    return seconds


def ours_process_seconds(log_dir: Path, *, local: bool) -> float:
    """The time of a complete ``spark-submit``, or of the console command, whose worker processes need no Spark."""
    scripts = Path(sys.executable).parent
    by_workers = [scripts / "kafka-log-compaction", "compact", "--engine", "local"]
    job = by_workers if local else [scripts / "spark-submit", "jobs/compact.py"]
    # spark-submit uses the first python on the path to find Spark
    path = os.pathsep.join((str(scripts), os.environ["PATH"]))
    begun = time.perf_counter()
    done = subprocess.run(
        [*map(str, job), "--log-dir", str(log_dir), *_JOB],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"our job failed: {done.stdout}{done.stderr}")
    return time.perf_counter() - begun


def kafka_process_seconds(log_dir: Path, case: Case) -> float:
    """The time of a complete JVM process."""
    command = [sys.executable, "-m", "tools.benchmark.kafka_process", str(log_dir), case.name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Sides:
    """Runs both sides on copies of a case's logs. The session and the JVM are reused from case to case."""

    def __init__(self, work: Path, *, with_kafka: bool) -> None:
        self._work, self._with_kafka = work, with_kafka
        self._spark: Any = None
        self._gateway: Gateway | None = None

    def close(self) -> None:
        """End the session and the JVM, so that complete processes have the machine to themselves."""
        if self._spark is not None:
            self._spark.stop()
        if self._gateway is not None:
            self._gateway.close()
        self._spark = self._gateway = None

    def measure(self, case: Case, pristine: Path, runs: int) -> Measured:
        """Both sides alternating, after a warm-up run of each."""
        total = sum(file.stat().st_size for file in pristine.rglob("*.log"))
        kafka: list[float] = []
        ours: list[float] = []
        rounds, outputs = 0, "not compared"
        if case.whole_process:
            self.close()
        with Peaks() as peaks:
            for number in range(runs if case.whole_process else runs + 1):
                work = self._work / str(number)
                left, right = work / "kafka", work / "ours"
                if self._with_kafka:
                    seconds, rounds = self._kafka(case, copied(pristine, left))
                    kafka.append(seconds)
                ours.append(self._ours(case, copied(pristine, right)))
                if self._with_kafka and number == 0:
                    outputs = apart(compare, left, right, compressed=case.profile.codec != 0)
                if case.logs < _MANY_LOGS:
                    shutil.rmtree(work)
        shutil.rmtree(self._work, ignore_errors=True)
        first = 0 if case.whole_process else 1
        return Measured(case, total, kafka[first:], ours[first:], rounds, peaks.mib, outputs)

    def _kafka(self, case: Case, log_dir: Path) -> tuple[float, int]:
        if case.whole_process:
            return kafka_process_seconds(log_dir, case), case.logs
        if self._gateway is None:
            self._gateway = Gateway()
        return clean_all(self._gateway, log_dir, case)

    def _ours(self, case: Case, log_dir: Path) -> float:
        if case.whole_process:
            return ours_process_seconds(log_dir, local=case.local)
        if self._spark is None:
            from compaction.engine_choice import start_session

            self._spark = start_session("benchmark")
        return ours_seconds(self._spark, log_dir)


def table(results: list[Measured], command: str) -> str:
    """Markdown."""
    names = (
        "case", "what", "GB", "Kafka, s", "rounds", "ours, s", "ratio", "target", "GB/s",
        "worker, MiB", "driver, MiB", "JVM, MiB", "outputs",
    )  # fmt: skip
    rows = []
    for each in results:
        size = each.total_bytes / 1e9
        memory = (f"{each.mib[role]:.0f}" for role in (WORKER, DRIVER, JVM))
        cells = (
            each.case.name, each.case.title, f"{size:.2f}", f"{each.kafka:.2f}", str(each.rounds), f"{each.ours:.2f}",
            f"{each.ratio:.1f}", f"{each.case.target:g}", f"{size / each.ours:.2f}", *memory, each.outputs,
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    head = f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n"
    runs = len(results[0].ours_s)
    return head + "\n".join(rows) + f"\n\nMedians of {runs}; {machine()}; `{command}`.\n"


def as_json(results: list[Measured], command: str) -> str:
    """All figures."""
    cases_of = [
        {
            "case": each.case.name, "what": each.case.title, "bytes": each.total_bytes, "logs": each.case.logs,
            "kafka_threads": each.case.kafka_threads, "kafka_s": each.kafka_s, "kafka_rounds": each.rounds,
            "ours_s": each.ours_s, "ratio": each.ratio, "target": each.case.target, "peak_mib": each.mib,
            "outputs": each.outputs,
        }
        for each in results
    ]  # fmt: skip
    return json.dumps({"command": command, "machine": machine(), "cases": cases_of}, indent=2) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Measure the chosen cases; print and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark", description=__doc__)
    parser.add_argument("--cases", default="a", help="comma-separated: a to k, h8, hl, s, 0.5GB to 8GB, or all")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes and keys")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark"))
    parser.add_argument("--no-kafka", action="store_true", help="time our job only")
    parser.add_argument("--keep", action="store_true", help="keep the logs for the next run")
    parser.add_argument("--out", type=Path, help="write FILE.md and FILE.json, after each case")
    given = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(given)
    known = cases(arguments.scale)
    chosen = list(known) if arguments.cases == "all" else arguments.cases.split(",")
    root, results = arguments.work.resolve() / f"{arguments.scale:g}", []
    command = " ".join(["python -m tools.benchmark", *given])
    sides = Sides(root / "work", with_kafka=not arguments.no_kafka)
    for name in chosen:
        begun = time.perf_counter()
        pristine = apart(prepared, known[name], root)
        result = sides.measure(known[name], pristine, arguments.runs)
        results.append(result)
        spent = time.perf_counter() - begun
        figures = f"Kafka {result.kafka_s}, ours {result.ours_s}, ratio {result.ratio:.1f}, {result.outputs}"
        say(f"{name}: {figures}; {spent:.0f} s in all")
        if not arguments.keep:
            shutil.rmtree(pristine)
            pristine.with_suffix(".json").unlink()
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.with_suffix(".md").write_text(table(results, command))
            arguments.out.with_suffix(".json").write_text(as_json(results, command))
    sides.close()
    print(table(results, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
