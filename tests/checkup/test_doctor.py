"""``doctor``: what it finds on a machine, in log directories and in a broker's log, its fixes and exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction.checkup import check as machine
from compaction.checkup import log_health
from compaction.checkup.log_health import read_broker_log
from compaction.commands import doctor, warm_up
from compaction.files.local import FreeSpace
from compaction.names import TopicPartition
from tests.dumping.segments import write_segment
from tests.files.test_lock import held_elsewhere
from tests.golden import unpack_sample
from tests.kafka.broker import Broker
from tests.waiting import wait_until

Checks = dict[tuple[str, str], dict[str, str]]
Examine = Callable[..., tuple[int, Checks]]


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Runs the command; its checks by the last part of their area, and name."""
    monkeypatch.setattr(warm_up, "status", lambda: ("none yet", False))

    def call(*argv: object) -> tuple[int, Checks]:
        code = doctor.main([*map(str, argv), "--output", "json", "--show-topics"])
        document = json.loads(capsys.readouterr().out)
        checks = {(Path(each["area"]).name, each["name"]): each for each in document["checks"]}
        assert document["problems"] == sum(each["state"] == "bad" for each in checks.values())
        return code, checks

    return call


COMPACT = ("--set", "cleanup.policy=compact")


def test_a_machine_that_can_run_has_no_problems(examine: Examine) -> None:
    code, checks = examine()
    assert code == 0
    named = {"Python", "Java", "pyspark", "numba", "numpy", "pyarrow", "memory", "shuffle files", "access", "kernels"}
    assert named == {name for area, name in checks if area == "machine"}
    assert checks["machine", "kernels"]["state"] == "note"
    assert "warm-up" in checks["machine", "kernels"]["fix"]


def test_what_a_machine_lacks_is_named_with_its_fix(examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(machine, "PACKAGES", {"numpy": (99, 0), "no-such-package": (1, 2)})
    monkeypatch.setattr(machine, "available_memory", lambda: 100 << 20)
    monkeypatch.setattr(machine, "free_space", lambda path: FreeSpace(1, 5 << 20, 1 << 40))
    code, checks = examine("--as-of", "2026-11-22T02:00Z")
    assert code == 1
    assert [name for (area, name), check in checks.items() if (area, check["state"]) == ("machine", "bad")] == [
        "numpy", "no-such-package", "memory", "shuffle files",
    ]  # fmt: skip
    assert checks["machine", "no-such-package"]["fix"] == "pip install 'no-such-package>=1.2'"
    assert "SPARK_LOCAL_DIRS" in checks["machine", "shuffle files"]["fix"]
    assert "JAVA_HOME" in checks["machine", "Java"]["found"]
    assert checks["machine", "Java"]["state"] == "note"


def test_what_other_users_can_do_to_a_run_is_a_note(examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://host:7077 pyspark-shell")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    assert examine()[1]["machine", "access"]["found"].startswith("spark://host:7077 without authentication: ")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.ui.enabled=true pyspark-shell")
    assert examine()[1]["machine", "access"]["state"] == "ok"
    tmp_path.chmod(0o777)
    code, checks = examine()
    assert (code, checks["machine", "access"]["state"]) == (0, "note")
    assert checks["machine", "access"]["found"].startswith(f"{tmp_path} can be written by others")
    monkeypatch.setenv("SPARK_LOCAL_IP", "0.0.0.0")  # noqa: S104
    tmp_path.chmod(0o700)
    assert examine()[1]["machine", "access"]["fix"] == "set SPARK_LOCAL_IP=127.0.0.1"


def test_the_memory_is_that_of_the_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (("_MEMORY", "MemTotal: 9 kB\nMemAvailable:    2000000 kB\n"), ("_LIMIT", "5000\n"), ("_USED", "2000\n")):
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(machine, name, path)
    assert machine.available_memory() == 3000
    (tmp_path / "_LIMIT").write_text("max\n")
    assert machine.available_memory() == 2_048_000_000
    (tmp_path / "_MEMORY").unlink()
    assert machine.available_memory() is None


@pytest.mark.kafka
def test_a_partition_that_a_real_broker_gave_up_is_named_with_the_cause(examine: Examine, tmp_path: Path) -> None:
    sample = unpack_sample(tmp_path)
    # the second batch of an inactive segment has no length
    path = sorted((sample / "orders-0").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    at = 12 + int.from_bytes(content[8:12], "big")
    content[at + 8 : at + 12] = bytes(4)
    path.write_bytes(content)
    cleaning = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200", "log.cleaner.dedupe.buffer.size": "4194304"}
    with Broker(sample, cleaning) as broker:
        wait_until(lambda: "as uncleanable" in broker.log_text(), 40)
        broker.stop()
        broker_log = tmp_path / "server.log"
        broker_log.write_text(broker.log_text())
    code, checks = examine("--log-dir", sample, "--broker-log", broker_log)
    assert code == 1
    named = checks["orders-0", "given up by the broker's cleaner"]
    assert "CorruptRecordException" in named["found"]
    assert named["fix"].startswith("repair the damage, then ")
    assert checks["orders-0", "damage in the cleanable range"]["found"].startswith(f"{path} at byte {at}: ")
    assert [area for (area, _), check in checks.items() if check["state"] == "bad"] == ["orders-0", "orders-0"]


def test_a_directory_in_use_and_a_full_disk_are_notes(
    examine: Examine, tmp_log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_health, "free_space", lambda path: FreeSpace(1, 10, 1 << 40))
    for base in (0, 200):
        write_segment(tmp_log_dir / "orders-0", base)
    with held_elsewhere(tmp_log_dir) as holder:
        code, checks = examine("--log-dir", tmp_log_dir, *COMPACT)
    assert (code, checks["log-dir", "lock"]["state"], checks["log-dir", "free space"]["state"]) == (0, "note", "note")
    assert f"process {holder}" in checks["log-dir", "lock"]["found"]
    assert "orders-0 may need up to" in checks["log-dir", "free space"]["found"]


def test_a_document_for_others_has_codes_for_the_names_of_topics(tmp_log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those that only the broker's log names, and of topics in the names of others."""
    for module in (machine, log_health):
        # it changes between the two calls
        monkeypatch.setattr(module, "free_space", lambda path: FreeSpace(1, 1 << 40, 1 << 40))
    damaged = write_segment(tmp_log_dir / "orders-0")
    for directory, base in (("orders-0", 200), ("orders-eu-1", 0)):
        write_segment(tmp_log_dir / directory, base)
    damaged.path.write_bytes(b"\0" * 200)
    log = tmp_log_dir / "log-cleaner.log"
    log.write_text("WARN Marking its partition (payments-3) as uncleanable\njava.io.IOException: orders-eu-1 is broken\n")
    given: dict[str, Any] = {"broker_logs": log, "as_of": 2 * 10**12, "settings": COMPACT[1:]}
    shown, hidden = (
        json.dumps(compaction.doctor(tmp_log_dir, show_topics=shows, **given).to_dict()) for shows in (True, False)
    )
    for name in ("orders-0", "orders-eu-1", "payments-3"):
        assert name in shown
    assert not re.search("orders|payments", hidden)
    codes = re.findall(r"topic-[0-9a-f]{8}(?=-[013]\b)", hidden)
    assert len(set(codes)) == 3
    assert re.sub(r"topic-[0-9a-f]{8}", "T", hidden) == re.sub("orders-eu|orders|payments", "T", shown)


ORDERS, GROUPS = TopicPartition("orders", 3), TopicPartition("__consumer_offsets", 7)
MARKED = """\
[2026-11-22 02:00:01,001] INFO Starting the log cleaner (org.apache.kafka.storage.internals.log.LogCleaner)
[2026-11-22 02:00:16,345] WARN [kafka-log-cleaner-thread-0]: Unexpected exception thrown when cleaning log \
LogUnified(dir=/data/orders-3, topicId=abc, topic=orders, partition=3). Marking its partition (orders-3) as uncleanable \
(org.apache.kafka.storage.internals.log.LogCleaner)
org.apache.kafka.storage.internals.log.LogCleaningException: Record size 0 is less than the minimum record overhead (14)
\tat org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread.cleanFilthiestLog(LogCleaner.java:600)
Caused by: org.apache.kafka.common.errors.CorruptRecordException: Record size 0 is less than the minimum record overhead (14)
[2026-11-22 02:00:31,345] INFO something else
"""
CAUSE = "org.apache.kafka.common.errors.CorruptRecordException: Record size 0 is less than the minimum record overhead (14)"
ENDED = "[2018-01-01 10:00:00,000] ERROR [kafka-log-cleaner-thread-1]: Error due to (kafka.log.LogCleaner)\n"
STARTED, WARNED = MARKED.splitlines(keepends=True)[:2]
STOPPED = "INFO [kafka-log-cleaner-thread-0]: Stopped (LogCleaner)\n"
#: texts, the partitions that they say were given up, each with its cause, and the numbers of the threads that died
TOLD: dict[str, tuple[str, dict[TopicPartition, str], set[int]]] = {
    "the first cause of a partition that was given up": (MARKED, {ORDERS: CAUSE}, set()),
    "the words of a Scala broker": (
        "WARN Unexpected exception thrown when cleaning log Log(dir=/d). Marking its partition (__consumer_offsets-7) as"
        " uncleanable (kafka.log.LogCleaner)\nkafka.log.LogCleaningException: no room\n",
        {GROUPS: "kafka.log.LogCleaningException: no room"}, set(),
    ),
    "a thread that ended with an error": (ENDED, {}, {1}),
    "both": (MARKED + ENDED, {ORDERS: CAUSE}, {1}),
    "a restart forgets both": (MARKED + ENDED + STARTED, {}, set()),
    "a thread that a shutdown stops did not die": (
        "INFO Shutting down the log cleaner. (LogCleaner)\n" + STOPPED, {}, set(),
    ),
    "a thread that stopped": (STOPPED, {}, {0}),
    "errors far from the warning are none of its causes": (
        STARTED + WARNED + "INFO nothing\n" * 100 + "java.io.IOException: of something else\n", {ORDERS: ""}, set(),
    ),
    "nothing": ("", {}, set()),
    "other lines": ("garbage \x00 \ufffd\nMarking its partition (not a partition) as uncleanable\n", {}, set()),
}  # fmt: skip


@pytest.mark.parametrize("text", TOLD)
def test_a_brokers_log_says_what_its_cleaner_gave_up_and_which_threads_died(text: str) -> None:
    log, uncleanable, dead = TOLD[text]
    found = read_broker_log(log.splitlines(keepends=True))
    assert (found.uncleanable, found.dead_threads) == (uncleanable, dead)
