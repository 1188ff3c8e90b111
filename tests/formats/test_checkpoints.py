"""Checkpoint files are a broker's to the letter; what a broker refuses is refused with source and line."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import CorruptLogError
from compaction.formats import checkpoints
from compaction.names import TopicPartition
from tests.formats.golden import golden

FILES = golden("files")
SOURCE = PurePath("/data/cleaner-offset-checkpoint")
TOPIC_ID = "EjRWeJq83vD-3LqYdlQyEA"


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    return checkpoints.parse_offset_checkpoint(text, SOURCE)


class TestKafkasOwnFiles:
    """Read what Kafka wrote, write it again."""

    def test_offsets(self) -> None:
        text = FILES["offset_checkpoint"]["text"]
        offsets = parse_offsets(text)
        assert offsets == {TopicPartition(topic, partition): at for topic, partition, at in FILES["offset_checkpoint"]["rows"]}
        assert checkpoints.format_offset_checkpoint(offsets) == text

    def test_leader_epochs(self) -> None:
        text = FILES["leader_epochs"]["text"]
        entries = checkpoints.parse_leader_epochs(text, SOURCE)
        assert [list(entry) for entry in entries] == FILES["leader_epochs"]["rows"]
        assert checkpoints.format_leader_epochs(entries) == text

    def test_partition_metadata(self) -> None:
        text = FILES["partition_metadata"]["text"]
        assert checkpoints.parse_partition_metadata(text, SOURCE) == FILES["partition_metadata"]["topic_id"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("0", {}),
        ("0\n", {}),
        ("0\n0\n", {}),
        ("0\r\n1\r\nt 0 5\r\n", {("t", 0): 5}),
        ("0\r1\rt 0 5", {("t", 0): 5}),
        ("0\n1\nt\t0   5 \t\n", {("t", 0): 5}),
        ("+0\n+1\nt +0 -5", {("t", 0): -5}),
        ("0\n2\nt 0 5\nt 0 6\n", {("t", 0): 6}),
        ("0\n1\nt 2147483647 9223372036854775807\n", {("t", 2**31 - 1): 2**63 - 1}),
    ],
)
def test_offsets_that_java_reads(text: str, expected: dict[TopicPartition, int]) -> None:
    assert parse_offsets(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("\n", 1, "'' is not a 32-bit integer"),
        ("1\n0\n", 1, "unknown version 1"),
        ("0 \n0\n", 1, "version: '0 '"),
        ("zero\n0\n", 1, "version: 'zero'"),
        ("0\nx\n", 2, "count: 'x'"),
        ("0\n\n", 2, "count: ''"),
        ("0\n1\n", 2, "1 entries declared, 0 found"),
        ("0\n1\nt 0 5\nu 0 5\n", 2, "1 entries declared, 2 found"),
        ("0\n2\nt 0 5\n\n", 4, "malformed entry ''"),
        ("0\n1\n t 0 5\n", 3, "malformed entry ' t 0 5'"),
        ("0\n1\nt 0\n", 3, "malformed entry 't 0'"),
        ("0\n1\nt 0 5 6\n", 3, "malformed entry"),
        ("0\n1\nt x 5\n", 3, "'x' is not a 32-bit integer"),
        ("0\n1\nt 2147483648 5\n", 3, "'2147483648' is not a 32-bit integer"),
        ("0\n2\nt 0 5\nt 1 9223372036854775808\n", 4, "is not a 64-bit integer"),
        ("0\n1\nt 0 1_0\n", 3, "'1_0'"),
        ("0\n1\nt 0 1.0\n", 3, "'1.0'"),
        ("0\n1\nt 0 \u0661\n", 3, "not a 64-bit integer"),
        ("\x00\x00\x00", 1, "not a 32-bit integer"),
        ("0\n2000000000\n", 2, "2000000000 entries declared, more than 1048576 are not supported"),
        ("0\n-3\na 0 1\n", 2, "-3 entries declared, 1 found"),
    ],
)
def test_malformed_offsets_are_errors_with_source_and_line(text: str, line: int, what: str) -> None:
    with pytest.raises(CorruptLogError) as caught:
        parse_offsets(text)
    assert caught.value.path == str(SOURCE)
    assert caught.value.message.startswith(f"line {line}: ")
    assert what in caught.value.message


@pytest.mark.parametrize(("text", "line"), [("0\n1\n0\n", 3), ("0\n1\n0 0 0\n", 3), ("0\n1\n2147483648 0\n", 3), ("2\n", 1)])
def test_malformed_leader_epochs_are_errors_with_a_line(text: str, line: int) -> None:
    with pytest.raises(CorruptLogError, match=f"line {line}: "):
        checkpoints.parse_leader_epochs(text, SOURCE)


@pytest.mark.parametrize(
    "text",
    [
        f"version: 0\ntopic_id: {TOPIC_ID}",
        f"version: 0\ntopic_id: {TOPIC_ID}\n",
        f"version:   0\r\ntopic_id:\t{TOPIC_ID}\nmore: of it\n",
        f"version: 0\ntopic_id: {TOPIC_ID}==",
        # a later version
        f"version: 1\ntopic_id: {TOPIC_ID}",
    ],
)
def test_partition_metadata_that_java_reads(text: str) -> None:
    assert checkpoints.parse_partition_metadata(text, SOURCE) == TOPIC_ID


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("version: \n", 1),
        ("version 0\n", 1),
        (f"version: x\ntopic_id: {TOPIC_ID}", 1),
        (f"version: -1\ntopic_id: {TOPIC_ID}", 1),
        ("version: 0", 2),
        ("version: 0\ntopic_id:x", 2),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 2),
        ("version: 0\ntopic_id: short", 2),
        ("version: 0\ntopic_id: EjRWeJq83vD+3LqYdlQyEA", 2),
        (f"version: 0\ntopic_id: {TOPIC_ID}AA", 2),
    ],
)
def test_malformed_partition_metadata_is_an_error_with_a_line(text: str, line: int) -> None:
    with pytest.raises(CorruptLogError, match=f"line {line}: "):
        checkpoints.parse_partition_metadata(text, SOURCE)


@pytest.mark.parametrize("parse", [checkpoints.parse_offset_checkpoint, checkpoints.parse_leader_epochs])
@given(text=st.text(st.sampled_from("0123456789 \n\tt-"), max_size=30))
def test_no_text_raises_any_other_error(parse: Callable[[str, object], Any], text: str) -> None:
    try:
        assert parse(text, SOURCE) is not None
    except CorruptLogError as error:
        assert error.message.startswith("line ")


MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param("0\n1\nt 0 " + "7" * (8 * MIB), "is not a 64-bit integer", id="a number of millions of digits"),
        pytest.param("0" * (8 * MIB) + "1\n", "unknown version 1", id="a number of millions of zeros"),
        pytest.param("0\n1\n" + "a " * (4 * MIB), "malformed entry 'a a", id="a line of millions of fields"),
        pytest.param("\0" * (8 * MIB), "is not a 32-bit integer", id="zeros"),
        pytest.param("0\n1\nt 0 5\n" + "\n" * (2 * MIB), "1 entries declared, 2097153 found", id="millions of lines"),
        pytest.param("0\n9\n" + "t 0 5\n" * MIB, "9 entries declared, 1048576 found", id="a wrong count"),
    ],
)
def test_a_hostile_checkpoint_gives_a_short_error_in_bounded_time_and_memory(text: str, what: str) -> None:
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(CorruptLogError) as caught:
            parse_offsets(text)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()
    assert what in caught.value.message
    assert len(caught.value.message) < 500
    assert time.monotonic() - started < 30
