"""Nothing of an erased record is in any file of the log directory, of a copy, or of the directory for temporary files; reports
have hashes of keys."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compaction.erasure.erasure_report import erasure_document
from compaction.erasure.find_matches import HASHED, Erasure, FoundKeys
from compaction.formats.keys import KeyCriteria, salted_digest, salted_hash
from compaction.formats.producer_snapshot import ProducerEntry
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
def test_nothing_of_an_erased_record_is_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tombstones: bool) -> None:
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


def test_a_copy_has_only_files_that_a_broker_loads_and_the_others_are_named(tmp_path: Path) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    write_log(logs)
    log = logs / "odd-0" / f"{0:020d}.log"
    others = ["odd-0/core.4711", f"odd-0/{log.name}~", "keys.txt"]
    others += [*(f"odd-0/{log.name}.{end}" for end in ("bak", "orig", "swp"))]
    others += [f"__cluster_metadata-0/{log.name}~", "odd-0.2026-11-24.dump"]
    loaded = ["meta.properties", ".kafka_cleanshutdown", "bootstrap.checkpoint", "odd-0/leader-epoch-checkpoint"]
    loaded += ["odd-0/partition.metadata", f"__cluster_metadata-0/{log.name}", "__cluster_metadata-0/quorum-state"]
    loaded += [f"__cluster_metadata-0/{log.name[:-4]}.index"]
    (logs / "__cluster_metadata-0").mkdir()
    for name in (*others, *loaded):
        (logs / name).write_bytes(log.read_bytes() if name in others else b"0\n0\n" if "epoch" in name else b"")
    (logs / f"odd-0.{'0' * 32}-future").mkdir()
    (logs / "backup").mkdir()
    report = erase(logs, [KEY], include_active=True, output_dir=copy)
    assert report.logs[0].erased_records == 3, report.logs[0].reason
    segments = {f"odd-0/{base:020d}{kind}" for base in (0, 10, 20) for kind in (".log", ".index", ".timeindex")}
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert copied == {*segments, *loaded, f"odd-0/{22:020d}.snapshot"}
    assert not [path for path in copy.rglob("*") if path.is_file() and KEY in path.read_bytes()]
    expected = {str(logs / name) for name in others if "cluster" not in name} | {f"{logs}/backup/"}
    left = {*report.erasure["left_files"]}
    assert left == expected | {str(log.with_name(log.name + end)) for end in (".deleted", ".cleaned")}
    (note,) = (note for note in report.erasure["notes"] if "other files" in note)
    assert note.startswith("10 other files, which no broker loads, were not examined and not copied: ")
    assert str(logs / "keys.txt") in note
