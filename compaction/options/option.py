"""An option: a row of ``compaction.options.table``, the combinations that are errors, and the rows of one command.

The parser, help, completion, signatures of the Python API, options in a report and the reference derive from the rows. A call
has the values of all rows: those that were given, and defaults. Errors name options by their flags; the Python API puts its
keywords in their place.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_args

from compaction.errors import UsageError, wording
from compaction.files.calls import call as storage_call
from compaction.options.values import NamedSettings, Texts, Time, as_of_ms, iso_time_ms, texts

Values = TypeVar("Values")
P = ParamSpec("P")
R = TypeVar("R")

#: shown in place of a value that may be a key
HIDDEN = "[hidden]"
_PASSWORD = re.compile(r"(?i)(password|secret|credential|token|jaas)[^=]*=")


@dataclass(frozen=True)
class Option:
    """One option.

    :ivar group: the heading of its help
    :ivar flag: its name on the command line
    :ivar text: its help
    :ivar metavar: the name of its value; a switch has none
    :ivar const: the value of the flag without an argument
    :ivar choices: the possible values, all of them texts
    :ivar read: reads the text of a command line; it raises ``ValueError``
    :ivar many: it takes any number of values
    :ivar texts_of: their texts, if they can be given in other forms
    :ivar usual: the short help shows it
    :ivar recorded: it changes the output, which records it
    :ivar hidden: its values are never shown: they may be keys
    :ivar texts: its help in single commands
    :ivar others: other flags of the same keyword, of which a call has at most one
    """

    group: str
    flag: str
    text: str
    metavar: str | None = None
    default: Any = None
    const: Any = None
    choices: Collection[str] | None = None
    read: Callable[[str], object] | None = None
    many: bool = False
    texts_of: Callable[[Any], list[str]] | None = None
    required: bool = False
    usual: bool = False
    recorded: bool = False
    hidden: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Option, ...] = ()

    @property
    def is_switch(self) -> bool:
        return self.default is False

    def plain(self, value: Any) -> Any:
        """A value as it is compared and shown: paths are texts, times are milliseconds, several values are a list.

        :raises UsageError: it is not a time
        """
        if self.many:
            return (self.texts_of or texts)(value)
        if self.read is iso_time_ms:
            return as_of_ms(value, self.flag)
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    def shown(self, value: Any) -> Any:
        """A value for documents; those that may be keys are hidden."""
        return [HIDDEN] * len(value) if self.hidden else value


@dataclass(frozen=True)
class Combination:
    """Options that contradict each other, or that need others: an error of each command that has the options.

    :ivar given: an error if one of these keywords is given, with one of ``excluded``, or with none of ``needed``
    :ivar of: commands; by default all that have the options
    """

    given: tuple[str, ...]
    message: str
    hint: str
    excluded: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    of: tuple[str, ...] = ()

    def applies(self, command: str, keywords: Container[str]) -> bool:
        """Whether a command has the options."""
        named = any(name in keywords for name in self.excluded or self.needed) and any(name in keywords for name in self.given)
        return named and (not self.of or command in self.of)


_DROP = "drop one of the two options"
_LIMITS = ("max_duration", "max_rewrite", "min_freed")

COMBINATIONS = (
    Combination(("release_early",), "--release-early: a copy replaces no segments", _DROP, excluded=("output_dir",)),
    Combination(("release_early",), "--release-early removes what --verify compares the result with", _DROP,
                excluded=("verify",)),
    Combination(_LIMITS, "--max-duration, --max-rewrite and --min-freed limit runs in place: a copy has all logs",
                "drop --output-dir, or the limits", excluded=("output_dir",)),
    Combination(("max_duration",), "--max-duration: a dry run cannot say how fast the run would be", _DROP,
                excluded=("dry_run",)),
    Combination(("accept_loss",), "--accept-loss is an option of --output-layout", "see --help", needed=("output_layout",)),
    Combination(("output_layout",), "--output-layout needs --output-dir", "name a new directory, or a URI",
                needed=("output_dir",)),
    Combination(("output_layout",), "--output-layout cannot be combined with --replace and --if-done", "name a new directory",
                excluded=("replace", "if_done")),
    Combination(("output_layout",), "--output-layout cannot be combined with --since", _DROP, excluded=("since",)),
    Combination(("if_done",), "--if-done needs --certificate: only a certificate records which keys were erased",
                "give the same --certificate FILE to each call of the slot", needed=("certificate",)),
    Combination(("replace", "if_done"), "--replace and --if-done need --output-dir", "see --help", needed=("output_dir",)),
    Combination(("if_done",), "--if-done needs --as-of: without it each run has another time", "e.g. --as-of 2026-11-22T02:00Z",
                needed=("as_of",)),
    Combination(("since",), "--since needs --output-dir, and no --dry-run", "see --help", excluded=("dry_run",),
                needed=("output_dir",)),
    Combination(("certificate",), "--certificate: a dry run changes nothing to certify", _DROP, excluded=("dry_run",)),
    Combination(("keys", "where"), "--keys and --where need --certificate", "see --help", needed=("certificate",),
                of=("verify",)),
    Combination(("explain",), "--explain takes neither --topic, --partition, --html nor --metrics",
                "name the partitions to explain", excluded=("topics", "partitions", "html", "metrics")),
    Combination(("over_time",), "--over-time takes neither --explain nor --include-active", "drop one of the options",
                excluded=("explain", "include_active")),
    *(Combination((name,), f"{flag} is an option of --over-time", "add --over-time", needed=("over_time",)) for name, flag in (
        ("from_time", "--from"), ("to_time", "--to"), ("every", "--every"), ("ahead", "--ahead"))),
    Combination(("to_time",), "--to is a time up to --as-of, and not given with --ahead",
                "use --ahead for the time after it", excluded=("ahead",)),
    *(Combination((name,), f"{flag} is an option of a count of bytes", "add --bytes", needed=("stored",))
      for name, flag in (("group_by", "--group-by"), ("as_of", "--as-of"))),
    Combination(("stored",), "with a count of bytes, records are those of read_committed", "omit --isolation-level",
                excluded=("isolation_level",)),
    Combination(("broker_logs",), "--broker-log needs --log-dir", "give the log directories of that broker",
                needed=("log_dirs",)),
    Combination(("offsets",), "--offsets and --timestamp select different records", _DROP, excluded=("timestamp",)),
)  # fmt: skip


class CommandOptions(Generic[Values]):
    """The options of a command.

    :param name: its name in the console command
    :param keywords: the ``TypedDict`` of the options that its function takes
    :param command_line: rows of those that only its command line has
    :param description: the paragraphs above them in its help
    :param epilog: the sections below them; it begins with the exit status if that is not the one of most commands
    """

    def __init__(
        self, name: str, keywords: type[Values], *command_line: Mapping[str, Option], description: str, epilog: str
    ) -> None:
        self.name, self.description, self.epilog = name, description, epilog
        self.keywords = rows_of(keywords)
        self.rows = {keyword: row for rows in (*command_line, self.keywords) for keyword, row in rows.items()}
        self._combinations = [each for each in COMBINATIONS if each.applies(name, self.rows)]
        self._hints = keywords.__annotations__
        self._run: Callable[..., Any]

    def complete(self, given: Mapping[str, object]) -> Values:
        """The values of all keywords, in the form in which they are used.

        :param given: the keywords of a call, or all values of a command line
        :raises UsageError: a value is none of its choices, or options contradict each other
        """
        values = {name: row.plain(given.get(name, row.default)) for name, row in self.keywords.items()}
        for value, row in zip(values.values(), self.keywords.values(), strict=True):
            if row.choices is not None and isinstance(value, str) and value not in row.choices:
                raise UsageError(f"{row.flag}: {value!r} is not one of {', '.join(row.choices)}", hint="see --help")
        self.check({**given, **values})
        return cast("Values", values)

    def in_report(self, values: Mapping[str, object], source: str = "call") -> dict[str, dict[str, object]]:
        """Options with their values and sources, as reports have them; passwords, and values that may be keys, are hidden.

        :param source: the source of values that are not the default
        """
        found: dict[str, dict[str, object]] = {}
        for name, row in ((name, self.rows[name]) for name in values if name in self.rows):
            value = row.shown(values[name])
            is_default = value == row.default or (not value and not row.default)
            shown = _without_passwords(value)
            shown = shown if isinstance(shown, (str, int, float, list, type(None))) else str(shown)
            for each in [row] if source == "call" else [row, *row.others]:
                found[each.flag] = {"value": shown, "source": "default" if is_default else source}
        found.pop("", None)
        return found

    def check(self, values: Mapping[str, object]) -> None:
        """:raises UsageError: options contradict each other"""

        def is_given(name: str) -> bool:
            row = self.rows.get(name)
            value = values.get(name)
            return bool(value) and (row is None or value != row.default)

        for each in self._combinations:
            if any(map(is_given, each.given)) and (
                any(map(is_given, each.excluded)) or (each.needed and not any(map(is_given, each.needed)))
            ):
                raise UsageError(each.message, hint=each.hint)

    def function(self, function: Callable[P, R]) -> Callable[P, R]:
        """Makes a function of the Python API from one that takes the values of all keywords. Its errors name keywords."""
        self._run = function
        keywords = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=row.default, annotation=_type_name(get_args(self._hints[name])[0])
            )
            for name, row in self.keywords.items()
        ]
        signature = inspect.signature(function)
        signature = signature.replace(parameters=[*_own(signature), *keywords])

        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            try:
                arguments = signature.bind(*args, **given).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            token = wording.set(self.in_keywords)
            try:
                with storage_call():
                    return cast("R", self.run(arguments))
            except UsageError as error:
                error.reword(self.in_keywords)
                raise
            finally:
                wording.reset(token)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    def run(self, given: Mapping[str, object]) -> Any:
        """Calls the function of the Python API with the values of a command line. Its errors name flags."""
        own = {each.name: given[each.name] for each in _own(inspect.signature(self._run)) if each.name in given}
        return self._run(**own, **cast("Mapping[str, object]", self.complete(given)))

    def in_keywords(self, text: str) -> str:
        """A message with the names of keywords in place of flags."""
        keywords = {each.flag: name for name, row in self.rows.items() for each in (row, *row.others)}
        text = text.replace("see --help", f"see help(compaction.{self._run.__name__})")
        return re.sub(r"--[a-z][a-z-]*[a-z]", lambda match: keywords.get(match[0], match[0]), text)


def _without_passwords(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_without_passwords(element) for element in value]
    match = _PASSWORD.search(value) if isinstance(value, str) else None
    return value if match is None else f"{match.string[: match.end()]}{HIDDEN}"


def _own(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters of a function that are no options."""
    return [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]


def rows_of(table: type) -> dict[str, Option]:
    return {
        keyword: next(row for row in get_args(hint) if isinstance(row, Option))
        for keyword, hint in table.__annotations__.items()
    }


def _type_name(hint: Any) -> str:
    names = [(Texts, "Texts"), (NamedSettings, "NamedSettings"), (Time | None, "Time | None")]
    if (name := next((name for alias, name in names if alias == hint), None)) is not None:
        return name
    return hint.__name__ if isinstance(hint, type) else str(getattr(hint, "__forward_arg__", hint))
