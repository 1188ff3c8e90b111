"""``verify``: proves that cleaned logs lost no record and changed none, except as cleaning may."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from compaction.certifier.certificate import VerifyReport
from compaction.certifier.find_pairs import VerifyRequest
from compaction.cli import execution
from compaction.commands.runs import provenance
from compaction.engine_choice import ENCRYPTED, EngineChoice, chosen
from compaction.errors import UsageError
from compaction.files.mixed import file_system
from compaction.files.uri import parse_uri
from compaction.log.access import Purpose, access
from compaction.log.discover import Selector
from compaction.names import TopicPartition, parse_partition_dir
from compaction.options.inputs import (
    Inputs,
    finished_log_dirs,
    join_tail,
    logs_in,
    read_kafka_version,
    read_metadata_dirs,
    read_resolver,
    read_selector,
)
from compaction.options.option import CommandOptions
from compaction.options.table import HTML, MESSAGES, OUTPUT, QUIET, REPORT, SIDES, WHY, VerifyOptions
from compaction.options.values import Texts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from compaction.certifier.erased_keys import ErasedKeys

_DESCRIPTION = """\
Prove that the logs of --after are a valid result of cleaning those of --before. Each retained
record equals its source byte by byte. Each missing record has a reason: superseded by a later
record of the same key, a tombstone past its delete horizon, aborted, a transaction marker,
without a key, below the log start, or expired. Offsets, CRCs, indexes, transactions,
checkpoints and the active segment are checked too; in a copy also leader epochs, topic ids,
producer snapshots, and the broker's own files.

Keys are compared byte by byte, and records are read by code that the cleaner does not use. The
directories are only read. docs/verify.md explains the result.
"""

_EPILOG = """\
exit status:
  0  all logs hold; with --why: the answer was printed
  1  at least one log is violated or cannot be verified, or records of erased keys remain
  2  nothing to compare, or a wrong call (option, configuration, no such directory, a live broker)

examples:
  Is a compacted copy valid?
    kafka-log-compaction verify --before /exports/orders --after /exports/orders-compacted \\
        --set cleanup.policy=compact --include-active

  Is the result of the last run on this directory valid? Its sources remain until the next run.
    kafka-log-compaction verify --in-place /var/lib/kafka --report verified.json

  Why was this record dropped?
    kafka-log-compaction verify --in-place /var/lib/kafka --why orders-0:4711
"""


OPTIONS = CommandOptions(
    "verify", VerifyOptions, SIDES, WHY, REPORT, HTML, QUIET, OUTPUT, MESSAGES, description=_DESCRIPTION, epilog=_EPILOG
)


@OPTIONS.function
def verify(before: Texts = (), after: Texts = (), *, in_place: Texts = (), **options: Unpack[VerifyOptions]) -> VerifyReport:
    """Proves that the logs of ``after`` are a valid result of cleaning those of ``before``; or those of ``in_place``, of
    cleaning the segments that the last run replaced.

    >>> report = compaction.verify(log_dir, copy, settings={"cleanup.policy": "compact"})
    >>> report.status.value
    'holds'

    The parameters are the options of ``kafka-log-compaction verify``, see ``compact``.

    :raises UsageError: an argument is invalid, or there is nothing to compare
    :raises CompactionError: a directory cannot be read; a log that cannot be verified is in the report
    """
    inputs = Inputs.of(OPTIONS, options, before=before, after=after, in_place=in_place)
    request = _request(inputs)
    with chosen(inputs, ENCRYPTED) as engine:
        report = certified(engine, request) if inputs["certificate"] is None else _erasure_certified(engine, inputs, request)
        return replace(report, origin=provenance(inputs, engine))


def _erasure_certified(engine: EngineChoice, inputs: Inputs, request: VerifyRequest) -> VerifyReport:
    from compaction.certifier.erasure_certificate import certify_erasure, compare

    request, certificate, erased = _with_certificate(inputs, request)
    with _shared_locks(request), engine.running() as start:
        certified_logs = certify_erasure(start, request, erased)
    report = compare(certificate, certified_logs, request.logs or frozenset(), with_before=bool(request.before))
    return replace(report, certificate=inputs["certificate"])


def certified(engine: EngineChoice, request: VerifyRequest) -> VerifyReport:
    """Certifies the logs. The kernels are imported only here, so that a wrong call fails at once."""
    from compaction.certifier.certify import certify

    with _shared_locks(request), engine.running() as start:
        return certify(start, request)


def _request(inputs: Inputs, explained: TopicPartition | None = None) -> VerifyRequest:
    """The checked request.

    :param explained: the log of ``--why``
    :raises UsageError: the call is wrong
    """
    before, after, in_place = (inputs[name] for name in SIDES)
    if bool(in_place) in (bool(after), bool(before)):
        raise UsageError("give --before and --after, or only --in-place", hint="see --help")
    resolver, selector = read_resolver(inputs), read_selector(inputs)
    if explained is not None:
        selector = Selector(partitions=frozenset({explained}), option="--why")
    uris = [parse_uri(path, "--before") for path in before]
    join_tail(inputs["tail"], uris)
    before_dirs = finished_log_dirs(uris)
    option = "--in-place" if in_place else "--after"
    after_dirs = finished_log_dirs([parse_uri(path, option) for path in in_place or after])
    if not inputs["allow_empty"]:
        logs_in(inputs, before_dirs or after_dirs, selector)
    return VerifyRequest(
        before=before_dirs,
        after=after_dirs,
        now_ms=inputs.now_ms,
        exact=inputs["as_of"] is not None,
        selector=selector,
        resolver=resolver,
        metadata_dirs=read_metadata_dirs(inputs),
        kafka_version=read_kafka_version(inputs),
        include_active=inputs["include_active"],
        several_rounds=inputs["several_rounds"],
        strict=inputs["strict"],
    )


def _with_certificate(inputs: Inputs, request: VerifyRequest) -> tuple[VerifyRequest, Mapping[str, Any], ErasedKeys]:
    """The request for the selected logs of the certificate, the certificate, and its keys.

    :raises UsageError: the file is not a certificate, or other keys are given
    :raises CompactionError: the certificate has changed since it was written
    """
    from compaction.certifier.erasure_certificate import TOMBSTONE, refused_logs, selected_logs
    from compaction.options.keys import erased_keys, read_keys, read_sealed

    criteria, _ = read_keys(inputs)
    certificate = read_sealed(inputs["certificate"], criteria)
    request = replace(
        request,
        logs=selected_logs(certificate, request.selector),
        include_active=certificate["include_active"],
        now_ms=certificate["as_of_ms"],
        refused=refused_logs(certificate),
    )
    return request, certificate, erased_keys(criteria, tombstones=certificate["on_match"] == TOMBSTONE)


def _read_why(text: str) -> tuple[TopicPartition, int]:
    name, _, offset = text.rpartition(":")
    log = parse_partition_dir(name)
    if log is None or not offset.isdecimal():
        raise UsageError(f"--why {text!r} is not TOPIC-N:OFFSET", hint="e.g. --why orders-0:4711")
    return log, int(offset)


def _shared_locks(request: VerifyRequest) -> AbstractContextManager[object]:
    """Hold shared locks on all directories, so that no broker starts on them."""
    log_dirs = tuple(dict.fromkeys((*request.before, *request.after)))
    return access(file_system(log_dirs), log_dirs, Purpose.SHARE)


def _body(arguments: argparse.Namespace) -> int:
    if arguments.why is None:
        return execution.finish(OPTIONS.run(vars(arguments)), arguments)
    inputs = Inputs.of(OPTIONS, OPTIONS.complete(vars(arguments)), **{name: vars(arguments)[name] for name in SIDES})
    log, offset = _read_why(arguments.why)
    request = _request(inputs, log)
    if inputs["certificate"] is not None:
        request, *_ = _with_certificate(inputs, request)
    with chosen(inputs, ENCRYPTED) as engine, _shared_locks(request), engine.running() as start:
        from compaction.certifier.certify import explain

        print("\n".join(explain(start, request, offset)))
    return 0


main = partial(execution.run_command, OPTIONS, _body)
