"""``python -m tools.benchmark.exports``: compacted copies of an export, compared with those of the same log as a directory.

| source | what is read |
| --- | --- |
| directory | a log directory |
| plain, zstd, encrypted, zstd-encrypted | the same segments as objects of Aiven's plugin, in chunks of 4 MiB |

All of them are in one place, ``disk`` or ``store`` (S3Proxy on this machine), and copied to the same disk by complete processes
of ``spark-submit jobs/compact.py``, alternating. Prints the medians of wall time and of the CPU time of all processes of a run
but the store's, the ratio of the wall time to that of the directory in the same place, and the most memory of any worker. The
outputs are compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from compaction.formats.producer_snapshot import write_snapshot
from tests.exports.aiven_objects import KEY_ID, AivenWriter, new_key
from tools.benchmark.__main__ import _JOB, apart
from tools.benchmark.generate import Profile, write_log
from tools.benchmark.machine import machine
from tools.benchmark.memory import WORKER, Peaks
from tools.benchmark.outputs import compare
from tools.benchmark.processes import SUBMIT, adopt_orphans, timed
from tools.benchmark.profiles import MB, say
from tools.benchmark.s3_server import s3_server

_DIRECTORY = "directory"
SOURCES = (_DIRECTORY, "plain", "zstd", "encrypted", "zstd-encrypted")
_PLACES = ("disk", "store")
_LOG = "bench-0"


class Measured(NamedTuple):
    """One run: seconds, and the most memory of any worker."""

    wall_s: float
    cpu_s: float
    worker_mib: float


def laid_out(root: Path, megabytes: int, segment_megabytes: int) -> Path:
    """The log in all layouts, below ``root``, if it is not there."""
    place = root / f"{megabytes}-{segment_megabytes}"
    if (place / "complete").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    log = place / _DIRECTORY / _LOG
    end = write_log(log, Profile(megabytes * MB, keys=megabytes * 1000, segment_bytes=segment_megabytes * MB))
    for file in log.glob(f"{end:020d}.*"):
        file.unlink()
    # as brokers do: without them a run reads all batches for open transactions
    for base in [*(int(file.stem) for file in log.glob("*.log")), end]:
        (log / f"{base:020d}.snapshot").write_bytes(write_snapshot([]))
    key = new_key(place / "key.pem")
    for source in SOURCES[1:]:
        say(f"writing {source}")
        AivenWriter(compressed="zstd" in source, key=key if "encrypted" in source else None).write(log, place / source)
    (place / "complete").touch()
    return place


@contextmanager
def addresses(kind: str, place: Path, sources: list[str]) -> Iterator[dict[str, str]]:
    """The address of each source in a place."""
    layout = {source: "" if source == _DIRECTORY else "aiven+" for source in sources}
    if kind == "disk":
        yield {source: f"{layout[source]}file://{place / source}" for source in sources}
        return
    with s3_server(place) as address:
        yield {source: layout[source] + address(source) for source in sources}


def measured(address: str, output: Path, key: Path) -> Measured:
    """One run."""
    shutil.rmtree(output, ignore_errors=True)
    options: list[str | Path] = ["--log-dir", address, "--output-dir", output, "--include-active"]
    options += ["--private-key", f"{KEY_ID}={key}"]
    os.sync()
    with Peaks() as peaks:
        spent = timed(SUBMIT, "jobs/compact.py", *options, *_JOB)
    return Measured(spent.wall_s, spent.cpu_s, peaks.mib[WORKER])


def measure(kind: str, place: Path, sources: list[str], rounds: int) -> dict[str, list[Measured]]:
    """The runs of each source, after one that warms up the page cache.

    :raises AssertionError: the outputs differ
    """
    found: dict[str, list[Measured]] = {source: [] for source in sources}
    first, output = place / f"first-{kind}", place / f"output-{kind}"
    with addresses(kind, place, sources) as where:
        measured(where[sources[0]], first, place / "key.pem")
        for _ in range(rounds):
            for source, address in where.items():
                found[source].append(measured(address, output, place / "key.pem"))
                assert apart(compare, first, output, compressed=False) == "the same bytes", source
                say(f"{kind}, {source}: {found[source][-1]}")
    shutil.rmtree(first)
    shutil.rmtree(output)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.exports", description="Exports beside log directories.")
    parser.add_argument("--megabytes", type=int, default=1000, help="of batches (default: %(default)s)")
    parser.add_argument("--segment-megabytes", type=int, default=300, help="at most, of a segment (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each source (default: %(default)s)")
    parser.add_argument("--places", nargs="+", choices=_PLACES, default=_PLACES, help="(default: both)")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES, help="(default: all)")
    parser.add_argument("--work", type=Path, default=Path("build/benchmark/exports"))
    options = parser.parse_args()
    adopt_orphans()
    place = apart(laid_out, options.work.resolve(), options.megabytes, options.segment_megabytes)
    sources = [_DIRECTORY, *(each for each in options.sources if each != _DIRECTORY)]
    print("| place | source | seconds | CPU seconds | ratio | largest worker, MiB |\n| --- | --- | --- | --- | --- | --- |")
    for kind in options.places:
        found = measure(kind, place, sources, options.rounds)
        base = statistics.median(run.wall_s for run in found[_DIRECTORY])
        for source, runs in found.items():
            wall_s, cpu_s = (statistics.median(each) for each in ([run.wall_s for run in runs], [run.cpu_s for run in runs]))
            peak = max(run.worker_mib for run in runs)
            print(f"| {kind} | {source} | {wall_s:.1f} | {cpu_s:.1f} | {wall_s / base:.2f} | {peak:.0f} |", flush=True)
    size = sum(file.stat().st_size for file in (place / _DIRECTORY).rglob("*.log"))
    log = f"{size / 1e9:.2f} GB in segments of up to {options.segment_megabytes} MiB"
    print(f"\n{log}; medians of {options.rounds}; {machine()}; load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
