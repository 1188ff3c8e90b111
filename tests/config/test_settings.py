"""Settings: how they are read from options, policies, TOML and a broker's properties, which source wins, and when a topic's
cleanup.policy is known. Errors name file, line and key; each effective value names its source."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from compaction.config.entries import HOUR_MS, Kind, Value, examples, parse, plain_text
from compaction.config.resolver import TOPIC_ATTRIBUTES, BrokerConfig, Resolver, TopicConfig
from compaction.config.sources import Origin, Policy, Setting, Source, read_properties, read_sets, read_toml
from compaction.errors import ConfigError
from compaction.formats.java_text import parse_properties

#: texts of each kind, with their values, and texts that are not of that kind
PARSED: dict[Kind, tuple[dict[str, Value], tuple[str, ...]]] = {
    Kind.INT: ({" 12 ": 12, "-2147483648": -(2**31)}, ("2147483648", "-2147483649", "1.0", "0x10", "", "٣")),
    Kind.LONG: ({"+5": 5, "9223372036854775807": 2**63 - 1}, ("9223372036854775808", "1_000")),
    Kind.SHORT: ({"32767": 32767}, ("32768",)),
    Kind.BOOLEAN: ({"TRUE": True, " false": False}, ("yes", "1")),
    Kind.DOUBLE: ({"0.5": 0.5, ".5d": 0.5, "1e-3": 0.001, "-Infinity": -math.inf}, ("NaN", "half")),
    Kind.LIST: ({"a , b,c": ("a", "b", "c"), "a,a": ("a",), "  ": ()}, ()),
    Kind.STRING: ({" a b ": "a b"}, ()),
}


@pytest.mark.parametrize("kind", PARSED)
def test_text_is_parsed_as_kafka_parses_it(kind: Kind) -> None:
    values, others = PARSED[kind]
    assert {text: parse(text, kind) for text in values} == values
    for text in others:
        with pytest.raises(ValueError, match=f"is not {kind.value}"):
            parse(text, kind)


SERVER = """\
# a broker's own file
process.roles=broker,controller
node.id=1
log.dirs = /data/a, /data/b
log.retention.hours=24
num.io.threads=8
listener.name.internal.ssl.keystore.location=/etc/keys
my.plugin.setting=whatever
log.cleaner.min.cleanable.ratio=0.25
"""


def server(text: str) -> tuple[Setting, ...]:
    """The settings of a broker's file."""
    return read_properties(parse_properties(text, "s.properties"), "s.properties")


def properties(text: str) -> dict[str, Setting]:
    return {each.name: each for each in server(text)}


def test_a_brokers_own_properties_are_accepted_and_names_that_no_broker_knows_are_ignored() -> None:
    found = properties(SERVER)
    assert set(found) == {
        "process.roles", "node.id", "log.dirs", "log.retention.hours", "num.io.threads", "log.cleaner.min.cleanable.ratio",
    }  # fmt: skip
    assert found["log.dirs"].value == ("/data/a", "/data/b")
    assert found["log.retention.hours"] == Setting(
        "log.retention.hours", 24, Source(Origin.PROPERTIES, "log.retention.hours", "s.properties", 5)
    )
    assert str(found["log.retention.hours"].source) == "s.properties line 5 (log.retention.hours)"


def test_a_provider_reference_is_ignored_for_an_entry_without_effect() -> None:
    assert properties("ssl.key.password=${file:/etc/x:key}\nnum.io.threads=${env:THREADS}") == {}


def test_the_last_entry_of_a_name_wins_and_only_it_is_checked() -> None:
    found = properties("log.segment.bytes=oops\nlog.segment.bytes=2097152")
    assert (found["log.segment.bytes"].value, found["log.segment.bytes"].source.line) == (2_097_152, 2)


def test_set_takes_topic_level_and_broker_level_names() -> None:
    found = read_sets(["cleanup.policy=compact,delete", "log.cleaner.dedupe.buffer.size=2097153", " retention.ms = -1 "])
    assert [(each.name, each.value) for each in found] == [
        ("cleanup.policy", ("compact", "delete")),
        ("log.cleaner.dedupe.buffer.size", 2_097_153),
        ("retention.ms", -1),
    ]
    assert str(found[0].source) == "--set cleanup.policy"


TOML = """\
[broker]
log.cleaner.min.cleanable.ratio = 0.1
"log.dirs" = ["/a", "/b"]

[topics."orders.v1"]
cleanup.policy = ["compact", "delete"]
"segment.bytes" = 2097152
preallocate = true

[topics.plain]
retention.ms = "1000"
"""


def test_toml_has_the_settings_of_the_broker_and_of_each_topic() -> None:
    found = read_toml(TOML, "c.toml")
    assert [(each.name, each.value, each.source.line) for each in found.broker] == [
        ("log.cleaner.min.cleanable.ratio", 0.1, 2),
        ("log.dirs", ("/a", "/b"), 3),
    ]
    assert [(each.name, each.value, each.source.line) for each in found.topics["orders.v1"]] == [
        ("cleanup.policy", ("compact", "delete"), 6),
        ("segment.bytes", 2_097_152, 7),
        ("preallocate", True, 8),
    ]
    assert [(each.value, str(each.source)) for each in found.topics["plain"]] == [(1000, "c.toml line 11 (retention.ms)")]


def test_an_empty_toml_has_no_settings() -> None:
    found = read_toml("# nothing\n", "c.toml")
    assert (found.broker, found.topics) == ((), {})


def test_lines_are_found_after_values_with_equals_signs_and_comments() -> None:
    found = read_toml('[broker]\n# a = 1\n"log.dir" = "/a=b"  # x = y\nlog.roll.ms = 5', "c.toml")
    assert [each.source.line for each in found.broker] == [3, 4]


@pytest.mark.parametrize(
    ("setting", "version", "having"),
    [
        ("max.decompressed.message.bytes=1", "4.3.1", "in 4.2 and since 4.4"),
        ("max.decompressed.message.bytes=1", "4.2.2", None),
        ("max.decompressed.message.bytes=1", "4.4", None),
        ("remote.copy.lag.ms=1", "4.3", "since 4.4"),
        ("message.format.version=2.8", "4.0.0", "until 3.9"),
        ("message.format.version=2.8", "3.9.2", None),
        ("zookeeper.connect=here", "4.0", "until 3.9"),
        ("producer.id.expiration.ms=1", "3.3", "since 3.4"),
        ("segment.bytes=1048576", "2.8", None),
    ],
)
def test_a_name_that_the_chosen_version_does_not_have_is_refused(setting: str, version: str, having: str | None) -> None:
    """Without a version, the names of all versions are known."""
    name = setting.partition("=")[0]
    if having is not None:
        with pytest.raises(ConfigError, match=f"^--set: Kafka {version} has no configuration {name}, which is {having}"):
            read_sets([setting], version)
    assert [each.name for each in read_sets([setting], None if having else version)] == [name]


#: what reads a text, by the place that messages name
READ: dict[str, Callable[[str], object]] = {
    "s.properties": lambda line: server(f"# first\n{line}\n"), "--set": lambda text: read_sets([text]),
    "c.toml": lambda text: read_toml(text, "c.toml"), "--policy": Policy.read,
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "text", "message"),
    [
        ("s.properties", "log.segment.bytes=abc", "line 2: log.segment.bytes = 'abc' is not a 32-bit integer"),
        ("s.properties", "log.segment.bytes=13", "line 2: log.segment.bytes = '13' is less than 14"),
        ("s.properties", "log.cleanup.policy=compat", "line 2: log.cleanup.policy = 'compat' is not a list of compact, delete"),
        ("s.properties", "log.retention.ms=0", "line 2: log.retention.ms = '0' is neither -1 nor greater than 0"),
        ("s.properties", "log.cleaner.io.max.bytes.per.second=0", "is not greater than 0; it is"),
        ("s.properties", "log.cleaner.io.buffer.load.factor=0", "is not greater than 0 and at most 1"),
        ("s.properties", "log.cleaner.io.buffer.load.factor=1.01", "is not greater than 0 and at most 1"),
        ("s.properties", "num.io.threads=many", "line 2: num.io.threads = 'many' is not a 32-bit integer"),
        ("s.properties", "log.segment.bytes=${file:/etc/x:size}", "line 2: log.segment.bytes refers to a configuration"),
        ("--set", "=5", "--set: '=5' is not KEY=VALUE"),
        ("--set", "log.segment.byte=5", "unknown configuration name 'log.segment.byte'; did you mean log.segment.bytes?"),
        ("--set", "my.plugin.setting=1", "--set: unknown configuration name 'my.plugin.setting'"),
        # of KIP-280: no version of Kafka has it, and a broker's cleaner would undo it
        ("--set", "compaction.strategy=timestamp", "--set: unknown configuration name 'compaction.strategy'"),
        ("--set", "min.cleanable.dirty.ratio=1.5", "is greater than 1"),
        ("--set", "cleanup.policy=Compact", "is not a list of compact, delete"),
        ("c.toml", "[broker]\nlog.segment.bytes = 1", "c.toml: line 2: log.segment.bytes = '1' is less than 14"),
        ("c.toml", "[broker]\nlog.preallocate = 1", "c.toml: line 2: log.preallocate = '1' is not true or false"),
        ("c.toml", '\n[topics."x"]\n\nsegment.bytes = "big"', "c.toml: line 4: segment.bytes = 'big' is not a 32-bit integer"),
        ("c.toml", '[topics."x"]\nsegmnt.bytes = 1',
         "c.toml: line 2: unknown configuration name 'segmnt.bytes'; did you mean segment.bytes?"),
        ("c.toml", "[broker]\nsegment.bytes = 1", "the broker's default for all topics is log.segment.bytes"),
        ("c.toml", '[topics."x"]\nlog.segment.bytes = 1', "broker-level names belong in [broker]"),
        ("c.toml", "[topics.a.b]\nsegment.bytes = 1", "quote a topic name with dots"),
        ("c.toml", "[topics]\nx = 1", "[topics] has one table per topic"),
        ("c.toml", "[broker]\nflush.ms = 1", 'topic-level names belong in [topics."name"]'),
        ("c.toml", '[topics."x"]\nflush.ms = "soon"', "c.toml: line 2: flush.ms = 'soon' is not a 64-bit integer"),
        ("c.toml", "[brokers]\nx = 1", "c.toml: line 1: unknown configuration name 'brokers'; settings belong in [broker] and"),
        ("c.toml", "log.segment.bytes = 1", "unknown configuration name 'log'; settings belong in [broker] and"),
        ("c.toml", "[broker]\nmy.plugin = 1", "c.toml: line 2: unknown configuration name 'my.plugin'"),
        ("c.toml", "[broker\n", "c.toml: not valid TOML"),
        ("c.toml", '[topics]\nx = { "segment.bytes" = 1 }', "c.toml: line 2: segment.bytes = '1' is less than 14"),
        ("--set", "retention.ms=0.3ms", "is not a whole number of milliseconds"),
        ("--set", "log.retention.hours=90m", "is not a whole number of hours"),
        ("--set", "segment.bytes=0.3B", "is not a whole number of bytes"),
        ("--set", "segment.bytes=1G", "is ambiguous: write 1GiB for powers of 1024, or 1GB for powers of 1000"),
        ("--set", "segment.bytes=3GiB", "is not a 32-bit integer"),
        ("--set", "retention.ms=3 days", "a time such as 3d, 12h or 1h30m is converted"),
        ("--set", "segment.bytes=big", "a size such as 64KiB, 1GiB or 500MB is converted"),
        ("--policy", "", "--policy: '' is not KEY=VALUE"),
        ("--policy", "retention.ms=5,delete", "--policy: 'delete' is not KEY=VALUE"),
        ("--policy", "cleanup.policy=[compact,delete",
         "--policy: cleanup.policy = '[compact,delete' is not a list of compact, delete"),
        ("--policy", "cleanup.policy=[compact,delete,retention.ms=5", "is not a list of compact, delete"),
        ("--policy", "retention.ms=3x", "--policy: retention.ms = '3x' is not a 64-bit integer"),
        ("--policy", "cleanup.policy=compact,cleanup.policy=delete", "gives cleanup.policy twice"),
        ("--policy", "retention.mss=5", "did you mean retention.ms"),
        ("--policy", "retention.ms=-2", "--policy: retention.ms = '-2' is less than -1"),
        ("--policy", "cleanup.policy=shrink", "--policy: cleanup.policy = 'shrink' is not a list of compact, delete"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_an_error_in_one_line_with_its_place_and_key(place: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        READ[place](text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(place)


#: values with units, and in that of the name
CONVERTED = {
    "retention.ms": {
        "3d": "259200000", " 1h30m ": "5400000", "1h 30min": "5400000", "1.5h": "5400000", "2w": "1209600000", "90s": "90000",
        "250ms": "250",
    },
    "log.retention.hours": {"3d": "72"}, "log.retention.minutes": {"2h": "120"},
    "segment.bytes": {"1GiB": str(1 << 30), "1.5 gib": str(3 << 29)}, "log.segment.bytes": {"500MB": "500000000"},
    "log.index.size.max.bytes": {"64KiB": "65536"}, "log.cleaner.dedupe.buffer.size": {"256MiB": str(256 << 20)},
    "retention.bytes": {"17B": "17"},
}  # fmt: skip
#: texts that are left to Kafka's syntax
LEFT = {
    "retention.ms": ("259200000", "-1", "3x", "3d later", "3 monkeys", "1GiB"), "segment.bytes": ("3d", ""),
    "log.cleaner.threads": ("3d",),
}  # fmt: skip


def test_a_unit_is_converted_to_that_of_the_name_and_any_other_text_is_left() -> None:
    for name, texts in CONVERTED.items():
        assert {text: plain_text(text, name, Kind.LONG) for text in texts} == texts
        assert examples(name) is not None
    assert {name: tuple(plain_text(text, name, Kind.LONG) for text in texts) for name, texts in LEFT.items()} == LEFT


def test_options_and_toml_take_units_and_brackets() -> None:
    sets = read_sets(["cleanup.policy=[compact, delete]", "retention.ms=3d"])
    toml = read_toml('[topics.t]\n"segment.bytes" = "512MiB"\n[broker]\nlog.segment.delete.delay.ms = "1m"\n', "t.toml")
    config = Resolver(sets, (toml,)).topic("t")
    assert (config.cleanup_policy, config.retention_ms) == ("compact,delete", 259_200_000)
    assert (config.segment_bytes, config.file_delete_delay_ms) == (512 << 20, 60_000)


@pytest.mark.parametrize("line", ["log.retention.ms=3d", "log.cleanup.policy=[compact,delete]"])
def test_a_brokers_properties_have_kafkas_syntax_only(line: str) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        server(line)


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


def test_a_policy_overrides_everything_else_and_is_the_source() -> None:
    policy = Policy.read("log.retention.hours=2,log.cleaner.threads=3")
    resolver = Resolver(read_sets(["retention.ms=7", "retention.bytes=9"])).with_policy(policy.settings)
    config = resolver.topic("t")
    assert (config.retention_ms, config.retention_bytes) == (7_200_000, 9)
    assert str(config.source("retention.ms")) == "--policy log.retention.hours"
    assert str(config.source("retention.bytes")) == "--set retention.bytes"
    assert resolver.broker().cleaner_threads == 3


def resolver(
    *,
    sets: tuple[str, ...] = (),
    tomls: tuple[str, ...] = (),
    properties: str | None = None,
    metadata: dict[str, dict[str, str]] | None = None,
    dynamic: dict[str, str] | None = None,
) -> Resolver:
    return Resolver(
        sets=read_sets(sets),
        tomls=tuple(read_toml(text, f"{number}.toml") for number, text in enumerate(tomls)),
        properties=None if properties is None else server(properties),
        metadata=metadata or {},
        metadata_broker=dynamic or {},
    )


def test_without_any_source_everything_is_kafkas_default() -> None:
    assert Resolver().topic("orders") == TopicConfig()
    assert Resolver().broker() == BrokerConfig()
    assert str(TopicConfig().source("segment.bytes")) == "Kafka's default"


def test_every_attribute_is_the_value_of_an_entry() -> None:
    others = {"cleanup_compact", "cleanup_delete", "sources", "policy_guess"}
    assert {each.name for each in fields(TopicConfig)} == {*TOPIC_ATTRIBUTES.values(), *others}


#: sources of min.cleanable.dirty.ratio from the lowest to the highest precedence, each with its value
LADDER: list[tuple[dict[str, Any], float, str]] = [
    ({}, 0.5, "Kafka's default"),
    ({"properties": "log.cleaner.min.cleanable.ratio=0.1"}, 0.1,
     "s.properties line 1 (log.cleaner.min.cleanable.ratio)"),
    ({"dynamic": {"log.cleaner.min.cleanable.ratio": "0.15"}}, 0.15, "the broker's configuration in the metadata log"),
    ({"tomls": ("[broker]\nlog.cleaner.min.cleanable.ratio=0.2",)}, 0.2, "0.toml line 2 (log.cleaner.min.cleanable.ratio)"),
    ({"metadata": {"orders": {"min.cleanable.dirty.ratio": "0.3"}}}, 0.3, "the topic's configuration in the metadata log"),
    ({"tomls": ("[broker]\nlog.cleaner.min.cleanable.ratio=0.2\n[topics.orders]\nmin.cleanable.dirty.ratio=0.4",)}, 0.4,
     "0.toml line 4 (min.cleanable.dirty.ratio)"),
    ({"sets": ("log.cleaner.min.cleanable.ratio=0.6",)}, 0.6, "--set log.cleaner.min.cleanable.ratio"),
    ({"sets": ("min.cleanable.dirty.ratio=0.7", "log.cleaner.min.cleanable.ratio=0.6")}, 0.7,
     "--set min.cleanable.dirty.ratio"),
]  # fmt: skip


@pytest.mark.parametrize("rung", range(len(LADDER)), ids=[source for _, _, source in LADDER])
def test_the_strongest_source_wins_and_is_known(rung: int) -> None:
    given: dict[str, Any] = {}
    for each, _, _ in LADDER[: rung + 1]:
        given |= each
    config = resolver(**given).topic("orders")
    assert config.min_cleanable_dirty_ratio == LADDER[rung][1]
    assert str(config.source("min.cleanable.dirty.ratio")) == LADDER[rung][2]


def test_a_topics_own_settings_do_not_affect_other_topics() -> None:
    found = resolver(tomls=('[topics."a"]\nsegment.bytes=2097152',), metadata={"b": {"segment.bytes": "3145728"}})
    assert [found.topic(name).segment_bytes for name in ("a", "b", "c")] == [2_097_152, 3_145_728, 1 << 30]


@pytest.mark.parametrize(
    ("properties", "retention_ms", "key"),
    [
        ("log.retention.hours=2", 2 * HOUR_MS, "log.retention.hours"),
        ("log.retention.hours=2\nlog.retention.minutes=30", 30 * 60_000, "log.retention.minutes"),
        ("log.retention.minutes=30\nlog.retention.ms=5\nlog.retention.hours=2", 5, "log.retention.ms"),
        ("log.retention.ms=-1", -1, "log.retention.ms"),
        ("log.retention.minutes=-7", -1, "log.retention.minutes"),
        ("log.retention.hours=-1", -1, "log.retention.hours"),
    ],
)
def test_retention_in_the_finest_unit_wins_and_any_negative_value_is_unlimited(
    properties: str, retention_ms: int, key: str
) -> None:
    config = resolver(properties=properties).topic("orders")
    assert (config.retention_ms, config.source("retention.ms").key) == (retention_ms, key)


@pytest.mark.parametrize(
    ("name", "text", "attribute", "value"),
    [
        ("log.segment.bytes", "2097152", "segment_bytes", 2_097_152),
        ("log.index.size.max.bytes", "4096", "segment_index_bytes", 4096),
        ("log.index.interval.bytes", "1", "index_interval_bytes", 1),
        ("log.cleaner.delete.retention.ms", "9", "delete_retention_ms", 9),
        ("log.cleaner.min.compaction.lag.ms", "9", "min_compaction_lag_ms", 9),
        ("log.cleaner.max.compaction.lag.ms", "9", "max_compaction_lag_ms", 9),
        ("log.segment.delete.delay.ms", "9", "file_delete_delay_ms", 9),
        ("log.retention.bytes", "9", "retention_bytes", 9),
        ("log.cleanup.policy", "compact,delete", "cleanup_policy", "compact,delete"),
        ("log.cleanup.policy", "", "cleanup_policy", ""),
    ],
)
def test_a_brokers_setting_is_the_default_of_its_topics(name: str, text: str, attribute: str, value: object) -> None:
    for given in (resolver(properties=f"{name}={text}"), resolver(sets=(f"{name}={text}",))):
        assert getattr(given.topic("orders"), attribute) == value


@pytest.mark.parametrize(
    ("topic", "policy", "segment_key"),
    [
        ("__consumer_offsets", "compact", "offsets.topic.segment.bytes"),
        ("__transaction_state", "compact", "transaction.state.log.segment.bytes"),
        ("__share_group_state", "delete", "share.coordinator.state.topic.segment.bytes"),
    ],
)
def test_internal_topics_have_the_configuration_that_a_broker_creates_them_with(
    topic: str, policy: str, segment_key: str
) -> None:
    given = "log.cleanup.policy=compact,delete\nlog.segment.bytes=2097152\n"
    config = resolver(properties=given).topic(topic)
    assert (config.cleanup_policy, config.segment_bytes, config.policy_guess) == (policy, 100 << 20, None)
    assert str(config.source("cleanup.policy")) == "Kafka's own configuration of this internal topic"
    config = resolver(properties=f"{given}{segment_key}=3145728\n").topic(topic)
    assert config.segment_bytes == 3_145_728
    assert str(config.source("segment.bytes")) == f"s.properties line 3 ({segment_key})"


def test_the_metadata_log_overrides_the_configuration_of_an_internal_topic() -> None:
    metadata = {"__consumer_offsets": {"cleanup.policy": "compact,delete"}}
    config = resolver(metadata=metadata, properties="log.segment.bytes=2097152").topic("__consumer_offsets")
    assert (config.cleanup_policy, config.segment_bytes) == ("compact,delete", 2_097_152)


def test_internal_topics_without_a_retention_time_ignore_the_brokers() -> None:
    for topic in ("__share_group_state", "__remote_log_metadata"):
        config = resolver(properties="log.retention.ms=1").topic(topic)
        assert (config.retention_ms, config.policy_guess) == (-1, None)


def test_a_later_file_and_a_later_set_win() -> None:
    found = resolver(
        sets=("segment.bytes=2097152", "segment.bytes=3145728"),
        tomls=("[broker]\nlog.retention.ms=5", "[broker]\nlog.retention.ms=6"),
    )
    assert (found.topic("orders").segment_bytes, found.topic("orders").retention_ms) == (3_145_728, 6)


def test_the_internal_segment_size_overrides_the_public_one() -> None:
    config = resolver(sets=("segment.bytes=2097152", "internal.segment.bytes=100")).topic("orders")
    assert config.segment_bytes == 100


def test_names_of_other_versions_in_the_metadata_log_are_ignored() -> None:
    metadata = {"orders": {"message.format.version": "2.8", "cleanup.policy": "compact"}}
    assert resolver(metadata=metadata).topic("orders").cleanup_compact


def test_a_bad_value_in_the_metadata_log_fails_only_that_topic() -> None:
    found = resolver(metadata={"orders": {"segment.bytes": "1"}})
    with pytest.raises(ConfigError, match=r"^topic orders, metadata log: segment\.bytes = '1' is less than 14"):
        found.topic("orders")
    assert found.topic("other") == TopicConfig()


def test_a_min_lag_over_the_max_lag_is_refused_with_both_sources() -> None:
    found = resolver(sets=("min.compaction.lag.ms=10",), properties="log.cleaner.max.compaction.lag.ms=9")
    with pytest.raises(ConfigError) as error:
        found.topic("orders")
    assert str(error.value) == (
        "topic orders: min.compaction.lag.ms is 10 (--set min.compaction.lag.ms), which is more than max.compaction.lag.ms 9 "
        "(s.properties line 1 (log.cleaner.max.compaction.lag.ms)); lower the first or raise the second"
    )


def test_broker_settings_are_resolved_by_the_same_rule() -> None:
    found = resolver(
        sets=("log.cleaner.io.buffer.load.factor=0.75",),
        properties="log.cleaner.dedupe.buffer.size=4194304\nproducer.id.expiration.ms=5",
    ).broker()
    assert (found.load_factor, found.dedupe_buffer_bytes, found.producer_id_expiration_ms) == (0.75, 4 << 20, 5)
    assert str(found.source("log.cleaner.io.buffer.load.factor")) == "--set log.cleaner.io.buffer.load.factor"


def test_an_offset_map_of_at_most_one_mebibyte_per_thread_is_refused() -> None:
    given = ("log.cleaner.dedupe.buffer.size=2097152", "log.cleaner.threads=2")
    with pytest.raises(ConfigError, match=r"it must be more than 1048576 bytes per thread"):
        resolver(sets=given).broker()
    assert resolver(sets=given[:1]).broker().dedupe_buffer_bytes == 2 << 20


def test_another_log_directory_has_another_metadata_log() -> None:
    found = resolver(metadata={"orders": {"retention.bytes": "5"}}, sets=("delete.retention.ms=1",))
    other = found.with_metadata({"orders": {"retention.bytes": "6"}}, {"log.retention.ms": "7"})
    assert (other.topic("orders").retention_bytes, other.topic("orders").delete_retention_ms) == (6, 1)
    assert (other.topic("orders").retention_ms, found.topic("orders").retention_ms) == (7, 7 * 24 * HOUR_MS)


#: a metadata log with the topic, which has no policy of its own, and one with other topics only
KNOWN = {"orders": {"segment.ms": "5"}}
OTHERS = {"sales": {"cleanup.policy": "compact"}}
BROKERS: list[dict[str, Any]] = [
    {}, {"properties": ""}, {"properties": "log.cleanup.policy=delete"}, {"dynamic": {"log.cleanup.policy": "delete"}},
    {"tomls": ('[broker]\nlog.cleanup.policy = "compact,delete"',)},
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "known"),
    [
        # a broker's default does not speak for a topic that no metadata log knows
        *((resolver(metadata=metadata, **broker), "") for metadata in ({}, OTHERS) for broker in BROKERS),
        (resolver(metadata=KNOWN), "the topic has none of its own, and the broker's default may be set in its server"),
        (resolver(sets=("retention.ms=5",)), ""),
        (Resolver().with_policy(Policy.read("retention.ms=5").settings), ""),
        (resolver(metadata=KNOWN, properties="num.partitions=3"), ("delete", Origin.DEFAULT)),
        (resolver(metadata=KNOWN, properties=""), ("delete", Origin.DEFAULT)),
        (resolver(metadata=KNOWN, properties="log.cleanup.policy=compact"), ("compact", Origin.PROPERTIES)),
        (
            resolver(metadata=KNOWN, dynamic={"log.cleanup.policy": "compact,delete"}),
            ("compact,delete", Origin.METADATA_BROKER),
        ),
        (resolver(metadata=KNOWN, tomls=('[broker]\nlog.cleanup.policy = "compact"',)), ("compact", Origin.TOML_BROKER)),
        (resolver(metadata={"orders": {"cleanup.policy": "compact"}}), ("compact", Origin.METADATA)),
        (resolver(sets=("cleanup.policy=delete",)), ("delete", Origin.SET)),
        (resolver(sets=("log.cleanup.policy=delete",)), ("delete", Origin.SET)),
        (Resolver().with_policy(Policy.read("cleanup.policy=delete").settings), ("delete", Origin.POLICY)),
        (resolver(tomls=('[topics."orders"]\ncleanup.policy = "delete"',)), ("delete", Origin.TOML_TOPIC)),
    ],
)
def test_a_policy_is_known_if_a_source_that_knows_the_topic_has_it(given: Resolver, known: tuple[str, Origin] | str) -> None:
    config = given.topic("orders")
    if isinstance(known, str):
        assert str(config.policy_guess).startswith(f"cleanup.policy is unknown: {known}")
    else:
        assert (config.cleanup_policy, config.source("cleanup.policy").origin, config.policy_guess) == (*known, None)


@pytest.mark.parametrize(
    ("given", "policy", "source"),
    [
        (resolver(), "delete", "Kafka's default, assumed by --assume-default-policy"),
        (resolver(metadata=KNOWN), "delete", "Kafka's default, assumed by --assume-default-policy"),
        (
            resolver(properties="log.cleanup.policy=compact"),
            "compact",
            "s.properties line 1 (log.cleanup.policy), assumed by --assume-default-policy",
        ),
        (resolver(metadata=KNOWN, properties=""), "delete", "Kafka's default"),
    ],
)
def test_a_default_is_assumed_only_with_the_option_and_only_for_an_unknown_policy(
    given: Resolver, policy: str, source: str
) -> None:
    config = replace(given, assume_default_policy=True).topic("orders")
    assert (config.cleanup_policy, str(config.source("cleanup.policy")), config.policy_guess) == (policy, source, None)
