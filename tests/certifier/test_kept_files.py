"""What lies beside the records of a copy: what a broker would read otherwise than in the source is a violation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.commands import verify
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from tests.certifier.story import CONFIG, INTERVAL_BYTES, NOW_MS, Story, T, sent
from tests.local_job import clean_locally, write_offsets
from tests.oracle.disk import write_partition
from tests.oracle.logs import Batching, LogBuilder

ID, OTHER_ID = "yRqOh-tNTbqSiFrSsG2z8g", "AAAAAAAAAAAAAAAAAAAAAQ"
METADATA = "__cluster_metadata-0"
Change = Callable[[Path], object]


def producers(sequence: int = 7) -> bytes:
    return write_snapshot([ProducerEntry(7, 0, sequence, 3, 0, NOW_MS, -1, -1), ProducerEntry(8, 0, 1, 9, 0, NOW_MS, -1, -1)])


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """With everything that a broker has in a log directory."""
    made = Story.cleaned(tmp_path)
    bases = sorted(int(path.stem) for path in made.path.glob("*.log"))
    for root in (made.before, made.after):
        write_offsets(root, high_watermarks={"story": 20}, recovery_points={"story": 25})
        (root / "meta.properties").write_text("#then\nversion=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
        (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":17}')
        (root / METADATA).mkdir()
        (root / METADATA / f"{0:020d}.log").touch()
        (root / METADATA / "quorum-state").write_text('{"leaderId":1}')
        log = root / "story-0"
        (log / "leader-epoch-checkpoint").write_text(f"0\n3\n0 0\n3 9\n5 {log_end(made)}\n")
        (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID}\n")
        for offset in (*bases[1:], log_end(made)):
            (log / f"{offset:020d}.snapshot").write_bytes(producers())
    return made


def log_end(story: Story) -> int:
    return story.segments()[-1].next_offset


def call(story: Story, *options: object) -> int:
    sets = [f"{name}={value}" for name, value in CONFIG.items()]
    given = ["--before", story.before, "--after", story.after, "--as-of-ms", NOW_MS, *options, "--set", *sets]
    return verify.main([str(each) for each in given])


def test_a_copy_with_all_of_it_holds(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(story) == 0
    out, err = capsys.readouterr()
    assert ("1 log: 1 holds (" in out, err) == (True, "")


def checkpoint(name: str, offset: int | None) -> Change:
    lines = "0\n0\n" if offset is None else f"0\n1\nstory 0 {offset}\n"
    return lambda root: (root / name).write_text(lines)


def text(name: str, content: str) -> Change:
    return lambda root: (root / name).write_text(content)


def gone(name: str) -> Change:
    return lambda root: shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()


def last_snapshot(content: bytes | None) -> Change:
    def change(root: Path) -> None:
        path = max((root / "story-0").glob("*.snapshot"))
        path.unlink() if content is None else path.write_bytes(content)

    return change


def inner_snapshot(root: Path) -> None:
    min((root / "story-0").glob("*.snapshot")).unlink()


def new_snapshot(root: Path) -> None:
    (root / "story-0" / f"{5000:020d}.snapshot").write_bytes(producers())


def no_last_snapshot_but_one_below_the_log(root: Path) -> None:
    last_snapshot(None)(root)
    (root / "story-0" / f"{0:020d}.snapshot").write_bytes(producers())


HIGH, RECOVERY = "replication-offset-checkpoint", "recovery-point-offset-checkpoint"
EPOCHS, TOPIC_ID = "story-0/leader-epoch-checkpoint", "story-0/partition.metadata"
OF_LOGS: dict[str, tuple[Change, str]] = {
    "a high watermark that is too low": (checkpoint(HIGH, 19), f"{HIGH} has offset 19, it had offset 20"),
    "a high watermark that is too high": (checkpoint(HIGH, 21), f"{HIGH} has offset 21, it had offset 20"),
    "a high watermark that is missing": (checkpoint(HIGH, None), f"{HIGH} has no entry, it had offset 20"),
    "no high watermarks": (gone(HIGH), f"{HIGH} has no entry, it had offset 20"),
    "recovery points that are malformed": (text(RECOVERY, "x"), f"{RECOVERY} is malformed"),
    "a recovery point that is too low": (checkpoint(RECOVERY, 3), f"{RECOVERY} has offset 3, it had offset 25"),
    "a recovery point that is too high": (checkpoint(RECOVERY, 99), f"{RECOVERY} has offset 99, it had offset 25"),
    "no recovery points": (gone(RECOVERY), f"{RECOVERY} has no entry, it had offset 25"),
    "another topic id": (
        text(TOPIC_ID, f"version: 0\ntopic_id: {OTHER_ID}\n"),
        f"partition.metadata has topic id {OTHER_ID}, expected {ID}: a broker takes the log for a stray",
    ),
    "no topic id": (gone(TOPIC_ID), f"partition.metadata has no topic id, expected {ID}"),
    "a malformed topic id": (text(TOPIC_ID, "version: 0\n"), f"partition.metadata has no topic id, expected {ID}"),
    "another leader epoch": (
        text(EPOCHS, "0\n2\n0 0\n4 9\n"),
        "leader-epoch-checkpoint is missing, malformed or has other leader epochs; expected: 0 from offset 0, 3 from offset 9",
    ),
    "a leader epoch that begins elsewhere": (text(EPOCHS, "0\n2\n0 0\n3 10\n"), "leader-epoch-checkpoint is missing"),
    "no leader epochs": (gone(EPOCHS), "leader-epoch-checkpoint is missing"),
    "malformed leader epochs": (text(EPOCHS, "0\n9\n"), "leader-epoch-checkpoint is missing"),
    "no snapshot at the log end": (last_snapshot(None), ".snapshot is missing or malformed"),
    "no snapshot at the log end, but one below the log": (
        no_last_snapshot_but_one_below_the_log,
        ".snapshot is missing or malformed",
    ),
    "a snapshot that fails its CRC": (last_snapshot(producers()[:-1] + b"x"), ".snapshot is missing or malformed"),
    "a snapshot with other producers": (last_snapshot(producers(sequence=6)), ".snapshot has other producers"),
    "no snapshot at a segment": (inner_snapshot, ".snapshot is missing or malformed"),
    "a snapshot past the log end": (new_snapshot, f"{5000:020d}.snapshot is not in the source"),
}
OF_DIRECTORIES: dict[str, tuple[Change, str]] = {
    "no metadata log": (gone(METADATA), f"{METADATA} is missing: a broker takes every log for a stray"),
    "a metadata log without a file": (gone(f"{METADATA}/quorum-state"), f"{METADATA}/quorum-state differs from the source"),
    "another metadata log": (text(f"{METADATA}/quorum-state", '{"leaderId":2}'), "quorum-state differs from the source"),
    "another meta.properties": (
        text("meta.properties", "version=1\ncluster.id=c\nnode.id=2\ndirectory.id=d\n"),
        "meta.properties has node.id=2, expected 1",
    ),
    "no meta.properties": (gone("meta.properties"), "meta.properties is missing or malformed"),
    "no clean shutdown": (gone(".kafka_cleanshutdown"), ".kafka_cleanshutdown is missing: a broker recovers every log"),
    "another clean shutdown": (text(".kafka_cleanshutdown", "{}"), ".kafka_cleanshutdown has other contents"),
}


@pytest.mark.parametrize("case", OF_LOGS)
def test_what_a_broker_would_read_otherwise_is_a_violation_of_the_log(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, told = OF_LOGS[case]
    change(story.after)
    assert call(story, "--report", tmp_path / "report.json") == 1
    assert told in capsys.readouterr().err
    (log,) = json.loads((tmp_path / "report.json").read_text())["logs"]
    assert (log["status"], log["violation_count"], log["lost"]) == ("violated", 1, 0)


@pytest.mark.parametrize("case", OF_DIRECTORIES)
def test_what_a_broker_would_read_otherwise_is_a_violation_of_the_log_directory(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, told = OF_DIRECTORIES[case]
    change(story.after)
    assert call(story, "--report", tmp_path / "report.json") == 1
    out, err = capsys.readouterr()
    assert f"error: {story.after}: " in err and told in err and told in out
    found = json.loads((tmp_path / "report.json").read_text())
    (directory,) = found["directories"]
    assert (found["status"], directory["log_dir"]) == ("violated", str(story.after))
    assert told in directory["violations"][0] and found["totals"]["violations"] == 1


def test_a_file_of_a_broker_that_the_source_does_not_have_is_a_violation(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker would skip the recovery of logs that were not shut down."""
    for name in (".kafka_cleanshutdown", "meta.properties"):
        (story.before / name).unlink()
    assert call(story) == 1
    out = capsys.readouterr().out
    assert f"{story.after}: meta.properties is not in the source" in out
    assert f"{story.after}: .kafka_cleanshutdown is not in the source: a broker recovers no log" in out


@pytest.mark.parametrize(
    "change",
    [
        gone(METADATA), gone(EPOCHS), gone(TOPIC_ID), text(RECOVERY, "x"), text(EPOCHS, "x"), text(TOPIC_ID, "x"),
        last_snapshot(b"x"), text(EPOCHS, "0\n2\n0 0\n3 9\n"),
    ],
)  # fmt: skip
def test_what_the_source_does_not_have_is_not_missed(story: Story, capsys: pytest.CaptureFixture[str], change: Change) -> None:
    """A broker drops leader epochs that begin at the log end."""
    change(story.before)
    assert call(story) == 0, capsys.readouterr().err


def test_a_checkpoint_that_is_malformed_on_both_sides_is_not_compared(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    for root in (story.before, story.after):
        text(RECOVERY, "x")(root)
    assert call(story) == 0, capsys.readouterr().err


def test_snapshots_of_segments_that_were_joined_may_be_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIG, "internal.segment.bytes", "1000000")
    story = Story.cleaned(tmp_path)
    left = {int(path.stem) for path in story.path.glob("*.log")}
    joined = {int(path.stem) for path in (story.before / "story-0").glob("*.log")} - left
    assert joined
    for offset in joined:
        (story.before / "story-0" / f"{offset:020d}.snapshot").write_bytes(producers())
    assert call(story) == 0, capsys.readouterr().err


def of_epochs(path: Path) -> None:
    """A log with batches of leader epoch 0 at 0 to 2, of 2 at 3 to 5, of 4 at 6 and 7; the log end is 8."""
    log = LogBuilder(INTERVAL_BYTES)
    log.batch([sent("a"), sent("b"), sent("a")], Batching(leader_epoch=0))
    log.roll(T)
    log.batch([sent("a"), sent("c"), sent("b")], Batching(leader_epoch=2))
    log.roll(T)
    log.batch([sent("a"), sent("d")], Batching(leader_epoch=4))
    write_partition(path, log.build(NOW_MS))


RIGHT, LOST = "0\n3\n0 0\n2 3\n4 6\n", "0\n2\n0 0\n2 3\n"
#: the files of before and after, and whether the copy holds
COPIED = {
    "assigned what a kill had lost": (LOST, RIGHT, True),
    "assigned it to a file without entries": ("0\n0\n", RIGHT, True),
    "assigned it from its first batch on": ("0\n3\n0 1\n2 3\n4 6\n", RIGHT, True),
    "kept what a kill had lost": (LOST, LOST, True),
    "replaced what is right": (RIGHT, LOST, False),
    "replaced what is wrong by something else that is wrong": (LOST, "0\n2\n0 0\n4 4\n", False),
    "dropped what is right": (RIGHT, "0\n0\n", False),
    "replaced what is wrong": ("0\n4\n0 0\n1 2\n2 3\n4 6\n", RIGHT, True),
}


@pytest.mark.parametrize(("before", "after", "holds"), COPIED.values(), ids=COPIED.keys())
def test_leader_epochs_of_a_copy_are_those_of_the_source_or_of_its_batches(
    tmp_path: Path, before: str, after: str, holds: bool
) -> None:
    story = Story(tmp_path / "before", tmp_path / "after")
    for root, epochs in ((story.before, before), (story.after, after)):
        of_epochs(root / "story-0")
        write_offsets(root, cleaner_offsets={"story": 0})
        (root / EPOCHS).write_text(epochs)
    assert call(story) == (0 if holds else 1)


def snapshot_at(offset: int, last_offset: int) -> Change:
    content = write_snapshot([ProducerEntry(7, 0, 0, last_offset, 0, NOW_MS, -1, -1)])
    return lambda root: (root / "story-0" / f"{offset:020d}.snapshot").write_bytes(content)


def killed(root: Path) -> None:
    gone(".kafka_cleanshutdown")(root)
    for name in (HIGH, RECOVERY):
        checkpoint(name, 9)(root)


IN_PLACE: dict[str, tuple[Change, str]] = {
    "leader epochs that lack the last one": (text(EPOCHS, LOST), "contradicts the batches: leader epoch 4 is that of offset 6"),
    "leader epochs of another log": (
        text(EPOCHS, "0\n1\n9 0\n"),
        "contradicts the batches: leader epoch 0 is that of offset 0",
    ),
    "a snapshot with a later batch": (snapshot_at(6, 6), f"{6:020d}.snapshot has a batch at or past its offset"),
    "a high watermark past the log end": (checkpoint(HIGH, 9), f"{HIGH} has offset 9, past the log end 8"),
    "a recovery point past the log end": (checkpoint(RECOVERY, 9), f"{RECOVERY} has offset 9, past the log end 8"),
}
AGREES: dict[str, Change] = {
    "all of it": lambda root: None,
    "no leader epochs": gone(EPOCHS),
    "an epoch without batches": text(EPOCHS, "0\n4\n0 0\n2 3\n4 6\n5 8\n"),
    "checkpoints of a broker that was killed": killed,
}


def cleaned_in_place(root: Path, change: Change) -> int:
    """Compacts a log in place, then verifies it; the exit code of that."""
    of_epochs(root / "story-0")
    write_offsets(root, high_watermarks={"story": 8}, recovery_points={"story": 8})
    (root / ".kafka_cleanshutdown").touch()
    (root / EPOCHS).write_text(RIGHT)
    snapshot_at(6, 5)(root)
    clean_locally(root, NOW_MS, {"story": CONFIG})
    assert list(root.glob("story-0/*.deleted"))
    change(root)
    sets = [f"{name}={value}" for name, value in CONFIG.items()]
    return verify.main(["--in-place", str(root), "--as-of-ms", str(NOW_MS), "--set", *sets])


@pytest.mark.parametrize("case", IN_PLACE)
def test_in_place_what_contradicts_the_log_is_a_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, told = IN_PLACE[case]
    assert cleaned_in_place(tmp_path, change) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("case", AGREES)
def test_in_place_what_agrees_with_the_log_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    assert cleaned_in_place(tmp_path, AGREES[case]) == 0, capsys.readouterr().err
