"""Settings from the command line, from TOML and from a broker's properties; every error names file, line and key."""

from __future__ import annotations

import pytest

from compaction.config.sources import Origin, Setting, Source, read_properties, read_sets, read_toml
from compaction.errors import ConfigError
from compaction.formats.java_text import parse_properties

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


def properties(text: str) -> dict[str, Setting]:
    return {each.name: each for each in read_properties(parse_properties(text, "server.properties"), "server.properties")}


def test_a_brokers_own_properties_are_accepted() -> None:
    found = properties(SERVER)
    assert found["log.dirs"].value == ("/data/a", "/data/b")
    assert found["log.retention.hours"] == Setting(
        "log.retention.hours", 24, Source(Origin.PROPERTIES, "log.retention.hours", "server.properties", 5)
    )
    assert str(found["log.retention.hours"].source) == "server.properties line 5 (log.retention.hours)"


def test_names_that_no_broker_knows_are_ignored_in_properties() -> None:
    assert set(properties(SERVER)) == {
        "process.roles", "node.id", "log.dirs", "log.retention.hours", "num.io.threads", "log.cleaner.min.cleanable.ratio",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("log.segment.bytes=abc", "line 2: log.segment.bytes = 'abc' is not a 32-bit integer"),
        ("log.segment.bytes=13", "line 2: log.segment.bytes = '13' is less than 14"),
        ("log.cleanup.policy=compat", "line 2: log.cleanup.policy = 'compat' is not a list of compact, delete"),
        ("log.retention.ms=0", "line 2: log.retention.ms = '0' is neither -1 nor greater than 0"),
        ("log.cleaner.io.max.bytes.per.second=0", "is not greater than 0; it is"),
        ("log.cleaner.io.buffer.load.factor=0", "is not greater than 0 and at most 1"),
        ("num.io.threads=many", "line 2: num.io.threads = 'many' is not a 32-bit integer"),
        ("log.segment.bytes=${file:/etc/x:size}", "line 2: log.segment.bytes refers to a configuration provider"),
    ],
)
def test_a_bad_value_in_properties_names_file_line_and_key(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        properties(f"# first\n{line}\n")
    assert str(error.value).startswith("server.properties: ")
    assert message in str(error.value)


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


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("segment.bytes", "--set: 'segment.bytes' is not KEY=VALUE"),
        ("=5", "--set: '=5' is not KEY=VALUE"),
        ("segment.byte=5", "--set: unknown configuration name 'segment.byte'; did you mean segment.bytes?"),
        ("log.segment.byte=5", "unknown configuration name 'log.segment.byte'; did you mean log.segment.bytes?"),
        ("my.plugin.setting=1", "--set: unknown configuration name 'my.plugin.setting'"),
        # of KIP-280: no version of Kafka has it, and a broker's cleaner would undo it
        ("compaction.strategy=timestamp", "--set: unknown configuration name 'compaction.strategy'"),
        ("segment.bytes=1", "--set: segment.bytes = '1' is less than 14"),
        ("retention.ms=-2", "--set: retention.ms = '-2' is less than -1"),
        ("min.cleanable.dirty.ratio=1.5", "is greater than 1"),
        ("cleanup.policy=Compact", "is not a list of compact, delete"),
    ],
)
def test_an_invalid_set_is_an_error_with_its_key(argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_sets([argument])
    assert message in str(error.value)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[broker]\nlog.segment.bytes = 1", "c.toml: line 2: log.segment.bytes = '1' is less than 14"),
        ("[broker]\nlog.preallocate = 1", "c.toml: line 2: log.preallocate = '1' is not true or false"),
        ('\n[topics."x"]\n\nsegment.bytes = "big"', "c.toml: line 4: segment.bytes = 'big' is not a 32-bit integer"),
        (
            '[topics."x"]\nsegmnt.bytes = 1',
            "c.toml: line 2: unknown configuration name 'segmnt.bytes'; did you mean segment.bytes?",
        ),
        ("[broker]\nsegment.bytes = 1", "the broker's default for all topics is log.segment.bytes"),
        ('[topics."x"]\nlog.segment.bytes = 1', "broker-level names belong in [broker]"),
        ("[topics.a.b]\nsegment.bytes = 1", "quote a topic name with dots"),
        ("[topics]\nx = 1", "[topics] has one table per topic"),
        ("[broker]\nflush.ms = 1", 'topic-level names belong in [topics."name"]'),
        ('[topics."x"]\nflush.ms = "soon"', "c.toml: line 2: flush.ms = 'soon' is not a 64-bit integer"),
        ("[brokers]\nx = 1", "c.toml: line 1: unknown configuration name 'brokers'; settings belong in [broker] and"),
        ("log.segment.bytes = 1", "unknown configuration name 'log'; settings belong in [broker] and"),
        ("[broker]\nmy.plugin = 1", "c.toml: line 2: unknown configuration name 'my.plugin'"),
        ("[broker\n", "c.toml: not valid TOML"),
        ('[topics]\nx = { "segment.bytes" = 1 }', "c.toml: line 2: segment.bytes = '1' is less than 14"),
    ],
)
def test_an_invalid_toml_is_an_error_with_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_toml(text, "c.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_lines_are_found_after_values_with_equals_signs_and_comments() -> None:
    found = read_toml('[broker]\n# a = 1\n"log.dir" = "/a=b"  # x = y\nlog.roll.ms = 5', "c.toml")
    assert [each.source.line for each in found.broker] == [3, 4]


@pytest.mark.parametrize(
    ("setting", "version", "having"),
    [
        ("max.decompressed.message.bytes=1", "4.3.1", "in 4.2 and since 4.4"),
        ("remote.copy.lag.ms=1", "4.3", "since 4.4"),
        ("message.format.version=2.8", "4.0.0", "until 3.9"),
        ("zookeeper.connect=here", "4.0", "until 3.9"),
        ("producer.id.expiration.ms=1", "3.3", "since 3.4"),
    ],
)
def test_a_name_that_the_chosen_version_does_not_have_is_refused(setting: str, version: str, having: str) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^--set: Kafka {version} has no configuration {name}, which is {having}"):
        read_sets([setting], version)
    assert read_sets([setting])[0].name == name, "without a version, the names of all versions are known"


@pytest.mark.parametrize(
    ("setting", "version"),
    [
        ("max.decompressed.message.bytes=1", "4.2.2"),
        ("max.decompressed.message.bytes=1", "4.4"),
        ("message.format.version=2.8", "3.9.2"),
        ("segment.bytes=1048576", "2.8"),
        ("compression.type=gzip", "2.8"),
    ],
)
def test_a_name_that_the_chosen_version_has_is_accepted(setting: str, version: str) -> None:
    assert [each.name for each in read_sets([setting], version)] == [setting.partition("=")[0]]
