"""Logs that no healthy broker leaves.

Settings, offsets and times at the ends of their ranges: Kafka's own arithmetic, which wraps, or an error in one line. Each
number is 0, -1, the least and greatest of its type and their neighbours, and where the time of the round plus or less the
number leaves 64 bits.

Of brokers that were killed, with Kafka's defaults and preallocating: every command takes them as Kafka does. What Kafka makes
of them was found once: ``tests.golden.make_killed``. Live ones: ``tests/conformance/test_brokers.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from compaction.certifier.certificate import Status
from compaction.cli import console
from compaction.commands import erase
from compaction.config.entries import BROKER_ENTRIES, MIB, TOPIC_ENTRIES, Entry, Kind
from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.erasure.erase_keys import ErasureRequest, erase_keys
from compaction.errors import ConfigError
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.names import TopicPartition
from compaction.report import LogReport, LogStatus, RunReport
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from tests.certifier.certify import certify_copy
from tests.executed import executed
from tests.golden import KILLED_DIRS, served_by, unpack_killed
from tests.local_job import KAFKA, clean_locally, request_for, write_offsets
from tests.local_passes import LocalPasses
from tests.oracle.cleaner import NaiveRound, clean_log_naively
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.logs import COMMIT, Batching, LogBuilder, Sent
from tests.oracle.segments import NaiveSegment

NOW_MS = 1_800_000_000_000
_BITS = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
LEAST, GREATEST = -(2**63), 2**63 - 1
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
#: an active producer, whose last batch loses a record; the next id has a marker of a transaction without data
PRODUCER = 7


def numbers(bits: int) -> list[int]:
    """What one number of a type is tried with."""
    least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    near = [greatest - NOW_MS, least + NOW_MS, NOW_MS] if bits == 64 else []
    steps = {each + step for each in (0, least, greatest, *near) for step in (-1, 0, 1)}
    return sorted(each for each in steps if least <= each <= greatest)


LONGS = numbers(64)


def stamped(raw: bytes, stamp: int) -> bytes:
    """A batch with this base and max timestamp; its records are as far from it as before."""
    after_crc = raw[21:27] + struct.pack(">qq", stamp, stamp) + raw[43:]
    return raw[:17] + struct.pack(">I", google_crc32c.value(after_crc)) + after_crc


def segments(stamp: int = 1_000, base: int = 0, mtime_ms: int = 1_000_000) -> list[NaiveSegment]:
    """A log of three segments, whose data batches have the base timestamp ``stamp``."""
    log = LogBuilder(next_offset=base, mangle=lambda raw: stamped(raw, stamp))
    log.batch([Sent(b"a", b"1"), Sent(b"b", b"2"), Sent(b"c", None)])
    log.batch([Sent(b"d", b"1"), Sent(b"e", None)], Batching(producer=PRODUCER))
    log.roll(mtime_ms)
    log.batch([Sent(b"a", None), Sent(b"d", b"2"), Sent(b"f", b"3")])
    log.marker(PRODUCER + 1, COMMIT)
    log.roll(mtime_ms)
    log.batch([Sent(b"g", b"1")])
    return log.build(mtime_ms)


def write(log_dir: Path, logs: Mapping[str, Sequence[NaiveSegment]]) -> None:
    for name, log in logs.items():
        write_partition(log_dir / f"{name}-0", log)
        entry = ProducerEntry(PRODUCER, 0, 1, log[0].base_offset + 4, 1, NOW_MS, -1, -1)
        write_producers(log_dir / f"{name}-0", log[-1].next_offset, [entry])


def cleaned(log_dir: Path, configs: Mapping[str, Mapping[str, str]], *, dry_run: bool = False) -> Mapping[str, LogReport]:
    """The reports of a run over logs that lie in ``log_dir``; what it leaves holds."""
    before = log_dir.with_name(f"{log_dir.name}.before")
    shutil.copytree(log_dir, before)
    reports = clean_locally(log_dir, NOW_MS, configs, dry_run=dry_run)
    assert [each for each in reports.values() if "unforeseen" in each.reason or "\n" in each.reason] == []
    done = frozenset(TopicPartition(name, 0) for name, each in reports.items() if each.status is LogStatus.CLEANED)
    found = certify_copy(before, log_dir, NOW_MS, configs, kafka_version=KAFKA, logs=done).logs
    assert [f"{each.name}: {each.violations} {each.reason}" for each in found if each.status is not Status.HOLDS] == []
    return reports


def settings_of(entries: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
    """Each value of each numeric entry that is valid."""
    for name, entry in entries.items():
        for value in numbers(_BITS.get(entry.kind, 64)) if entry.kind in (*_BITS, Kind.DOUBLE) else ():
            try:
                entry.read(str(value), path=None, where="")
            except ConfigError as error:
                assert name in str(error)
            else:
                yield name, str(value)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "run"])
def test_any_valid_setting_of_a_topic_cleans(tmp_path: Path, policy: str, dry_run: bool) -> None:
    configs = {
        f"t{at}": {**COMPACT, "cleanup.policy": policy, name: value}
        for at, (name, value) in enumerate(settings_of(TOPIC_ENTRIES))
        if name != "remote.storage.enable"
    }
    write(tmp_path, {name: segments() for name in configs})
    reports = cleaned(tmp_path, configs, dry_run=dry_run)
    failed = {str(configs[name]): each.reason for name, each in reports.items() if each.status is LogStatus.FAILED}
    assert not failed


@pytest.mark.parametrize("retention_ms", LONGS[len(LONGS) // 2 :])
def test_delete_horizons_wrap_as_kafkas(tmp_path: Path, retention_ms: int) -> None:
    before = segments()
    write(tmp_path, {"t": before})
    config = {**COMPACT, "delete.retention.ms": str(retention_ms)}
    cleaned(tmp_path, {"t": config})
    producers = (ProducerEntry(PRODUCER, 0, 1, 4, 1, NOW_MS, -1, -1),)
    round_ = NaiveRound(0, before[-1].base_offset, NOW_MS, 0, producers, delete_retention_ms=retention_ms)
    for file in (tmp_path / "t-0").glob("*.deleted"):
        file.unlink()
    assert read_partition(tmp_path / "t-0") == clean_log_naively(before, round_).segments


@pytest.mark.parametrize("name", sorted({name for name, _ in settings_of(BROKER_ENTRIES)}))
def test_any_valid_setting_of_a_broker_cleans_and_expires(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"t": segments()})
    request = request_for(tmp_path, NOW_MS, {"t": {}}, dry_run=True)
    for value in (value for each, value in settings_of(BROKER_ENTRIES) if each == name):
        if name.endswith("per.second") and int(value) < MIB:
            continue  # as slow as that
        resolver = Resolver(read_sets([f"{name}={value}", "cleanup.policy=compact,delete"]))
        for run in (clean_logs, delete_old_segments):
            try:
                report = run(LocalPasses, replace(request, resolver=resolver))
            except ConfigError as error:
                assert name in str(error), error
            else:
                assert [each.reason for each in report.logs if each.status is LogStatus.FAILED] == []


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_any_timestamp_is_cleaned_or_refused(tmp_path: Path, policy: str) -> None:
    logs = {f"t{at}": segments(stamp) for at, stamp in enumerate(LONGS)}
    write(tmp_path, logs)
    lags = {"min.compaction.lag.ms": "1", "max.compaction.lag.ms": str(GREATEST)}
    reports = cleaned(tmp_path, {name: {**COMPACT, **lags, "cleanup.policy": policy} for name in logs})
    for name, stamp in zip(logs, LONGS, strict=True):
        assert stamp < -1 or reports[name].status is not LogStatus.FAILED, f"{stamp}: {reports[name].reason}"


def test_any_time_in_a_producer_snapshot_is_read(tmp_path: Path) -> None:
    logs = {f"t{at}": segments() for at in range(len(LONGS))}
    write(tmp_path, logs)
    for (name, log), stamp in zip(logs.items(), LONGS, strict=True):
        write_producers(tmp_path / f"{name}-0", log[-1].next_offset, [ProducerEntry(PRODUCER, 0, 1, 4, 1, stamp, -1, -1)])
    reports = cleaned(tmp_path, dict.fromkeys(logs, COMPACT))
    assert {each.status for each in reports.values()} == {LogStatus.CLEANED}


def test_any_offset_in_a_checkpoint_is_read(tmp_path: Path) -> None:
    logs = {f"t{at}": segments() for at in range(len(LONGS))}
    for kind in ("log_starts", "high_watermarks", "cleaner_offsets"):
        log_dir = tmp_path / kind
        write(log_dir, logs)
        write_offsets(log_dir, **{kind: dict(zip(logs, LONGS, strict=True))})
        cleaned(log_dir, dict.fromkeys(logs, COMPACT))


@pytest.mark.parametrize("mtime_ms", [0, -1, 1, NOW_MS + 1, -(2**33) * 1000, 2**33 * 1000])
@pytest.mark.parametrize("retention_ms", [0, GREATEST - NOW_MS, GREATEST])
def test_any_modification_time_is_compared(tmp_path: Path, mtime_ms: int, retention_ms: int) -> None:
    write(tmp_path, {"t": segments(mtime_ms=mtime_ms)})
    for file in (tmp_path / "t-0").glob("*.timeindex"):
        file.write_bytes(b"")
        os.utime(file, ns=(mtime_ms * 1_000_000,) * 2)
    configs = {"t": {**COMPACT, "cleanup.policy": "compact,delete", "delete.retention.ms": str(retention_ms)}}
    reports = cleaned(tmp_path, configs, dry_run=True)
    assert reports["t"].status is not LogStatus.FAILED


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "run"])
def test_any_offset_is_cleaned_or_refused(tmp_path: Path, dry_run: bool) -> None:
    bases = [each for end in (2**31, 2**32, 2**61, 2**62, 2**63) for each in range(end - 12, min(end + 2, GREATEST - 10))]
    logs = {f"t{at}": segments(base=base) for at, base in enumerate(bases)}
    write(tmp_path, logs)
    reports = cleaned(tmp_path, dict.fromkeys(logs, COMPACT), dry_run=dry_run)
    left = {base: reports[name].records_after for name, base in zip(logs, bases, strict=True)}
    ok = {base: left[base] for name, base in zip(logs, bases, strict=True) if reports[name].status is LogStatus.CLEANED}
    assert set(ok.values()) == {7}
    assert max(ok) < 2**61 - 2
    refusals = [each.reason for each in reports.values() if each.status is not LogStatus.CLEANED]
    assert all("offsets from 2305843009213693950 on are not supported" in each for each in refusals)


@pytest.fixture(params=KILLED_DIRS)
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A log directory, and what is expected of it; ``topics``: the settings of each."""
    expected = unpack_killed(tmp_path)[request.param]
    return tmp_path / request.param, {**expected, "topics": dict.fromkeys(expected["logs"], expected["config"])}


def test_it_is_cleaned_to_what_kafka_leaves_after_recovery(killed: tuple[Path, dict[str, Any]]) -> None:
    log_dir, expected = killed
    reports = clean_locally(log_dir, expected["as_of_ms"], expected["topics"])
    assert {log.status for log in reports.values()} == {LogStatus.CLEANED}
    assert {topic: served_by(log_dir / f"{topic}-0") for topic in reports} == expected["logs"]


def test_a_copy_is_certified_and_takes_no_space_for_what_was_preallocated(killed: tuple[Path, dict[str, Any]]) -> None:
    log_dir, expected = killed
    copy, now_ms = log_dir.with_name("copy"), expected["as_of_ms"]
    reports = clean_locally(log_dir, now_ms, expected["topics"], output_dir=str(copy))
    assert {log.status for log in reports.values()} == {LogStatus.CLEANED}
    assert {topic: served_by(copy / f"{topic}-0") for topic in expected["logs"]} == expected["logs"]
    assert max(file.stat().st_size for file in copy.rglob("*index")) < 4096
    report = certify_copy(log_dir, copy, now_ms, expected["topics"])
    assert report.status == "holds", report


def test_its_records_are_counted(killed: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    log_dir, expected = killed
    before = {topic: served_by(log_dir / f"{topic}-0")["records"] for topic in expected["logs"]}
    assert console.main(["count", "--log-dir", str(log_dir), "--output", "json"]) == 0
    counted = {topic["topic"]: topic["records"] for topic in json.loads(capsys.readouterr().out)["topics"]}
    assert counted["plain"] == len(before["plain"])
    # markers are not counted
    assert 0 < counted["txn"] < len(before["txn"])


def test_it_is_dumped(killed: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    log_dir, expected = killed
    for topic in expected["logs"]:
        assert console.main(["dump-log", "--files", str(log_dir / f"{topic}-0"), "--print-data-log"]) == 0
        assert "payload" in capsys.readouterr().out


def test_a_key_is_erased(killed: tuple[Path, dict[str, Any]]) -> None:
    def locally(_: object, request: ErasureRequest) -> RunReport:
        return erase_keys(LocalPasses, request)

    log_dir, expected = killed
    keys, copy = log_dir.with_name("keys"), log_dir.with_name("copy")
    keys.write_text("k1\n")
    call = ["--log-dir", log_dir, "--keys", keys, "--output-dir", copy, "--include-active"]
    assert executed(erase, list(map(str, call)), locally) == 0
    for topic in expected["logs"]:
        left = [key for _, key, _ in served_by(copy / f"{topic}-0")["records"]]
        assert left and b"k1".hex() not in left
