"""Claims: exactly one of several runs gets a directory, in any order of their steps and with any planted claim."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from compaction.errors import LockedError, StorageError
from compaction.files.local import LocalFileSystem
from compaction.log import access as claims
from compaction.log.access import Claim, Identity
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem

LOG_DIR = "/logs"


def run(token: str) -> Identity:
    return Identity(token, "host", "boot", "namespace", 1, "0")


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The tokens of the runs that are over."""
    tokens: set[str] = set()
    monkeypatch.setattr(Identity, "is_over", lambda self, log_dir: self.token in tokens)
    return tokens


def test_a_live_run_keeps_its_claim_when_a_lower_number_becomes_free(over: set[str]) -> None:
    fs = FaultyFileSystem()
    over.add("dead")
    fs.mkdir(LOG_DIR)
    Claim.take(fs, LOG_DIR, run("dead"))
    living: list[Claim] = []

    def another_run_ends_and_a_third_one_begins(operation: Operation) -> None:
        if operation.name == "link" and not living:
            Claim.take(fs, LOG_DIR, run("short")).release()
            living.append(Claim.take(fs, LOG_DIR, run("third")))

    with pytest.raises(LockedError, match="claimed by another run"):
        Claim.take(WatchedFileSystem(fs, another_run_ends_and_a_third_one_begins), LOG_DIR, run("slow"))
    living[0].require()
    assert fs.listdir(LOG_DIR) == [".compaction-run.00000001"]


def test_a_claim_that_was_taken_over_is_detected_and_kept_by_the_other_run(over: set[str]) -> None:
    fs = FaultyFileSystem()
    fs.mkdir(LOG_DIR)
    first = Claim.take(fs, LOG_DIR, run("first"))
    over.add("first")
    second = Claim.take(fs, LOG_DIR, run("second"))
    with pytest.raises(StorageError, match="another run has taken over"):
        first.require()
    first.release()
    second.require()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        DEEP.encode(),
        b"9" * 10_000,
        json.dumps({**asdict(run("x")), "pid": [1]}).encode(),
        json.dumps({**asdict(run("x")), "pid": 2**70}).encode(),
        json.dumps({**asdict(run("x")), "pid": "../../etc"}).encode(),
        json.dumps({**asdict(run("x")), "boot": {"a": 1}}).encode(),
        json.dumps({**asdict(run("x")), "more": 1}).encode(),
        json.dumps({**asdict(run("x")), "host": "h" * 10_000}).encode(),
    ],
    ids=lambda content: content[:20].decode("latin1"),
)
def test_a_planted_claim_of_any_content_is_refused_and_named(content: bytes, tmp_path: Path) -> None:
    planted = tmp_path / ".compaction-run.00000007"
    planted.write_bytes(content)
    with pytest.raises(LockedError, match="malformed; make sure that no other run works here, remove it"):
        Claim.take(LocalFileSystem(), str(tmp_path), Identity.of_this_process())
    assert list(tmp_path.iterdir()) == [planted]


@pytest.mark.parametrize("kind", ["directory", "fifo", "link to a device"])
def test_a_claim_that_is_no_file_is_not_opened(kind: str, tmp_path: Path) -> None:
    planted = tmp_path / ".compaction-run.00000007"
    if kind == "directory":
        planted.mkdir()
    elif kind == "fifo":
        os.mkfifo(planted)
    else:
        planted.symlink_to("/dev/zero")
    with pytest.raises(LockedError, match="malformed"):
        Claim.take(LocalFileSystem(), str(tmp_path), Identity.of_this_process())


def test_the_last_claim_is_named_if_no_further_claim_can_be_created(tmp_path: Path, over: set[str]) -> None:
    over.add("over")
    planted = tmp_path / ".compaction-run.99999999"
    planted.write_text(json.dumps(asdict(run("over"))))
    with pytest.raises(LockedError, match="the highest possible claim number is taken"):
        Claim.take(LocalFileSystem(), str(tmp_path), run("new"))
    assert list(tmp_path.iterdir()) == [planted]


def test_a_run_of_another_container_is_over_only_on_a_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Identity.of_this_process()
    other = Identity("other", here.host, here.boot, "pid:[1]", here.pid, here.started)
    monkeypatch.setattr(claims, "is_local", lambda path: True)
    assert other.is_over(str(tmp_path))
    monkeypatch.setattr(claims, "is_local", lambda path: False)
    assert not other.is_over(str(tmp_path))
