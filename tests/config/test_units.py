"""Values with units are converted to Kafka's, or refused with what to write."""

from __future__ import annotations

import pytest

from compaction.config.entries import Kind, examples, plain_text
from compaction.config.resolver import Resolver
from compaction.config.sources import read_properties, read_sets, read_toml
from compaction.errors import ConfigError
from compaction.formats.java_text import parse_properties


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("retention.ms", "3d", "259200000"),
        ("retention.ms", " 1h30m ", "5400000"),
        ("retention.ms", "1h 30min", "5400000"),
        ("retention.ms", "1.5h", "5400000"),
        ("retention.ms", "2w", "1209600000"),
        ("retention.ms", "90s", "90000"),
        ("retention.ms", "250ms", "250"),
        ("log.retention.hours", "3d", "72"),
        ("log.retention.minutes", "2h", "120"),
        ("segment.bytes", "1GiB", str(1 << 30)),
        ("segment.bytes", "1.5 gib", str(3 << 29)),
        ("log.segment.bytes", "500MB", "500000000"),
        ("log.index.size.max.bytes", "64KiB", "65536"),
        ("log.cleaner.dedupe.buffer.size", "256MiB", str(256 << 20)),
        ("retention.bytes", "17B", "17"),
    ],
)
def test_a_unit_is_converted_to_that_of_the_name(name: str, text: str, plain: str) -> None:
    assert plain_text(text, name, Kind.LONG) == plain
    assert examples(name) is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "259200000"),
        ("retention.ms", "-1"),
        ("retention.ms", "3x"),
        ("retention.ms", "3d later"),
        ("retention.ms", "3 monkeys"),
        ("retention.ms", "1GiB"),
        ("segment.bytes", "3d"),
        ("segment.bytes", ""),
        ("log.cleaner.threads", "3d"),
    ],
)
def test_any_other_text_is_left_to_kafkas_syntax(name: str, text: str) -> None:
    assert plain_text(text, name, Kind.LONG) == text


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("retention.ms=0.3ms", "is not a whole number of milliseconds"),
        ("log.retention.hours=90m", "is not a whole number of hours"),
        ("segment.bytes=0.3B", "is not a whole number of bytes"),
        ("segment.bytes=1G", "is ambiguous: write 1GiB for powers of 1024, or 1GB for powers of 1000"),
        ("segment.bytes=3GiB", "is not a 32-bit integer"),
        ("retention.ms=3 days", "a time such as 3d, 12h or 1h30m is converted"),
        ("segment.bytes=big", "a size such as 64KiB, 1GiB or 500MB is converted"),
    ],
)
def test_what_cannot_be_converted_is_an_error_that_says_what_to_write(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_sets([setting])
    assert message in str(error.value)


def test_options_and_toml_take_units_and_brackets() -> None:
    sets = read_sets(["cleanup.policy=[compact, delete]", "retention.ms=3d"])
    toml = read_toml('[topics.t]\n"segment.bytes" = "512MiB"\n[broker]\nlog.segment.delete.delay.ms = "1m"\n', "t.toml")
    config = Resolver(sets, (toml,)).topic("t")
    assert (config.cleanup_policy, config.retention_ms) == ("compact,delete", 259_200_000)
    assert (config.segment_bytes, config.file_delete_delay_ms) == (512 << 20, 60_000)


@pytest.mark.parametrize("line", ["log.retention.ms=3d", "log.cleanup.policy=[compact,delete]"])
def test_a_brokers_properties_have_kafkas_syntax_only(line: str) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        read_properties(parse_properties(line, "server.properties"), "server.properties")
