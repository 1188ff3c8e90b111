"""The table of options: what derives from it holds for each row and each combination of each command. Each row has a good
value, and bad ones that its command refuses in one line. Times, durations, sizes and shares are read as people write them; a
missing or mistaken unit is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import compaction
from compaction.cli.console import COMMANDS, load, main
from compaction.cli.parser import Parser
from compaction.errors import UsageError
from compaction.options.option import COMBINATIONS, HIDDEN, Combination, CommandOptions, Option
from compaction.options.table import GROUPS
from compaction.options.values import iso_time_ms, milliseconds, read_duration, read_share, read_size
from tests.commands.named_logs import two_topics
from tests.commands.transcripts import CALLS

OPTIONS: dict[str, CommandOptions[object]] = {each: load(each).OPTIONS for each in COMMANDS}
ROWS = [(command, name) for command, options in OPTIONS.items() for name in options.rows]
APPLIED = [
    (command, combination)
    for command, combination in product(OPTIONS, COMBINATIONS)
    if combination.applies(command, OPTIONS[command].rows)
]
#: a call that lacks nothing; ``data`` has logs
CALL = {
    "dump-log": ["--files", "data/orders-0"], "verify": ["--before", "data", "--after", "data"], "warm-up": [],
    "completion": ["bash"], "erase": ["--log-dir", "data", "--where", "prefix=k"],
}  # fmt: skip
#: what an option needs beside it
NEEDS = {
    "every": ["--over-time"], "ahead": ["--over-time"], "from_time": ["--over-time"],
    "to_time": ["--over-time"], "group_by": ["--bytes"], "certificate": ["--where", "prefix=k"],
    "keys_column": ["--keys", f"data/orders-0/{0:020d}.log", "--certificate", "c.json"],
    "accept_loss": ["--output-layout", "backup", "--output-dir", "new"], "since": ["--output-dir", "new"],
}  # fmt: skip
#: by the name of a value in the help: a good one, and bad ones that no reader of the parser refuses
VALUES: dict[str, tuple[str, tuple[str, ...]]] = {
    "REGEX": ("orders.*", ("(", "nothing")),
    "TOPIC-N": ("orders-0", ("orders", "orders-77")),
    "TOPIC-N:OFFSET": ("orders-0:5", ("orders-0", "orders-0:x")),
    "DIR": ("data", ("s3://name:password@bucket/place",)),
    "FILE": ("data/orders-0/file", ("/no/such/file",)),
    "F": ("data/orders-0", ("/no/such/file",)),
    "[ID=]FILE": ("key.pem", ("/no/such/file",)),
    "KEY=VALUE": ("retention.ms=1", ("retention.ms", "retention.mss=1", "retention.ms=one")),
    "K=V,K=V": ("retention.ms=1", ("compact", "retention.mss=1")),
    "VERSION": ("3.9", ("1.0", "newest")),
    "PATTERN": ("prefix=k", ("k", "regex=(", "@/no/such/file")),
    "NAME": ("column", ("column",)),
    "TIME": ("2026-11-22T02:00Z", ("soon", "0")),
    "MS": ("1795312800000", ("1e3",)),
    "SIZE": ("500GiB", ("5G", "500")),
    "SHARE": ("10%", ("10", "101%")),
    "N": ("3", ("-1", "1k", "3.0")),
    "A:B": ("4:7", (":", "7:4", "9223372036854775808")),
    "CLASS": ("org.apache.kafka.tools.api.LongDecoder", ("my.Decoder",)),
    "GROUPS": ("prefix:3", ("prefix", "regex:(")),
}


def row_of(command: str, name: str) -> Option:
    return OPTIONS[command].rows[name]


def flags_of(row: Option) -> list[Option]:
    return [each for each in (row, *row.others) if each.flag.startswith("--")]


def good(row: Option) -> list[str]:
    """The words of a value that is not the default."""
    if row.is_switch or (row.const is not None and row.metavar is None):
        return []
    if row.choices is not None:
        return [next(each for each in row.choices if each != row.default)]
    return [VALUES[row.metavar or ""][0]]


def bad(row: Option) -> Iterator[list[str]]:
    """The words of values that are refused: by the kind of the option, its reader, and the name of its value."""
    if row.is_switch:
        return
    if row.const is None:
        yield []
        yield [""]
    if row.choices is not None:
        yield ["no-such"]
        return
    if row.metavar is None:
        return
    yield from ([text] for text in VALUES[row.metavar][1])
    if row.read is not None:
        with pytest.raises(ValueError, match="is not a") as refused:
            row.read("x")
        if largest := re.search(r"between 0 and (\d+)", str(refused.value)):
            assert row.read(largest[1]) == int(largest[1])
            yield [str(int(largest[1]) + 1)]


@pytest.mark.parametrize(("command", "name"), ROWS)
def test_a_row_is_complete(command: str, name: str) -> None:
    row = row_of(command, name)
    assert row.group in GROUPS
    assert row.text and not row.text.endswith(".")
    assert row.choices is None or row.default is None or row.default in row.choices
    assert not (row.many and row.default), "a list is empty by default"


@pytest.mark.parametrize(("command", "name"), ROWS)
def test_a_good_value_is_read_and_reported(command: str, name: str) -> None:
    row = row_of(command, name)
    for each in flags_of(row):
        call = CALL.get(command, ["--log-dir", "data"])
        before = [word for at in range(0, len(call), 2) if call[at] != each.flag for word in call[at : at + 2]]
        given = vars(Parser(OPTIONS[command]).parse_args([*before, each.flag, *good(each)]))
        found = OPTIONS[command].in_report(given, "command line")[each.flag]
        assert found["source"] == "command line"
        shown = found["value"]
        assert not row.hidden or set(shown) == {HIDDEN}  # type: ignore[call-overload]
        assert row.hidden or each.read is not None or not good(each) or shown in (good(each)[0], [*dict.fromkeys(good(each))])


@pytest.mark.parametrize(("command", "name"), ROWS)
def test_a_bad_value_is_refused_in_one_line_that_names_it(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_topics(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [""])
    row = row_of(command, name)
    before = sorted(tmp_path.rglob("*"))
    for each in flags_of(row):
        calls = [[each.flag, *words] for words in bad(each)] + ([[f"{each.flag}=yes"]] if row.is_switch else [])
        for call in calls:
            capsys.readouterr()
            code = main([command, *CALL.get(command, ["--log-dir", "data"]), *NEEDS.get(name, []), *call])
            out, err = capsys.readouterr()
            assert (code, out) == (2, ""), (call, err)
            assert re.fullmatch(r"error: .*\n", err) and any(word in err for word in (each.flag, *call[1:])), (call, err)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", OPTIONS)
def test_the_short_help_has_the_options_that_people_use_and_the_complete_one_every_flag_once(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Parser(OPTIONS[command]).print_usual()
    short = capsys.readouterr().out
    usual = [row for row in OPTIONS[command].rows.values() if row.usual and row.flag]
    assert 0 < len(usual) <= 13
    assert all(row.flag in short for row in usual)
    hidden = len(OPTIONS[command].rows) - sum(row.usual for row in OPTIONS[command].rows.values())
    assert (f"--help-all shows {hidden}" in short) or hidden <= 2
    text = Parser(OPTIONS[command]).format_help()
    flags = [each.flag for row in OPTIONS[command].rows.values() for each in (row, *row.others) if each.flag]
    assert [flag for flag in flags if flag not in text] == []
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(("command", "combination"), APPLIED, ids=lambda each: each if isinstance(each, str) else each.message)
def test_a_wrong_combination_is_refused_in_the_words_of_the_caller(command: str, combination: Combination) -> None:
    options = OPTIONS[command]
    flags = [row.flag for row in options.rows.values() if row.flag]
    for name, excluded in product(combination.given, combination.excluded or ("",)):
        if name not in options.rows or (excluded and excluded not in options.rows):
            continue
        values: dict[str, object] = {each: True for each in (name, excluded) if each}
        needed = {each: True for other in COMBINATIONS if other is not combination for each in other.needed}
        with pytest.raises(UsageError) as raised:
            options.check({**{each: True for each in needed if each not in combination.needed}, **values})
        keywords = options.in_keywords(str(raised.value))
        assert [flag for flag in flags if f"{flag} " in keywords and flag.startswith("--")] == []


def test_every_combination_applies_to_a_command_and_is_called() -> None:
    assert [each.message for each in COMBINATIONS if each not in [applied for _, applied in APPLIED]] == []
    called = (CALLS / "combinations.txt").read_text(encoding="utf-8")
    assert [each.message for each in COMBINATIONS if each.message not in called] == []


def test_an_unknown_keyword_is_a_type_error_as_of_any_function() -> None:
    with pytest.raises(TypeError, match=r"compact\(\) got an unexpected keyword argument 'topic'"):
        compaction.compact("/nowhere", topic="orders")  # type: ignore[call-arg]


TIME_MS = 1_795_312_800_000


duration, size, share = (partial(read, "--x") for read in (read_duration, read_size, read_share))


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (iso_time_ms, {
            "2026-11-22T02:00Z": TIME_MS, "2026-11-22 02:00:00z": TIME_MS, "2026-11-22T03:30:00+01:30": TIME_MS,
            "2026-11-21T21:00-0500": TIME_MS, "2026-11-22T02:00:00.123456+00:00": TIME_MS + 123,
            "2000-01-01T00:00Z": 946_684_800_000,
        }),
        (milliseconds, {"946684800000": 946_684_800_000}),
        (duration, {"2h": 7_200_000, "1h30m": 5_400_000, 1000: 1000, None: None}),
        (size, {"500GiB": 500 << 30, "500B": 500, "1048576": 1 << 20, 4096: 4096, None: None}),
        (share, {"10%": 0.1, " 0.5 %": 0.005, "100%": 1.0, None: None}),
    ],
)  # fmt: skip
def test_values_are_read(read: Callable[[Any], object], values: dict[Any, object]) -> None:
    assert {value: read(value) for value in values} == values


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (iso_time_ms, "yesterday", "is not a time such as 2026-11-22T02:00Z"),
        (iso_time_ms, "2026-02-30", "is not a valid time"),
        (iso_time_ms, "1999-12-31", "is a time before the year 2000"),
        (iso_time_ms, "2026-11-22T02:00", "has no offset from UTC: append Z"),
        (iso_time_ms, "2026-11-22T02:00+5", "is not a time such as 2026-11-22T02:00Z"),
        (iso_time_ms, "2026-11-22+05", "is not a time such as 2026-11-22T02:00Z"),
        (iso_time_ms, "2026-02-30T02:00Z", "is not a valid time"),
        (iso_time_ms, "1999-12-31T23:59:59Z", "is a time before the year 2000"),
        (milliseconds, "1795312800", "before the year 2000"),
        (milliseconds, "946684799999", "before the year 2000"),
        (milliseconds, "1795312800000000", "after the year 9999"),
        (milliseconds, "-1", "is not a time in milliseconds"),
        (milliseconds, "1e12", "is not a time in milliseconds"),
        (duration, "soon", "--x: 'soon' is not a time"),
        (duration, 0, "--x: '0' is not a time"),
        (size, "5G", "--x: '5G' is ambiguous"),
        (size, "500", "--x: '500' would be 500 bytes"),
        (size, "-1", "--x: '-1' is not a size"),
        (share, "10", "--x: '10' is not a share in per cent"),
        (share, "101%", "--x: '101%' is not a share in per cent"),
    ],
)
def test_a_value_is_refused(read: Callable[[Any], object], value: object, message: str) -> None:
    # a usage error, or an error of a reader for the parser
    with pytest.raises(Exception, match=message):
        read(value)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("2026-11-24", "2026-11-24T00:00Z"),
        ("2027-01-01", "2027-01-01T00:00Z"),
        ("2026-11-22T07:00+05", "2026-11-22T07:00+05:00"),
        ("2026-11-22 07:00:00.5-11", "2026-11-22 07:00:00.5-11:00"),
    ],
)
def test_a_date_is_its_midnight_in_utc_and_an_offset_may_be_of_hours_and_both_are_said(
    text: str, full: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert iso_time_ms(text) == iso_time_ms(full)
    assert [record.getMessage() for record in caplog.records] == [f"the time {text} is read as {full}"]
