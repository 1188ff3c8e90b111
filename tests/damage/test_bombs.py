"""Small files that expand to fill memory, or take very long: refused with file and position, within bounds.

Each is written to a directory and cleaned in a process of its own, which prints its peak memory and processor time as JSON:
``python -m tests.damage.test_bombs NAME``.
"""

from __future__ import annotations

import gzip
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from compaction.dumping.dump_tool import find_timestamp
from compaction.dumping.segment_dump import SegmentDump, SegmentView
from compaction.dumping.targets import Target
from compaction.errors import LogError
from compaction.files.local import LocalFileSystem
from compaction.formats.record_batch import MAX_PLAIN_BYTES
from compaction.kernels.columns import KEYS, VALUES
from compaction.names import LOG, segment_file
from compaction.source.read_columns import Bounds, ReadSpec, read_columns
from tests.conftest import ROOT
from tests.damage.harm import reseal
from tests.damage.valid_logs import NOW_MS, SEGMENT_OFFSETS, valid_log, write_log
from tests.kafka.encode import CODECS, Batch, Legacy, Record, compress
from tests.local_job import clean_locally
from tests.side_by_side import started

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
#: what is printed of a batch that a dump does not refuse
_LINES = 100_000
#: the smallest one
_RECORD = b"\x0c\0\0\0\1\1\0"
_PLAIN_BYTES = MAX_PLAIN_BYTES + (8 << 20)
#: the base offset of the segment after the bomb
_LATER = 2**31


def _modern(codec: str, payload: bytes, count: int = 1) -> bytes:
    """A v2 batch with this (compressed) payload and this many records declared."""
    head = bytearray(Batch([Record(0, NOW_MS, b"k", b"v")], codec).encode()[:61])
    head[8:12] = struct.pack(">i", 49 + len(payload))
    head[23:27] = struct.pack(">i", count - 1)
    head[57:61] = struct.pack(">i", count)
    return reseal(bytes(head) + payload)


def _zeros(codec: str) -> bytes:
    plain = bytes(_PLAIN_BYTES)
    return bytes(pyarrow.Codec(codec).compress(plain, asbytes=True)) if codec in ("gzip", "zstd") else compress(codec, plain)


def _zeros_batch(codec: str) -> bytes:
    return _modern(codec, _zeros(codec))


def _wrapper(payload: bytes, codec: str, magic: int, last_offset: int = 0) -> bytes:
    wrapper = bytearray(Legacy([Record(last_offset, NOW_MS, None, payload)], magic).encode())
    wrapper[17] = CODECS.index(codec)
    return reseal(bytes(wrapper))


def _old_messages(count: int) -> bytes:
    """A wrapper of magic 1 around very many minimal messages."""
    return _wrapper(gzip.compress(Legacy([Record(0, 0, None, None)], 1).encode() * count, 1), "gzip", 1, count)


def _old_zeros(codec: str, magic: int) -> bytes:
    """A wrapper of magic 0 or 1 around very many zeros."""
    return _wrapper(_zeros(codec), codec, magic)


def _nested(codec: str) -> bytes:
    return _wrapper(compress(codec, _old_zeros(codec, 1)), codec, 1)


def _control(codec: str) -> bytes:
    batch = bytearray(_zeros_batch(codec))
    batch[22] |= 0x30
    return reseal(bytes(batch))


def _likely_headers() -> bytes:
    """A batch that runs past the end, then bytes that look like headers of huge batches, every few bytes."""
    fake = struct.pack(">qiibI", 65, 32 << 20, 0, 2, 0)
    return _modern("none", b"")[:8] + struct.pack(">i", 2**31 - 20) + _modern("none", b"")[12:] + fake * (3 << 20)


_TOO_MUCH_V2 = "at byte 0: batch decompresses to more than 268435456 bytes"
_TOO_MUCH_OLD = "gives more than 268435456"
_NESTED = "at byte 0: compressed message inside a wrapper"
#: the bytes of a segment, and why its log fails
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    **{f"zeros in {codec}": (partial(_zeros_batch, codec), _TOO_MUCH_V2) for codec in ("gzip", "snappy", "lz4", "zstd")},
    "records that are not there": (
        lambda: _modern("gzip", gzip.compress(_RECORD), 2**31 - 1), "at byte 0: batch declares 2147483647 records in 7 bytes"
    ),
    "records that are not there, plain": (
        lambda: _modern("none", _RECORD, 2**31 - 1), "at byte 0: batch has an impossible record count"
    ),
    "too many records": (
        lambda: _modern("zstd", compress("zstd", _RECORD * 4_200_000), 4_200_000),
        "at byte 0: batch of 4200000 records, more than 4194304 are not supported",
    ),
    "too many old messages": (lambda: _old_messages(1_050_000), "at byte 0: wrapper of more than 1048576 messages"),
    **{
        f"zeros in {codec} of magic {magic}": (partial(_old_zeros, codec, magic), _TOO_MUCH_OLD)
        for codec in CODECS[1:4] for magic in (0, 1)
    },
    **{f"a wrapper in a wrapper of {codec}": (partial(_nested, codec), _NESTED) for codec in CODECS[1:4]},
    "a compressed control batch": (lambda: _control("gzip"), "at byte 0: control batch has no readable control record"),
    "empty gzip members": (
        lambda: _modern("gzip", gzip.compress(b"") * 300_000), "at byte 0: batch ends before its declared number of records"
    ),
    "likely headers": (_likely_headers, "at byte 0: batch runs into the batches after it"),
}  # fmt: skip


def _read_otherwise(path: Path) -> dict[str, str]:
    """The results of the dump, a lookup by time and the data source."""
    fs, whole = LocalFileSystem(), path.stat().st_size
    dump = SegmentDump(fs, str(path), SegmentView(deep=True, contents=True), lambda first, second: None)
    return {
        "dump": _error(lambda: deque(islice(dump, _LINES), 0)),
        "lookup": _error(lambda: find_timestamp(fs, Target.of(str(path), "/"), NOW_MS)),
        "source": _error(lambda: deque(read_columns(str(path), 0, whole, ReadSpec(Bounds(), KEYS | VALUES)), 0)),
    }


def _error(read: Callable[[], object]) -> str:
    try:
        read()
    except LogError as error:
        return str(error)
    return ""


def main(name: str) -> None:
    """Cleans a log with this bomb in its first, inactive segment, and a log with it in its active segment."""
    log, bomb = valid_log("none"), BOMBS[name][0]()
    with tempfile.TemporaryDirectory() as scratch:
        log_dir = Path(scratch)
        write_log(log_dir / "warm-0", log.files)
        clean_locally(log_dir, NOW_MS, {"warm": CONFIG})
        base_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        later = Batch([Record(_LATER, NOW_MS, b"k", b"v")]).encode()
        write_log(log_dir / "closed-0", {segment_file(0, LOG): bomb, segment_file(_LATER, LOG): later})
        end = struct.pack(">q", log.bases[-1] + SEGMENT_OFFSETS)
        write_log(log_dir / "active-0", {**log.files, log.log(2): log.files[log.log(2)] + end + bomb[8:]})
        began = time.process_time()
        readers = _read_otherwise(log_dir / "closed-0" / segment_file(0, LOG))
        dry = clean_locally(log_dir, NOW_MS, {"closed": CONFIG}, dry_run=True)
        reports = clean_locally(log_dir, NOW_MS, dict.fromkeys(("closed", "active"), CONFIG))
        found = {
            "seconds": time.process_time() - began,
            "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base_kib) // 1024,
            **readers,
            "dry": dry["closed"].reason,
            **{topic: [report.status.value, report.reason] for topic, report in reports.items()},
        }
    print(json.dumps(found))


#: the README's bound on the memory that one batch can make a task use
MAX_MIB = 1024
MAX_SECONDS = 60

#: one of each kind: the others have another codec, or take long
_SAMPLE = {"zeros in zstd", "a wrapper in a wrapper of gzip", "records that are not there"}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """The bombs of the tests that were chosen, each in its own process, of which several run at a time."""
    tests = (item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path)
    chosen = [str(test.callspec.params["name"]) for test in tests]
    with started(_cleaned, chosen) as found:
        yield found


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each not in _SAMPLE)) for each in sorted(BOMBS)]
)
def test_a_bomb_fails_its_log_within_bounds(outcomes: dict[str, Future[dict[str, Any]]], name: str) -> None:
    found = outcomes[name].result()
    status, reason = found["closed"]
    assert status == "failed"
    assert BOMBS[name][1] in reason
    assert found["dry"] == reason
    assert found["active"][0] in ("failed", "cleaned")
    if name.startswith("zeros"):
        assert "more than 268435456" in found["dump"]
        assert "more than 268435456" in found["source"]
        # messages of magic 0 have no timestamp
        assert "more than 268435456" in found["lookup"] or "magic 0" in name
    elif name.startswith("a wrapper in"):
        assert all("inside a" in found[reader] for reader in ("dump", "lookup", "source"))
    assert found["mib"] < MAX_MIB
    assert found["seconds"] < MAX_SECONDS


def _cleaned(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.damage.test_bombs", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
