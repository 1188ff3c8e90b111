"""``doctor``: what it finds on a machine and in log directories, its fixes and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction.checkup import check as machine
from compaction.checkup import log_health
from compaction.commands import doctor, warm_up
from compaction.files.local import FreeSpace
from tests.dumping.segments import Made, write_segment
from tests.golden import unpack_sample
from tests.kafka.broker import Broker

Checks = dict[tuple[str, str], dict[str, str]]
Examine = Callable[..., tuple[int, Checks]]


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Runs the command; its checks by the last part of their area, and name."""
    monkeypatch.setattr(warm_up, "status", lambda: [warm_up.Part("kernels", "none yet", False)])

    def call(*argv: object) -> tuple[int, Checks]:
        code = doctor.main([*map(str, argv), "--output", "json", "--show-topics"])
        document = json.loads(capsys.readouterr().out)
        checks = {(Path(each["area"]).name, each["name"]): each for each in document["checks"]}
        assert document["problems"] == sum(each["state"] == "bad" for each in checks.values())
        return code, checks

    return call


@pytest.fixture
def logs(tmp_log_dir: Path) -> list[Made]:
    """Three segments of a compacted log that nobody has cleaned; the last one is active."""
    (tmp_log_dir / "meta.properties").write_text("version=1\n")
    made = [write_segment(tmp_log_dir / "orders-0", base=200 * number) for number in range(3)]
    for each in made:
        os.utime(each.path, (1.7e9, 1.7e9))
    return made


def states(checks: Checks, area: str) -> dict[str, str]:
    return {name: each["state"] for (found, name), each in checks.items() if found == area}


COMPACT = ("--set", "cleanup.policy=compact")


def test_a_machine_that_can_run_has_no_problems(examine: Examine) -> None:
    code, checks = examine()
    assert code == 0
    named = {"Python", "Java", "pyspark", "numba", "numpy", "pyarrow", "memory", "shuffle files", "access", "kernels"}
    assert named == set(states(checks, "machine"))
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
    assert [name for name, state in states(checks, "machine").items() if state == "bad"] == [
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


def test_a_log_directory_in_order_has_no_problems(examine: Examine, tmp_log_dir: Path, logs: list[Made]) -> None:
    assert len(logs) == 3
    code, checks = examine("--log-dir", tmp_log_dir, *COMPACT)
    assert (code, states(checks, "log-dir")) == (0, {"logs": "ok", "lock": "ok", "free space": "ok"})
    assert states(checks, "orders-0") == {}


def damaged(sample: Path) -> tuple[Path, int]:
    """Damages a batch of the sample's orders-0 that is in an inactive segment: the segment, and the batch's position."""
    path = sorted((sample / "orders-0").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    at = 12 + int.from_bytes(content[8:12], "big")
    content[at + 70] ^= 1
    path.write_bytes(content)
    return path, at


def test_a_damaged_batch_in_the_cleanable_range_is_where_a_cleaner_dies(examine: Examine, tmp_path: Path) -> None:
    sample = unpack_sample(tmp_path)
    path, at = damaged(sample)
    code, checks = examine("--log-dir", sample)
    found = checks["orders-0", "damage in the cleanable range"]
    assert (code, found["state"]) == (1, "bad")
    assert found["found"].startswith(f"{path} at byte {at}: batch fails its CRC; compact refuses it")
    fix = "restore that segment from a replica or a backup, then kafka-log-compaction compact --log-dir"
    assert found["fix"].startswith(fix)
    assert examine("--log-dir", sample, "--quick")[0] == 0
    # damage behind the checkpoint, or in a log that is not compacted, stops no cleaner
    (sample / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 1400\n")
    assert examine("--log-dir", sample)[0] == 0
    (sample / "cleaner-offset-checkpoint").unlink()
    assert examine("--log-dir", sample, "--set", "cleanup.policy=delete")[0] == 0


@pytest.mark.kafka
def test_a_partition_that_a_real_broker_gave_up_is_named_with_the_cause(examine: Examine, tmp_path: Path) -> None:
    sample = unpack_sample(tmp_path)
    path, at = damaged(sample)
    content = bytearray(path.read_bytes())
    content[at + 8 : at + 12] = bytes(4)
    path.write_bytes(content)
    cleaning = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200", "log.cleaner.dedupe.buffer.size": "4194304"}
    with Broker(sample, cleaning) as broker:
        deadline = time.monotonic() + 40
        while "as uncleanable" not in broker.log_text() and time.monotonic() < deadline:
            time.sleep(0.1)
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


def test_a_log_that_was_due_long_before_it_was_written_last_may_have_lost_its_cleaner(
    examine: Examine, tmp_log_dir: Path, logs: list[Made]
) -> None:
    os.utime(logs[2].path, (1.7e9 + 3 * 86_400, 1.7e9 + 3 * 86_400))
    code, checks = examine("--log-dir", tmp_log_dir, *COMPACT)
    found = checks["orders-0", "cleaner may have died"]
    assert (code, found["state"]) == (1, "bad")
    assert found["found"] == (
        "not cleaned, though cleanable for 3 days when it was written last: checkpoint 0, log end 495, dirty ratio 1.00"
    )
    (tmp_log_dir / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 400\n")
    assert examine("--log-dir", tmp_log_dir, *COMPACT)[0] == 0


def test_partitions_that_the_brokers_log_names_are_problems(
    examine: Examine, tmp_log_dir: Path, logs: list[Made], tmp_path: Path
) -> None:
    broker_log = tmp_path / "log-cleaner.log"
    line = "WARN Unexpected exception thrown when cleaning log L. Marking its partition ({}) as uncleanable (LogCleaner)\n"
    broker_log.write_text("".join(line.format(name) + "java.io.IOException: no space\n" for name in ("orders-0", "other-5")))
    code, checks = examine("--log-dir", tmp_log_dir, *COMPACT, "--broker-log", broker_log)
    assert code == 1
    named = checks["orders-0", "given up by the broker's cleaner"]
    assert (named["found"], "compact --log-dir" in named["fix"]) == ("java.io.IOException: no space", True)
    assert checks["broker log", "uncleanable"]["found"] == "other-5 is uncleanable: java.io.IOException: no space"
    broker_log.write_text("INFO all is well\n")
    code, checks = examine("--log-dir", tmp_log_dir, *COMPACT, "--broker-log", broker_log)
    assert (code, checks["broker log", "cleaner"]["state"]) == (0, "ok")
    checkup = compaction.doctor(tmp_log_dir, broker_logs=broker_log)
    assert ("broker log", "cleaner") in [(check.area, check.name) for check in checkup.checks]
    assert logs


def test_leftovers_and_unreadable_logs_are_found(examine: Examine, tmp_log_dir: Path, logs: list[Made]) -> None:
    log = logs[0].path.parent
    (log / f"{0:020d}.log.clean.abc.clean").write_bytes(b"x")
    (log / f"{0:020d}.log.deleted").write_bytes(bytes(3000))
    write_segment(tmp_log_dir / "cut-0").path.write_bytes(bytes(50) + b"damage")
    write_segment(tmp_log_dir / "cut-0", base=300)
    code, checks = examine("--log-dir", tmp_log_dir, *COMPACT)
    assert code == 1
    assert states(checks, "log-dir") == {
        "logs": "ok", "interrupted cleaning": "note", ".deleted files": "note", "lock": "ok", "free space": "ok",
    }  # fmt: skip
    assert checks["cut-0", "readable"]["state"] == "bad"
    assert checks["cut-0", "readable"]["found"].startswith(f"{tmp_log_dir}/cut-0/{0:020d}.log at byte 0: ")
    assert checks["cut-0", "readable"]["fix"]


def test_a_directory_in_use_and_a_full_disk_are_notes(
    examine: Examine, tmp_log_dir: Path, logs: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_health, "free_space", lambda path: FreeSpace(1, 10, 1 << 40))
    lock = tmp_log_dir / ".lock"
    lock.touch()
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX);print(1, flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        code, checks = examine("--log-dir", tmp_log_dir, *COMPACT)
    finally:
        holder.communicate()
    assert (code, checks["log-dir", "lock"]["state"], checks["log-dir", "free space"]["state"]) == (0, "note", "note")
    assert f"process {holder.pid}" in checks["log-dir", "lock"]["found"]
    assert "orders-0 may need up to" in checks["log-dir", "free space"]["found"]
    assert logs


def test_a_file_from_the_future_says_that_the_clock_is_wrong(examine: Examine, tmp_log_dir: Path, logs: list[Made]) -> None:
    later = time.time() + 3 * 86_400
    os.utime(logs[2].path, (later, later))
    code, checks = examine("--log-dir", tmp_log_dir, "--set", "cleanup.policy=delete")
    assert code == 1
    assert checks["log-dir", "clock"]["found"].startswith(f"{logs[2].path} has a time in the future")
    assert "--as-of" in checks["log-dir", "clock"]["fix"]


def test_the_text_has_a_line_for_each_check_and_the_fixes(
    capsys: pytest.CaptureFixture[str], tmp_log_dir: Path, logs: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "status", list)
    assert doctor.main(["--log-dir", str(tmp_log_dir), *COMPACT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("machine", "0 problems, 0 notes")
    at = lines.index(str(tmp_log_dir))
    assert lines[at + 1].startswith("  ok    logs           1 found, ")
    shutil.rmtree(logs[0].path.parent)
    assert doctor.main(["--log-dir", str(tmp_log_dir), "--allow-empty", *COMPACT]) == 0
    assert "  note  logs           0 found, 0 bytes" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--log-dir", "/no/such"), "no such log directory"),
        (("--log-dir", "/tmp", "--broker-log", "/no/such.log"), "/no/such.log: --broker-log: cannot be read"),
        (("--broker-log", __file__), "--broker-log needs --log-dir"),
        (("--set", "no.such=1", "--log-dir", "/tmp"), "no.such"),
    ],
)
def test_wrong_calls_end_with_2(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str) -> None:
    assert doctor.main(list(options)) == 2
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True)


def test_nothing_is_changed(examine: Examine, tmp_log_dir: Path, logs: list[Made]) -> None:
    def state() -> dict[Path, Any]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_log_dir.rglob("*")}

    (logs[0].path.parent / f"{0:020d}.log.cleaned").write_bytes(b"x")
    before = state()
    examine("--log-dir", tmp_log_dir, *COMPACT)
    assert state() == before


def test_a_document_for_others_has_codes_for_the_names_of_topics(logs: list[Made], tmp_log_dir: Path) -> None:
    """Also of those that only the broker's log names, and of topics in the names of others."""
    write_segment(tmp_log_dir / "orders-eu-1")
    logs[0].path.write_bytes(b"\0" * 200)
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
