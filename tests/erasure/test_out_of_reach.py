"""A certificate that leaves a record of its keys says so: in its status, on the screen and by the exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from compaction.commands import verify
from compaction.erasure import certify_result
from tests.erasure.test_erase_keys import call, records_in, write_odd

FIRST = "00000000000000000000.log"
MARK = ".0123456789abcdef0123456789abcdef-"


class Directory:
    """A log directory with the log ``odd-0``; the key ``k`` is in each of its three segments, the last one included."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "data"
        write_odd(self.path)
        self.keys, self.certificate, self.report = (tmp_path / name for name in ("keys", "certificate.json", "report.json"))
        self.keys.write_bytes(b"k\n")

    def erase(self, *options: str, certified: bool = True) -> int:
        files = ["--keys", str(self.keys), "--report", str(self.report)]
        certificate = ["--certificate", str(self.certificate)] if certified else []
        return call("--log-dir", self.path, *files, *certificate, *options)

    def verify(self) -> int:
        files = ["--keys", str(self.keys), "--certificate", str(self.certificate)]
        return verify.main(["--in-place", str(self.path), *files])

    def certified(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.certificate.read_text())
        return found


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_a_key_that_is_left_in_the_last_segment_makes_the_certificate_incomplete(
    directory: Directory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert directory.erase() == 1
    out, error = capsys.readouterr()
    told = f"error: {directory.certificate}: certificate: records of the keys remain in the log directories; "
    assert told in error
    assert "1 record of these keys remains in the last segment of 1 log: --include-active erases from it, too" in out
    assert f"certificate: incomplete, {directory.certificate}" in out
    found = directory.certified()
    (log,) = found["logs"]
    assert found["status"] == log["status"] == "incomplete"
    assert (log["records_erased"], log["records_remaining"]) == (2, 1)
    (log,) = json.loads(directory.report.read_text())["logs"]
    assert (log["status"], log["remaining_records"]) == ("cleaned", 1)
    assert not list(directory.path.rglob("*.deleted"))
    assert directory.verify() == 1
    assert "odd-0: 1 record of the erased keys remains, where the run did not erase" in capsys.readouterr().err
    assert directory.erase("--include-active") == directory.verify() == 0
    assert (directory.certified()["status"], directory.certified()["logs"][0]["records_remaining"]) == ("holds", 0)


@pytest.mark.parametrize("certified", [True, False])
def test_keys_that_are_in_the_last_segment_alone_are_not_called_absent(
    directory: Directory, certified: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert directory.erase("--include-active") == 0
    shutil.copytree(directory.path, directory.path.parent / "erased")
    shutil.rmtree(directory.path)
    write_odd(directory.path)
    last = "00000000000000000020.log"
    for name in [path.name for path in (directory.path / "odd-0").glob("*.log") if path.name != last]:
        (directory.path / "odd-0" / name).write_bytes((directory.path.parent / "erased" / "odd-0" / name).read_bytes())
    capsys.readouterr()
    assert directory.erase(certified=certified) == 1
    out, error = capsys.readouterr()
    assert "1 skipped (1 last segment); 1 record of these keys remains in last segments; " in out.splitlines()[-1]
    assert "--include-active erases from the last segments, --accept-remaining accepts what remains" in error
    document = json.loads(directory.report.read_text())
    (log,) = document["logs"]
    assert (log["reason_code"], log["remaining_records"]) == ("last_segment", 1)
    assert log["reason"].startswith("last segment: 1 record of these keys in the last segment, which needs --include-active; ")
    assert document["erasure"]["remaining_records"] == 1
    if certified:
        (of_log,) = directory.certified()["logs"]
        assert (directory.certified()["status"], of_log["records_erased"], of_log["records_remaining"]) == ("incomplete", 0, 1)
    assert directory.erase("--accept-remaining", certified=certified) == 0
    assert "1 record of these keys remains in last segments" in capsys.readouterr().out.splitlines()[-1]
    if certified:
        assert (directory.certified()["status"], directory.verify()) == ("incomplete", 1)


def test_an_erasure_of_a_part_of_the_keys_does_not_end_like_a_complete_one(directory: Directory) -> None:
    assert call("--log-dir", directory.path, "--keys", directory.keys) == 1
    assert call("--log-dir", directory.path, "--keys", directory.keys, "--include-active") == 0


def test_remote_segments_of_a_tiered_topic_are_named_as_out_of_reach(
    directory: Directory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert directory.erase("--include-active", "--set", "remote.storage.enable=true") == 0
    assert "records in remote storage are not erased, of 1 topic: odd" in capsys.readouterr().out


def test_a_last_segment_without_the_keys_lets_the_certificate_hold(directory: Directory) -> None:
    assert directory.erase("--include-active") == 0
    shutil.rmtree(directory.path)
    write_odd(directory.path)
    directory.keys.write_bytes(b"k" * 70_000)
    log = directory.path / "odd-0" / "00000000000000000020.log"
    log.write_bytes(log.read_bytes()[:-1])
    assert directory.erase() == 1
    directory.keys.write_bytes(b"missing")
    assert directory.erase() == directory.verify() == 0


def test_a_dry_run_says_what_would_remain(directory: Directory, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--log-dir", directory.path, "--keys", directory.keys, "--dry-run") == 0
    assert "1 record of these keys remains in the last segment of 1 log" in capsys.readouterr().out


@pytest.mark.parametrize("name", [f"odd-0{MARK}future/{FIRST}", f"odd-0{MARK}stray/{FIRST}", f"odd-0/{FIRST}~", f"{FIRST}.bak"])
def test_a_key_that_is_left_elsewhere_makes_the_certificate_incomplete(
    directory: Directory, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = directory.path / name
    other.parent.mkdir(exist_ok=True)
    other.write_bytes((directory.path / "odd-0" / FIRST).read_bytes())
    assert directory.erase("--include-active") == 1
    assert f"{other} was not erased from, and has 1 record of the keys" in capsys.readouterr().out
    found = directory.certified()
    assert (found["status"], [log["status"] for log in found["logs"]]) == ("incomplete", ["holds"])
    assert found["elsewhere"] == [{"path": str(other), "records": 1}]
    assert any("earlier copies" in each for each in found["out_of_reach"])
    assert directory.verify() == 1
    assert f"{other} was not erased from, and has 1 record of the keys" in capsys.readouterr().out
    other.unlink()
    assert directory.verify() == 0


def test_segments_that_a_broker_has_replaced_since_are_searched(directory: Directory) -> None:
    shutil.copytree(directory.path / "odd-0", directory.path.parent / "before")
    assert directory.erase("--include-active") == 0
    shutil.copy(directory.path.parent / "before" / FIRST, directory.path / "odd-0" / "00000000000000000900.log.deleted")
    assert directory.verify() == 1


def test_an_internal_topic_that_is_not_erased_from_makes_the_certificate_incomplete(
    directory: Directory, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.path / "odd-0").rename(directory.path / "__odd-0")
    assert directory.erase("--include-active") == 1
    (log,) = directory.certified()["logs"]
    assert (log["status"], log["erased_from"], log["records_erased"], log["records_remaining"]) == ("incomplete", False, 0, 3)
    assert "__odd-0: 3 records of the erased keys remain, where the run did not erase" in capsys.readouterr().out
    assert directory.verify() == 1
    directory.keys.write_bytes(b"missing")
    assert directory.erase("--include-active") == directory.verify() == 0


def test_segments_of_a_failed_log_are_searched(directory: Directory) -> None:
    shutil.copytree(directory.path / "odd-0", directory.path / "odd-1")
    (directory.path / "cleaner-offset-checkpoint").write_text("0\n1\nodd 0 5\n")
    log = directory.path / "odd-1" / "00000000000000000010.log"
    log.write_bytes(log.read_bytes()[:30] + b"?" + log.read_bytes()[31:])
    assert directory.erase("--include-active") == 1
    found = directory.certified()
    assert found["status"] == "failed"
    assert [(each["path"], each["records"]) for each in found["elsewhere"]] == [
        (str(directory.path / "odd-1" / FIRST), 1),
        (str(log), None),
        (str(directory.path / "odd-1" / "00000000000000000020.log"), 1),
    ]


def test_a_certificate_is_changed_when_a_replaced_segment_cannot_be_removed(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(certify_result, "remove_deleted", refused)
    assert directory.erase("--include-active") == 1
    found = directory.certified()
    assert (found["status"], found["logs"][0]["status"]) == ("failed", "failed")
    assert "Permission denied" in found["logs"][0]["reason"]
    assert records_in(directory.path)
