"""Logs for the transcripts of ``calls/``, by name."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.certifier.story import CONFIG, Story, records
from tests.dumping.segments import write_partition, write_segment
from tests.erasure.test_erase_keys import write_odd
from tests.exports.exchanged_uploads import exchange
from tests.exports.exports import TOPIC_ID, upload, write_log, write_log_dir
from tests.golden import AIVEN_OBJECTS, unpack_backup_sets, unpack_sample
from tests.log.settings.guesses import jbod
from tests.run.test_since import put_segments


def two_topics(here: Path) -> None:
    """``data``: three partitions without records, and a metadata log."""
    for name in ("orders-0", "orders-1", "sales-0", "__cluster_metadata-0"):
        (here / "data" / name).mkdir(parents=True)
        (here / "data" / name / f"{0:020d}.log").touch()


def sample(here: Path, *names: str) -> None:
    """``data``: logs of a real broker, by the beginnings of their names; by default all 16."""
    unpack_sample(here, *names).rename(here / "data")


def two_disks(here: Path) -> None:
    """``first`` has the metadata log of the sample, ``second`` a log of every policy."""
    jbod(here)[0].rename(here / "first")


def segments(here: Path, topic: str, *bases: str) -> None:
    """``data``: segments of ``TOPIC-0`` with nine records each, whose keys are those of any other one, but for the first."""
    put_segments(here / "data", topic, *map(int, bases))


def partition(here: Path) -> None:
    """``orders-0``: three segments with the even offsets 0 to 494, and their indexes."""
    write_partition(here / "orders-0")


def segment(here: Path, batches: str = "12") -> None:
    """``one-0``: one segment with the even offsets from 0 on, four records in a batch, and its indexes."""
    write_segment(here / "one-0", batches=int(batches))


def cleaned_story(here: Path) -> None:
    """``before``: ``story-0``, a case of each rule; ``after``, which was cleaned at 2023-11-14T22:13:20Z; ``policy.toml``."""
    Story.cleaned(here)
    settings = "".join(f'"{name}" = "{value}"\n' for name, value in CONFIG.items())
    (here / "policy.toml").write_text(f'[topics."story"]\n{settings}', encoding="utf-8")


def damaged_story(here: Path) -> None:
    """The same, and the copy lacks the last record of a key."""
    cleaned_story(here)
    story = Story(here / "before", here / "after")
    story.change(story.offset_of("unique-2"), records(lambda found: found[1:]))


def odd_keys(here: Path) -> None:
    """``data``: three segments of ``odd-0``, with keys of all bytes and lengths."""
    write_odd(here / "data")


def aiven_objects(here: Path) -> None:
    """``objects``: the sample's ``payments-0``, as Aiven's plugin stores it, by encoding."""
    with tarfile.open(AIVEN_OBJECTS) as archive:
        archive.extractall(here / "objects", filter="data")


def uploads(here: Path, count: str) -> None:
    """``in``: so many segments of ten records of ``orders-0``, as Kafka's ``LocalTieredStorage`` stores them."""
    for number in range(int(count)):
        upload(here / "in", range(10 * number, 10 * number + 10))


def upload_of(here: Path, start: str, end: str, *epochs: str) -> None:
    """``in``: one such segment, with records at these offsets, and its leader epochs, ``EPOCH:START``."""
    upload(here / "in", range(int(start), int(end)), [_pair(each) for each in epochs] or [(0, 0)])


def disputed_uploads(here: Path, change: str) -> None:
    """``in``: uploads of two leaders, ``exchanged``, or the newer one ``cut``; ``after``: the newer one's log directory."""
    upload(here / "in", range(30))
    older, newer = (upload(here / "in", range(30, 60), [(0, 0), (epoch, 30)]) for epoch in (1, 2))
    if change == "cut":
        newer.write_bytes(newer.read_bytes()[:-20])
    else:
        exchange(older, newer, ".log")
    write_log(here / "after" / "orders-0", range(30), range(30, 60), epochs=[(0, 0), (2, 30)])


def tail_of(here: Path, start: str, end: str, topic_id: str = TOPIC_ID, *epochs: str) -> None:
    """``local``: a log directory with a segment of ``orders-0``, likewise."""
    known = [_pair(each) for each in epochs] or [(0, 0)]
    write_log_dir(here / "local", range(int(start), int(end)), epochs=known, topic_id=topic_id)


def _pair(epoch: str) -> tuple[int, int]:
    number, _, start = epoch.partition(":")
    return int(number), int(start)


def backup_sets(here: Path) -> None:
    """``sets``: those that the real kafka-backup has written, by compression."""
    unpack_backup_sets(here).rename(here / "sets")
