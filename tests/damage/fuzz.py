"""The fuzzer: feeds damaged bytes to every reader, with numba's bounds checking on.

``python -m tests.damage.fuzz --inputs 20000 --seed 1`` spreads that many inputs over the targets: decoders, kernels, passes,
the whole job. Hypothesis shrinks and prints failures. Bounds checking needs a separate compilation, cached in ``--cache``.

Expected errors of a reader are ignored. Any other exception is a finding, and so is ``UnforeseenError``: with bounds checking
on, a kernel that leaves its arrays raises it, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import numba
import numpy as np
from hypothesis import strategies as st

from compaction.engine import Reading
from compaction.errors import CompactionError, UnforeseenError
from compaction.files.contents import View
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentFile
from compaction.formats import checkpoints, indexes
from compaction.formats.codecs import Codec, compress, decompress
from compaction.formats.java_text import parse_meta_properties, parse_properties
from compaction.formats.metadata_log import ClusterConfigs, parse_record
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import ProducerEntry, read_snapshot, write_snapshot
from compaction.formats.record_batch import RecordBatch, read_end_txn_marker
from compaction.kernels.batches import scan_batches
from compaction.kernels.columns import HEADERS, KEYS, VALUES
from compaction.kernels.keys import HashSecret
from compaction.kernels.tables import OFFSET_SHIFT
from compaction.names import LOG, segment_file
from compaction.output.journal import JOURNAL, read_journal
from compaction.passes.build_map import scan_slices
from compaction.passes.clean_into import clean_parts
from compaction.passes.merge import resolve_shard
from compaction.passes.scan import scan_transactions
from compaction.passes.tasks import CleanContext, GroupOutput, MapContext, MapSettings, OutputPart, Packed, Slice
from compaction.report import LogStatus
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import AbortedRanges
from compaction.source.read_columns import Bounds, ReadSpec, read_columns
from tests.damage.harm import harmed, harmed_bytes
from tests.damage.valid_logs import KINDS, NOW_MS, look_at, valid_log, write_log
from tests.local_job import clean_locally
from tests.log.logs import iter_batches
from tests.memory import scratch

#: kernels with bounds checks, which numba does not tell from others
BOUNDS_CHECKED = Path.home() / ".cache" / "kafka-log-compaction" / "numba-bounds"
#: the share of each target, in percent
SHARES = {"walk": 20, "passes": 30, "columns": 10, "payload": 10, "small files": 10, "job": 20}
LIMIT_BYTES = 1 << 20
MAX_OFFSET = (1 << 61) - 2
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "index.interval.bytes": "100"}
_POSITION = re.compile(r"\.log at byte \d+: ")
_NO_SPANS = AbortedRanges(*(np.empty(0, np.int64) for _ in range(3)))
_FIRST_DIRTY = 7
#: draws an input, and feeds it; what is fed may return a word for the outcome
Target = tuple[st.SearchStrategy[Any], Callable[[Any], "str | None"]]


def main(argv: list[str] | None = None) -> int:
    """Run the fuzzer; returns 1 if it found anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(SHARES), default=None)
    parser.add_argument("--cache", type=Path, default=BOUNDS_CHECKED)
    options = parser.parse_args(argv)
    if os.environ.get("NUMBA_BOUNDSCHECK") != "1":
        command = [sys.executable, "-m", "tests.damage.fuzz", *(sys.argv[1:] if argv is None else argv)]
        return subprocess.run(command, env=bounds_checked(options.cache), check=False).returncode
    require_bounds_checks()
    total = 0
    for target, share in SHARES.items():
        if options.only in (None, target):
            inputs = options.inputs if options.only else options.inputs * share // 100
            began = time.monotonic()
            outcomes = run(target, inputs, options.seed)
            done = outcomes.total()
            total += done
            summary = ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))
            print(f"{target}: {done} inputs, seed {options.seed}, {time.monotonic() - began:.0f} s; {summary}", flush=True)
    print(f"{total} damaged inputs, nothing found")
    return 0


def bounds_checked(cache: Path = BOUNDS_CHECKED) -> dict[str, str]:
    """The environment of a process with bounds checks."""
    cache.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}


def require_bounds_checks() -> None:
    """Make sure that bounds checking is on."""

    @numba.njit
    def beyond(array):  # type: ignore[no-untyped-def]
        return array[len(array)]

    try:
        beyond(np.zeros(1))
    except IndexError:
        return
    raise SystemExit("bounds checking is off")


class Found(AssertionError):
    """A finding, with the smallest input that shows it."""

    def __init__(self, target: str, drawn: Any) -> None:
        super().__init__(f"{target}: {drawn!r:.2000}")
        self.target, self.drawn = target, drawn


def run(target: str, inputs: int, seed: int) -> Counter[str]:
    """Feed one target; returns the number of inputs by outcome.

    :raises Found: from what the target raised
    """
    outcomes = Counter[str]()
    last: Any = None
    strategy, feed = TARGETS[target]()
    settings = hypothesis.settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )

    def one(drawn: Any) -> None:
        nonlocal last
        last = drawn
        outcomes[feed(drawn) or "fed"] += 1

    try:
        hypothesis.seed(seed)(settings(hypothesis.given(strategy)(one)))()
    except Exception as error:
        # hypothesis ends with the smallest input that it has found
        raise Found(target, last) from error
    return outcomes


def values_of(found: Found) -> dict[str, Any]:
    """A finding as the values of a case: the bytes of each file, or of a single input, which may have a name."""
    drawn = found.drawn
    if isinstance(drawn, bytes):
        drawn = {"": drawn}
    elif isinstance(drawn, tuple):
        drawn = {getattr(drawn[0], "name", drawn[0]): drawn[1]}
    return {"target": found.target, "files": {name: b64encode(data).decode() for name, data in drawn.items()}}


def problems(values: Mapping[str, Any]) -> list[str]:
    """What the target of a case raises."""
    target, files = values["target"], {name: b64decode(text) for name, text in values["files"].items()}
    drawn: Any = files
    if target != "job":
        ((name, data),) = files.items()
        drawn = {"payload": lambda: (Codec[name], data), "small files": lambda: (name, data)}.get(target, lambda: data)()
    try:
        TARGETS[target]()[1](drawn)
    except Exception as error:
        return [f"{target}: {error!r}"]
    return []


def meant(read: Callable[..., object], *given: Any, **named: Any) -> None:
    """Reads all that a reader gives; ignores the errors that it may raise."""
    try:
        found = read(*given, **named)
        if isinstance(found, Iterator):
            deque(found, 0)
    except UnforeseenError as error:
        raise AssertionError(str(error)) from error
    except (FormatError, CompactionError):
        return


def _named(error: str | None) -> None:
    assert error is None or "unforeseen" not in error, error


def walk(data: bytes) -> None:
    """Headers, markers, and the record decoders at Python level."""
    array = np.frombuffer(bytearray(data), np.uint8)
    for check_crc in (True, False):
        scan_batches(array, 0, check_crc=check_crc)
        view = View("x.log", lambda start, size: data[start : start + size], len(data))
        file = SegmentFile(LocalFileSystem(), "x.log")
        file._data = view
        scan = file.scan(check_crc=check_crc)
        for rows in scan:
            for row in rows[rows["control_type"] >= 0]:
                meant(file.marker_at, int(row["position"]))
        scan.damage()
    meant(_decode, data)
    meant(ClusterConfigs().read, data)


def _decode(data: bytes) -> None:
    for batch in iter_batches(data, torn_tail=True):
        meant(batch.ensure_valid)
        meant(batch.records, LIMIT_BYTES)
        if not isinstance(batch, RecordBatch):
            meant(batch.require_convertible, LIMIT_BYTES)
        elif batch.is_control:
            meant(read_end_txn_marker, batch.data)


def passes(data: bytes) -> None:
    """Both passes over a segment: the second one even if the first one fails, with the first one's survivor entries, with none,
    and with entries of every offset."""
    with scratch() as directory:
        path = directory / segment_file(0, LOG)
        path.write_bytes(data)
        part = Slice(0, 0, str(path), 0, MAX_OFFSET, 0, len(data), 1)
        _named(scan_transactions([part], LocalFileSystem())[0].error)
        shards: dict[int, list[Any]] = {}
        for place, value in scan_slices([part], {0: MapContext(_FIRST_DIRTY, 3)}, MapSettings(1 << 16, 0.9, HashSecret(1, 2))):
            if place is None:
                _named(value.error)
            elif not isinstance(value, Reading):
                shards.setdefault(place[1], []).append(value)
        found = [resolve_shard(packed, _FIRST_DIRTY, 0.9)[0] for packed in shards.values()]
        every = (np.arange(1, 80, dtype=np.uint64) << np.uint64(OFFSET_SHIFT)) | np.uint64(1)
        for marks in (found, [], [every]):
            _rewrite(part, marks, directory)


def _rewrite(part: Slice, marks: list[Packed], directory: Path) -> None:
    rules = RoundRules(_NO_SPANS, np.empty(0, np.int64), ActiveProducers.of(()), 40, NOW_MS)
    log = CleanContext(_FIRST_DIRTY, 60, 1000, 0, 100, rules, str(directory), math.inf)
    piece = OutputPart(GroupOutput(0, 0, 0, 1, (), part.path), 0, (part,), 0, complete=True)
    _named(clean_parts([(piece, marks)], {0: log}, dry_run=False)[0].error)
    for name in directory.glob("*.clean*"):
        name.unlink()


def columns(data: bytes) -> None:
    """The data source's reader."""
    with scratch() as directory:
        path = directory / segment_file(0, LOG)
        path.write_bytes(data)
        for check in (True, False):
            spec = ReadSpec(Bounds(), KEYS | VALUES | HEADERS, control=True, check_crcs=check)
            meant(read_columns, str(path), 0, len(data), spec)


def _text(parse: Callable[[str, str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"), "file")


def _journal(data: bytes) -> object:
    """The swap's journal: whatever its content, it names only segment files."""
    with scratch() as directory:
        (directory / JOURNAL).write_bytes(data)
        return read_journal(LocalFileSystem(), str(directory))


_OFFSETS = indexes.OFFSET_INDEX.write(np.array([(5 + 3 * i, 100 * i) for i in range(1, 6)], indexes.OFFSET_ROW), 5)
_TIMES = indexes.TIME_INDEX.write(np.array([(1000 * i, 5 + 3 * i) for i in range(1, 6)], indexes.TIME_ROW), 5)
_TXNS = indexes.write_txn_index(np.array([(7, 10 + i, 20 + i, 21 + i) for i in range(3)], indexes.TXN_ROW))
_GROUP = {
    "base_offset": 0,
    "size_bytes": 100,
    "kinds": [".log", ".index", ".timeindex"],
    "sources": [{"base_offset": 0, "size_bytes": 200, "mtime_ns": 5}],
}
_SWAP = {"version": 1, "groups": [_GROUP], "previous_checkpoint": None, "end_offset": 40}
#: the readers of files other than a segment's log, and a valid file for each
SMALL_FILES: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "offset checkpoint": (
        _text(checkpoints.parse_offset_checkpoint),
        b"0\n3\norders 0 17\norders 1 0\n__consumer_offsets 49 9223372036854775807\n",
    ),
    "leader epochs": (_text(checkpoints.parse_leader_epochs), b"0\n2\n0 0\n7 1234\n"),
    "partition metadata": (
        _text(checkpoints.parse_partition_metadata), b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    ),
    "properties": (
        _text(parse_properties), b"# comment\nlog.retention.hours=168\nlog.dirs=/a,\\\n  /b\nx\\u0041 : y\n"
    ),
    "meta properties": (
        _text(parse_meta_properties), b"#\nversion=1\ncluster.id=abc\nnode.id=3\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\n"
    ),
    "snapshot": (read_snapshot, write_snapshot([ProducerEntry(i, 0, 5, 17, 2, 1000, 0, -1) for i in range(3)])),
    "offset index": (lambda data: indexes.OFFSET_INDEX.read(data, 5), _OFFSETS),
    "offset index check": (indexes.OFFSET_INDEX.check, _OFFSETS),
    "time index": (lambda data: indexes.TIME_INDEX.read(data, 5), _TIMES),
    "time index check": (indexes.TIME_INDEX.check, _TIMES),
    "txn index": (lambda data: indexes.check_txn_index(data, 5), _TXNS),
    "metadata record": (parse_record, bytes((1, 4, 0, 2, 3, 0x6F, 0x72, 3, 0x61, 0x62, 3, 0x63, 0x64, 0))),
    "journal": (_journal, json.dumps(_SWAP).encode()),
}  # fmt: skip


class JobTarget:
    """The whole job, in this process, over a damaged log and a valid one."""

    def __init__(self) -> None:
        self._valid = valid_log("none").files
        with scratch() as log_dir:
            write_log(log_dir / "valid-0", self._valid)
            clean_locally(log_dir, NOW_MS, {"valid": CONFIG})
            self._outcome = look_at(log_dir / "valid-0")

    def __call__(self, files: Mapping[str, bytes]) -> LogStatus:
        """Clean a log of these files beside a valid one; returns its status."""
        with scratch() as log_dir:
            write_log(log_dir / "damaged-0", files)
            write_log(log_dir / "valid-0", self._valid)
            before = look_at(log_dir / "damaged-0")
            reports = clean_locally(log_dir, NOW_MS, dict.fromkeys(("damaged", "valid"), CONFIG))
            assert reports["valid"].status is LogStatus.CLEANED, reports["valid"]
            assert look_at(log_dir / "valid-0") == self._outcome
            report = reports["damaged"]
            if report.status is LogStatus.FAILED:
                _named(report.reason)
                assert look_at(log_dir / "damaged-0") == before, f"a failed log was touched: {report.reason}"
                assert _POSITION.search(report.reason) or ".log" not in report.reason, report.reason
                assert "\n" not in report.reason
            return report.status


def _segments() -> st.SearchStrategy[bytes]:
    """Draw a damaged segment."""
    valid = {kind: b"".join(make(0)) for kind, make in KINDS.items()}
    return st.sampled_from(sorted(valid)).flatmap(lambda kind: harmed(valid[kind]))


def _payloads() -> st.SearchStrategy[tuple[Codec, bytes]]:
    plain = b"".join(b"some text %d " % (i % 50) for i in range(6000))
    packed = [(codec, compress(codec, plain[:size])) for codec in Codec if codec for size in (0, 40, 3000, len(plain))]
    return st.sampled_from(packed).flatmap(lambda pair: harmed_bytes(pair[1]).map(lambda data: (pair[0], data)))


def _small_files() -> st.SearchStrategy[tuple[str, bytes]]:
    return st.sampled_from(sorted(SMALL_FILES)).flatmap(
        lambda name: harmed_bytes(SMALL_FILES[name][1]).map(lambda data: (name, data))
    )


def _logs() -> st.SearchStrategy[dict[str, bytes]]:
    logs = {kind: valid_log(kind).files for kind in KINDS}
    names = {kind: sorted(files) for kind, files in logs.items()}
    # half of the damage goes to the logs themselves
    which = st.sampled_from(sorted(logs)).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.one_of(st.sampled_from([n for n in names[kind] if n.endswith(".log")]), st.sampled_from(names[kind])),
        )
    )

    def damage(chosen: tuple[str, str]) -> st.SearchStrategy[dict[str, bytes]]:
        files, name = logs[chosen[0]], chosen[1]
        way = harmed if name.endswith(".log") else harmed_bytes
        return way(files[name]).map(lambda data: {**files, name: data})

    return which.flatmap(damage)


def _job() -> Target:
    job = JobTarget()
    return _logs(), lambda files: job(files).value


TARGETS: dict[str, Callable[[], Target]] = {
    "walk": lambda: (_segments(), walk),
    "passes": lambda: (_segments(), passes),
    "columns": lambda: (_segments(), columns),
    "payload": lambda: (_payloads(), lambda packed: meant(decompress, *packed, limit_bytes=LIMIT_BYTES)),
    "small files": lambda: (_small_files(), lambda named: meant(SMALL_FILES[named[0]][0], named[1])),
    "job": _job,
}


if __name__ == "__main__":
    sys.exit(main())
