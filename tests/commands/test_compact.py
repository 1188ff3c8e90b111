"""Runs of ``compact`` that no transcript can show: errors of every kind, a full disk, owners and modes, secrets, journals, and
copies that continue a damaged one."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.cli.parser import APPLICATIONS
from compaction.commands import compact, expire
from compaction.config.request import Budget, CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.errors import CorruptLogError, LockedError
from compaction.files import local, object_store
from compaction.files.contents import FileDigest
from compaction.files.durable import run_alone
from compaction.files.local import FreeSpace, LocalFileSystem
from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output import segment_writer
from compaction.output.finished import FINISHED
from compaction.output.journal import Journal, JournalGroup, write_journal
from compaction.output.publish import LocalTarget
from compaction.report import RunReport
from compaction.run import waves
from compaction.run.compact import clean_logs
from tests.certifier.story import CONFIG, Story, records
from tests.certifier.story import NOW_MS as STORY_MS
from tests.commands.named_logs import two_topics
from tests.crash.surroundings import run
from tests.damage.copied_files import DAMAGES, damage, record_count
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.executed import executed
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.local_passes import LocalPasses
from tests.log.logs import build
from tests.object_store.fixtures import files
from tests.processes import ROOT, started


class Run:
    """Replaces a run: records the request, starts no session, and ends without logs or with an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.requests: list[CompactionRequest] = []

    def __call__(self, session_factory: EngineChoice, request: CompactionRequest) -> RunReport:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return RunReport("r-1", request.as_of_ms, request.dry_run, ())


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with two topics."""
    two_topics(tmp_path)
    return tmp_path / "data"


def requested(*argv: object) -> CompactionRequest:
    run = Run()
    assert executed(compact, [str(each) for each in argv], run) == 0
    return run.requests[0]


def test_limits_order_and_addresses_are_part_of_the_request(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ("--max-duration", "2h", "--max-rewrite", "1GiB", "--min-freed", "10%")
    request = requested("--log-dir", log_dir, "--order", "benefit", *limits, "--release-early")
    assert (request.order, request.budget) == ("benefit", Budget(7_200_000, 1 << 30, 0.1))
    assert (request.release_early, request.retain_replaced) == (True, False)
    monkeypatch.setattr(object_store, "_reached", {"s3://b"})
    request = requested("--log-dir", f"file://{log_dir}", "--output-dir", "s3a://b/out/?region=x")
    assert (request.log_dirs, request.output_dir, request.budget) == ((str(log_dir),), "s3://b/out", Budget())


@pytest.mark.parametrize(
    ("error", "options", "code", "told"),
    [
        (CorruptLogError("malformed", path="/data/x", position=4), [], 1, "/data/x at byte 4: malformed"),
        (LockedError("a broker holds the lock", path="/data/.lock", hint="stop it"), [], 2,
         "/data/.lock: a broker holds the lock; stop it"),
        (RuntimeError("\nboom\nat org.apache.spark"), [], 1,
         "RuntimeError: boom; run again with --verbose for the stack trace"),
        (KeyboardInterrupt(), [], 130, "interrupted; the next run completes or undoes the changes of this one"),
        (KeyboardInterrupt(), ["--dry-run"], 130, "interrupted; no log was changed"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_its_exit_code(
    log_dir: Path, capsys: pytest.CaptureFixture[str], error: BaseException, options: list[str], code: int, told: str
) -> None:
    """After a run in the same process that could have changed logs."""
    call = ["--log-dir", str(log_dir), *options]
    assert executed(compact, call[:2], Run()) == 0
    capsys.readouterr()
    assert executed(compact, call, Run(error)) == code
    assert capsys.readouterr().err == f"error: {told}\n"
    assert executed(compact, [*call, "--verbose"], Run(error)) == code
    assert ("Traceback (most recent call last)" in capsys.readouterr().err) is isinstance(error, Exception)


@pytest.mark.parametrize("application", APPLICATIONS)
def test_a_script_runs_from_any_directory_without_being_installed(application: str, tmp_path: Path) -> None:
    call = [sys.executable, ROOT / "jobs" / f"{application}.py", "--no-such-option"]
    done = started(call, cwd=tmp_path, without=("PYTHONPATH",))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"error: .*; see spark-submit jobs/{application}.py --help\n", done.stderr, re.IGNORECASE)


def test_a_copy_that_does_not_fit_is_refused_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = unpack_sample(tmp_path)
    monkeypatch.setattr(waves, "free_space", lambda path: FreeSpace(1, (4 << 20) + 5000, 0))
    assert expire.main(["--log-dir", str(logs), "--set", "cleanup.policy=delete", "--output-dir", str(tmp_path / "out")]) == 1
    assert re.fullmatch(
        rf"error: {tmp_path}/out: the copy takes [\d.]+ [kM]B, 5\.0 kB are free besides a margin of 4\.2 MB for"
        r" checkpoints and journals; free some space and run again; nothing was written\n",
        capsys.readouterr().err,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [logs.name]


def test_a_result_in_place_that_does_not_hold_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story.cleaned(tmp_path)

    def spoiled(_: EngineChoice, request: CompactionRequest) -> RunReport:
        report = clean_logs(LocalPasses, request)
        left = Story(tmp_path, story.before)
        left.change(left.offset_of("unique-2"), records(lambda found: found[1:]))
        return report

    settings = [f"{name}={value}" for name, value in CONFIG.items()]
    call = ["--log-dir", str(story.before), "--as-of-ms", str(STORY_MS), "--allow-keyless", "--verify", "--set", *settings]
    assert executed(compact, call, spoiled) == 1
    assert "record is missing though it is the last of its key" in capsys.readouterr().err


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


def test_new_files_belong_to_the_owner_of_the_sources(root: None, tmp_path: Path) -> None:
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


OPTIONS = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0")
LOG = "payments-0"
#: files of a log that are taken over, and checkpoints; the bytes of the others are those of the source
TAKEN = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "cleaner-offset-checkpoint")
#: several segments are cleaned segments of the copy
SMALL = ("--set", "internal.segment.bytes=5500")
OTHERS = ("leader-epoch-checkpoint", "partition.metadata", "replication-offset-checkpoint")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the sample logs; no test changes them."""
    return unpack_sample(tmp_path_factory.mktemp("sample"), "__cluster_metadata-0", "orders-0", "orders-1", "inventory-0")


def copied(logs: Path, target: Path, day: int, *options: object) -> int:
    """The copy of a day."""
    argv = ["--log-dir", logs, "--output-dir", target, "--as-of", f"2027-01-{day:02}T00:00Z", *OPTIONS, *options]
    return compact.main([str(each) for each in argv])


def test_shared_blocks_are_not_read_back(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert copied(logs, first, 2, "--if-done", "skip") == 0
    shared = []

    def share(source: int, target: int) -> bool:
        data = Path(f"/proc/self/fd/{source}").read_bytes()
        shared.append(Path(f"/proc/self/fd/{target}").write_bytes(data))
        return True

    monkeypatch.setattr(local, "share_blocks", share)
    monkeypatch.setattr(segment_writer, "find_mismatch", lambda *_: pytest.fail("the bytes were not moved"))
    assert copied(logs, second, 3, "--since", first) == 0
    assert shared
    names = {name for name in files(first) if name.endswith((".log", ".index")) and "metadata" not in name}
    assert {name: files(second)[name] for name in names} == {name: files(first)[name] for name in names}
    times = [{name: (copy / name).stat().st_mtime_ns for name in names} for copy in (first, second)]
    assert times[0] == times[1]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_copy_is_published_after_it_was_found_good(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    target = tmp_path / "copy"
    if earlier:
        assert copied(logs, target, 2, "--replace") == 0
    before = files(target)
    commit = LocalTarget.commit

    def change(self: LocalTarget, *arguments: Any) -> None:
        """A disk that changes a byte after it was read back."""
        path = min(Path(self.place).glob("orders-0/*.log"))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        commit(self, *arguments)

    monkeypatch.setattr(LocalTarget, "commit", change)
    capsys.readouterr()
    assert copied(logs, target, 3, "--replace", "--verify") == 1
    (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
    assert "--verify: the copy was not published: orders-0:" in error
    assert files(target) == before and target.exists() == earlier
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    monkeypatch.undo()
    assert copied(logs, target, 3, "--replace", "--verify") == 0
    assert "3 logs: 3 hold (" in capsys.readouterr().out and files(target) != before


def files_of(copy: Path, kind: str) -> list[Path]:
    """The files of a kind, without those of the last segment, which are the source's except for its log."""
    if not kind.startswith("."):
        return [path for path in (copy / kind, copy / LOG / kind) if path.exists()]
    last = max((copy / LOG).glob("*.log")).stem
    return sorted(path for path in (copy / LOG).glob(f"*{kind}") if path.stem < last or kind == ".log")


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_previous_copy_costs_no_record(tmp_path: Path, clean: bool, capsys: pytest.CaptureFixture[str]) -> None:
    source = unpack_sample(tmp_path / "source", "__cluster_metadata-0", LOG)
    if not clean:
        (source / ".kafka_cleanshutdown").unlink()
    first, plain, continued = tmp_path / "first", tmp_path / "plain", tmp_path / "continued"
    assert copied(source, first, 2, "--if-done", "skip", *SMALL) == 0
    assert copied(source, plain, 3, "--if-done", "skip", *SMALL) == 0
    assert copied(source, continued, 3, "--since", first, *SMALL) == 0
    assert "1 unchanged" in capsys.readouterr().out
    expected = {"full": files(plain), "unchanged": files(continued)}
    for kind in (*TAKEN, *OTHERS):
        for how in DAMAGES if kind == ".log" else ["missing" if clean else "longer"]:
            damaged, target = tmp_path / "damaged", tmp_path / "next"
            shutil.copytree(first, damaged)
            path = files_of(damaged, kind)[-1]
            assert damage(path, how), (kind, how)
            capsys.readouterr()
            assert copied(source, target, 3, "--since", damaged, "--verbose", *SMALL) == 0, (kind, how)
            since = "full" if kind in TAKEN else "unchanged"
            assert f"1 {'copied in full' if since == 'full' else since}" in capsys.readouterr().out, (kind, how)
            found = files(target)
            assert {**found, FINISHED: b""} == {**expected[since], FINISHED: b""}, (kind, how)
            assert record_count(target) == record_count(plain)
            for copy in (damaged, target):
                shutil.rmtree(copy)
