"""The part of an erasure's report besides the figures of each log. It never contains a key.

| field of ``erasure`` | meaning |
| --- | --- |
| ``on_match`` | ``drop`` or ``tombstone`` |
| ``salt`` | hexadecimal, drawn for the run |
| ``keys_given``, ``patterns_given`` | distinct keys of the lists, and patterns |
| ``keys_found`` | distinct keys that some erased record had |
| ``keys_not_found``, ``not_found`` | keys of the lists that no record has: how many, and each ``file`` and ``line`` |
| ``logs_not_searched`` | logs that were refused, or failed before they were searched: they may have these keys |
| ``keys`` | each found key as SHA-256 of salt and key (``sha256``), with its ``records``; at most ``MOST_LISTED`` |
| ``resumed`` | logs from which the run removed segments that an earlier run, possibly killed, or a broker had replaced |
| ``certificate`` | only of a run with one: its ``path`` and ``status``; unless that is ``holds``, the exit code is 1 |
| ``remaining_records`` | records with these keys in last segments, from which the run does not erase |
| ``remaining_accepted`` | whether the call accepts records where the run does not erase; unless it does, the exit code of a
    run that leaves some is 1 |
| ``left_files`` | files in the directories that no broker loads: they were neither erased from nor copied |
| ``notes`` | resumed erasures, and copies of the records that the run cannot reach |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from compaction.certifier.erasure_certificate import DROP, TOMBSTONE, unreached
from compaction.config.request import CompactionRequest
from compaction.erasure.find_matches import HASHED, Erasure, FoundKeys
from compaction.files.filesystem import join, storage_of
from compaction.files.mixed import file_system
from compaction.formats.keys import KeyPlaces, salted_digest
from compaction.log.access import keeps_snapshots
from compaction.names import LogLocation, marked_dirs_of
from compaction.report import ErasureDocument, LogReport
from compaction.rules.log_to_clean import Verdict
from compaction.run.log import Log, cleaned_report, skipped_report
from compaction.screen.amounts import counted

#: keys, and lines of missing ones, that the report lists
MOST_LISTED = 10_000
_REMOTE = "remote.storage.enable"
_RESUMED = (
    "this run removed segments that an earlier run or a broker had replaced; the records erased then are in no report or"
    " certificate of this run"
)
#: files or topics that a note names
_MOST_NAMED = 20
NO_MATCH = "no_match"
#: the reason code of a log with records of the keys in its last segment alone, from which nothing is erased
LAST_SEGMENT = "last_segment"


def erased_report(log: Log, records: int, remaining: int) -> LogReport:
    """The report of a log from which ``records`` records were erased, or would be; ``remaining`` records are in its last
    segment, from which nothing is erased."""
    plan = log.compaction
    tiered = " (tiered: records in remote storage are not erased)" if plan.config.remote_storage_enable else ""
    if plan.verdict is Verdict.SKIP:
        skipped = skipped_report(log.plan)
        code = skipped.reason_code or (LAST_SEGMENT if remaining else NO_MATCH)
        return replace(skipped, reason=plan.reason + tiered, reason_code=code, remaining_records=remaining)
    report = cleaned_report(log.plan, log)
    return replace(
        report, reason=plan.reason + tiered, superseded_records=0, tombstones_removed=0, erased_records=records,
        remaining_records=remaining, deleted_bytes=0,
    )  # fmt: skip


def erasure_document(
    erasure: Erasure, keys: FoundKeys, resumed: Sequence[LogLocation], notes: Sequence[str]
) -> ErasureDocument:
    """The ``erasure`` of a run's report, without its certificate, ``left_files``, and the fields of ``missing_document``."""
    listed = zip(keys.hashes[:MOST_LISTED].tolist(), keys.records[:MOST_LISTED].tolist(), strict=True)
    return {
        "on_match": TOMBSTONE if erasure.tombstones else DROP,
        "salt": erasure.salt.hex(),
        "keys_given": len(erasure.criteria.keys),
        "patterns_given": len(erasure.criteria.patterns),
        "keys_found": len(keys.hashes),
        "keys": [{"sha256": hashed.ljust(HASHED.itemsize, b"\0").hex(), "records": records} for hashed, records in listed],
        "resumed": [str(log.topic_partition) for log in resumed],
        "notes": [*(f"{log.path}: {_RESUMED}" for log in resumed), *notes],
    }


def missing_document(erasure: Erasure, keys: FoundKeys, places: KeyPlaces | None) -> ErasureDocument:
    """The keys of the lists that are not among ``keys``, the keys of records. They are named by file and line, or only counted
    without ``places``, and never by value: a mistyped key may belong to another person.
    """
    listed_keys = erasure.criteria.keys
    hashes = np.array([salted_digest(erasure.salt, key) for key in listed_keys.to_pylist()], HASHED)
    missing = ~np.isin(hashes, keys.hashes)
    lines_by_file = () if places is None else places.only(missing).by_file()
    not_found = [{"file": path, "line": line} for path, lines_of_file in lines_by_file for line in lines_of_file]
    return {"keys_not_found": int(missing.sum()), "not_found": not_found[:MOST_LISTED]}


def notes_of(request: CompactionRequest, logs: Sequence[LogReport], other_files: Sequence[str]) -> Iterator[str]:
    remaining = [log.remaining_records for log in logs if log.remaining_records]
    if remaining:
        segments = f"the last segment of {counted(len(remaining), 'log')}"
        remain = "remains" if sum(remaining) == 1 else "remain"
        yield f"{counted(sum(remaining), 'record')} of these keys {remain} in {segments}: --include-active erases from it, too"
    tiered = sorted({log.topic for log in logs if log.settings.get(_REMOTE, {}).get("value")})
    if tiered:
        topics = ", ".join(tiered[:_MOST_NAMED]) + (", ..." if tiered[_MOST_NAMED:] else "")
        yield f"records in remote storage are not erased, of {counted(len(tiered), 'topic')}: {topics}"
    if request.dry_run:
        return
    if request.output_dir is not None:
        yield "the source still has the records: --output-dir does not change it"
        if storage_of(request.output_dir).versions:
            yield "a store that keeps versions or deleted objects may keep earlier outputs with the records"
    for log_dir in request.log_dirs if request.output_dir is None else ():
        if keeps_snapshots(log_dir):
            yield f"{log_dir} is on a file system that can keep snapshots, which keep the records"
    names = {log.topic_partition for log in request.logs}
    files = file_system(request.log_dirs)
    for log_dir in request.log_dirs:
        for name in marked_dirs_of(files.listdir(log_dir), names):
            yield f"{log_dir}/{name} is a copy of a log that is being moved or deleted, and was not changed"
    if other_files:
        tail = f", and {len(other_files) - _MOST_NAMED:,} more" if other_files[_MOST_NAMED:] else ""
        participle = "changed" if request.output_dir is None else "copied"
        verb = "was" if len(other_files) == 1 else "were"
        message = f"{counted(len(other_files), 'other file')}, which no broker loads, {verb} not examined and not {participle}"
        yield f"{message}: {', '.join(other_files[:_MOST_NAMED])}{tail}"


def left_files(request: CompactionRequest) -> list[str]:
    """The files of the log directories that a run neither examines nor copies, except for logs that are moved or deleted."""
    if request.dry_run:
        return []
    names = {log.topic_partition for log in request.logs}
    return [
        join(log_dir, path)
        for log_dir in request.log_dirs
        for path in unreached(log_dir, names)
        if not marked_dirs_of([path.partition("/")[0]], names)
    ]
