"""Policies to compare are parsed from options."""

from __future__ import annotations

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import Policy, read_sets
from compaction.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cleanup.policy=compact", {"cleanup.policy": ("compact",)}),
        ("cleanup.policy=compact+delete,retention.ms=5", {"cleanup.policy": ("compact", "delete"), "retention.ms": 5}),
        (" cleanup.policy = delete , retention.bytes = -1 ", {"cleanup.policy": ("delete",), "retention.bytes": -1}),
        ("cleanup.policy=", {"cleanup.policy": ()}),
        ("log.retention.hours=3", {"log.retention.hours": 3}),
        ("cleanup.policy=[compact,delete],retention.ms=3s", {"cleanup.policy": ("compact", "delete"), "retention.ms": 3000}),
        ("cleanup.policy=compact,delete", {"cleanup.policy": ("compact", "delete")}),
        (
            "retention.ms=5,cleanup.policy=compact, delete ,segment.bytes=1GiB",
            {"retention.ms": 5, "cleanup.policy": ("compact", "delete"), "segment.bytes": 1 << 30},
        ),
        ("cleanup.policy=[]", {"cleanup.policy": ()}),
        ("configured", {}),
    ],
)
def test_a_policy_is_read_from_its_option(text: str, expected: dict[str, object]) -> None:
    policy = Policy.read(text)
    assert policy.name == text.strip()
    assert {setting.name: setting.value for setting in policy.settings} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compact", "--policy: 'compact' is not KEY=VALUE"),
        ("", "--policy: '' is not KEY=VALUE"),
        ("retention.ms=5,delete", "--policy: 'delete' is not KEY=VALUE"),
        ("cleanup.policy=[compact,delete", "--policy: cleanup.policy = '[compact,delete' is not a list of compact, delete"),
        ("cleanup.policy=[compact,delete,retention.ms=5", "is not a list of compact, delete"),
        ("retention.ms=3x", "--policy: retention.ms = '3x' is not a 64-bit integer"),
        ("cleanup.policy=compact,cleanup.policy=delete", "gives cleanup.policy twice"),
        ("retention.mss=5", "did you mean retention.ms"),
        ("retention.ms=-2", "--policy: retention.ms = '-2' is less than -1"),
        ("cleanup.policy=shrink", "--policy: cleanup.policy = 'shrink' is not a list of compact, delete"),
    ],
)
def test_an_invalid_policy_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Policy.read(text)
    assert message in str(error.value)


def test_a_policy_overrides_everything_else_and_is_the_source() -> None:
    policy = Policy.read("log.retention.hours=2,log.cleaner.threads=3")
    resolver = Resolver(read_sets(["retention.ms=7", "retention.bytes=9"])).with_policy(policy.settings)
    config = resolver.topic("t")
    assert (config.retention_ms, config.retention_bytes) == (7_200_000, 9)
    assert str(config.source("retention.ms")) == "--policy log.retention.hours"
    assert str(config.source("retention.bytes")) == "--set retention.bytes"
    assert resolver.broker().cleaner_threads == 3
