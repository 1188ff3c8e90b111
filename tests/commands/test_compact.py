"""Runs of ``compact`` that no transcript can show: errors of every kind, a full disk, owners and modes, secrets, journals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.cli.parser import APPLICATIONS
from compaction.commands import compact, expire
from compaction.config.request import Budget, CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.errors import CorruptLogError, LockedError
from compaction.files import object_store
from compaction.files.contents import FileDigest
from compaction.files.durable import run_alone
from compaction.files.local import FreeSpace, LocalFileSystem
from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output.journal import Journal, JournalGroup, write_journal
from compaction.report import LogReport, LogStatus, RunReport
from compaction.run import waves
from compaction.run.compact import clean_logs
from tests.certifier.story import CONFIG, Story, records
from tests.certifier.story import NOW_MS as STORY_MS
from tests.commands.named_logs import two_topics
from tests.crash.surroundings import run
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.executed import executed
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.local_passes import LocalPasses
from tests.log.logs import build

ROOT = Path(__file__).resolve().parents[2]


class Run:
    """Replaces a run: records the request, starts no session, returns a report of the given logs."""

    def __init__(self, *logs: LogReport, error: BaseException | None = None) -> None:
        self.logs = logs
        self.error = error
        self.request: CompactionRequest | None = None

    def __call__(self, session_factory: EngineChoice, request: CompactionRequest) -> RunReport:
        self.request = request
        if self.error is not None:
            raise self.error
        return RunReport("r-1", request.as_of_ms, request.dry_run, self.logs)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with two topics."""
    two_topics(tmp_path)
    return tmp_path / "data"


def requested(*argv: object) -> CompactionRequest:
    run = Run()
    assert executed(compact, [str(each) for each in argv], run) == 0
    assert run.request is not None
    return run.request


def test_limits_and_order_are_part_of_the_request(log_dir: Path) -> None:
    limits = ("--max-duration", "2h", "--max-rewrite", "1GiB", "--min-freed", "10%")
    request = requested("--log-dir", log_dir, "--order", "benefit", *limits, "--release-early")
    assert (request.order, request.budget) == ("benefit", Budget(7_200_000, 1 << 30, 0.1))
    assert (request.release_early, request.retain_replaced) == (True, False)
    assert requested("--log-dir", log_dir).budget == Budget()


def test_directories_may_be_uris(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_reached", {"s3://b"})
    assert requested("--log-dir", f"file://{log_dir}").log_dirs == (str(log_dir),)
    assert requested("--log-dir", log_dir, "--output-dir", "s3a://b/out/?region=x").output_dir == "s3://b/out"


@pytest.mark.parametrize(
    ("run", "code", "errors"),
    [
        pytest.param(
            Run(LogReport("orders", 0, "/data", LogStatus.FAILED, "x.log at byte 3:\nbroken")),
            1, "error: orders-0: x.log at byte 3: broken\n", id="one failed",
        ),
        pytest.param(
            Run(error=LockedError("a broker (process 7) holds the lock", path="/data/.lock", hint="stop it")),
            2, "error: /data/.lock: a broker (process 7) holds the lock; stop it\n", id="a live broker",
        ),
        pytest.param(
            Run(error=CorruptLogError("malformed", path="/data/x", position=4)),
            1, "error: /data/x at byte 4: malformed\n", id="a log error",
        ),
        pytest.param(
            Run(error=RuntimeError("\nboom\nat org.apache.spark")), 1,
            "error: RuntimeError: boom; run again with --verbose for the stack trace\n", id="an unexpected error",
        ),
        pytest.param(
            Run(error=KeyboardInterrupt()), 130,
            "error: interrupted; the next run completes or undoes the changes of this one\n", id="ctrl-c",
        ),
    ],
)  # fmt: skip
def test_exit_code_and_errors_of_each_outcome(
    log_dir: Path, capsys: pytest.CaptureFixture[str], run: Run, code: int, errors: str
) -> None:
    assert executed(compact, ["--log-dir", str(log_dir)], run) == code
    assert capsys.readouterr().err == errors
    assert executed(compact, ["--log-dir", str(log_dir), "--verbose"], run) == code
    assert ("Traceback (most recent call last)" in capsys.readouterr().err) is isinstance(run.error, Exception)


@pytest.mark.parametrize("application", APPLICATIONS)
def test_a_script_runs_from_any_directory_without_being_installed(application: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    call = [sys.executable, str(ROOT / "jobs" / f"{application}.py"), "--no-such-option"]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"error: .*; see spark-submit jobs/{application}.py --help\n", done.stderr, re.IGNORECASE)


def test_an_interrupted_dry_run_does_not_speak_of_changes(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a run in the same process that could have changed logs."""
    assert executed(compact, ["--log-dir", str(log_dir)], Run()) == 0
    capsys.readouterr()
    assert executed(compact, ["--log-dir", str(log_dir), "--dry-run"], Run(error=KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "error: interrupted; no log was changed\n"


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
