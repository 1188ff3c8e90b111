"""The table of options: what derives from it holds for each row and each combination of each command."""

from __future__ import annotations

from itertools import product

import pytest

from compaction.cli.console import COMMANDS
from compaction.cli.parser import Parser
from compaction.errors import UsageError
from compaction.options.option import COMBINATIONS, CommandOptions, Option
from compaction.options.table import GROUPS

OPTIONS: dict[str, CommandOptions[object]] = {each.name: each.load().OPTIONS for each in COMMANDS}
ROWS = [(command, name) for command, options in OPTIONS.items() for name in options.rows]
APPLIED = [
    (command, combination)
    for command, combination in product(OPTIONS, COMBINATIONS)
    if combination.applies(command, OPTIONS[command].rows)
]


def row_of(command: str, name: str) -> Option:
    return OPTIONS[command].rows[name]


def given(row: Option) -> object:
    """A value that is not the default."""
    if row.many or row.metavar is not None:
        return ["x"] if row.many else "x"
    return True if row.is_switch else next(each for each in row.choices or ("x",) if each != row.default)


@pytest.mark.parametrize(("command", "name"), ROWS)
def test_a_row_is_complete(command: str, name: str) -> None:
    row = row_of(command, name)
    assert row.group in GROUPS
    assert row.text and not row.text.endswith(".")
    assert row.choices is None or row.default is None or row.default in row.choices
    assert not (row.many and row.default), "a list is empty by default"


@pytest.mark.parametrize("command", OPTIONS)
def test_the_short_help_has_the_options_that_people_use(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Parser(OPTIONS[command]).print_usual()
    short = capsys.readouterr().out
    usual = [row for row in OPTIONS[command].rows.values() if row.usual and row.flag]
    assert 0 < len(usual) <= 13
    assert all(row.flag in short for row in usual)
    hidden = len(OPTIONS[command].rows) - sum(row.usual for row in OPTIONS[command].rows.values())
    assert (f"--help-all shows {hidden}" in short) or hidden <= 2


@pytest.mark.parametrize("command", OPTIONS)
def test_the_complete_help_has_every_flag(command: str) -> None:
    text = Parser(OPTIONS[command]).format_help()
    rows = OPTIONS[command].rows.values()
    assert [row.flag for row in rows if row.flag not in text] == []
    assert [other.flag for row in rows for other in row.others if other.flag not in text] == []


@pytest.mark.parametrize(("command", "combination"), APPLIED, ids=lambda each: each if isinstance(each, str) else each.message)
def test_a_wrong_combination_is_refused_in_the_words_of_the_caller(command: str, combination: object) -> None:
    assert combination in COMBINATIONS
    wrong = next(each for each in COMBINATIONS if each == combination)
    options = OPTIONS[command]
    names = next(name for name in wrong.given if name in options.rows), *[n for n in wrong.excluded[:1] if n in options.rows]
    with pytest.raises(UsageError) as raised:
        options.check({name: given(options.rows[name]) for name in names})
    flags = [row.flag for row in options.rows.values() if row.flag]
    keywords = options.in_keywords(str(raised.value))
    assert [flag for flag in flags if f"{flag} " in keywords and flag.startswith("--")] == []


def test_every_combination_applies_to_a_command() -> None:
    assert [each.message for each in COMBINATIONS if each not in [applied for _, applied in APPLIED]] == []


def test_an_unknown_keyword_is_a_type_error_as_of_any_function() -> None:
    import compaction

    with pytest.raises(TypeError, match=r"compact\(\) got an unexpected keyword argument 'topic'"):
        compaction.compact("/nowhere", topic="orders")  # type: ignore[call-arg]


def test_flags_and_keywords_are_unique_in_a_command() -> None:
    for command in COMMANDS:
        actions = Parser(command.load().OPTIONS)._actions
        flags = [flag for action in actions for flag in action.option_strings]
        assert len(flags) == len(set(flags))
