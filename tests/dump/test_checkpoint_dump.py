"""Checkpoints are printed and compared with the logs in their directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.dump.checkpoint_dump import CheckpointDump
from compaction.dump.findings import Findings
from compaction.dump.targets import Target
from compaction.errors import CorruptLogError
from compaction.fs.local import LocalFileSystem
from tests.dump.segments import write_partition

OFFSETS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions, offsets 0 to 494 each."""
    for name in ("orders-0", "orders-1"):
        write_partition(tmp_path / name)
    return tmp_path


def shown(path: Path, text: str, findings: Findings | None = None, dump: CheckpointDump | None = None) -> list[str]:
    path.write_text(text)
    dump = CheckpointDump(LocalFileSystem(), findings or Findings()) if dump is None else dump
    return list(dump.dump(Target.of(str(path), "/")))


def problems(path: Path, text: str) -> list[str]:
    findings = Findings()
    shown(path, text, findings)
    return [error.what for error in findings.errors]


class TestOffsets:
    @pytest.mark.parametrize("name", [*OFFSETS, "cleaner-offset-checkpoint"])
    def test_entries_are_printed_with_the_bounds_of_their_logs(self, log_dir: Path, name: str) -> None:
        findings = Findings()
        text = "0\n3\norders 0 200\norders 1 495\ngone-topic 7 12\n"
        assert shown(log_dir / name, text, findings) == [
            "version: 0 entries: 3",
            "topic: orders partition: 0 offset: 200 firstOffset: 0 logEndOffset: 495",
            "topic: orders partition: 1 offset: 495 firstOffset: 0 logEndOffset: 495",
            "topic: gone-topic partition: 7 offset: 12 (no such log here)",
        ]
        assert findings.errors == []

    @pytest.mark.parametrize(
        ("entries", "expected"),
        [
            ("orders 0 496", ["line 3: orders-0 has offset 496, past its log end offset 495"]),
            ("orders 0 -1", ["line 3: orders-0 has the negative offset -1"]),
            ("gone 0 -1", ["line 3: gone-0 has the negative offset -1"]),
            ("orders 0 1\norders 1 1\norders 0 2", ["line 3: orders-0 appears 3 times, the last line wins"]),
        ],
    )
    def test_contradictions_to_the_log_are_reported_with_their_line(
        self, log_dir: Path, entries: str, expected: list[str]
    ) -> None:
        found = problems(log_dir / OFFSETS[0], f"0\n{len(entries.splitlines())}\n{entries}\n")
        assert found == [text.replace("3 times", "2 times") for text in expected]

    def test_an_empty_file_has_no_entries(self, log_dir: Path) -> None:
        assert shown(log_dir / OFFSETS[0], "") == ["version: 0 entries: 0"]

    @pytest.mark.parametrize("text", ["1\n0\n", "0\n2\norders 0 1\n", "0\n1\norders 0\n", "0\n1\norders 0 x\n", "zero\n"])
    def test_a_malformed_file_is_an_error_with_its_line(self, log_dir: Path, text: str) -> None:
        with pytest.raises(CorruptLogError, match=r"checkpoint: line \d: "):
            shown(log_dir / OFFSETS[0], text)

    def test_malformed_utf8_is_an_error_with_its_position(self, log_dir: Path) -> None:
        path = log_dir / OFFSETS[0]
        path.write_bytes(b"0\n1\n\xff\xff")
        with pytest.raises(CorruptLogError) as caught:
            list(CheckpointDump(LocalFileSystem(), Findings()).dump(Target.of(str(path), "/")))
        assert caught.value.position == 4

    def test_a_log_whose_end_cannot_be_read_is_reported_once(self, log_dir: Path) -> None:
        last = sorted((log_dir / "orders-0").glob("*.log"))[-1]
        content = bytearray(last.read_bytes())
        content[16] = 7
        last.write_bytes(bytes(content))
        last.with_suffix(".index").unlink()
        findings = Findings()
        dump = CheckpointDump(LocalFileSystem(), findings)
        for name in OFFSETS[:2]:
            assert shown(log_dir / name, "0\n1\norders 0 7\n", findings, dump)[1] == "topic: orders partition: 0 offset: 7"
        assert [(error.path, error.position) for error in findings.errors] == [(str(last), 0)]


class TestEpochs:
    def test_epochs_are_printed(self, log_dir: Path) -> None:
        assert shown(log_dir / "orders-0" / "leader-epoch-checkpoint", "0\n2\n0 0\n5 495\n") == [
            "version: 0 entries: 2 firstOffset: 0 logEndOffset: 495",
            "epoch: 0 startOffset: 0",
            "epoch: 5 startOffset: 495",
        ]

    @pytest.mark.parametrize(
        ("entries", "expected"),
        [
            ("1 0\n1 5", "line 4: epoch 1 is not greater than epoch 1"),
            ("1 7\n2 7", "line 4: epoch 2 starts at offset 7, not after 7"),
            ("1 0\n2 496", "line 4: epoch 2 starts at offset 496, past the log end offset 495"),
            ("1 -1\n2 6", "line 3: epoch 1 at offset -1 is negative"),
        ],
    )
    def test_impossible_epochs_are_reported(self, log_dir: Path, entries: str, expected: str) -> None:
        assert problems(log_dir / "orders-0" / "leader-epoch-checkpoint", f"0\n2\n{entries}\n") == [expected]

    def test_a_copy_outside_of_its_log_is_printed_too(self, tmp_path: Path) -> None:
        assert shown(tmp_path / "leader-epoch-checkpoint", "0\n1\n3 9\n") == [
            "version: 0 entries: 1",
            "epoch: 3 startOffset: 9",
        ]


class TestIdentity:
    def test_partitions_of_a_topic_have_one_id(self, log_dir: Path) -> None:
        findings = Findings()
        dump = CheckpointDump(LocalFileSystem(), findings)
        first, second = "2f5nh3LCSI-9FzjWfyd97w", "uyJsvFmHS6S5uC_b8OrJHA"
        for name, topic_id in (("orders-0", first), ("orders-1", first), ("orders-1", second)):
            lines = shown(log_dir / name / "partition.metadata", f"version: 0\ntopic_id: {topic_id}", findings, dump)
            assert lines == [f"version: 0 topicId: {topic_id}"]
        assert [error.what for error in findings.errors] == [
            f"line 2: topic id {second} differs from {first} in {log_dir / 'orders-0'}"
        ]

    def test_meta_properties(self, tmp_path: Path) -> None:
        path = tmp_path / "meta.properties"
        text = "#comment\nversion=1\nnode.id=3\ncluster.id=abc\ndirectory.id=xyz\n"
        assert shown(path, text) == ["version: 1 clusterId: abc nodeId: 3 directoryId: xyz"]
        assert shown(path, "version=0\nbroker.id=3\n") == ["version: 0 nodeId: 3"]
        assert problems(path, "version=1\nnode.id=3\n") == ["cluster.id is missing; a broker does not start without it"]
        with pytest.raises(CorruptLogError, match="version '7'"):
            shown(path, "version=7\n")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('{"version":0,"brokerEpoch":37}', "clean shutdown brokerEpoch: 37"),
            ("", "clean shutdown"),
            ("garbage", "clean shutdown"),
        ],
    )
    def test_a_clean_shutdown_file_needs_no_content(self, tmp_path: Path, text: str, expected: str) -> None:
        assert shown(tmp_path / ".kafka_cleanshutdown", text) == [expected]
