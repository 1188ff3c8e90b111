"""Keyless logs are refused, no output has keys or values, files keep mode and owner, the metadata log is not changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.files.contents import FileDigest
from compaction.files.durable import run_alone
from compaction.files.local import LocalFileSystem
from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output.journal import Journal, JournalGroup, write_journal
from tests.crash.surroundings import run
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.kafka.encode import Batch, Record
from tests.log.logs import build

#: strings that no message, name or path contains
SECRETS = ("Zugangswort", "geheimer-Wert", "Kopfzeilenname", "Kopfzeilenwert")


def _secret_log(change: Callable[[bytes], bytes] = bytes) -> dict[str, bytes]:
    key, value, name, content = (text.encode() for text in SECRETS)
    batches = [Batch([Record(i, NOW_MS, key, value, ((name, content),))]).encode() for i in range(20)]
    files = {f"{0:020d}.log": change(b"".join(batches))}
    return {**files, **{f"{20:020d}{kind}": data for kind, data in build(20, []).files.items()}}


def test_keys_values_and_headers_are_in_no_output(tmp_path: Path) -> None:
    flips = {
        "valid": lambda data: data,
        "header": lambda data: data[:30] + b"\xff" + data[31:],
        "record": lambda data: data[:70] + b"\xff" + data[71:],
        "cut": lambda data: data[:-7],
        "garbage": lambda data: data[:300] + SECRETS[1].encode() * 9 + data[300:],
    }
    for topic, flip in flips.items():
        write_log(tmp_path / "data" / f"{topic}-0", _secret_log(flip))
    (tmp_path / "data" / CLEANER_OFFSETS).write_text("0\n0\n")
    for options in (("--dry-run",), (), ("--verbose",)):
        ended = run(tmp_path / "data", "--report", tmp_path / "report.json", *options)
        report = (tmp_path / "report.json").read_text()
        assert json.loads(report)["totals"]["failed"] == 4
        for secret in SECRETS:
            for shown in (ended.out, ended.err, report):
                assert secret not in shown


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_outputs_have_the_mode_of_their_sources_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    data = tmp_path / "data"
    write_log(data / "orders-0", valid_log("transactions").files)
    for path in (data / "orders-0").iterdir():
        path.chmod(0o640)
    before = os.umask(mask)
    try:
        assert run(data).code == 0
        assert run(data, "--output-dir", tmp_path / "out").code == 0
    finally:
        os.umask(before)
    for path in (*(data / "orders-0").iterdir(), data / CLEANER_OFFSETS, *(tmp_path / "out" / "orders-0").iterdir()):
        assert path.stat().st_mode & 0o777 == 0o640, path
    assert (tmp_path / "out" / "orders-0").stat().st_mode == (data / "orders-0").stat().st_mode


def test_new_files_belong_to_the_owner_of_the_sources(tmp_path: Path, missing: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        missing("root, which may give files away,")
    data = tmp_path / "data"
    write_log(data / "orders-0", valid_log("transactions").files)
    (data / "orders-0" / f"{0:020d}.index").unlink()
    for path in (data, data / "orders-0", *(data / "orders-0").iterdir()):
        os.chown(path, 1234, 5678)
    assert run(data, "--output-dir", tmp_path / "out").code == 0
    assert run(data).code == 0
    assert (data / LOCK).exists()
    for path in (data, tmp_path / "out"):
        found = {(each.stat().st_uid, each.stat().st_gid) for each in (path, *path.rglob("*"))}
        assert found == {(1234, 5678)}, path


def test_unfinished_outputs_are_as_private_as_their_sources(tmp_path: Path) -> None:
    write_log(tmp_path / "data" / "orders-0", valid_log("none").files)
    for path in (tmp_path / "data" / "orders-0").iterdir():
        path.chmod(0o600)
    modes: set[int] = set()

    def record_modes() -> None:
        unfinished = list((tmp_path / "data" / "orders-0").glob("*.clean.*"))
        assert unfinished
        modes.update(path.stat().st_mode & 0o777 for path in unfinished)

    assert run(tmp_path / "data", events={"after_rewrite": record_modes}).code == 0
    assert modes == {0o600}


def test_a_journal_with_other_paths_is_malformed(tmp_path: Path) -> None:
    """A journal from an untrusted directory changes no file outside of it; the log fails."""
    log = tmp_path / "data" / "orders-0"
    write_log(log, valid_log("none").files)
    victim = tmp_path / "data" / "victim"
    victim.write_text("precious")
    files = (FileDigest(".log", 8, "0" * 32), FileDigest("/../../victim", 8, "0" * 32))
    run_alone(LocalFileSystem(), write_journal(LocalFileSystem(), str(log), Journal((JournalGroup(0, files, ()),), None, 1)))
    before = look_at(log)
    ended = run(tmp_path / "data")
    assert ended.code == 1
    assert f"error: orders-0: {log}/.compaction-swap: the journal of an earlier run is malformed" in ended.err
    assert victim.read_text() == "precious"
    assert look_at(log) == before
