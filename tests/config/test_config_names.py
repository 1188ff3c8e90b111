"""The configuration names of all versions are what the classes of each version say."""

from __future__ import annotations

import pytest

from compaction.config.entries import ConfigName, Kind, Span, config_names, versions_without
from tests.config.make_names import CONFIG, RELEASES, minor, names_of, text_of
from tests.kafka.gateway import shared_gateway

LEVELS = ("topic", "broker")
#: the JVM that other tests use
SAMPLE = ("4.4.0",)
#: the versions that other suites use, too; ``tests.config.make_names`` asks all of them
OTHERS = ("2.8.2", "3.3.2", "3.9.2", "4.0.2")


@pytest.mark.kafka
@pytest.mark.parametrize("version", SAMPLE)
def test_a_version_has_these_names_and_no_others(version: str) -> None:
    compare_names(version)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("version", OTHERS)
def test_older_versions_have_these_names_and_no_others(version: str) -> None:
    compare_names(version)


def compare_names(version: str) -> None:
    kafkas = names_of(shared_gateway(version))
    for level in LEVELS:
        ours = {name: found for name, found in config_names(level).items() if found.is_in(version)}
        assert set(ours) == set(kafkas[level])
        if version == RELEASES[-1]:
            assert {name: found.kind.name for name, found in ours.items()} == kafkas[level]


def test_the_files_are_as_they_were_written() -> None:
    """Of the versions, only the names are known here."""
    for level in LEVELS:
        text = (CONFIG / f"{level}_names.txt").read_text("utf-8")
        found = config_names(level)
        versions = [
            (minor(version), {level: {name: one.kind.name for name, one in found.items() if one.is_in(version)}})
            for version in RELEASES
        ]
        assert text_of(level, versions) == text


@pytest.mark.parametrize(
    ("spans", "text", "having"),
    [
        ((), "in all versions", {"2.8", "3.9.2", "4.4"}),
        ((Span("", "3.9"),), "until 3.9", {"2.8", "3.9.2"}),
        ((Span("3.9", ""),), "since 3.9", {"3.9.2", "4.4"}),
        ((Span("3.1", "3.9"),), "from 3.1 to 3.9", {"3.9.2"}),
        ((Span("2.8", "2.8"), Span("4.4", "")), "in 2.8 and since 4.4", {"2.8", "4.4"}),
    ],
)
def test_the_span_of_a_name_is_inclusive(spans: tuple[Span, ...], text: str, having: set[str]) -> None:
    name = ConfigName(Kind.INT, spans)
    assert str(name) == text
    assert {version for version in ("2.8", "3.9.2", "4.4") if name.is_in(version)} == having


def test_minor_versions_are_compared_as_numbers() -> None:
    assert not Span("3.10", "").has("3.9.2")


def test_a_name_of_another_level_counts_too() -> None:
    assert versions_without("log.segment.bytes", "2.8") is None
    assert versions_without("remote.copy.lag.ms", "4.3") == "since 4.4"
    assert versions_without("no.such.name", "4.3") is None
