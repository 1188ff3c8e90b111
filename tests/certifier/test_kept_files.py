"""What lies beside the records: what a broker would read otherwise than in the source of a copy, or in place otherwise than the
batches say, is a violation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.commands import verify
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from tests.certifier.story import CONFIG, INTERVAL_BYTES, NOW_MS, TOPIC, T, sent
from tests.local_job import clean_locally, write_offsets
from tests.oracle.disk import write_partition
from tests.oracle.logs import Batching, LogBuilder

LOG = f"{TOPIC}-0"
ID, OTHER_ID = "yRqOh-tNTbqSiFrSsG2z8g", "AAAAAAAAAAAAAAAAAAAAAQ"
METADATA, META, SHUTDOWN = "__cluster_metadata-0", "meta.properties", ".kafka_cleanshutdown"
HIGH, RECOVERY = "replication-offset-checkpoint", "recovery-point-offset-checkpoint"
EPOCHS, TOPIC_ID = f"{LOG}/leader-epoch-checkpoint", f"{LOG}/partition.metadata"
#: leader epochs of the batches; without those that a killed broker had not flushed
RIGHT, LOST = "0\n3\n0 0\n2 3\n4 6\n", "0\n2\n0 0\n2 3\n"
Change = Callable[[Path], object]


def producers(sequence: int = 7, last_offset: int = 2) -> bytes:
    entry = ProducerEntry(7, 0, sequence, last_offset, 0, NOW_MS, -1, -1)
    return write_snapshot([entry, entry._replace(producer_id=8)])


def write_log_dir(root: Path) -> None:
    """All that a broker has. The batches of the log are of leader epoch 0 at 0 to 2, of 2 at 3 to 5, of 4 at 6 and 7. Cleaning
    joins the first two of its three segments."""
    log = LogBuilder(INTERVAL_BYTES)
    log.batch([sent("a"), sent("b"), sent("a")], Batching(leader_epoch=0))
    log.roll(T)
    log.batch([sent("a"), sent("c"), sent("b")], Batching(leader_epoch=2))
    log.roll(T)
    log.batch([sent("a"), sent("d")], Batching(leader_epoch=4))
    write_partition(root / LOG, log.build(NOW_MS))
    write_offsets(root, high_watermarks={TOPIC: 8}, recovery_points={TOPIC: 8})
    (root / METADATA).mkdir()
    (root / METADATA / f"{0:020d}.log").touch()
    files = {
        META: "#then\nversion=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n",
        SHUTDOWN: '{"version":0,"brokerEpoch":17}',
        f"{METADATA}/quorum-state": '{"leaderId":1}',
        EPOCHS: "0\n4\n0 0\n2 3\n4 6\n5 8\n",
        TOPIC_ID: f"version: 0\ntopic_id: {ID}\n",
    }
    for name, content in files.items():
        (root / name).write_text(content)
    for offset in (3, 6, 8):
        snapshot_at(offset)(root)


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cleaned")
    write_log_dir(root / "before")
    for name in ("after", "in_place"):
        shutil.copytree(root / "before", root / name)
        clean_locally(root / name, NOW_MS, {TOPIC: CONFIG})
    for file in (root / "after" / LOG).glob("*.deleted"):
        file.unlink()
    return root


@pytest.fixture
def root(cleaned: Path, tmp_path: Path) -> Path:
    """The directories ``before``, ``after``, its copy that was cleaned, and ``in_place``, the same as a run leaves it."""
    return shutil.copytree(cleaned, tmp_path / "root")


def call(*options: object) -> int:
    sets = [f"{name}={value}" for name, value in CONFIG.items()]
    return verify.main([str(each) for each in (*options, "--as-of-ms", NOW_MS, "--set", *sets)])


def verify_copy(root: Path, *options: object) -> int:
    return call("--before", root / "before", "--after", root / "after", *options)


def kept(root: Path) -> None:
    """No change."""


def checkpoint(name: str, offset: int | None) -> Change:
    lines = "0\n0\n" if offset is None else f"0\n1\n{TOPIC} 0 {offset}\n"
    return lambda root: (root / name).write_text(lines)


def text(name: str, content: str) -> Change:
    return lambda root: (root / name).write_text(content)


def gone(name: str) -> Change:
    return lambda root: shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()


def snapshot_at(offset: int, content: bytes | None = None) -> Change:
    return lambda root: (root / LOG / f"{offset:020d}.snapshot").write_bytes(producers() if content is None else content)


def no_last_snapshot_but_one_below_the_log(root: Path) -> None:
    gone(f"{LOG}/{8:020d}.snapshot")(root)
    snapshot_at(0)(root)


def killed(root: Path) -> None:
    gone(SHUTDOWN)(root)
    for name in (HIGH, RECOVERY):
        checkpoint(name, 9)(root)


SOURCE_EPOCHS = "leader-epoch-checkpoint is missing, malformed or has other leader epochs; expected: "
NO_SNAPSHOT = ".snapshot is missing or malformed"
#: changes of the source and of the copy
OF_LOGS: dict[str, tuple[Change, Change, str]] = {
    "a high watermark that is too low": (kept, checkpoint(HIGH, 7), f"{HIGH} has offset 7, it had offset 8"),
    "a high watermark that is too high": (kept, checkpoint(HIGH, 9), f"{HIGH} has offset 9, it had offset 8"),
    "a high watermark that is missing": (kept, checkpoint(HIGH, None), f"{HIGH} has no entry, it had offset 8"),
    "no high watermarks": (kept, gone(HIGH), f"{HIGH} has no entry, it had offset 8"),
    "recovery points that are malformed": (kept, text(RECOVERY, "x"), f"{RECOVERY} is malformed"),
    "a recovery point that is too low": (kept, checkpoint(RECOVERY, 3), f"{RECOVERY} has offset 3, it had offset 8"),
    "a recovery point that is too high": (kept, checkpoint(RECOVERY, 99), f"{RECOVERY} has offset 99, it had offset 8"),
    "no recovery points": (kept, gone(RECOVERY), f"{RECOVERY} has no entry, it had offset 8"),
    "another topic id": (
        kept,
        text(TOPIC_ID, f"version: 0\ntopic_id: {OTHER_ID}\n"),
        f"partition.metadata has topic id {OTHER_ID}, expected {ID}: a broker takes the log for a stray",
    ),
    "no topic id": (kept, gone(TOPIC_ID), f"partition.metadata has no topic id, expected {ID}"),
    "a malformed topic id": (kept, text(TOPIC_ID, "version: 0\n"), f"partition.metadata has no topic id, expected {ID}"),
    "another leader epoch": (
        kept,
        text(EPOCHS, "0\n3\n0 0\n3 3\n4 6\n"),
        f"{SOURCE_EPOCHS}0 from offset 0, 2 from offset 3, 4 from offset 6",
    ),
    "a leader epoch that begins elsewhere": (kept, text(EPOCHS, "0\n3\n0 0\n2 4\n4 6\n"), SOURCE_EPOCHS),
    "a leader epoch that is lost": (kept, text(EPOCHS, LOST), SOURCE_EPOCHS),
    "leader epochs that are all lost": (kept, text(EPOCHS, "0\n0\n"), SOURCE_EPOCHS),
    "wrong leader epochs in place of wrong ones": (text(EPOCHS, LOST), text(EPOCHS, "0\n2\n0 0\n4 4\n"), SOURCE_EPOCHS),
    "no leader epochs": (kept, gone(EPOCHS), SOURCE_EPOCHS),
    "malformed leader epochs": (kept, text(EPOCHS, "0\n9\n"), SOURCE_EPOCHS),
    "no snapshot at the log end": (kept, gone(f"{LOG}/{8:020d}.snapshot"), NO_SNAPSHOT),
    "no snapshot at the log end, but one below the log": (kept, no_last_snapshot_but_one_below_the_log, NO_SNAPSHOT),
    "a snapshot that fails its CRC": (kept, snapshot_at(8, producers()[:-1] + b"x"), NO_SNAPSHOT),
    "a snapshot with other producers": (kept, snapshot_at(8, producers(sequence=6)), ".snapshot has other producers"),
    "no snapshot at a segment": (kept, gone(f"{LOG}/{6:020d}.snapshot"), NO_SNAPSHOT),
    "a snapshot past the log end": (kept, snapshot_at(5000), f"{5000:020d}.snapshot is not in the source"),
}
OF_DIRECTORIES: dict[str, tuple[Change, Change, str]] = {
    "no metadata log": (kept, gone(METADATA), f"{METADATA} is missing: a broker takes every log for a stray"),
    "a metadata log without a file": (
        kept,
        gone(f"{METADATA}/quorum-state"),
        f"{METADATA}/quorum-state differs from the source",
    ),
    "another metadata log": (kept, text(f"{METADATA}/quorum-state", '{"leaderId":2}'), "quorum-state differs from the source"),
    "another meta.properties": (
        kept,
        text(META, "version=1\ncluster.id=c\nnode.id=2\ndirectory.id=d\n"),
        "meta.properties has node.id=2, expected 1",
    ),
    "no meta.properties": (kept, gone(META), "meta.properties is missing or malformed"),
    "a new meta.properties": (gone(META), kept, "meta.properties is not in the source"),
    "no clean shutdown": (kept, gone(SHUTDOWN), f"{SHUTDOWN} is missing: a broker recovers every log"),
    "another clean shutdown": (kept, text(SHUTDOWN, "{}"), f"{SHUTDOWN} has other contents"),
    # a broker would skip the recovery of logs that were not shut down
    "a new clean shutdown": (gone(SHUTDOWN), kept, f"{SHUTDOWN} is not in the source: a broker recovers no log"),
}
HOLDS: dict[str, tuple[Change, Change]] = {
    "all of it but the snapshot of a segment that was joined": (kept, kept),
    "a new metadata log": (gone(METADATA), kept),
    "new leader epochs": (gone(EPOCHS), kept),
    "leader epochs that begin at the log end, which a broker drops": (text(EPOCHS, RIGHT), kept),
    "a new topic id": (gone(TOPIC_ID), kept),
    "recovery points in place of malformed ones": (text(RECOVERY, "x"), kept),
    "recovery points that are malformed on both sides": (text(RECOVERY, "x"), text(RECOVERY, "x")),
    "leader epochs in place of malformed ones": (text(EPOCHS, "x"), kept),
    "a topic id in place of a malformed one": (text(TOPIC_ID, "x"), kept),
    "a snapshot in place of a malformed one": (snapshot_at(8, b"x"), kept),
    "assigned what a kill had lost": (text(EPOCHS, LOST), text(EPOCHS, RIGHT)),
    "assigned it to a file without entries": (text(EPOCHS, "0\n0\n"), text(EPOCHS, RIGHT)),
    "assigned it from its first batch on": (text(EPOCHS, "0\n3\n0 1\n2 3\n4 6\n"), text(EPOCHS, RIGHT)),
    "kept what a kill had lost": (text(EPOCHS, LOST), text(EPOCHS, LOST)),
    "replaced what is wrong": (text(EPOCHS, "0\n4\n0 0\n1 2\n2 3\n4 6\n"), text(EPOCHS, RIGHT)),
}


@pytest.mark.parametrize(("source", "copy", "told"), OF_LOGS.values(), ids=OF_LOGS.keys())
def test_what_a_broker_would_read_otherwise_is_a_violation_of_the_log(
    root: Path, capsys: pytest.CaptureFixture[str], source: Change, copy: Change, told: str
) -> None:
    source(root / "before")
    copy(root / "after")
    assert verify_copy(root, "--report", root / "report.json") == 1
    assert told in capsys.readouterr().err
    (log,) = json.loads((root / "report.json").read_text())["logs"]
    assert (log["status"], log["violation_count"], log["lost"]) == ("violated", 1, 0)


@pytest.mark.parametrize(("source", "copy", "told"), OF_DIRECTORIES.values(), ids=OF_DIRECTORIES.keys())
def test_what_a_broker_would_read_otherwise_is_a_violation_of_the_log_directory(
    root: Path, capsys: pytest.CaptureFixture[str], source: Change, copy: Change, told: str
) -> None:
    source(root / "before")
    copy(root / "after")
    assert verify_copy(root, "--report", root / "report.json") == 1
    out, err = capsys.readouterr()
    assert f"error: {root / 'after'}: " in err and told in err and told in out
    found = json.loads((root / "report.json").read_text())
    (directory,) = found["directories"]
    assert (found["status"], directory["log_dir"]) == ("violated", str(root / "after"))
    assert told in directory["violations"][0] and found["totals"]["violations"] == 1


@pytest.mark.parametrize(("source", "copy"), HOLDS.values(), ids=HOLDS.keys())
def test_what_the_source_does_not_have_or_has_wrong_is_not_missed(
    root: Path, capsys: pytest.CaptureFixture[str], source: Change, copy: Change
) -> None:
    source(root / "before")
    copy(root / "after")
    assert verify_copy(root) == 0
    out, err = capsys.readouterr()
    assert ("1 log: 1 holds (" in out, err) == (True, "")


CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "leader epochs that lack the last one": (text(EPOCHS, LOST), "contradicts the batches: leader epoch 4 is that of offset 6"),
    "leader epochs of another log": (
        text(EPOCHS, "0\n1\n9 0\n"),
        "contradicts the batches: leader epoch 0 is that of offset 0",
    ),
    "a snapshot with a later batch": (
        snapshot_at(6, producers(last_offset=6)),
        f"{6:020d}.snapshot has a batch at or past its offset",
    ),
    "a high watermark past the log end": (checkpoint(HIGH, 9), f"{HIGH} has offset 9, past the log end 8"),
    "a recovery point past the log end": (checkpoint(RECOVERY, 9), f"{RECOVERY} has offset 9, past the log end 8"),
}


@pytest.mark.parametrize(("change", "told"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_in_place_what_contradicts_the_log_is_a_violation(
    root: Path, capsys: pytest.CaptureFixture[str], change: Change, told: str
) -> None:
    change(root / "in_place")
    assert call("--in-place", root / "in_place") == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [kept, gone(EPOCHS), text(EPOCHS, RIGHT), killed],
    ids=["all of it, with an epoch without batches", "no leader epochs", "leader epochs", "checkpoints of a killed broker"],
)
def test_in_place_what_agrees_with_the_log_is_none(root: Path, capsys: pytest.CaptureFixture[str], change: Change) -> None:
    change(root / "in_place")
    assert call("--in-place", root / "in_place") == 0, capsys.readouterr().err
