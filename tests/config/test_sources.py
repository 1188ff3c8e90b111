"""Settings from the command line, policies, TOML and a broker's properties: values of each kind, with units, and errors that
name file, line and key."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from compaction.config.entries import Kind, Validator, Value, above, choice, examples, in_range, non_zero, parse, plain_text
from compaction.config.resolver import Resolver
from compaction.config.sources import Origin, Policy, Setting, Source, read_properties, read_sets, read_toml
from compaction.errors import ConfigError
from compaction.formats.java_text import parse_properties


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" 12 ", Kind.INT, 12),
        ("-2147483648", Kind.INT, -(2**31)),
        ("+5", Kind.LONG, 5),
        ("9223372036854775807", Kind.LONG, 2**63 - 1),
        ("32767", Kind.SHORT, 32767),
        ("TRUE", Kind.BOOLEAN, True),
        (" false", Kind.BOOLEAN, False),
        ("0.5", Kind.DOUBLE, 0.5),
        (".5d", Kind.DOUBLE, 0.5),
        ("1e-3", Kind.DOUBLE, 0.001),
        ("-Infinity", Kind.DOUBLE, -math.inf),
        ("a , b,c", Kind.LIST, ("a", "b", "c")),
        ("a,a", Kind.LIST, ("a",)),
        ("  ", Kind.LIST, ()),
        (" a b ", Kind.STRING, "a b"),
    ],
)
def test_text_is_parsed_as_kafka_parses_it(text: str, kind: Kind, value: Value) -> None:
    assert parse(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2147483648", Kind.INT),
        ("-2147483649", Kind.INT),
        ("9223372036854775808", Kind.LONG),
        ("32768", Kind.SHORT),
        ("1_000", Kind.LONG),
        ("1.0", Kind.INT),
        ("0x10", Kind.INT),
        ("", Kind.INT),
        ("yes", Kind.BOOLEAN),
        ("1", Kind.BOOLEAN),
        ("NaN", Kind.DOUBLE),
        ("half", Kind.DOUBLE),
        ("٣", Kind.INT),
    ],
)
def test_text_of_another_kind_is_refused(text: str, kind: Kind) -> None:
    with pytest.raises(ValueError, match=f"is not {kind.value}"):
        parse(text, kind)


@pytest.mark.parametrize(
    ("validator", "good", "bad"),
    [
        (in_range(0), [0, 1], [-1]),
        (in_range(0, 1), [0.0, 1.0, 0.5], [-0.1, 1.1]),
        (non_zero, [1, -1, -5], [0]),
        (above(0, 1), [0.1, 1.0], [0.0, 1.01]),
        (choice("a", "b"), ["a", ("a", "b"), ()], ["A", ("a", "c"), ("",)]),
    ],
)
def test_a_validator_refuses_values_out_of_bounds(validator: Validator, good: list[Value], bad: list[Value]) -> None:
    assert [validator(value) for value in good] == [None] * len(good)
    assert all(validator(value) for value in bad)


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


def second_line(line: str) -> object:
    return properties(f"# first\n{line}\n")


def one_set(argument: str) -> object:
    return read_sets([argument])


def toml(text: str) -> object:
    return read_toml(text, "c.toml")


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (second_line, "log.segment.bytes=abc", "line 2: log.segment.bytes = 'abc' is not a 32-bit integer"),
        (second_line, "log.segment.bytes=13", "line 2: log.segment.bytes = '13' is less than 14"),
        (second_line, "log.cleanup.policy=compat", "line 2: log.cleanup.policy = 'compat' is not a list of compact, delete"),
        (second_line, "log.retention.ms=0", "line 2: log.retention.ms = '0' is neither -1 nor greater than 0"),
        (second_line, "log.cleaner.io.max.bytes.per.second=0", "is not greater than 0; it is"),
        (second_line, "log.cleaner.io.buffer.load.factor=0", "is not greater than 0 and at most 1"),
        (second_line, "num.io.threads=many", "line 2: num.io.threads = 'many' is not a 32-bit integer"),
        (second_line, "log.segment.bytes=${file:/etc/x:size}", "line 2: log.segment.bytes refers to a configuration provider"),
        (one_set, "segment.bytes", "--set: 'segment.bytes' is not KEY=VALUE"),
        (one_set, "=5", "--set: '=5' is not KEY=VALUE"),
        (one_set, "segment.byte=5", "--set: unknown configuration name 'segment.byte'; did you mean segment.bytes?"),
        (one_set, "log.segment.byte=5", "unknown configuration name 'log.segment.byte'; did you mean log.segment.bytes?"),
        (one_set, "my.plugin.setting=1", "--set: unknown configuration name 'my.plugin.setting'"),
        # of KIP-280: no version of Kafka has it, and a broker's cleaner would undo it
        (one_set, "compaction.strategy=timestamp", "--set: unknown configuration name 'compaction.strategy'"),
        (one_set, "segment.bytes=1", "--set: segment.bytes = '1' is less than 14"),
        (one_set, "retention.ms=-2", "--set: retention.ms = '-2' is less than -1"),
        (one_set, "min.cleanable.dirty.ratio=1.5", "is greater than 1"),
        (one_set, "cleanup.policy=Compact", "is not a list of compact, delete"),
        (toml, "[broker]\nlog.segment.bytes = 1", "c.toml: line 2: log.segment.bytes = '1' is less than 14"),
        (toml, "[broker]\nlog.preallocate = 1", "c.toml: line 2: log.preallocate = '1' is not true or false"),
        (toml, '\n[topics."x"]\n\nsegment.bytes = "big"', "c.toml: line 4: segment.bytes = 'big' is not a 32-bit integer"),
        (toml, '[topics."x"]\nsegmnt.bytes = 1',
         "c.toml: line 2: unknown configuration name 'segmnt.bytes'; did you mean segment.bytes?"),
        (toml, "[broker]\nsegment.bytes = 1", "the broker's default for all topics is log.segment.bytes"),
        (toml, '[topics."x"]\nlog.segment.bytes = 1', "broker-level names belong in [broker]"),
        (toml, "[topics.a.b]\nsegment.bytes = 1", "quote a topic name with dots"),
        (toml, "[topics]\nx = 1", "[topics] has one table per topic"),
        (toml, "[broker]\nflush.ms = 1", 'topic-level names belong in [topics."name"]'),
        (toml, '[topics."x"]\nflush.ms = "soon"', "c.toml: line 2: flush.ms = 'soon' is not a 64-bit integer"),
        (toml, "[brokers]\nx = 1", "c.toml: line 1: unknown configuration name 'brokers'; settings belong in [broker] and"),
        (toml, "log.segment.bytes = 1", "unknown configuration name 'log'; settings belong in [broker] and"),
        (toml, "[broker]\nmy.plugin = 1", "c.toml: line 2: unknown configuration name 'my.plugin'"),
        (toml, "[broker\n", "c.toml: not valid TOML"),
        (toml, '[topics]\nx = { "segment.bytes" = 1 }', "c.toml: line 2: segment.bytes = '1' is less than 14"),
        (one_set, "retention.ms=0.3ms", "is not a whole number of milliseconds"),
        (one_set, "log.retention.hours=90m", "is not a whole number of hours"),
        (one_set, "segment.bytes=0.3B", "is not a whole number of bytes"),
        (one_set, "segment.bytes=1G", "is ambiguous: write 1GiB for powers of 1024, or 1GB for powers of 1000"),
        (one_set, "segment.bytes=3GiB", "is not a 32-bit integer"),
        (one_set, "retention.ms=3 days", "a time such as 3d, 12h or 1h30m is converted"),
        (one_set, "segment.bytes=big", "a size such as 64KiB, 1GiB or 500MB is converted"),
        (Policy.read, "compact", "--policy: 'compact' is not KEY=VALUE"),
        (Policy.read, "", "--policy: '' is not KEY=VALUE"),
        (Policy.read, "retention.ms=5,delete", "--policy: 'delete' is not KEY=VALUE"),
        (Policy.read, "cleanup.policy=[compact,delete",
         "--policy: cleanup.policy = '[compact,delete' is not a list of compact, delete"),
        (Policy.read, "cleanup.policy=[compact,delete,retention.ms=5", "is not a list of compact, delete"),
        (Policy.read, "retention.ms=3x", "--policy: retention.ms = '3x' is not a 64-bit integer"),
        (Policy.read, "cleanup.policy=compact,cleanup.policy=delete", "gives cleanup.policy twice"),
        (Policy.read, "retention.mss=5", "did you mean retention.ms"),
        (Policy.read, "retention.ms=-2", "--policy: retention.ms = '-2' is less than -1"),
        (Policy.read, "cleanup.policy=shrink", "--policy: cleanup.policy = 'shrink' is not a list of compact, delete"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_an_error_in_one_line_with_its_place_and_key(
    read: Callable[[str], object], text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert read is not second_line or str(error.value).startswith("server.properties: ")


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
