"""From the values of a call to a checked request: configuration, selected logs, directories, the time of the run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from compaction.config.request import CompactionRequest
from compaction.config.resolver import Resolver
from compaction.config.sources import Setting, TomlSettings, read_properties, read_sets, read_toml
from compaction.errors import StorageError, UsageError
from compaction.files.contents import digest_of
from compaction.files.data_keys import add_private_keys
from compaction.files.filesystem import storage_of
from compaction.files.mixed import file_system, require_finished
from compaction.files.object_store import require_store
from compaction.files.text_files import read_text
from compaction.files.uri import add_tail, is_inside, is_layout, parse_uri, place_of, resolved
from compaction.formats.java_text import parse_properties
from compaction.log.discover import Selector, check_log_dirs, discover, require_logs
from compaction.log.metadata_logs import require_metadata_log
from compaction.names import CLUSTER_METADATA_TOPIC, LogLocation
from compaction.options.option import CommandOptions, rows_of
from compaction.options.table import AUTO, LOG_DIRS, Configuration, Copy, DryRun, PrivateKeys, Rules, Selection, Since
from compaction.options.values import Texts, texts
from compaction.rules.kafka_rules import rules_of
from compaction.screen.steps import step

V = TypeVar("V")


class _Common(Selection, PrivateKeys, Configuration, Rules, DryRun, Copy, Since, total=False):
    """The options that this module reads."""


_DEFAULTS = {name: row.default for name, row in {**LOG_DIRS, **rows_of(_Common)}.items()}


@dataclass(frozen=True)
class Inputs:
    """A call of a command: ``inputs["topics"]`` is the value of an option; of a common one that the command lacks, the default.

    :ivar given: the values of all options of the command, for documents
    :ivar now_ms: the current time for every rule of the call: the only place that reads the clock
    """

    command: CommandOptions[Any]
    given: Mapping[str, object]
    values: Mapping[str, object]
    now_ms: int

    def __getitem__(self, keyword: str) -> Any:
        return self.values[keyword]

    @classmethod
    def of(cls, command: CommandOptions[V], options: V, **log_dirs: Texts) -> Inputs:
        """The inputs of a call.

        :param options: from ``CommandOptions.complete``
        :param log_dirs: the log directories by their keywords
        """
        given = {**{name: texts(value) for name, value in log_dirs.items()}, **cast("Mapping[str, object]", options)}
        now_ms = cast("int | None", given.get("as_of"))
        return cls(command, given, {**_DEFAULTS, **given}, time.time_ns() // 1_000_000 if now_ms is None else now_ms)

    def having(self, **changes: object) -> Inputs:
        """The same call with other values; documents have those that were given."""
        return replace(self, values={**self.values, **changes})


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
        dry_run=inputs["dry_run"],
        kafka_version=read_kafka_version(inputs),
    )


def read_resolver(inputs: Inputs) -> Resolver:
    """All configuration of the call.

    :raises UsageError: a file cannot be read
    :raises ConfigError: an unknown name or an invalid value, with file, line and key
    """
    tomls: list[TomlSettings] = []
    settings: list[Setting] | None = None
    for path in inputs["config"]:
        if path.lower().endswith(".toml"):
            tomls.append(read_toml(read_text(path), path))
        else:
            # a broker reads its properties as Latin-1, as java.util.Properties does
            properties = read_properties(parse_properties(read_text(path, "latin-1"), path), path)
            settings = [*(settings or []), *properties]
    read_private_keys(inputs["private_keys"], tomls)
    resolver = Resolver(
        read_sets(inputs["settings"], read_kafka_version(inputs)),
        tuple(tomls),
        None if settings is None else tuple(settings),
        assume_default_policy=inputs["assume_default_policy"],
    )
    resolver.broker()
    return resolver


def read_kafka_version(inputs: Inputs) -> str | None:
    """The version of ``--kafka-version``; ``None`` for ``auto``, and for a command without the option.

    :raises UsageError: a version whose rules are not known
    """
    version: str = inputs["kafka_version"]
    if version == AUTO:
        return None
    rules_of(version)
    return version


def read_selector(inputs: Inputs, option: str = "--partition") -> Selector:
    """The selected logs.

    :param option: the option that names partitions
    :raises UsageError: an invalid pattern or partition name, or the metadata log
    """
    selector = Selector.parse(inputs["topics"], inputs["partitions"], option)
    named = {option: [partition.topic for partition in selector.partitions], "--topic": inputs["topics"]}
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
    paths = [parse_uri(path, "--log-dir") for path in inputs["log_dirs"]]
    step(f"looking for logs in {paths[0] if len(paths) == 1 else f'{len(paths)} directories'}")
    join_tail(inputs["tail"], paths)
    log_dirs = finished_log_dirs(paths)
    for path in log_dirs:
        outer = next((other for other in log_dirs if other != path and is_inside(path, other)), None)
        if outer is not None:
            raise UsageError(f"--log-dir: it is inside {outer}, which is also given", path=path, hint="give one of them")
    return log_dirs, logs_in(inputs, log_dirs, selector)


def finished_log_dirs(uris: Sequence[str]) -> tuple[str, ...]:
    """The log directories, without duplicates.

    :raises UsageError: one is missing, is not a directory, is a partition's, is incomplete or cannot be accessed
    """
    with usage_errors():
        log_dirs = check_log_dirs(file_system(uris), uris)
        for path in log_dirs:
            require_finished(path)
        return log_dirs


def logs_in(inputs: Inputs, log_dirs: Sequence[str], selector: Selector) -> tuple[LogLocation, ...]:
    """The selected logs.

    :raises UsageError: a selected partition does not exist; or no log is selected, unless the call allows that
    """
    files = file_system(log_dirs)
    with usage_errors():
        logs = discover(files, log_dirs, selector)
        if not inputs["allow_empty"]:
            require_logs(files, logs, log_dirs, selector)
        return logs


def read_metadata_dirs(inputs: Inputs) -> tuple[str, ...]:
    """The directories of ``--metadata`` without duplicates: absolute paths, or URIs without their options.

    :raises UsageError: one has no metadata log, or cannot be accessed
    """
    paths = [parse_uri(path, "--metadata") for path in inputs["metadata"]]
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
    target = check_output_dir(inputs["output_dir"], request.log_dirs)
    request = replace(request, output_dir=target, replace=inputs["replace"], since=_since(inputs, target, request.log_dirs))
    # a manifest always records it
    recorded = inputs["replace"] or inputs["if_done"] or inputs["since"]
    records = target is not None and (recorded or not storage_of(target).renames)
    return replace(request, call=_call(inputs, request) if records else None)


def _since(inputs: Inputs, target: str | None, log_dirs: Sequence[str]) -> str | None:
    """The previous copy: an absolute path, or a URI without its options.

    :raises UsageError: nothing is copied, or to another kind of storage, or the two copies or a log directory overlap
    """
    if inputs["since"] is None or target is None:
        return None
    since = resolved(parse_uri(inputs["since"], "--since"))
    if storage_of(since) is not storage_of(target):
        hint = "begin with a copy without --since there"
        raise UsageError("--since and --output-dir must both be on disks, or both in stores", path=since, hint=hint)
    for place in (target, *map(place_of, log_dirs)):
        if is_inside(since, place) or is_inside(place, since):
            raise UsageError(f"--since overlaps {place}", path=since, hint="name the output of an earlier run")
    with usage_errors():
        require_store(since)
    return since


def _call(inputs: Inputs, request: CompactionRequest) -> dict[str, object]:
    """The parameters of the run that change its output, as values of JSON. Names are those of the options in the first version
    that recorded them."""
    resolver = request.resolver
    recorded = {name: row.shown(inputs[name]) for name, row in inputs.command.keywords.items() if row.recorded}
    toml = [[settings.broker, *settings.topics.items()] for settings in resolver.tomls]
    return {
        **{name: sorted(value) if isinstance(value, list) else value for name, value in recorded.items()},
        "topic": sorted(inputs["topics"]),
        "partition": sorted(inputs["partitions"]),
        # omitted by default, as in outputs of versions without these options
        **({} if inputs["tail"] is None else {"tail": inputs["tail"]}),
        **({} if request.since is None else {"since": request.since}),
        "assume_default_policy": inputs["assume_default_policy"],
        "kafka_version": inputs["kafka_version"],
        "command": inputs.command.name,
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
        raise UsageError("--tail needs an export of tiered storage as --log-dir", hint="e.g. aiven+s3://BUCKET/PREFIX")
    for path in paths:
        add_tail(path, tail)


def read_private_keys(private_keys: Iterable[str], tomls: Iterable[TomlSettings] = ()) -> None:
    """Adds the private keys of TOML files, then those of ``--private-key``.

    :raises UsageError: a file is not a private key
    """
    configured = [f"{name}={path}" for toml in tomls for name, path in toml.keys.items()]
    add_private_keys([*configured, *private_keys])
