"""A metadata log is read whole or not at all: what is missing must not pass for a setting that was never stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.errors import CorruptLogError
from compaction.files.local import LocalFileSystem
from compaction.formats.checkpoints import topic_id_text
from compaction.log.metadata_logs import MetadataLog, Position, read_metadata_log
from tests.formats.test_metadata_log import config, removal, topic
from tests.kafka.encode import Batch, Record
from tests.log.settings.guesses import METADATA, stored, write_metadata

FOOTER = Batch([Record(9, 1, b"\x00\x00\x00\x04", b"\x00\x00")], control=True).encode()


def read(log_dir: Path) -> MetadataLog:
    return read_metadata_log(LocalFileSystem(), str(log_dir / METADATA))


def snapshot(log_dir: Path, end_offset: int, data: bytes) -> Path:
    path = log_dir / METADATA / f"{end_offset:020d}-{1:010d}.checkpoint"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def batch(*values: bytes) -> bytes:
    return Batch([Record(at, 1, None, value) for at, value in enumerate(values)]).encode()


def test_the_position_is_the_end_of_the_log(tmp_path: Path) -> None:
    write_metadata(tmp_path, stored("orders", "compact"), epoch=3)
    assert read(tmp_path).position == Position(3, 2)
    snapshot(tmp_path, 7, batch(*stored("sales", "delete")) + FOOTER)
    assert read(tmp_path).position == Position(3, 7)
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], epoch=4, base_offset=7)
    found = read(tmp_path)
    assert found.position == Position(4, 8)
    assert found.configs.topics == {
        "orders": {"segment.ms": "5"},
        "sales": {"cleanup.policy": "delete"},
    }


@pytest.mark.parametrize("end_offset", [4, 5])
def test_the_settings_of_a_removed_topic_do_not_apply_to_its_successor(tmp_path: Path, end_offset: int) -> None:
    """Segments below a snapshot's end are kept for days; the newest snapshot may end within one."""
    first, second = b"a" * 16, b"b" * 16
    records = [*stored("orders", "compact", first), removal(first), topic("orders", second), config("sales", "x", "1")]
    for at, value in enumerate(records):
        write_metadata(tmp_path, [value], base_offset=at)
    expected = topic_id_text(second)
    assert read(tmp_path).configs.topics == {"sales": {"x": "1"}}
    snapshot(tmp_path, end_offset, batch(topic("orders", second)) + FOOTER)
    assert read(tmp_path).configs.topics == ({"sales": {"x": "1"}} if end_offset == 4 else {})
    assert read(tmp_path).configs.topic_ids == {"orders": expected}
    # one segment with all records, in one batch and in several
    data = b"".join((tmp_path / METADATA / f"{at:020d}.log").read_bytes() for at in range(5))
    for at in range(5):
        (tmp_path / METADATA / f"{at:020d}.log").unlink()
    for content in (data, Batch([Record(at, 1, None, value) for at, value in enumerate(records)]).encode()):
        (tmp_path / METADATA / f"{0:020d}.log").write_bytes(content)
        found = read(tmp_path)
        assert found.configs.topics == ({"sales": {"x": "1"}} if end_offset == 4 else {})
        assert found.configs.topic_ids == {"orders": expected}
        assert found.position == Position(1, 5)


def test_a_removed_topic_whose_creation_is_in_a_deleted_segment_has_no_settings(tmp_path: Path) -> None:
    """As brokers leave it: the removal names the topic by its id only."""
    for at, value in enumerate([config("orders", "cleanup.policy", "compact"), removal(b"a" * 16), topic("orders", b"b" * 16)]):
        write_metadata(tmp_path, [value], base_offset=7 + at)
    snapshot(tmp_path, 10, batch(topic("orders", b"b" * 16)) + FOOTER)
    assert read(tmp_path).configs.topics == {}


def test_a_setting_that_was_removed_before_the_snapshot_is_not_set_again(tmp_path: Path) -> None:
    write_metadata(tmp_path, [*stored("orders", "compact"), config("orders", "retention.ms", "1")])
    snapshot(tmp_path, 4, batch(*stored("orders", "compact")) + FOOTER)
    assert read(tmp_path).configs.topics == {"orders": {"cleanup.policy": "compact"}}


def test_a_segment_below_the_snapshot_is_not_read(tmp_path: Path) -> None:
    """A broker deletes it in time, and does not read it again."""
    path = write_metadata(tmp_path, stored("orders", "compact")) / f"{0:020d}.log"
    path.write_bytes(b"damaged")
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], base_offset=2)
    snapshot(tmp_path, 2, batch(*stored("orders", "delete")) + FOOTER)
    assert read(tmp_path).configs.topics == {"orders": {"cleanup.policy": "delete", "segment.ms": "5"}}


def test_a_snapshot_without_its_footer_is_damage(tmp_path: Path) -> None:
    data = batch(*stored("orders", "compact")) + FOOTER
    for cut in (len(data) - len(FOOTER), len(data) - 1, 3, 0):
        path = snapshot(tmp_path, 2, data[:cut])
        with pytest.raises(CorruptLogError, match="snapshot ends without its footer") as refusal:
            read(tmp_path)
        assert refusal.value.path == str(path)
    snapshot(tmp_path, 2, data)
    assert read(tmp_path).configs.topics == {"orders": {"cleanup.policy": "compact"}}


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    write_metadata(tmp_path, stored("orders", "compact"))
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], base_offset=3)
    with pytest.raises(CorruptLogError, match="offsets 2 to 2 are missing before this segment"):
        read(tmp_path)
    snapshot(tmp_path, 3, batch(*stored("orders", "compact")) + FOOTER)
    assert read(tmp_path).position.end_offset == 4


def test_a_missing_first_segment_without_a_snapshot_is_damage(tmp_path: Path) -> None:
    write_metadata(tmp_path, stored("orders", "compact"), base_offset=5)
    with pytest.raises(CorruptLogError, match="offsets 0 to 4 are missing before this segment"):
        read(tmp_path)


def test_only_the_last_segment_may_have_a_torn_tail(tmp_path: Path) -> None:
    path = write_metadata(tmp_path, stored("orders", "compact")) / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + batch(b"torn")[:-3])
    assert read(tmp_path).position.end_offset == 2
    write_metadata(tmp_path, [config("orders", "segment.ms", "5")], base_offset=3)
    with pytest.raises(CorruptLogError, match="offsets 2 to 2 are missing"):
        read(tmp_path)


def test_a_malformed_record_is_reported_with_its_file(tmp_path: Path) -> None:
    path = write_metadata(tmp_path, [b"\x09\x04\x00"])
    with pytest.raises(CorruptLogError, match="frame version 9") as refusal:
        read(tmp_path)
    assert refusal.value.path == str(path / f"{0:020d}.log")
