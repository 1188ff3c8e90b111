"""Logs of brokers that were killed, with Kafka's defaults and preallocating: every command takes them as Kafka does.

What Kafka makes of them was found once: ``tests.golden.make_killed``. Live ones: ``tests/conformance/test_brokers.py``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.certifier.find_pairs import VerifyRequest
from compaction.cli import console
from compaction.commands import erase
from compaction.erasure.erase_keys import ErasureRequest, erase_keys
from compaction.report import LogStatus, RunReport
from compaction.run.compact import clean_logs
from tests.certifier.certify import certify
from tests.executed import executed
from tests.golden import KILLED_DIRS, served_by, unpack_killed
from tests.local_job import TopicConfigs, clean_locally, request_for, resolver_of
from tests.local_passes import LocalPasses


@pytest.fixture(params=KILLED_DIRS)
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A log directory, and what is expected of it."""
    return tmp_path / request.param, unpack_killed(tmp_path)[request.param]


def topics_of(expected: dict[str, Any]) -> TopicConfigs:
    return dict.fromkeys(expected["logs"], expected["config"])


def test_it_is_cleaned_to_what_kafka_leaves_after_recovery(killed: tuple[Path, dict[str, Any]]) -> None:
    log_dir, expected = killed
    reports = clean_locally(log_dir, expected["as_of_ms"], topics_of(expected))
    assert {log.status for log in reports.values()} == {LogStatus.CLEANED}
    assert {topic: served_by(log_dir / f"{topic}-0") for topic in reports} == expected["logs"]


def test_a_copy_is_certified_and_takes_no_space_for_what_was_preallocated(killed: tuple[Path, dict[str, Any]]) -> None:
    log_dir, expected = killed
    copy, now_ms = log_dir.with_name("copy"), expected["as_of_ms"]
    request = replace(request_for(log_dir, now_ms, topics_of(expected)), output_dir=str(copy))
    assert {log.status for log in clean_logs(LocalPasses, request).logs} == {LogStatus.CLEANED}
    assert {topic: served_by(copy / f"{topic}-0") for topic in expected["logs"]} == expected["logs"]
    assert max(file.stat().st_size for file in copy.rglob("*index")) < 4096
    resolver = resolver_of(topics_of(expected))
    report = certify(VerifyRequest((str(log_dir),), (str(copy),), now_ms, exact=True, resolver=resolver))
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
