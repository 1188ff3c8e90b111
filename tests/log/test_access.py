"""Files of a log directory that runs share with each other and with brokers. Locks and claims: without working locks, exactly
one of several runs gets a directory, in any order of their steps and with any planted claim; the others fail before an
irreversible step. Which directories are on a local disk, by the kernel's list of mounts. Checkpoints: what is read, what a
change leaves alone; ``tests/output/test_swap.py`` stops changes at any operation."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import CorruptLogError, LockedError, StorageError, UsageError
from compaction.files.durable import run_alone
from compaction.files.filesystem import FileSystem
from compaction.files.local import LocalFileSystem
from compaction.log import access as mounts
from compaction.log.access import NO_OWNER, Claim, Identity, Owner, Purpose, access, is_claim, require_still_unlocked
from compaction.log.checkpoint_store import Change, CheckpointFiles, Checkpoints, read_checkpoints
from compaction.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    TopicPartition,
)
from compaction.output.swap import replace_segments
from tests.crash.surroundings import small_disk
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem
from tests.files.test_lock import held_elsewhere, try_elsewhere
from tests.output.test_swap import END, HERE, LOG_DIR, PLAIN, dirty_log, everything, write_cleaned

FS = LocalFileSystem()


def names(log_dir: Path) -> list[str]:
    return sorted(path.name for path in log_dir.iterdir())


def test_a_changing_run_holds_the_lock_and_a_claim(tmp_path: Path) -> None:
    (tmp_path / f"cleaner-offset-checkpoint.{'0' * 32}.tmp").touch()
    with access(FS, [str(tmp_path)], Purpose.CHANGE) as held:
        held.owner(str(tmp_path)).require()
        assert held.owner(str(tmp_path)).token
        assert "in use" in try_elsewhere(tmp_path)
        assert [is_claim(name) for name in names(tmp_path)] == [True, False]
    assert names(tmp_path) == [LOCK]


@pytest.mark.parametrize("has_lock_file", [True, False])
def test_a_copying_run_keeps_brokers_and_changing_runs_out_and_lets_copying_ones_in(
    tmp_path: Path, has_lock_file: bool
) -> None:
    """If there is no lock file to share, a copy makes one, as a broker does."""
    if has_lock_file:
        (tmp_path / LOCK).touch()
    with access(FS, [str(tmp_path)], Purpose.COPY) as held, access(FS, [str(tmp_path)], Purpose.COPY):
        assert held.owner(str(tmp_path)) is NO_OWNER
        assert "in use" in try_elsewhere(tmp_path)
        with pytest.raises(LockedError), access(FS, [str(tmp_path)], Purpose.CHANGE):
            pass
    assert try_elsewhere(tmp_path) == "free\n" and names(tmp_path) == [LOCK]


def test_a_copying_run_detects_a_broker_that_started_since(tmp_path: Path) -> None:
    """There was no lock file to share, and the run may not make one."""
    with access(FS, [str(tmp_path)], Purpose.SHARE):
        assert names(tmp_path) == []
        with held_elsewhere(tmp_path), pytest.raises(LockedError, match="locked this directory while the logs were copied"):
            require_still_unlocked(FS, [str(tmp_path)])


def test_a_copying_run_works_on_a_read_only_mount(tmp_path: Path, missing: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        missing("root, which may mount,")
    with small_disk(tmp_path / "disk", 1) as place:
        (place / LOCK).touch()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with access(FS, [str(place)], Purpose.COPY):
            assert names(place) == [LOCK]


def test_a_dry_run_holds_nothing_and_reports_the_holder(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path), access(FS, [str(tmp_path)], Purpose.READ) as held:
        assert held.in_use == {str(tmp_path)}
        assert names(tmp_path) == [LOCK]


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / LOCK).symlink_to(tmp_path / "victim")
    for purpose in (Purpose.CHANGE, Purpose.COPY, Purpose.SHARE):
        with pytest.raises(UsageError, match="cannot lock the log directory"), access(FS, [str(tmp_path / "logs")], purpose):
            pass
    assert not (tmp_path / "victim").exists()


def test_all_locks_are_released_if_one_cannot_be_taken(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with held_elsewhere(tmp_path / "two"), pytest.raises(LockedError):
        with access(FS, [str(tmp_path / "one"), str(tmp_path / "two")], Purpose.CHANGE):
            pass
    assert try_elsewhere(tmp_path / "one") == "free\n"
    assert names(tmp_path / "one") == [LOCK]


def claims(log_dir: Path) -> list[str]:
    return [name for name in names(log_dir) if is_claim(name)]


def named(token: str) -> Identity:
    return Identity(token, "host", "boot", "namespace", 1, "0")


def take(log_dir: Path) -> Claim:
    return Claim.take(FS, str(log_dir), Identity.of_this_process())


def test_a_second_run_fails_if_the_first_may_be_active_whose_claim_is_valid_until_it_is_removed(tmp_path: Path) -> None:
    first = take(tmp_path)
    with pytest.raises(LockedError, match=rf"claimed by another run \(process {os.getpid()} on .*remove .*00000001"):
        take(tmp_path)
    first.require()
    (tmp_path / claims(tmp_path)[0]).unlink()
    with pytest.raises(StorageError, match="taken over"):
        first.require()


def test_a_run_that_was_superseded_fails_before_its_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = take(tmp_path)
    monkeypatch.setattr(Identity, "is_over", lambda *_: True)
    second = take(tmp_path)
    with pytest.raises(StorageError, match="another run has taken over this log directory"):
        first.require()
    first.release()
    second.require()
    assert claims(tmp_path) == [".compaction-run.00000002"]


def test_a_live_run_keeps_its_claim_when_a_lower_number_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = FaultyFileSystem()
    monkeypatch.setattr(Identity, "is_over", lambda run, log_dir: run.token == "dead")
    fs.mkdir("/logs")
    Claim.take(fs, "/logs", named("dead"))
    living: list[Claim] = []

    def another_run_ends_and_a_third_one_begins(operation: Operation) -> None:
        if operation.name == "link" and not living:
            Claim.take(fs, "/logs", named("short")).release()
            living.append(Claim.take(fs, "/logs", named("third")))

    with pytest.raises(LockedError, match="claimed by another run"):
        Claim.take(WatchedFileSystem(fs, another_run_ends_and_a_third_one_begins), "/logs", named("slow"))
    living[0].require()
    assert fs.listdir("/logs") == [".compaction-run.00000001"]


def test_the_claim_of_a_killed_run_of_this_machine_is_superseded(tmp_path: Path) -> None:
    over = replace(Identity.of_this_process(), started="before", token="of another")
    (tmp_path / ".compaction-run.00000007").write_text(json.dumps(asdict(over)))
    claim = take(tmp_path)
    claim.require()
    assert claims(tmp_path) == [".compaction-run.00000008"]


@pytest.mark.parametrize("other", [{"boot": "another kernel's"}, {"namespace": "pid:[1]"}], ids=["boot", "container"])
def test_a_run_of_another_boot_or_container_has_ended_only_on_a_local_disk(
    other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared disk it may be a live run of another machine. A live process of this machine has not ended."""
    assert not Identity.of_this_process().is_over(str(tmp_path))
    run = replace(Identity.of_this_process(), token="other", **other)
    monkeypatch.setattr("compaction.log.access.is_local", lambda _: True)
    assert run.is_over(str(tmp_path))
    monkeypatch.setattr("compaction.log.access.is_local", lambda _: False)
    assert not run.is_over(str(tmp_path))


@pytest.mark.parametrize("length", [0, 1, 11, 40, -1])
@pytest.mark.parametrize("zeros", [0, 60])
def test_a_claim_that_its_run_cannot_have_written_to_the_end_holds_up_nobody(tmp_path: Path, length: int, zeros: int) -> None:
    """It is left by a disk that lies and loses power. The run that made it does not go on with it, either."""
    own = take(tmp_path)
    path = tmp_path / claims(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:length] + bytes(zeros))
    with pytest.raises(StorageError, match="taken over"):
        own.require()
    claim = take(tmp_path)
    claim.require()
    assert claims(tmp_path) == [".compaction-run.00000002"]


WRITTEN = asdict(named("x"))
WRONG_FIELDS = (
    ("pid", [1]), ("pid", 2**70), ("pid", "../../etc"), ("boot", {"a": 1}), ("more", 1), ("host", "h" * 10_000),
)  # fmt: skip
MALFORMED = (
    b"{}", b"[1]", b"[]", b"null", b"claim", b'{"token": 1}', b'{"token": "a"}', b'{"taken": "', b"\xff\xfe", b"[" * 100_000,
    b"9" * 10_000,
    *(json.dumps({**WRITTEN, name: value}).encode() for name, value in WRONG_FIELDS),
)  # fmt: skip


@pytest.mark.parametrize(
    "content", MALFORMED, ids=lambda content: content[:20].decode("latin1") + content[-20:].decode("latin1")
)
def test_a_malformed_claim_of_any_content_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".compaction-run.00000003").write_bytes(content)
    with pytest.raises(
        LockedError, match="00000003: the claim of another run is malformed; make sure that no other run .*remove it"
    ):
        take(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".compaction-run.00000003"]


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
        Claim.take(FS, str(tmp_path), Identity.of_this_process())


def test_the_last_claim_is_named_if_no_further_claim_can_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Identity, "is_over", lambda *_: True)
    planted = tmp_path / ".compaction-run.99999999"
    planted.write_text(json.dumps(asdict(named("over"))))
    with pytest.raises(LockedError, match="the highest possible claim number is taken"):
        Claim.take(FS, str(tmp_path), named("new"))
    assert list(tmp_path.iterdir()) == [planted]


def test_a_claim_number_is_granted_once(tmp_path: Path) -> None:
    path = tmp_path / ".compaction-run.00000001"
    assert [FS.link_new(str(path), data, str(tmp_path)) for data in (b"{}", b"other")] == [True, False]
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"{}", [path])


class TakenOver(Owner):
    """A claim that another run supersedes after a number of checks."""

    token = "this run's"

    def __init__(self, checks: int) -> None:
        self._checks = checks

    def require(self) -> None:
        if not self._checks:
            raise StorageError("another run has taken over this log directory", path=LOG_DIR)
        self._checks -= 1


@pytest.mark.parametrize("checks", [0, 1, 2, 3])
def test_a_swap_checks_its_claim_before_each_group_and_at_its_end(checks: int) -> None:
    fs = dirty_log()
    before = everything(fs)
    groups = write_cleaned(fs, PLAIN)
    with pytest.raises(StorageError, match="taken over"):
        run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END, owner=TakenOver(checks)))
    renamed = [line for line in fs.log if line.startswith("rename") and line.endswith(".log.swap")]
    assert len(renamed) == max(0, checks - 1)
    if not checks:
        assert everything(fs) == before
    assert fs.read_bytes(f"{LOG_DIR}/cleaner-offset-checkpoint") == before["cleaner-offset-checkpoint"]


MOUNTS = [
    "21 1 {device} / / rw - ext4 /dev/vda rw",
    "22 21 0:99 / /srv/with\\040space rw - nfs4 server:/ rw",
    "23 21 {device} /part /var/lib/kafka rw - ext4 /dev/vda rw",
]


def of(path: Path, *lines: str) -> list[str]:
    """The kernel's lines, with the device of ``path``."""
    device = path.stat().st_dev
    return [line.format(device=f"{os.major(device)}:{os.minor(device)}") for line in lines]


def test_mount_points_are_listed_with_their_escapes_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_mounts", lambda: of(tmp_path, *MOUNTS))
    assert mounts.mount_points() == {"/", "/srv/with space", "/var/lib/kafka"}
    # also a bind mount on the same disk
    monkeypatch.setattr(mounts, "_mounts", lambda: of(tmp_path, f"23 21 {{device}} /part {tmp_path} rw - ext4 /dev/vda rw"))
    assert (mounts.is_mount_point(str(tmp_path)), mounts.is_mount_point(str(tmp_path.parent))) == (True, False)


@pytest.mark.parametrize(("kinds", "local"), [(["ext4"], True), (["nfs4"], False), (["ext4", "nfs4"], False), ([], False)])
def test_a_disk_is_local_only_if_all_its_mounts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str], local: bool
) -> None:
    lines = [f"21 1 {{device}} / /{kind} rw shared:1 - {kind} x rw" for kind in kinds]
    monkeypatch.setattr(mounts, "_mounts", lambda: of(tmp_path, *lines))
    assert mounts.is_local(str(tmp_path)) is local
    assert not mounts.is_local(str(tmp_path / "missing"))


A, B = TopicPartition("a", 0), TopicPartition("b.c", 12)
PATH = f"/logs/{CLEANER_OFFSETS}"
GARBLED = [b"1\n0\n", b"x\n", b"0\n2\na 0 5\n", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"\xff\xfe", b"0\n-1\n"]


POINTS, CLEAN = b"0\n1\na 0 7\n", Checkpoints("/logs", clean_shutdown=True)


def killed(points: dict[TopicPartition, int]) -> Checkpoints:
    return Checkpoints("/logs", recovery_points=points)


def change(fs: FileSystem, *changes: Change, name: str = CLEANER_OFFSETS, files: CheckpointFiles | None = None) -> None:
    files = CheckpointFiles(fs) if files is None else files
    for each in changes:
        run_alone(fs, files.file("/logs", name).change(each))


def log_dir(**files: bytes) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/logs")
    for name, data in files.items():
        fs.put(f"/logs/{name}", data)
    return fs.settle()


def with_offsets(*entries: str) -> FaultyFileSystem:
    """A directory with these entries of the cleaner."""
    return log_dir(**{CLEANER_OFFSETS: "\n".join(["0", str(len(entries)), *entries, ""]).encode()})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, Checkpoints("/logs"), id="no broker has used the directory"),
        *(({CLEANER_OFFSETS: empty}, Checkpoints("/logs")) for empty in (b"", b"0\n", b"0\n0\n")),
        pytest.param(
            {LOG_STARTS: b"0\n1\na 0 1\n", HIGH_WATERMARKS: b"0\n1\na 0 2\n", CLEANER_OFFSETS: b"0\n2\na 0 3\nb.c 12 4\n"},
            Checkpoints("/logs", {A: 1}, {A: 2}, {A: 3, B: 4}),
            id="each file has its own offsets",
        ),
        pytest.param({RECOVERY_POINTS: POINTS}, killed({A: 7}), id="killed"),
        pytest.param({RECOVERY_POINTS: b"noise"}, killed({}), id="killed, recovers everything"),
        pytest.param({META_PROPERTIES: b""}, killed({}), id="killed before the first recovery points were written"),
        pytest.param({META_PROPERTIES: b"", CLEAN_SHUTDOWN: b""}, CLEAN, id="shut down cleanly without them"),
        pytest.param({RECOVERY_POINTS: POINTS, CLEAN_SHUTDOWN: b""}, CLEAN, id="shut down cleanly"),
    ],
)
def test_checkpoints_are_read(files: dict[str, bytes], expected: Checkpoints) -> None:
    found = read_checkpoints(log_dir(**files), "/logs")
    found.require_valid()
    assert found == expected


@pytest.mark.parametrize("data", GARBLED)
@pytest.mark.parametrize("name", [CLEANER_OFFSETS, LOG_STARTS, HIGH_WATERMARKS])
def test_a_malformed_file_is_reported_with_its_name_and_not_changed(name: str, data: bytes) -> None:
    fs = log_dir(**{name: data})
    with pytest.raises(CorruptLogError) as caught:
        read_checkpoints(fs, "/logs").require_valid()
    assert caught.value.path == f"/logs/{name}"
    with pytest.raises(CorruptLogError):
        change(fs, Change(A, 7), name=name)
    assert fs.read_bytes(f"/logs/{name}") == data


CHANGES = [
    ([Change(A, 7)], b"0\n2\na 0 7\nb.c 12 4\n"),
    ([Change(TopicPartition("new", 1), 9)], b"0\n3\na 0 3\nb.c 12 4\nnew 1 9\n"),
    ([Change(A, None)], b"0\n1\nb.c 12 4\n"),
    ([Change(A, None), Change(B, None)], b"0\n0\n"),
    ([Change(TopicPartition("other", 0), None)], b"0\n2\na 0 3\nb.c 12 4\n"),
    # of an expected value
    ([Change(A, 9, (3,))], b"0\n2\na 0 9\nb.c 12 4\n"),
    ([Change(A, 9, (None,)), Change(A, 9, (4,))], b"0\n2\na 0 3\nb.c 12 4\n"),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES)
def test_a_change_keeps_other_entries_and_is_durable(changes: list[Change], expected: bytes) -> None:
    fs = with_offsets("a 0 3", "b.c 12 4")
    done, before = fs.done, fs.read_bytes(PATH)
    change(fs, *changes)
    # an unchanged file is not written
    assert (fs.done == done) == (expected == before)
    for seed in (None, 1, 2, 3):
        assert fs.after_power_loss(seed).read_bytes(PATH) == expected
    assert fs.listdir("/logs") == [CLEANER_OFFSETS]


def test_a_new_file_takes_mode_and_owner_of_the_one_named() -> None:
    fs = log_dir(meta=b"")
    fs.inode("/logs/meta").mode = 0o600
    change(fs, Change(A, 1, like="/logs/meta"))
    found = fs.stat(PATH)
    assert found is not None and found.mode == 0o600


def syncs_slowly(operation: Operation) -> None:
    """As a disk does."""
    if operation.name == "fsync":
        time.sleep(0.01)


def test_changes_of_many_threads_are_batched_into_few_writes_and_the_file_is_read_once() -> None:
    logs = [TopicPartition("t", number) for number in range(200)]
    fs = WatchedFileSystem(with_offsets(*(f"t {number} {number}" for number in range(200))), syncs_slowly)
    files = CheckpointFiles(fs)

    def move(tp: TopicPartition) -> int | None:
        before = files.file("/logs", CLEANER_OFFSETS).offset(tp)
        change(fs, Change(tp, 1000, (before,)), files=files)
        return before

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(move, logs)) == list(range(200))
    assert read_checkpoints(fs, "/logs").cleaner_offsets == dict.fromkeys(logs, 1000)
    assert fs.read_bytes(PATH).decode().splitlines()[2:] == [f"t {number} 1000" for number in range(200)]
    assert sum(step.name == "rename" for step in fs.log) <= 100
    # once by the run, twice by the lines above
    assert sum((step.name, step.path) == ("read", PATH) for step in fs.log) == 3


def test_changes_by_another_process_are_detected() -> None:
    fs = with_offsets("a 0 3")
    files = CheckpointFiles(fs)
    assert files.file("/logs", CLEANER_OFFSETS).offset(A) == 3
    fs.put(PATH, b"0\n2\na 0 5\nb.c 12 6\n")
    assert files.file("/logs", CLEANER_OFFSETS).offset(A) == 5
    change(fs, Change(A, 7), files=files)
    assert read_checkpoints(fs, "/logs").cleaner_offsets == {A: 7, B: 6}


def test_all_waiting_threads_fail_on_a_malformed_file() -> None:
    fs = log_dir(**{CLEANER_OFFSETS: b"noise"})
    files = CheckpointFiles(fs)

    def refused(number: int) -> None:
        with pytest.raises(CorruptLogError):
            change(fs, Change(TopicPartition("t", number), 1), files=files)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(refused, range(32)))
    assert fs.read_bytes(PATH) == b"noise"


def test_an_unreadable_checkpoint_is_damage_of_its_directory() -> None:
    def broken(operation: Operation) -> None:
        if operation.name == "read":
            raise StorageError("cannot read: Input/output error", path=operation.path)

    found = read_checkpoints(WatchedFileSystem(with_offsets(), broken), "/logs")
    assert [str(error) for error in found.damage] == [f"{PATH}: cannot read: Input/output error"]
    with pytest.raises(StorageError):
        found.require_valid()
