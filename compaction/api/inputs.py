"""From the parameters of a call to a checked request: configuration, selected logs, directories, the time of the run.

A time is given in milliseconds since the epoch, or as ISO 8601 with an offset from UTC. Times before 2000 are refused as
seconds given for milliseconds, times after 9999 as microseconds.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

from compaction.cleaning.kafka_rules import rules_of
from compaction.config import Resolver, TomlSettings, read_properties, read_sets, read_toml
from compaction.config.request import CompactionRequest
from compaction.config.sources import Setting
from compaction.errors import StorageError, UsageError
from compaction.formats.properties import parse_properties
from compaction.logdir.discover import Selector, check_log_dirs, discover, require_logs
from compaction.logdir.settings.metadata_sources import require_metadata_log
from compaction.names import CLUSTER_METADATA_TOPIC, LogLocation
from compaction.screen.steps import step
from compaction.storage.clients import require_store
from compaction.storage.contents import digest_of
from compaction.storage.kinds import storage_of
from compaction.storage.layouts.data_keys import add_private_keys
from compaction.storage.mixed import file_system
from compaction.storage.remote import require_finished
from compaction.storage.text_files import read_text
from compaction.storage.uri import add_tail, is_inside, is_layout, parse_uri, place_of, resolved

_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d)(?P<s>:\d\d)?(?P<fraction>\.\d{1,9})?(?P<offset>Z|z|[+-]\d\d:?\d\d)?"
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_MS = 946_684_800_000
_LAST_MS = 253_402_300_799_999


def milliseconds(text: str) -> int:
    """A time in milliseconds since the epoch, from their decimal digits.

    :raises ValueError: not a time, or before 2000 or after 9999
    """
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not a time in milliseconds since the epoch")
    return _in_range(int(text), text)


def iso_time_ms(text: str) -> int:
    """A time in milliseconds since the epoch, from ISO 8601 with an offset from UTC: ``2026-11-22T02:00Z``.

    :raises ValueError: not such a time, or before 2000
    """
    match = _ISO.fullmatch(text)
    if match is None and _DATE.fullmatch(text):
        raise ValueError(f"{text!r} is a date without a time: {text}T00:00Z is its midnight in UTC")
    if match is None:
        raise ValueError(f"{text!r} is not a time such as 2026-11-22T02:00Z or 2026-11-22T03:00:00+01:00")
    if match["offset"] is None:
        raise ValueError(f"{text!r} has no offset from UTC: append Z, or an offset such as +01:00")
    offset = "+0000" if match["offset"] in "Zz" else match["offset"]
    try:
        whole = datetime.strptime(f"{match['date']}T{match['time']}{match['s'] or ':00'}{offset}", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        raise ValueError(f"{text!r} is not a valid time") from None
    return _in_range((whole - _EPOCH) // timedelta(milliseconds=1) + int(Fraction(f"0{match['fraction'] or ''}") * 1000), text)


def _in_range(time_ms: int, text: str) -> int:
    if time_ms < _FIRST_MS:
        raise ValueError(f"{text!r} is a time before the year 2000; milliseconds since the epoch have 13 digits")
    if time_ms > _LAST_MS:
        raise ValueError(f"{text!r} is a time after the year 9999; milliseconds since the epoch have 13 digits")
    return time_ms


AUTO = "auto"

#: one value or several
Texts = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
#: settings by name, or as ``NAME=VALUE``
NamedSettings = Mapping[str, object] | Iterable[str]
#: ISO 8601 with an offset from UTC, or milliseconds since the epoch
Time = str | int | datetime


def texts(values: Texts) -> list[str]:
    return [os.fspath(value) for value in ((values,) if isinstance(values, (str, os.PathLike)) else values)]


def pairs(settings: NamedSettings) -> list[str]:
    """Settings as ``NAME=VALUE``; several values of one are joined by commas."""
    if isinstance(settings, Mapping):
        return [f"{name}={_value(value)}" for name, value in settings.items()]
    return [settings] if isinstance(settings, str) else list(settings)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@dataclass(frozen=True)
class Inputs:
    """The parameters that commands have in common; the fields are named as the parameters of the Python API.

    :ivar extra: other parameters of the command that change its output, by name
    """

    command: str
    log_dirs: Sequence[str]
    topics: Sequence[str] = ()
    partitions: Sequence[str] = ()
    allow_empty: bool = False
    tail: str | None = None
    private_keys: Sequence[str] = ()
    config: Sequence[str] = ()
    settings: Sequence[str] = ()
    metadata: Sequence[str] = ()
    assume_default_policy: bool = False
    as_of_ms: int | None = None
    #: the current time for every rule of the call, in milliseconds: the only place that reads the clock
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    kafka_version: str = AUTO
    dry_run: bool = False
    output_dir: str | None = None
    output_layout: str | None = None
    accept_loss: str | None = None
    replace: bool = False
    if_done: str | None = None
    since: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    #: all parameters of the call, for its report
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, command: str, parameters: Mapping[str, Any], *extra: str) -> Inputs:
        """The inputs among the parameters of a call.

        :param extra: names of parameters that change an output
        :raises UsageError: a time is invalid
        """
        lists, paths = dict.fromkeys(_LISTS, texts), dict.fromkeys(_PATHS, _path)
        read: dict[str, Callable[[Any], Any]] = {"as_of": as_of_ms, "settings": pairs, **lists, **paths}
        values: dict[str, Any] = {name: read[name](value) if name in read else value for name, value in parameters.items()}
        common = set(cls.__dataclass_fields__) - {"command", "extra", "parameters"}
        fields: dict[str, Any] = {name: values[name] for name in values if name in common}
        own_parameters = {name: values[name] for name in extra}
        if (time_ms := values.get("as_of")) is not None:
            fields |= {"as_of_ms": time_ms, "now_ms": time_ms}
        return cls(command=command, extra=own_parameters, parameters=values, **fields)

    @property
    def to_store(self) -> bool:
        return self.output_dir is not None and storage_of(self.output_dir).round_trips


_LISTS = ("log_dirs", "topics", "partitions", "private_keys", "config", "metadata")
_PATHS = ("tail", "output_dir", "since")


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def as_of_ms(time: Time | None) -> int | None:
    """A time of a call in milliseconds since the epoch.

    :raises UsageError: not a time with an offset from UTC
    """
    if time is None:
        return None
    try:
        if isinstance(time, int):
            return milliseconds(str(time))
        return iso_time_ms(time.isoformat() if isinstance(time, date) else str(time))
    except ValueError as error:
        raise UsageError(f"as_of: {error}", hint="give a time with its offset from UTC") from None


def read_request(inputs: Inputs, selector: Selector | None = None) -> CompactionRequest:
    """The request of a command, from the common parameters.

    :param selector: the logs; by default those of ``--topic`` and ``--partition``
    :raises UsageError: an argument is invalid
    """
    step("reading the call")
    resolver = read_resolver(inputs)
    log_dirs, logs = find_logs(inputs, selector or read_selector(inputs))
    return CompactionRequest(
        log_dirs,
        logs,
        inputs.now_ms,
        resolver=resolver,
        metadata_dirs=read_metadata_dirs(inputs),
        dry_run=inputs.dry_run,
        kafka_version=read_kafka_version(inputs),
    )


def read_resolver(inputs: Inputs) -> Resolver:
    """All configuration of the call.

    :raises UsageError: a file cannot be read
    :raises ConfigError: an unknown name or an invalid value, with file, line and key
    """
    tomls: list[TomlSettings] = []
    settings: list[Setting] | None = None
    for path in inputs.config:
        if path.lower().endswith(".toml"):
            tomls.append(read_toml(read_text(path), path))
        else:
            # a broker reads its properties as Latin-1, as java.util.Properties does
            properties = read_properties(parse_properties(read_text(path, "latin-1"), path), path)
            settings = [*(settings or []), *properties]
    read_keys(inputs.private_keys, tomls)
    resolver = Resolver(
        read_sets(inputs.settings, read_kafka_version(inputs)),
        tuple(tomls),
        None if settings is None else tuple(settings),
        assume_default_policy=inputs.assume_default_policy,
    )
    resolver.broker()
    return resolver


def read_kafka_version(inputs: Inputs) -> str | None:
    """The version of ``--kafka-version``; ``None`` for ``auto``, and for a command without the option.

    :raises UsageError: a version whose rules are not known
    """
    if inputs.kafka_version == AUTO:
        return None
    rules_of(inputs.kafka_version)
    return inputs.kafka_version


def read_selector(inputs: Inputs, option: str = "--partition") -> Selector:
    """The selected logs.

    :param option: the option that names partitions
    :raises UsageError: an invalid pattern or partition name, or the metadata log
    """
    selector = Selector.parse(inputs.topics, inputs.partitions, option)
    named = {option: [partition.topic for partition in selector.partitions], "--topic": inputs.topics}
    for option, topics in named.items():
        if CLUSTER_METADATA_TOPIC in topics:
            raise UsageError(f"{option}: {CLUSTER_METADATA_TOPIC} is never touched", hint="a broker prunes it by snapshots")
    return selector


def find_logs(inputs: Inputs, selector: Selector) -> tuple[tuple[str, ...], tuple[LogLocation, ...]]:
    """The log directories without duplicates, absolute paths or URIs without their options, and the selected logs in them.

    A run lists its directories only here, before it locks them, so that a wrong call changes nothing.

    :raises UsageError: a directory is missing, is not a directory, is a partition's, is inside another, is incomplete or cannot
        be accessed; a selected partition does not exist; or no log is selected, unless the call allows that
    """
    paths = [parse_uri(path, "--log-dir") for path in inputs.log_dirs]
    step(f"looking for logs in {paths[0] if len(paths) == 1 else f'{len(paths)} directories'}")
    join_tail(inputs.tail, paths)
    files = file_system(paths)
    with usage_errors():
        log_dirs = check_log_dirs(files, paths)
        for path in log_dirs:
            outer = next((other for other in log_dirs if other != path and is_inside(path, other)), None)
            if outer is not None:
                raise UsageError(f"--log-dir: it is inside {outer}, which is also given", path=path, hint="give one of them")
            require_finished(path)
        logs = discover(files, log_dirs, selector)
        if not inputs.allow_empty:
            require_logs(files, logs, log_dirs, selector)
        return log_dirs, logs


def read_metadata_dirs(inputs: Inputs) -> tuple[str, ...]:
    """The directories of ``--metadata`` without duplicates: absolute paths, or URIs without their options.

    :raises UsageError: one has no metadata log, or cannot be accessed
    """
    paths = [parse_uri(path, "--metadata") for path in inputs.metadata]
    files = file_system(paths)
    with usage_errors():
        for path in paths:
            require_store(path)
            require_metadata_log(files, path)
    return tuple(dict.fromkeys(map(resolved, paths)))


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns errors of file systems into usage errors, because the run has not begun."""
    try:
        yield
    except StorageError as error:
        raise UsageError(error.message, path=error.path, hint=error.hint) from error


def with_output(inputs: Inputs, request: CompactionRequest) -> CompactionRequest:
    """The request with the options of a copy.

    :raises UsageError: they contradict each other, or the output directory is, contains or is inside a log directory
    """
    if inputs.output_dir is None and (inputs.replace or inputs.if_done):
        raise UsageError("--replace and --if-done need --output-dir", hint="see --help")
    if inputs.if_done and inputs.as_of_ms is None:
        hint = "e.g. --as-of 2026-11-22T02:00Z"
        raise UsageError("--if-done needs --as-of: without it each run has another time", hint=hint)
    target = check_output_dir(inputs.output_dir, request.log_dirs)
    request = replace(request, output_dir=target, replace=inputs.replace, since=_since(inputs, target, request.log_dirs))
    # a manifest always records it
    records = target is not None and (not storage_of(target).renames or inputs.replace or inputs.if_done or inputs.since)
    return replace(request, call=_call(inputs, request) if records else None)


def _since(inputs: Inputs, target: str | None, log_dirs: Sequence[str]) -> str | None:
    """The previous copy: an absolute path, or a URI without its options.

    :raises UsageError: nothing is copied, or to another kind of storage, or the two copies or a log directory overlap
    """
    if inputs.since is None:
        return None
    if target is None or inputs.dry_run:
        raise UsageError("--since needs --output-dir, and no --dry-run", hint="see --help")
    since = resolved(parse_uri(inputs.since, "--since"))
    if storage_of(since) is not storage_of(target):
        hint = "begin with a copy without --since there"
        raise UsageError("--since and --output-dir must both be on disks, or both in stores", path=since, hint=hint)
    for place in (target, *map(place_of, log_dirs)):
        if is_inside(since, place) or is_inside(place, since):
            raise UsageError(f"--since overlaps {place}", path=since, hint="name the output of an earlier run")
    with usage_errors():
        require_store(since)
    return since


def _call(inputs: Inputs, request: CompactionRequest) -> dict[str, Any]:
    """The parameters of the run that change its output, as values of JSON. Names are those of the options in the first version
    that recorded them."""
    resolver = request.resolver
    toml = [[settings.broker, *settings.topics.items()] for settings in resolver.tomls]
    return {
        **{name: sorted(value) if isinstance(value, list) else value for name, value in inputs.extra.items()},
        "topic": sorted(inputs.topics),
        "partition": sorted(inputs.partitions),
        # omitted by default, as in outputs of versions without these options
        **({} if inputs.tail is None else {"tail": inputs.tail}),
        **({} if request.since is None else {"since": request.since}),
        "assume_default_policy": inputs.assume_default_policy,
        "kafka_version": inputs.kafka_version,
        "command": inputs.command,
        "log_dirs": list(request.log_dirs),
        "metadata": list(request.metadata_dirs),
        "set": {setting.name: str(setting.value) for setting in resolver.sets},
        "config": digest_of(repr((toml, resolver.properties)).encode()).digest,
        "as_of_ms": request.as_of_ms,
    }


def check_output_dir(output_dir: str | None, log_dirs: Sequence[str]) -> str | None:
    """The directory for the cleaned logs: an absolute path, or a URI without its options.

    :raises UsageError: it is, contains or is inside a log directory, or its store cannot be reached
    """
    if output_dir is None:
        return None
    target = resolved(parse_uri(output_dir, "--output-dir"))
    with usage_errors():
        require_store(target)
    for log_dir in map(place_of, log_dirs):
        if is_inside(target, log_dir) or is_inside(log_dir, target):
            raise UsageError(
                f"--output-dir overlaps the log directory {log_dir}", path=output_dir, hint="choose a directory outside of it"
            )
    return target


def join_tail(tail_dir: str | None, paths: Sequence[str]) -> None:
    """Joins the log directory of ``--tail`` to the exports among ``paths``.

    :raises UsageError: none of them is an export
    """
    if tail_dir is None:
        return
    tail = parse_uri(tail_dir, "--tail")
    if not any(map(is_layout, paths)):
        raise UsageError(
            "--tail needs an export of tiered storage as --log-dir", hint="e.g. aiven+s3://BUCKET/PREFIX"
        )
    for path in paths:
        add_tail(path, tail)


def read_keys(private_keys: Iterable[str], tomls: Iterable[TomlSettings] = ()) -> None:
    """Adds the private keys of TOML files, then those of ``--private-key``.

    :raises UsageError: a file is not a private key
    """
    configured = [f"{name}={path}" for toml in tomls for name, path in toml.keys.items()]
    add_private_keys([*configured, *private_keys])
