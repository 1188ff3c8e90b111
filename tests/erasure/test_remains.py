"""Nothing of an erased record is in any file of the log directory, of a copy, or of the directory for temporary files; reports
have hashes of keys. And what is left of an erasure whose certificate is not written, or does not hold, or that is killed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from compaction.certifier import erased_keys
from compaction.commands import verify
from compaction.erasure import erase_keys
from compaction.erasure.erasure_report import erasure_document
from compaction.erasure.find_matches import HASHED, Erasure, FoundKeys
from compaction.errors import StorageError
from compaction.formats.keys import KeyCriteria, salted_digest
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.run import destination
from tests.crash.surroundings import StoppingFiles, end_process
from tests.disk import Stopped
from tests.erasure.test_erase_keys import SALT, call, erase, records_in, write_odd
from tests.kafka.encode import Batch, Record
from tests.local_job import read_offsets, write_offsets
from tests.memory import scratch
from tests.oracle.disk import write_partition, write_producers
from tests.oracle.segments import write_segment
from tests.passes.random_cases import INTERVAL_BYTES, NOW_MS

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
    key = next(key for key in map(b"%d".__mod__, range(10_000)) if salted_digest(SALT, key).hex().endswith("0000"))
    found = [FoundKeys(np.array([salted_digest(SALT, each)], HASHED), np.array([2])) for each in (key, b"other", key)]
    document = erasure_document(Erasure(KeyCriteria.of(pa.array([], pa.binary())), SALT), FoundKeys.joined(found), (), ())
    expected = sorted(((salted_digest(SALT, key).hex(), 4), (salted_digest(SALT, b"other").hex(), 2)))
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


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with the log ``odd-0``, beside which files can be written."""
    write_odd(tmp_path / "data")
    return tmp_path / "data"


def certified(log_dir: Path, *options: object) -> list[str]:
    """A call with a certificate and a report, for the key ``k``."""
    keys = log_dir.parent / "keys"
    keys.write_bytes(b"k\n")
    files = {name: str(log_dir.parent / f"{name[2:]}.json") for name in ("--certificate", "--report")}
    argv = ["--log-dir", str(log_dir), "--include-active", "--keys", str(keys), *map(str, options)]
    return [*argv, *(text for pair in files.items() for text in pair)]


def written(log_dir: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((log_dir.parent / f"{name}.json").read_text())
    return found


def killed(*_: object) -> None:
    raise Stopped


def without_space(*_: object) -> None:
    raise OSError(28, "No space\nleft on device")


def refused(*_: object) -> int:
    raise OSError(13, "Permission denied")


def unreadable(*_: object) -> None:
    raise StorageError("cannot be read", path="/copy", hint="check the disk")


def test_a_certificate_that_cannot_be_made_fails_all_logs_and_the_report_is_written(
    log_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (log_dir / "empty-0").mkdir()
    certificate = log_dir.parent / "certificate.json"
    certificate.write_text("that of an earlier run")
    monkeypatch.setattr(erase_keys, "write_text", without_space)
    assert call(*certified(log_dir)) == 1
    logs = {log["topic"]: log for log in json.loads((log_dir.parent / "report.json").read_text())["logs"]}
    assert {log["status"] for log in logs.values()} == {"failed"}
    reason = "certificate: it could not be written (OSError: [Errno 28] No space left on device)"
    assert logs["empty"]["reason"] == reason
    assert logs["odd"]["reason"].startswith(f"{reason}; the replaced segments remain as .deleted files: copy them away")
    assert reason in capsys.readouterr().err
    assert len(list(log_dir.rglob("*.log.deleted"))) == 3
    assert not certificate.exists()


def test_a_certificate_is_changed_when_a_replaced_segment_cannot_be_removed(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase_keys, "remove_deleted", refused)
    assert call(*certified(log_dir)) == 1
    found = json.loads((log_dir.parent / "certificate.json").read_text())
    assert (found["status"], found["logs"][0]["status"]) == ("failed", "failed")
    assert "Permission denied" in found["logs"][0]["reason"]
    assert records_in(log_dir)


def test_what_a_killed_run_erased_is_said_to_be_in_no_certificate(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(erase_keys, "write_text", killed)
        with pytest.raises(Stopped):
            call(*certified(log_dir))
    end_process(log_dir)
    assert list(log_dir.rglob("*.log.deleted"))
    note = (
        f"{log_dir / 'odd-0'}: this run removed segments that an earlier run or a broker had replaced;"
        " the records erased then are in no report or certificate of this run"
    )
    for resumed in (True, False):
        assert call(*certified(log_dir)) == 0
        erasure, logs = written(log_dir, "report")["erasure"], written(log_dir, "certificate")["logs"]
        assert isinstance(erasure, dict) and isinstance(logs, list)
        assert (erasure["resumed"], erasure["notes"]) == ((["odd-0"], [note]) if resumed else ([], []))
        assert [(log["resumed"], log["status"], log["records_erased"]) for log in logs] == [(resumed, "holds", 0)]


@pytest.mark.parametrize(
    ("module", "name", "failing"),
    [
        (erased_keys, "matching", lambda criteria, keys: np.zeros(len(keys), np.bool_)), (erased_keys, "matching", unreadable),
        (erase_keys, "write_text", without_space), (erase_keys, "write_text", killed),
    ],
    ids=["violated", "failed", "error", "kill"],
)  # fmt: skip
def test_a_copy_that_is_not_certified_is_not_the_finished_output_of_the_call(
    log_dir: Path,
    module: ModuleType,
    name: str,
    failing: Callable[..., object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = certified(log_dir, "--output-dir", log_dir.parent / "copy", "--as-of-ms", NOW_MS)
    with monkeypatch.context() as patched:
        patched.setattr(module, name, failing)
        with pytest.raises(Stopped) if failing is killed else nullcontext():
            assert call(*argv, "--replace") == 1
    assert ".deleted" not in capsys.readouterr().err
    assert call(*argv, "--if-done", "skip") == 2
    assert "the output of another request: it differs in certificate" in capsys.readouterr().err
    assert call(*argv, "--if-done", "skip", "--replace") == 0
    assert "done already" not in capsys.readouterr().out
    assert call(*argv, "--if-done", "skip") == 0
    assert "done already by the same request" in capsys.readouterr().out


def test_a_file_beside_the_records_of_an_erased_copy_is_verified(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epochs, copy = "odd-0/leader-epoch-checkpoint", log_dir.parent / "copy"
    (log_dir / epochs).write_text("0\n1\n0 0\n")
    argv = certified(log_dir, "--output-dir", copy, "--as-of-ms", NOW_MS)
    assert call(*argv) == 0
    sides = ["--before", str(log_dir), "--after", str(copy), *argv[argv.index("--include-active") : argv.index("--output-dir")]]
    sides += ["--certificate", str(log_dir.parent / "certificate.json"), "--as-of-ms", str(NOW_MS)]
    assert verify.main(sides) == 0
    (copy / epochs).write_text("0\n1\n7 0\n")
    capsys.readouterr()
    assert verify.main(sides) == 1
    assert "leader-epoch-checkpoint is missing, malformed or has other leader epochs" in capsys.readouterr().err


KEYS = [b"k", b"k" * 70_000]
CHECKPOINT = {"odd": 5}


def erase_until(log_dir: Path, stop_before: int | None) -> int:
    """Erases, stopped before a change; returns the number of changes."""
    files = StoppingFiles(stop_before)
    with patch.object(destination, "LOG_CONCURRENCY", 1):
        try:
            report = erase(log_dir, KEYS, include_active=True, files=files)
            assert report.exit_code == 0, report.logs[0].reason
        except Stopped:
            end_process(log_dir)
    return len(files.changes)


def test_a_run_killed_before_any_of_its_changes_loses_nothing_else_and_is_completed_by_the_next() -> None:
    with scratch() as root:
        write_odd(root / "whole")
        write_offsets(root / "whole", cleaner_offsets=CHECKPOINT)
        before = records_in(root / "whole")
        changes = erase_until(root / "whole", None)
        expected = {path.name: path.read_bytes() for path in (root / "whole" / "odd-0").iterdir()}
        left = [each for each in before if each.key not in KEYS]
        assert changes > 30
        for stop_before in range(changes):
            log_dir = root / str(stop_before)
            write_odd(log_dir)
            write_offsets(log_dir, cleaner_offsets=CHECKPOINT)
            erase_until(log_dir, stop_before)
            found = records_in(log_dir)
            assert [each for each in found if each.key not in KEYS] == left, stop_before
            erase_until(log_dir, None)
            assert {path.name: path.read_bytes() for path in (log_dir / "odd-0").iterdir()} == expected, stop_before
            assert read_offsets(log_dir, "cleaner_offsets") == CHECKPOINT, stop_before
