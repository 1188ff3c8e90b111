"""Erasures of random logs are certified, and each way in which a result can be wrong is named."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compaction.certifier.certificate import Status, VerifyReport
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.erasure_certificate import (
    Certified,
    certify_erasure,
    compare,
    document,
    failed_log,
    read_certificate,
    selected_logs,
)
from compaction.certifier.find_pairs import VerifyRequest
from compaction.config.request import CompactionRequest
from compaction.errors import UsageError
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.formats.keys import KeyCriteria, KeyPattern
from compaction.log.discover import Selector
from compaction.names import TopicPartition
from tests.erasure.test_erase_keys import ODD_KEYS, SALT, erase, keys_of, write_odd
from tests.kafka.encode import COMMIT, Batch, Producer, Record, marker
from tests.local_passes import LocalPasses
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.segments import write_segment
from tests.passes.random_cases import FLAVOURS, NOW_MS, random_case

#: a segment of these is changed: its first two batches have the offsets 0 to 3 and 4 to 6
FIRST = "00000000000000000000.log"
NEW_HORIZON = "batch has a delete horizon, its source has none"
UNTOUCHED = "0: batch without an erased key is missing, or differs from its source"


def certified(before: Path, after: Path, erased: ErasedKeys, version: str = "4.3", *, include_active: bool = True) -> Certified:
    request = VerifyRequest((str(before),), (str(after),), NOW_MS, kafka_version=version, include_active=include_active)
    return certify_erasure(LocalPasses, request, erased)


def erased_keys(keys: list[bytes], *, tombstones: bool = False) -> ErasedKeys:
    return ErasedKeys(KeyCriteria.of(pa.array(keys, pa.binary())), tombstones)


@pytest.mark.parametrize(
    ("version", "tombstones", "include_active"),
    [("3.0", False, True), ("3.9", False, True), ("3.9", True, True), ("4.3", False, False)],
)
def test_erasures_of_random_logs_hold_and_are_counted(version: str, tombstones: bool, include_active: bool) -> None:
    cases = [random_case(flavour, 3) for flavour in FLAVOURS]
    every = sorted({key for case in cases for key in keys_of(case)})
    keys = random.Random(1).sample(every, len(every) // 3)
    with scratch() as root:
        for case in cases:
            case.write(root / "before")
        options = {"tombstones": tombstones, "include_active": include_active, "kafka_version": version}
        report = erase(root / "before", keys, output_dir=root / "after", **options)  # type: ignore[arg-type]
        found = certified(
            root / "before", root / "after", erased_keys(keys, tombstones=tombstones), version, include_active=include_active
        )
    wrong = [line for log in found.report.logs if log.violations or log.status is Status.FAILED for line in log.lines()]
    assert wrong == []
    left = {log.topic: log.remaining_records for log in report.logs}
    assert {log.topic: log.remaining for log in found.report.logs} == left
    assert include_active == (sum(left.values()) == 0)
    assert all((log.status is Status.INCOMPLETE) == bool(log.remaining) for log in found.report.logs)
    erased = {log.topic: log.erased_records for log in report.logs}
    assert {log["topic"]: log["records_erased"] for log in found.logs} == erased
    assert sum(erased.values()) > 200


@pytest.mark.parametrize("version", ["3.9", "4.4"])
def test_a_log_that_ends_with_an_erased_record_of_an_old_batch_holds(version: str) -> None:
    case = random_case("gzip", 145)
    key = case.segments[-1].batches[-1].records()[-1].key
    assert key is not None
    with scratch() as root:
        case.write(root / "before")
        erase(root / "before", [key], output_dir=root / "after", include_active=True, kafka_version=version)
        found = certified(root / "before", root / "after", erased_keys([key]), version)
    assert [log.lines() for log in found.report.logs if log.status is not Status.HOLDS] == []


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, Path]:
    """A log, and a copy from which the key ``k`` was erased."""
    write_odd(tmp_path / "before")
    erase(tmp_path / "before", [b"k"], include_active=True, output_dir=tmp_path / "after")
    return tmp_path / "before", tmp_path / "after"


def rewrite_first(after: Path, change: Callable[[list[Record]], list[Record]]) -> None:
    segments = read_partition(after / "odd-0")
    records = [Record(*vars(each).values()) for batch in segments[0].batches for each in batch.records()]
    raw = [Batch(change([each for each in records if each.offset < 4]), "zstd").encode(), segments[0].batches[1].raw]
    segments[0] = write_segment(0, raw, 200, segments[0].mtime_ms)
    write_partition(after / "odd-0", segments)


def violations(copies: tuple[Path, Path], erased: ErasedKeys) -> list[str]:
    (log,) = certified(*copies, erased).report.logs
    return [f"{each.offset}: {each.what}" for each in log.violations]


def first_violation(copies: tuple[Path, Path], erased: ErasedKeys) -> str:
    return "".join(violations(copies, erased)[:1])


def test_another_record_that_is_missing_or_changed_is_named(copies: tuple[Path, Path]) -> None:
    assert first_violation(copies, erased_keys([b"k"])) == ""
    rewrite_first(copies[1], lambda records: [records[0], *records[2:]])
    assert violations(copies, erased_keys([b"k"])) == [UNTOUCHED, "1: record is missing though its key was not erased"]
    rewrite_first(copies[1], lambda records: [records[0]._replace(value=b"x"), *records[1:]])
    assert "0: value of the record differs" in violations(copies, erased_keys([b"k"]))


def test_a_key_that_is_left_is_named(copies: tuple[Path, Path]) -> None:
    assert first_violation(copies, erased_keys([b"k", b""])) == "1: record of an erased key is retained"


def test_a_tombstone_with_a_value_or_headers_is_named(tmp_path: Path) -> None:
    write_odd(tmp_path / "before")
    erase(tmp_path / "before", [b""], include_active=True, tombstones=True, output_dir=tmp_path / "after")
    copies, erased = (tmp_path / "before", tmp_path / "after"), erased_keys([b""], tombstones=True)
    assert first_violation(copies, erased) == ""
    for change in ({"value": b"x"}, {"headers": ((b"h", b""),)}):
        rewrite_first(copies[1], lambda records: [records[0], records[1]._replace(**change), *records[2:]])  # noqa: B023
        assert first_violation(copies, erased) == "1: record of an erased key has a value or headers"
    rewrite_first(copies[1], lambda records: [records[0], *records[2:]])
    assert first_violation(copies, erased) == "1: record is missing, it should have become a tombstone"


def test_a_certificate_names_segments_and_is_reproduced_until_the_result_changes(copies: tuple[Path, Path]) -> None:
    before, after = copies
    erased = erased_keys([b"k"])
    found = certified(before, after, erased)
    run = CompactionRequest((), (), NOW_MS, include_active=True)
    certificate = read_certificate(document(run, erased, SALT, found.logs), "file")
    assert (certificate["status"], certificate["on_match"]) == ("holds", "drop")
    (log,) = certificate["logs"]
    assert [(each["base_offset"], each["records_erased"]) for each in log["segments"]] == [(0, 1), (10, 1), (20, 1)]
    assert log["records_before"] - log["records_after"] == log["records_erased"] == 3
    assert log["bytes_erased"] == sum(each["bytes_before"] - each["bytes_after"] for each in log["segments"])
    names = selected_logs(certificate, Selector())
    assert compare(certificate, certified(before, after, erased), names, with_before=True).status is Status.HOLDS
    in_place = VerifyRequest((), (str(after),), NOW_MS, include_active=True)
    alone = certify_erasure(LocalPasses, in_place, erased)
    assert compare(certificate, alone, names, with_before=False).status is Status.HOLDS
    shutil.copy(before / "odd-0" / FIRST, after / "odd-0" / FIRST)
    changed = certify_erasure(LocalPasses, in_place, erased_keys([b"?"]))
    (violated,) = compare(certificate, changed, names, with_before=False).logs
    assert violated.violations[0].what.startswith("bytes_after of segment 0 is ")


LOG = {"topic": "t", "partition": 0, "segments": []}


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"}, {"salt": "x"}, {"logs": []}, {"logs": [{}]}, {"on_match": 1}, {"as_of_ms": None}, {"as_of_ms": True},
        {"keys_sha256": 1}, {"logs": 1}, {"logs": [1]}, {"logs": [{**LOG, "segments": [1]}]}, {"logs": [{**LOG, "topic": 1}]},
    ],
)  # fmt: skip
def test_another_file_is_no_certificate(change: dict[str, Any]) -> None:
    fields = {"kind": "erasure", "schema_version": 1, "salt": "00", "include_active": True, "on_match": "drop"}
    fields |= {"as_of_ms": 1, "keys_sha256": "00"}
    fields["logs"] = [LOG]
    assert read_certificate(json.dumps(fields), "file")
    with pytest.raises(UsageError, match="is not a certificate of an erasure"):
        read_certificate(json.dumps({**fields, **change}), "file")
    with pytest.raises(UsageError):
        read_certificate("[", "file")
    for name in ("as_of_ms", "keys_sha256"):
        with pytest.raises(UsageError):
            read_certificate(json.dumps({each: value for each, value in fields.items() if each != name}), "file")


def test_a_log_of_the_certificate_that_is_missing_is_named_unless_it_is_not_selected() -> None:
    certificate = {"logs": [{**LOG, "partition": number} for number in (1, 0)]}
    names = selected_logs(certificate, Selector())
    found = compare(certificate, Certified(VerifyReport(1, ()), ()), names, with_before=False)
    assert [line.strip() for log in found.logs for line in log.lines()[1:]] == [f"t-{n}:0: log is missing" for n in (0, 1)]
    assert selected_logs(certificate, Selector.parse(partitions=["t-1"])) == {TopicPartition("t", 1)}
    with pytest.raises(UsageError, match="has none of the selected logs"):
        selected_logs(certificate, Selector.parse(["other"]))


def test_a_certificate_without_logs_or_with_a_failed_one_does_not_hold() -> None:
    erased, run = erased_keys([b"k"]), CompactionRequest((), (), NOW_MS)
    good, failed = {**LOG, "status": "holds"}, failed_log(TopicPartition("t", 1), "damaged")
    assert failed == {**LOG, "partition": 1, "status": "failed", "reason": "damaged"}
    violated = {**good, "status": "violated"}
    for logs, status in (([good], "holds"), ([], "failed"), ([good, failed], "failed"), ([failed, violated], "violated")):
        assert json.loads(document(run, erased, SALT, logs))["status"] == status


def test_a_key_that_reads_like_a_pattern_is_another_criterion() -> None:
    pattern = KeyCriteria.of(pa.array([], pa.binary()), (KeyPattern.parse("prefix=foo"),))
    secrets = {erased_keys([key]).criteria.secret(SALT) for key in (b"prefix=foo", b"prefix\0foo")}
    assert len({*secrets, pattern.secret(SALT)}) == 3


def test_a_header_name_that_is_not_utf8_is_not_replaced(tmp_path: Path) -> None:
    for side, name in (("before", b"\xff"), ("after", "\ufffd".encode())):
        batch = Batch([Record(0, NOW_MS, b"a", b"v", ((name, b"x"),)), *([Record(1, NOW_MS, b"k", b"v")][side == "after" :])])
        raw = replace(batch, last_offset=1).encode()
        write_partition(tmp_path / side / "odd-0", [write_segment(0, [raw], 200, NOW_MS)])
    assert violations((tmp_path / "before", tmp_path / "after"), erased_keys([b"k"])) == ["0: headers of the record differ"]


def state_batches(time_ms: int = NOW_MS - 1) -> tuple[list[Batch], list[Batch]]:
    """An open transaction of producer 1, the last batch of producer 2, two batches with tombstones; all less the key ``k``."""
    txn = Batch([Record(0, time_ms, b"k", b"v")], producer_id=1, producer_epoch=3, base_sequence=0, transactional=True)
    more = replace(txn, records=[Record(1, time_ms, b"a", b"v")], base_sequence=1)
    last = Batch([Record(2, time_ms, b"k", b"v")], producer_id=2, producer_epoch=0, base_sequence=5)
    mixed = Batch([Record(3, time_ms, b"t", None), Record(4, time_ms, b"k", b"v")])
    other = Batch([Record(5, time_ms, b"t", None)])
    first, empty = (
        replace(each, records=[], base_offset=at, last_offset=at, max_timestamp=time_ms) for each, at in ((txn, 0), (last, 2))
    )
    left = replace(mixed, records=mixed.records[:1], last_offset=4)
    return [txn, more, last, mixed, other], [first, more, empty, left, other]


def state_violations(tmp_path: Path, before: list[Batch], after: list[Batch]) -> list[str]:
    for side, batches in (("before", before), ("after", after)):
        segment = write_segment(0, [each.encode() for each in batches], 200, NOW_MS)
        shutil.rmtree(tmp_path / side, ignore_errors=True)
        write_partition(tmp_path / side / "odd-0", [segment])
    return violations((tmp_path / "before", tmp_path / "after"), erased_keys([b"k"]))


def test_what_brokers_know_of_transactions_and_producers_must_remain(tmp_path: Path) -> None:
    before, after = state_batches()
    assert state_violations(tmp_path, before, after) == []
    assert state_violations(tmp_path, before, after[1:]) == ["0: first batch of an open transaction is missing"]
    missing = "2: last batch of producer 2 is missing or differs"
    assert state_violations(tmp_path, before, [*after[:2], *after[3:]]) == [missing]
    for side in ("before", "after"):
        write_producers(tmp_path / side / "odd-0", 6, ())
    assert violations((tmp_path / "before", tmp_path / "after"), erased_keys([b"k"])) == []
    before, after = state_batches(NOW_MS - 86_400_000)
    assert state_violations(tmp_path, before, [*after[:2], *after[3:]]) == []
    assert state_violations(tmp_path, before, after[1:]) == ["0: first batch of an open transaction is missing"]


def test_a_marker_with_a_new_epoch_forgets_the_last_batch_and_one_of_the_same_does_not(tmp_path: Path) -> None:
    (txn, *_), _ = state_batches()
    for epoch, found in ((3, ["0: last batch of producer 1 is missing or differs"]), (4, [])):
        end = marker(1, NOW_MS - 1, Producer(1, epoch), COMMIT)
        for side, raw in (("before", [txn.encode(), end]), ("after", [end])):
            shutil.rmtree(tmp_path / side, ignore_errors=True)
            write_partition(tmp_path / side / "odd-0", [write_segment(0, raw, 200, NOW_MS)])
        assert violations((tmp_path / "before", tmp_path / "after"), erased_keys([b"k"])) == found


@pytest.mark.parametrize("horizon_ms", [1, NOW_MS + 1])
def test_a_new_delete_horizon_is_named_also_in_a_batch_with_the_key(tmp_path: Path, horizon_ms: int) -> None:
    before, after = state_batches()
    dated = replace(after[3], delete_horizon=horizon_ms)
    assert state_violations(tmp_path, before, [*after[:3], dated, after[4]]) == ["3: " + NEW_HORIZON]
    dated = replace(after[4], delete_horizon=horizon_ms)
    assert state_violations(tmp_path, before, [*after[:4], dated]) == ["5: " + NEW_HORIZON, "5:" + UNTOUCHED[2:]]
    kept = [replace(before[3], delete_horizon=horizon_ms), replace(after[3], delete_horizon=horizon_ms)]
    assert state_violations(tmp_path, [*before[:3], kept[0], before[4]], [*after[:3], kept[1], after[4]]) == []


def test_a_cleaner_checkpoint_that_was_moved_made_or_removed_is_named(copies: tuple[Path, Path]) -> None:
    name, erased = TopicPartition("odd", 0), erased_keys([b"k"])
    file = copies[1] / "cleaner-offset-checkpoint"
    for offset, source in ((3, None), (3, 1), (None, 1)):
        for root, entry in ((copies[1], offset), (copies[0], source)):
            (root / file.name).write_text(format_offset_checkpoint({} if entry is None else {name: entry}))
        assert "cleaner-offset-checkpoint has " in first_violation(copies, erased)
        request = VerifyRequest((), (str(copies[1]),), NOW_MS, include_active=True, cleaned_to={name: source})
        (log,) = certify_erasure(LocalPasses, request, erased).report.logs
        assert [each.what for each in log.violations][:1] == [first_violation(copies, erased).partition(": ")[2]]
        unknown = replace(request, cleaned_to={})
        (log,) = certify_erasure(LocalPasses, unknown, erased).report.logs
        assert log.status is Status.HOLDS
    file.write_text((copies[0] / file.name).read_text())
    assert violations(copies, erased) == []


def test_every_kind_of_key_is_found_again(tmp_path: Path) -> None:
    write_odd(tmp_path / "before")
    for key in ODD_KEYS[1:]:
        assert key is not None
        shutil.rmtree(tmp_path / "after", ignore_errors=True)
        erase(tmp_path / "before", [key], include_active=True, output_dir=tmp_path / "after")
        assert first_violation((tmp_path / "before", tmp_path / "after"), erased_keys([key])) == ""
        assert first_violation((tmp_path / "before", tmp_path / "before"), erased_keys([key])).endswith("is retained")
