"""From parsed arguments to a checked request: configuration, selected logs, directories, the time of the run.

Tested by ``tests/jobs/test_compact.py``, ``tests/jobs/test_expire.py`` and ``tests/jobs/test_unknown_policy.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from compaction.cleaning.kafka_rules import rules_of
from compaction.config import Resolver, TomlSettings, read_properties, read_sets, read_toml
from compaction.config.request import CompactionRequest
from compaction.config.sources import Setting
from compaction.errors import StorageError, UsageError
from compaction.formats.properties import parse_properties
from compaction.fs.contents import digest_of
from compaction.fs.text_files import read_text
from compaction.fs.uri import is_inside, is_layout, is_remote, layout_path, parse_uri, resolved
from compaction.logdir.discover import Selector, check_log_dirs, discover, require_logs
from compaction.logdir.settings.metadata_sources import require_metadata_log
from compaction.names import CLUSTER_METADATA_TOPIC, LogLocation
from compaction.screen.steps import step
from compaction.stores.clients import require_store
from compaction.stores.mixed import file_system
from compaction.stores.remote import require_finished

from ._exports import join_tail, read_keys
from ._options import AUTO


def read_request(arguments: argparse.Namespace, selector: Selector | None = None) -> CompactionRequest:
    """The request of a command, from the options that the commands have in common.

    :param selector: the logs; by default those of ``--topic`` and ``--partition``
    :raises UsageError: an argument is invalid
    """
    step("reading the call")
    resolver = read_resolver(arguments)
    log_dirs, logs = find_logs(arguments, selector or read_selector(arguments))
    return CompactionRequest(
        log_dirs,
        logs,
        as_of_ms(arguments),
        resolver=resolver,
        metadata_dirs=read_metadata_dirs(arguments),
        dry_run=arguments.dry_run,
        kafka_version=read_kafka_version(arguments),
    )


def as_of_ms(arguments: argparse.Namespace) -> int:
    """The current time for every rule of the run, in milliseconds: only here a command reads the clock."""
    given: int | None = arguments.as_of_ms
    return time.time_ns() // 1_000_000 if given is None else given


def read_resolver(arguments: argparse.Namespace) -> Resolver:
    """All configuration of the call.

    :raises UsageError: a file cannot be read
    :raises ConfigError: an unknown name or an invalid value, with file, line and key
    """
    tomls: list[TomlSettings] = []
    settings: list[Setting] | None = None
    for path in arguments.config:
        if path.lower().endswith(".toml"):
            tomls.append(read_toml(read_text(path), path))
        else:
            # a broker reads its properties as Latin-1, as java.util.Properties does
            found = read_properties(parse_properties(read_text(path, "latin-1"), path), path)
            settings = [*(settings or []), *found]
    read_keys(arguments, tomls)
    resolver = Resolver(
        read_sets(arguments.sets, read_kafka_version(arguments)),
        tuple(tomls),
        None if settings is None else tuple(settings),
        assume_default_policy=arguments.assume_default_policy,
    )
    resolver.broker()
    return resolver


def read_kafka_version(arguments: argparse.Namespace) -> str | None:
    """The version of ``--kafka-version``; ``None`` for ``auto``, and for a command without the option.

    :raises UsageError: a version whose rules are not known
    """
    given: str = getattr(arguments, "kafka_version", AUTO)
    if given == AUTO:
        return None
    rules_of(given)
    return given


def read_selector(arguments: argparse.Namespace, option: str = "--partition") -> Selector:
    """The selected logs.

    :param option: the option that names partitions
    :raises UsageError: an invalid pattern or partition name, or the metadata log
    """
    selector = Selector.parse(arguments.topic, arguments.partition, option)
    named = {option: [each.topic for each in selector.partitions], "--topic": arguments.topic}
    for option, topics in named.items():
        if CLUSTER_METADATA_TOPIC in topics:
            raise UsageError(f"{option}: {CLUSTER_METADATA_TOPIC} is never touched", hint="a broker prunes it by snapshots")
    return selector


def find_logs(arguments: argparse.Namespace, selector: Selector) -> tuple[tuple[str, ...], tuple[LogLocation, ...]]:
    """The log directories without duplicates, absolute paths or URIs without their options, and the selected logs in them.

    A run lists its directories only here, before it locks them: a wrong call changes nothing.

    :raises UsageError: one is missing, is not a directory, is a partition's, is inside another, is incomplete or cannot be
        accessed; a selected partition does not exist; or no log is selected, unless the call allows that
    """
    given = [parse_uri(path, "--log-dir") for path in arguments.log_dir]
    step(f"looking for logs in {given[0] if len(given) == 1 else f'{len(given)} directories'}")
    join_tail(arguments, given)
    files = file_system(given)
    with usage_errors():
        log_dirs = check_log_dirs(files, given)
        for path in log_dirs:
            outer = next((other for other in log_dirs if other != path and is_inside(path, other)), None)
            if outer is not None:
                raise UsageError(f"--log-dir: it is inside {outer}, which is also given", path=path, hint="give one of them")
            require_finished(path)
        logs = discover(files, log_dirs, selector)
        if not arguments.allow_empty:
            require_logs(files, logs, log_dirs, selector)
        return log_dirs, logs


def read_metadata_dirs(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The directories of ``--metadata`` without duplicates: absolute paths, or URIs without their options.

    :raises UsageError: one has no metadata log, or cannot be accessed
    """
    given = [parse_uri(path, "--metadata") for path in arguments.metadata]
    files = file_system(given)
    with usage_errors():
        for path in given:
            require_store(path)
            require_metadata_log(files, path)
    return tuple(dict.fromkeys(map(resolved, given)))


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns errors of file systems into usage errors: the run has not begun."""
    try:
        yield
    except StorageError as error:
        raise UsageError(error.what, path=error.path, hint=error.hint) from error


#: options that do not change an output
_BESIDES = frozenset(
    "log_dir config sets metadata as_of_ms output_dir replace if_done dry_run report metrics verify verbose quiet log_format"
    " allow_empty output all options private_key output_layout accept_loss".split()
)


def with_output(command: str, arguments: argparse.Namespace, request: CompactionRequest) -> CompactionRequest:
    """The request with the options of a copy.

    :raises UsageError: they contradict each other, or the output directory is, contains or is inside a log directory
    """
    if arguments.output_dir is None and (arguments.replace or arguments.if_done):
        raise UsageError("--replace and --if-done need --output-dir", hint="see --help")
    if arguments.if_done and arguments.as_of_ms is None:
        hint = "e.g. --as-of 2026-11-22T02:00Z"
        raise UsageError("--if-done needs --as-of: without it each run is of another time", hint=hint)
    target = check_output_dir(arguments.output_dir, request.log_dirs)
    records = target is not None and (is_remote(target) or arguments.replace or arguments.if_done)
    return replace(
        request, output_dir=target, replace=arguments.replace, call=_call(command, arguments, request) if records else None
    )


def _call(command: str, arguments: argparse.Namespace, request: CompactionRequest) -> dict[str, Any]:
    """What the run is asked to do, as far as it changes the output, as values of JSON."""
    resolver = request.resolver
    toml = [[each.broker, *each.topics.items()] for each in resolver.tomls]
    options = {name: value for name, value in vars(arguments).items() if name not in _BESIDES}
    if arguments.tail is None:
        # outputs of versions without this option
        del options["tail"]
    return {
        **{name: sorted(value) if isinstance(value, list) else value for name, value in options.items()},
        "command": command,
        "log_dirs": list(request.log_dirs),
        "metadata": list(request.metadata_dirs),
        "set": {each.name: str(each.value) for each in resolver.sets},
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
    for log_dir in (layout_path(each).place if is_layout(each) else each for each in log_dirs):
        if is_inside(target, log_dir) or is_inside(log_dir, target):
            raise UsageError(
                f"--output-dir overlaps the log directory {log_dir}", path=output_dir, hint="choose a directory outside of it"
            )
    return target
