"""What is compared: the two sides of a log, and what an erasure does not reach. The certificates, as text and as JSON: of an
erasure, each way in which the result can be wrong is named."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compaction.certifier.certificate import MOST_NAMED, Findings, LogCertificate, Remains, Status, VerifyReport, Violation
from compaction.certifier.erasure_certificate import (
    Certified,
    certify_erasure,
    compare,
    document,
    failed_log,
    read_certificate,
    remains_in,
    selected_logs,
    unreached,
)
from compaction.certifier.find_pairs import (
    CleaningRules,
    LogPair,
    VerifyRequest,
    of_logs,
    pair_directories,
    pair_in_place,
    requests,
)
from compaction.config.request import CompactionRequest
from compaction.errors import ConfigError, StorageError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.formats.keys import KeyCriteria, KeyPattern
from compaction.log.discover import Selector
from compaction.names import LogLocation, TopicPartition
from tests.certifier.certify import certify_erased, erased_keys
from tests.erasure.test_erase_keys import SALT, erase, write_odd
from tests.kafka.encode import COMMIT, Batch, Producer, Record, marker
from tests.local_job import write_offsets
from tests.local_passes import LocalPasses
from tests.oracle.disk import write_partition, write_producers
from tests.oracle.segments import write_segment
from tests.passes.random_cases import NOW_MS
from tests.screen.made_reports import AS_OF_MS, every_outcome

FS = MixedFileSystem()
FIRST = "00000000000000000000.log"
T_0 = TopicPartition("t", 0)


def located(log_dir: Path, *files: str) -> LogLocation:
    path = log_dir / str(T_0)
    path.mkdir(parents=True)
    for name in files:
        (path / name).touch()
    return LogLocation(T_0, str(log_dir), str(path))


def segment(base: int, suffix: str = "") -> str:
    return f"{base:020d}.log{suffix}"


RULES = CleaningRules(0)


def in_place(log_dir: Path, *files: str) -> LogPair | LogCertificate:
    (found,) = pair_in_place(FS, {located(log_dir, *files): RULES})
    return found


def test_before_is_what_was_replaced_and_what_was_not(tmp_path: Path) -> None:
    names = (segment(0), segment(0, ".deleted"), segment(5, ".deleted"), segment(9), segment(12))
    found = in_place(tmp_path, *names)
    assert isinstance(found, LogPair)
    before = [(each.base_offset, each.suffix, each.last) for each in found.before.segments]
    assert before == [(0, ".deleted", False), (5, ".deleted", False), (9, "", False), (12, "", True)]
    assert [(each.base_offset, each.last) for each in found.after.segments] == [(0, False), (9, False), (12, True)]


@pytest.mark.parametrize(("log_start", "before", "first"), [(0, 0, 5), (5, 0, 5), (7, 7, 5), (5, 5, 0)])
def test_only_a_log_start_at_the_first_segment_was_moved_by_deletion(
    tmp_path: Path, log_start: int, before: int, first: int
) -> None:
    write_offsets(tmp_path, log_starts={"t": log_start})
    found = in_place(tmp_path, segment(0, ".deleted"), segment(first), segment(9))
    assert isinstance(found, LogPair)
    assert (found.before.log_start_offset, found.after.log_start_offset) == (before, max(log_start, 5))


@pytest.mark.parametrize(
    ("files", "reason"),
    [(("x",), "directory has no segments"), ((segment(0), segment(0, ".swap")), "a segment swap is unfinished")],
)
def test_a_log_that_cannot_be_read_has_failed(tmp_path: Path, files: tuple[str, ...], reason: str) -> None:
    found = in_place(tmp_path, *files)
    assert isinstance(found, LogCertificate)
    assert (found.status.value, reason in found.reason) == ("failed", True)


def test_a_log_without_valid_settings_has_failed(tmp_path: Path) -> None:
    (found,) = pair_in_place(FS, {located(tmp_path, segment(0)): ConfigError("bad value")})
    assert isinstance(found, LogCertificate)
    assert found.reason == "bad value"


def test_a_log_on_one_side_only_is_violated(tmp_path: Path) -> None:
    log = located(tmp_path, segment(3), segment(7))
    for before, after, what in (([log], [], "log is missing"), ([], [log], "log is not in the source")):
        (found,) = pair_directories(FS, dict.fromkeys(before, RULES), after)
        assert isinstance(found, LogCertificate)
        assert [(each.offset, each.what) for each in found.violations] == [(3, what)]


def test_a_log_in_two_directories_of_one_side_makes_the_call_wrong(tmp_path: Path) -> None:
    logs = [located(tmp_path / name, segment(0)) for name in ("one", "two")]
    with pytest.raises(UsageError, match="t-0 is in two directories of --before"):
        pair_directories(FS, dict.fromkeys(logs, RULES), logs[:1])


CHANGED = {"orders-3", "a-topic-with-a-name-that-is-longer-than-most-terminals-have-room-for-12", "sessions-0", "clicks-0"}


@pytest.mark.parametrize("output_dir", [None, "/copy"])
def test_a_copy_is_verified_completely_and_in_place_what_was_changed(output_dir: str | None) -> None:
    request = CompactionRequest(("/data", "/other"), (), as_of_ms=AS_OF_MS, output_dir=output_dir)
    (verification,) = requests(request, every_outcome())
    others = {"never-written-0", "sales-0", "prices-1"} if output_dir else set()
    assert set(map(str, verification.logs or ())) == CHANGED | others
    assert bool(verification.before) is bool(output_dir)


ODD = TopicPartition("odd", 0)
MARK = ".0123456789abcdef0123456789abcdef-"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_odd(tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / ".lock").touch()
    (tmp_path / "odd-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    return tmp_path


def test_a_directory_with_files_of_a_broker_only_has_nothing_out_of_reach(log_dir: Path) -> None:
    (log_dir / "other-0").mkdir()
    (log_dir / "other-0" / f"{FIRST}~").touch()
    assert unreached(str(log_dir), {ODD}) == []


@pytest.mark.parametrize(
    "name", [f"{FIRST}~", f"{FIRST}.orig", f"{FIRST}.bak", f".{FIRST}.swp", f"{FIRST}.deleted", f"{FIRST}.swap", "core.4711"]
)
def test_a_file_that_is_no_segment_of_a_broker_is_out_of_reach(log_dir: Path, name: str) -> None:
    copy = log_dir / "odd-0" / name
    copy.write_bytes((log_dir / "odd-0" / FIRST).read_bytes())
    assert unreached(str(log_dir), {ODD}) == [f"odd-0/{name}"]
    assert remains_in(f"{log_dir}/odd-0/{name}", erased_keys(b"k")) == Remains(str(copy), 1)
    assert remains_in(f"{log_dir}/odd-0/{name}", erased_keys(b"other")) == Remains(str(copy), 0)
    expected = [] if name.endswith(".deleted") else [f"odd-0/{name}"]
    assert unreached(str(log_dir), {ODD}, replaced=False) == expected


@pytest.mark.parametrize("kind", ["future", "delete", "stray"])
def test_a_marked_directory_of_a_log_is_out_of_reach(log_dir: Path, kind: str) -> None:
    marked = log_dir / f"odd-0{MARK}{kind}"
    marked.mkdir()
    (log_dir / f"other-0{MARK}{kind}").mkdir()
    for name in (FIRST, FIRST.replace(".log", ".index"), "partition.metadata"):
        (marked / name).write_bytes((log_dir / "odd-0" / FIRST).read_bytes())
    assert unreached(str(log_dir), {ODD}) == [f"{marked.name}/{FIRST}"]


def test_a_directory_that_cannot_be_read_is_named(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = log_dir / f"odd-0{MARK}stray"
    marked.mkdir()
    listdir = LocalFileSystem.listdir

    def refused(self: LocalFileSystem, path: str) -> list[str]:
        if path == str(marked):
            raise StorageError("cannot list: Permission denied", path=path)
        return listdir(self, path)

    monkeypatch.setattr(LocalFileSystem, "listdir", refused)
    assert unreached(str(log_dir), {ODD}) == [f"{marked.name}/"]
    assert remains_in(f"{log_dir}/{marked.name}/", erased_keys(b"k")) == Remains(f"{marked}/")


def test_what_has_no_record_batches_is_named_only(log_dir: Path) -> None:
    (log_dir / "keys.txt").write_text("k\n")
    (log_dir / "backup").mkdir()
    (log_dir / "odd-0" / "empty").touch()
    assert unreached(str(log_dir), {ODD}) == ["backup/", "keys.txt", "odd-0/empty"]
    found = [remains_in(f"{log_dir}/{path}", erased_keys(b"k")).records for path in ("backup/", "keys.txt", "odd-0/empty")]
    assert found == [None, None, 0]


def test_a_torn_segment_without_the_keys_is_not_known_to_be_without_them(log_dir: Path) -> None:
    torn = log_dir / "odd-0" / f"{FIRST}.bak"
    torn.write_bytes((log_dir / "odd-0" / FIRST).read_bytes()[:-1])
    assert remains_in(f"{log_dir}/odd-0/{torn.name}", erased_keys(b"other")).records is None


def test_a_tombstone_of_the_key_is_nothing_that_remains_if_tombstones_were_left(log_dir: Path) -> None:
    copy = log_dir / "odd-0" / f"{FIRST}.bak"
    copy.write_bytes(Batch([Record(0, NOW_MS, b"t", None), Record(1, NOW_MS, b"t", None, ((b"h", b"x"),))]).encode())
    for tombstones, records in ((False, 2), (True, 1)):
        assert remains_in(f"{log_dir}/odd-0/{copy.name}", erased_keys(b"t", tombstones=tombstones)).records == records


K = [b"k"]
RETAINED = "record of an erased key is retained"
UNTOUCHED = "batch without an erased key is missing, or differs from its source"
NEW_HORIZON = "batch has a delete horizon, its source has none"


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, Path]:
    """A log, and a copy from which the key ``k`` was erased."""
    write_odd(tmp_path / "before")
    erase(tmp_path / "before", K, include_active=True, output_dir=tmp_path / "after")
    return tmp_path / "before", tmp_path / "after"


def violations(before: Path, after: Path, keys: list[bytes], *, tombstones: bool = False) -> list[str]:
    (log,) = certify_erased(before, after, keys, NOW_MS, tombstones=tombstones).report.logs
    return [f"{each.offset}: {each.what}" for each in log.violations]


def empty(batch: Batch) -> Batch:
    first = batch.records[0]
    return replace(batch, records=[], max_timestamp=first.timestamp, base_offset=first.offset, last_offset=first.offset)


def record(offset: int, key: bytes | None, value: bytes | None = b"v", *headers: tuple[bytes, bytes | None]) -> Record:
    return Record(offset, NOW_MS - 1, key, value, headers)


#: a batch without the key ``k``, and one with it at the log end
OTHER, END = Batch([record(0, None), record(1, b"", b"v", (b"h", b"x")), record(2, b"x")]), Batch([record(3, b"k")])


def changed(number: int, *left: Record) -> Batch:
    """The first batch with other records in place of one."""
    return replace(OTHER, records=[*OTHER.records[:number], *left, *OTHER.records[number + 1 :]])


def state(age_ms: int = 1) -> tuple[list[Batch], list[Batch]]:
    """An open transaction of producer 1, the last batch of producer 2, two batches with tombstones; and all that less the key
    ``k``."""
    open_, more, last, *mixed, other = (
        Record(offset, NOW_MS - age_ms, key, None if key == b"t" else b"v")
        for offset, key in enumerate((b"k", b"a", b"k", b"t", b"k", b"t"))
    )
    begun = Batch([open_], producer_id=1, producer_epoch=3, base_sequence=0, transactional=True)
    goes_on = replace(begun, records=[more], base_sequence=1)
    ended = Batch([last], producer_id=2, producer_epoch=0, base_sequence=5)
    left = Batch(mixed[:1], last_offset=4)
    return [begun, goes_on, ended, Batch(mixed), Batch([other])], [empty(begun), goes_on, empty(ended), left, Batch([other])]


def ended(epoch: int) -> bytes:
    """The marker that ends the transaction of producer 1 at offset 1."""
    return marker(1, NOW_MS - 1, Producer(1, epoch), COMMIT)


(BEFORE, AFTER), (LONG_AGO, LEFT) = state(), state(86_400_000)
NO_TXN, NO_LAST = "first batch of an open transaction is missing", "last batch of producer {} is missing or differs"
#: the batches of before and after, and the violations; of the key k
DROPPED: dict[str, tuple[Sequence[Batch | bytes], Sequence[Batch | bytes], list[str]]] = {
    "the key alone": ([OTHER, END], [OTHER, empty(END)], []),
    "another record": (
        [OTHER, END],
        [changed(1), empty(END)],
        [f"0: {UNTOUCHED}", "1: record is missing though its key was not erased"],
    ),
    "the value of another": (
        [OTHER, END],
        [changed(0, record(0, None, b"x")), empty(END)],
        [f"0: {UNTOUCHED}", "0: value of the record differs"],
    ),
    "nothing": ([OTHER, END], [OTHER, END], [f"3: {RETAINED}"]),
    # not a name with a replacement for what is no UTF-8
    "a header name": (
        [Batch([record(0, b"a", b"v", (b"\xff", b"x")), record(1, b"k")])],
        [Batch([record(0, b"a", b"v", ("\ufffd".encode(), b"x"))], last_offset=1)],
        ["0: headers of the record differ"],
    ),
    "all that may be dropped": (BEFORE, AFTER, []),
    "an open transaction": (BEFORE, AFTER[1:], [f"0: {NO_TXN}"]),
    "the last batch of a producer": (BEFORE, [*AFTER[:2], *AFTER[3:]], [f"2: {NO_LAST.format(2)}"]),
    "an open transaction of long ago": (LONG_AGO, LEFT[1:], [f"0: {NO_TXN}"]),
    "the last batch of a producer that has expired": (LONG_AGO, [*LEFT[:2], *LEFT[3:]], []),
    "a batch whose transaction has ended": ([BEFORE[0], ended(3)], [ended(3)], [f"0: {NO_LAST.format(1)}"]),
    "a batch before a marker with a new epoch": ([BEFORE[0], ended(4)], [ended(4)], []),
}  # fmt: skip
for horizon_ms in (1, NOW_MS + 1):
    MIXED, DATED, OTHERS = (replace(each, delete_horizon=horizon_ms) for each in (BEFORE[3], AFTER[3], AFTER[4]))
    DROPPED |= {
        f"the key, and horizon {horizon_ms} set": (BEFORE, [*AFTER[:3], DATED, AFTER[4]], [f"3: {NEW_HORIZON}"]),
        f"the key, and horizon {horizon_ms} set elsewhere": (
            BEFORE,
            [*AFTER[:4], OTHERS],
            [f"5: {NEW_HORIZON}", f"5: {UNTOUCHED}"],
        ),
        f"the key, with horizon {horizon_ms}": ([*BEFORE[:3], MIXED, BEFORE[4]], [*AFTER[:3], DATED, AFTER[4]], []),
    }


def write_sides(root: Path, *sides: Sequence[Batch | bytes]) -> tuple[Path, Path]:
    for side, batches in zip((root / "before", root / "after"), sides, strict=True):
        raw = [each if isinstance(each, bytes) else each.encode() for each in batches]
        write_partition(side / "odd-0", [write_segment(0, raw, 200, NOW_MS)])
    return root / "before", root / "after"


@pytest.mark.parametrize(("before", "after", "found"), DROPPED.values(), ids=DROPPED.keys())
def test_what_is_dropped_with_a_key_is_named(
    tmp_path: Path, before: Sequence[Batch | bytes], after: Sequence[Batch | bytes], found: list[str]
) -> None:
    assert violations(*write_sides(tmp_path, before, after), K) == found


@pytest.mark.parametrize(
    ("left", "found"),
    [
        ([record(1, b"", None)], []),
        ([record(1, b"", b"x")], ["1: record of an erased key has a value or headers"]),
        ([record(1, b"", None, (b"h", b""))], ["1: record of an erased key has a value or headers"]),
        ([], ["1: record is missing, it should have become a tombstone"]),
    ],
)
def test_what_replaces_a_record_of_a_key_is_named(tmp_path: Path, left: list[Record], found: list[str]) -> None:
    assert violations(*write_sides(tmp_path, [OTHER], [changed(1, *left)]), [b""], tombstones=True) == found


def test_producers_without_an_entry_in_the_snapshot_need_no_batch(tmp_path: Path) -> None:
    """The newest one that is not past the log end."""
    sides = write_sides(tmp_path, BEFORE, [*AFTER[:2], *AFTER[3:]])
    for side in sides:
        for offset in (6, 99):
            write_producers(side / "odd-0", offset, ())
    assert violations(*sides, K) == []


def test_a_certificate_names_segments_and_is_reproduced_until_the_result_changes(copies: tuple[Path, Path]) -> None:
    before, after = copies
    erased = erased_keys(b"k")
    found = certify_erased(before, after, K, NOW_MS)
    run = CompactionRequest((), (), NOW_MS, include_active=True)
    certificate = read_certificate(document(run, erased, SALT, found.logs), "file")
    assert (certificate["status"], certificate["on_match"]) == ("holds", "drop")
    (log,) = certificate["logs"]
    assert [(each["base_offset"], each["records_erased"]) for each in log["segments"]] == [(0, 1), (10, 1), (20, 1)]
    assert log["records_before"] - log["records_after"] == log["records_erased"] == 3
    assert log["bytes_erased"] == sum(each["bytes_before"] - each["bytes_after"] for each in log["segments"])
    for side, log_dir in (("before", before), ("after", after)):
        for each in log["segments"]:
            data = (log_dir / "odd-0" / f"{each['base_offset']:020d}.log").read_bytes()
            assert (each[f"bytes_{side}"], each[f"sha256_{side}"]) == (len(data), sha256(data).hexdigest())
    names = selected_logs(certificate, Selector())
    assert compare(certificate, certify_erased(before, after, K, NOW_MS), names, with_before=True).status is Status.HOLDS
    in_place = VerifyRequest((), (str(after),), NOW_MS, include_active=True)
    alone = certify_erasure(LocalPasses, in_place, erased)
    assert compare(certificate, alone, names, with_before=False).status is Status.HOLDS
    shutil.copy(before / "odd-0" / FIRST, after / "odd-0" / FIRST)
    changed = certify_erasure(LocalPasses, in_place, erased_keys(b"?"))
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
    erased, run = erased_keys(b"k"), CompactionRequest((), (), NOW_MS)
    good, failed = {**LOG, "status": "holds"}, failed_log(TopicPartition("t", 1), "damaged")
    assert failed == {**LOG, "partition": 1, "status": "failed", "reason": "damaged"}
    violated = {**good, "status": "violated"}
    for logs, status in (([good], "holds"), ([], "failed"), ([good, failed], "failed"), ([failed, violated], "violated")):
        assert json.loads(document(run, erased, SALT, logs))["status"] == status


def test_a_key_that_reads_like_a_pattern_is_another_criterion() -> None:
    pattern = KeyCriteria.of(pa.array([], pa.binary()), (KeyPattern.parse("prefix=foo"),))
    secrets = {erased_keys(key).criteria.secret(SALT) for key in (b"prefix=foo", b"prefix\0foo")}
    assert len({*secrets, pattern.secret(SALT)}) == 3


def test_a_cleaner_checkpoint_that_was_moved_made_or_removed_is_named(copies: tuple[Path, Path]) -> None:
    name, erased = TopicPartition("odd", 0), erased_keys(b"k")
    file = copies[1] / "cleaner-offset-checkpoint"
    for offset, source in ((3, None), (3, 1), (None, 1)):
        for root, entry in ((copies[1], offset), (copies[0], source)):
            (root / file.name).write_text(format_offset_checkpoint({} if entry is None else {name: entry}))
        named = violations(*copies, K)[0]
        assert "cleaner-offset-checkpoint has " in named
        request = VerifyRequest((), (str(copies[1]),), NOW_MS, include_active=True, cleaned_to={name: source})
        (log,) = certify_erasure(LocalPasses, request, erased).report.logs
        assert [each.what for each in log.violations][:1] == [named.partition(": ")[2]]
        unknown = replace(request, cleaned_to={})
        (log,) = certify_erasure(LocalPasses, unknown, erased).report.logs
        assert log.status is Status.HOLDS
    file.write_text((copies[0] / file.name).read_text())
    assert violations(*copies, K) == []


ORDERS = TopicPartition("orders", 3)


def compared(violations: int, **counts: int) -> LogCertificate:
    findings = Findings()
    for offset in range(violations):
        findings.add(offset, "broken")
    return LogCertificate.of(ORDERS, findings, Counter(counts))


@pytest.mark.parametrize("copy", [None, "/copy"])
def test_a_run_is_verified_at_the_time_of_its_round(copy: str | None) -> None:
    run = CompactionRequest(("/logs",), (), NOW_MS, kafka_version="3.9", include_active=True, metadata_dirs=("/other",))
    made = of_logs(run, "/logs", frozenset({ORDERS}), copy)
    assert (made.now_ms, made.exact, made.logs, made.kafka_version) == (NOW_MS, True, frozenset({ORDERS}), "3.9")
    assert (made.before, made.after) == (((), ("/logs",)) if copy is None else (("/logs",), (copy,)))
    assert (made.include_active, made.metadata_dirs) == (True, ("/other",))


def test_missing_records_without_a_reason_are_lost() -> None:
    found = compared(1, records_before=10, records_after=4, missing=6, superseded=3, invalid=1)
    assert (found.lost, sum(found.missing.values())) == (2, 4)
    assert found.lines() == [
        "orders-3 violated: 10 -> 4 records, 2 LOST",
        "    missing: 3 superseded, 1 without a key",
        "    orders-3:0: broken",
    ]


def test_the_text_names_the_first_violations_and_counts_the_rest() -> None:
    lines = compared(25).lines()
    assert len(lines) == 22
    assert lines[-1] == "    and 5 more violations"


HOLDS, VIOLATED, FAILED = compared(0), compared(1), LogCertificate.failed(ORDERS, "unreadable")


@pytest.mark.parametrize(
    ("logs", "status", "exit_code"),
    [
        ((), Status.HOLDS, 0),
        ((HOLDS, HOLDS), Status.HOLDS, 0),
        ((HOLDS, FAILED), Status.FAILED, 1),
        ((FAILED, VIOLATED, HOLDS), Status.VIOLATED, 1),
    ],
)
def test_one_violated_log_decides_the_status_of_all(logs: tuple[LogCertificate, ...], status: Status, exit_code: int) -> None:
    report = VerifyReport(5, logs, kafka_versions={"Kafka 3.9 (--kafka-version)": len(logs)})
    assert (report.status, report.exit_code) == (status, exit_code)
    document = json.loads(report.to_json())
    assert document["kafka_versions"] == {"Kafka 3.9 (--kafka-version)": len(logs)}
    assert (document["status"], document["totals"]["logs"], len(document["logs"])) == (status.value, len(logs), len(logs))


@pytest.mark.parametrize("logs", [(), (LogCertificate("a", 0, Status.INCOMPLETE),)], ids=["", "beside an incomplete log"])
@pytest.mark.parametrize(("records", "status"), [(2, Status.INCOMPLETE), (0, Status.HOLDS), (None, Status.HOLDS)])
def test_keys_in_files_that_an_erasure_does_not_reach_make_it_incomplete(
    logs: tuple[LogCertificate, ...], records: int | None, status: Status
) -> None:
    report = VerifyReport(1, logs, elsewhere=(Remains("/logs/old.log", records),))
    assert report.status is (Status.INCOMPLETE if logs else status)
    assert report.to_dict()["elsewhere"] == [{"path": "/logs/old.log", "records": records}]


def test_the_text_names_the_first_files_elsewhere_and_counts_the_rest() -> None:
    files = tuple(Remains(f"/logs/{number:02}.log", number % 2) for number in range(MOST_NAMED + 5))
    texts = [line.text for line in VerifyReport(1, (), elsewhere=files).lines()]
    assert texts[0] == "    /logs/01.log was not erased from, and has 1 record of the keys"
    assert texts[MOST_NAMED] == "    and 5 more files"


def test_all_violations_are_counted_and_those_with_the_lowest_offsets_are_named() -> None:
    findings, other = Findings(), Findings()
    findings.add_all(np.arange(5_000, 100, -1, dtype=np.int64), "high")
    other.add(7, "low")
    findings.join(other)
    assert findings.count == 4_901
    assert findings.named == [Violation(7, "low"), *(Violation(101 + n, "high") for n in range(MOST_NAMED - 1))]
