"""Nothing of an erased record is in any file of the log directory, of a copy, or of the directory for temporary files; reports
have hashes of keys."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compaction.cleaning.log_view import ProducerEntry
from compaction.erasure.erasure_report import erasure_document
from compaction.erasure.find_matches import HASHED, Erasure, FoundKeys
from compaction.formats.key_criteria import KeyCriteria, salted_digest, salted_hash
from tests.erasure.test_erase_keys import SALT, erase
from tests.kafka.encode import Batch, Record
from tests.oracle.disk import write_partition, write_producers
from tests.oracle.segments import write_segment
from tests.passes.random_cases import NOW_MS
from tests.passes.rounds import INTERVAL_BYTES

KEY, VALUE, HEADER = b"key-to-erase", b"value-of-it", b"header-of-it"
PRODUCER = 7


def write_log(log_dir: Path) -> None:
    """Three segments, not compressed, each with the record, the last one of a producer and of the log; and leftovers."""
    path, segments = log_dir / "odd-0", []
    for base in (0, 10, 20):
        erased, other = Record(base + 1, NOW_MS, KEY, VALUE, ((HEADER, HEADER),)), Record(base, NOW_MS, b"other", b"v")
        last = Batch([erased], producer_id=PRODUCER, producer_epoch=0, base_sequence=base // 10)
        segments.append(write_segment(base, [Batch([other]).encode(), last.encode()], INTERVAL_BYTES, NOW_MS))
    write_partition(path, segments)
    write_producers(path, 22, [ProducerEntry(PRODUCER, 0, 2, 21, 0, NOW_MS, 0, -1)])
    log = path / f"{0:020d}.log"
    for suffix in (".deleted", ".cleaned"):
        log.with_name(log.name + suffix).write_bytes(log.read_bytes())


def test_a_hash_that_ends_with_zeros_is_reported_whole() -> None:
    key = next(key for key in map(b"%d".__mod__, range(10_000)) if salted_hash(SALT, key).endswith("0000"))
    found = [FoundKeys(np.array([salted_digest(SALT, each)], HASHED), np.array([2])) for each in (key, b"other", key)]
    document = erasure_document(Erasure(KeyCriteria.of(pa.array([], pa.binary())), SALT), FoundKeys.joined(found), (), ())
    expected = sorted(((salted_hash(SALT, key), 4), (salted_hash(SALT, b"other"), 2)))
    assert [(each["sha256"], each["records"]) for each in document["keys"]] == expected


@pytest.mark.parametrize("tombstones", [False, True])
def test_nothing_of_an_erased_record_is_in_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tombstones: bool
) -> None:
    logs, copy, temporary = tmp_path / "logs", tmp_path / "copy", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    write_log(logs)
    secret = (VALUE, HEADER) if tombstones else (KEY, VALUE, HEADER)

    def remains(place: Path) -> list[str]:
        return [path.name for path in place.rglob("*") if path.is_file() and any(each in path.read_bytes() for each in secret)]

    assert len(remains(logs)) == 5
    assert erase(logs, [KEY], tombstones=tombstones, include_active=True, output_dir=copy).logs[0].erased_records == 3
    assert remains(copy) == []
    assert len(remains(logs)) == 5
    assert erase(logs, [KEY], tombstones=tombstones, include_active=True).logs[0].erased_records == 3
    assert remains(tmp_path) == []
