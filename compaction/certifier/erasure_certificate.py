"""The certificate of an erasure, as JSON: the erased records of each log, and the proof that nothing else was changed and no
selected key remains.

| field | meaning |
| --- | --- |
| ``schema_version``, ``kind`` | 1, ``erasure`` |
| ``as_of_ms``, ``on_match``, ``include_active`` | how keys were erased |
| ``keys_given``, ``patterns_given`` | their numbers |
| ``salt``, ``keys_sha256`` | SHA-256 of a secret that is derived from the keys and patterns (``KeyCriteria.secret``) |
| ``status`` | ``violated`` or ``failed`` if a log is, ``failed`` also without any; else ``incomplete`` if records of the keys
  remain in a log or ``elsewhere``; else ``holds`` |
| ``logs`` | one object a log, as below |
| ``elsewhere`` | files that were not erased from: each with its ``path`` and the ``records`` of the keys in it; ``null`` if it
  cannot be read as record batches |
| ``out_of_reach`` | copies of the logs that no erasure reaches, whether they exist or not |
| ``seal`` | binds all other fields to the keys, as below |

| field of a log | meaning |
| --- | --- |
| ``topic``, ``partition`` | the log |
| ``status`` | ``holds``: everything else is byte-equal, and a full scan finds no key; ``incomplete``: it finds some only
  in places that are not erased from, for example the last segment; else ``violated``, ``failed`` |
| ``reason`` | why erasure or verification failed; then the log has no segments and none of the following |
| ``log_start_offset``, ``records_before``, ``records_after`` | of the log |
| ``records_erased``, ``bytes_erased`` | records, and bytes of ``.log`` files |
| ``erased_from``, ``records_remaining`` | whether the run erased from this log at all; the records of the keys that it has |
| ``sha256_before``, ``sha256_after`` | over a line for each segment: base offset, bytes and SHA-256 of its ``.log`` file |
| ``resumed`` | the run removed segments that an earlier run, possibly killed, or a broker had replaced: not verified here |
| ``segments`` | each with base offset, erased records, bytes and SHA-256 before and after |

It has no signature, but is reproducible: ``compare`` names the fields in which another run's certificate differs. The request
and the state before it cannot be computed again. So the ``seal``, an HMAC-SHA256 of all other fields under the secret, detects
changes by anyone who does not have the keys.

``elsewhere`` has the logs in directories marked ``-future``, ``-delete`` and ``-stray``, segments under other names
(``.deleted``, ``.orig``, ``~``), and files and directories that are no part of a log: backups, dumps, cores. Files that consist
of record batches are searched for the keys; the others are only named.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from compaction.certifier.certificate import REMAINING, LogCertificate, Remains, Status, VerifyReport, Violation, worst
from compaction.certifier.certify import certify_pairs, run_packed
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.find_pairs import LONG_MAX, LogPair, SegmentFiles, Side, VerifyRequest, find_pairs
from compaction.certifier.reader import ByteRange, read_chunks
from compaction.config.request import CompactionRequest
from compaction.engine import Engine
from compaction.errors import CompactionError, StorageError, UsageError
from compaction.files.filesystem import ReadableFileSystem, join
from compaction.files.manifest import MANIFEST, MARKER
from compaction.files.mixed import MixedFileSystem, file_system
from compaction.formats.keys import KeyCriteria, fingerprint
from compaction.formats.primitives import FormatError
from compaction.log.access import is_claim
from compaction.log.discover import Selector
from compaction.names import (
    DELETED,
    LOG,
    TopicPartition,
    is_log_file,
    is_of_log_dir,
    marked_dirs_of,
    parse_partition_dir,
    parse_segment_file,
)
from compaction.output.finished import FINISHED
from compaction.output.journal import JOURNAL
from compaction.printable import printable_json
from compaction.screen.amounts import counted

SCHEMA_VERSION, KIND = 1, "erasure"
DROP, TOMBSTONE = "drop", "tombstone"
OUT_OF_REACH = (
    "earlier copies and backups of these logs, also outputs of this program that a later copy continues with --since",
    "exports, backup sets and uploads to remote storage",
    "replicas, mirrors, snapshots of file systems, and versions that a store keeps",
)
_READ_BYTES = 8 << 20
_THREADS = 4
#: fields that need the state before the erasure
_OF_BEFORE = ("sha256_before", "bytes_before", "records_before", "records_erased", "bytes_erased")
_OF_RUNS = frozenset((JOURNAL, FINISHED, MANIFEST, MARKER))
_DIRECTORY = "/"


class Certified(NamedTuple):
    """The results for all logs, and the ``logs`` of a certificate."""

    report: VerifyReport
    logs: tuple[dict[str, Any], ...]


def erasure_pairs(request: VerifyRequest, erased: ErasedKeys) -> list[LogPair | LogCertificate]:
    """Both sides of each log. The cleaner checkpoint counts as unchanged without a copy of the state before and without a
    record of the run."""
    pairs: list[LogPair | LogCertificate] = []
    for pair in find_pairs(request, unreplaced=True):
        if isinstance(pair, LogCertificate):
            pairs.append(pair)
            continue
        before = pair.before
        if not request.before:
            before = replace(before, cleaned_to=request.cleaned_to.get(pair.topic_partition, pair.after.cleaned_to))
        # up to Kafka 3.9 batches of magic 0 and 1 keep it, but tombstones are written as v2
        keeps_magic = pair.rules.keeps_magic and not erased.tombstones
        refused = pair.topic_partition in request.refused
        rules = replace(pair.rules, erases=True, refused=refused, deletes=False, keeps_magic=keeps_magic, mtime_only=False)
        pairs.append(replace(pair, before=before, rules=rules))
    return pairs


def certify_erasure(start: Callable[[], Engine], request: VerifyRequest, erased: ErasedKeys) -> Certified:
    """The certificates of logs from which keys were erased, and the other files of the directories that have, or may have,
    records of the keys; ``start`` starts the task runner."""
    pairs, runner = erasure_pairs(request, erased), start()
    report = certify_pairs(runner, pairs, request.now_ms, erased=erased)
    sides = (side for pair in pairs if isinstance(pair, LogPair) for side in (pair.before, pair.after))
    segments = {segment.path(): segment for side in sides for segment in side.segments}
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = dict(zip(segments, pool.map(_digest, segments.values()), strict=True))
    logs = tuple(_log(pair, log, digests) for pair, log in zip(pairs, report.logs, strict=True))
    reached = {log.topic_partition for log in report.logs} | request.failed
    files = [
        join(log_dir, path)
        for log_dir in request.after
        for path in unreached(log_dir, reached, request.failed, replaced=not request.sources_remain)
    ]
    elsewhere = tuple(file for file in search_files(runner, files, erased) if file.records != 0) if files else ()
    return Certified(replace(report, elsewhere=elsewhere), logs)


def failed_log(name: TopicPartition, reason: str) -> dict[str, Any]:
    return _log(LogCertificate.failed(name, reason), LogCertificate.failed(name, reason), {})


def status_of(logs: Sequence[Mapping[str, Any]], elsewhere: Sequence[Remains] = ()) -> Status:
    return worst([Status(log["status"]) for log in logs] or [Status.FAILED], elsewhere)


def document(
    run: CompactionRequest,
    erased: ErasedKeys,
    salt: bytes,
    logs: Sequence[Mapping[str, Any]],
    elsewhere: Sequence[Remains] = (),
) -> str:
    secret = erased.criteria.secret(salt)
    fields = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "as_of_ms": run.as_of_ms,
        "on_match": TOMBSTONE if erased.tombstones else DROP,
        "include_active": run.include_active,
        "keys_given": len(erased.criteria.keys),
        "patterns_given": len(erased.criteria.patterns),
        "salt": salt.hex(),
        "keys_sha256": fingerprint(secret),
        "status": status_of(logs, elsewhere).value,
        "logs": list(logs),
        "elsewhere": [file._asdict() for file in elsewhere],
        "out_of_reach": list(OUT_OF_REACH),
    }
    return sealed(fields, secret)


def read_certificate(text: str, path: str) -> dict[str, Any]:
    """The certificate in a file.

    :raises UsageError: the file is not a certificate
    """
    try:
        parsed = json.loads(text)
        if parsed["kind"] == KIND and parsed["schema_version"] == SCHEMA_VERSION:
            bytes.fromhex(parsed["salt"])
            types = {"as_of_ms": int, "keys_sha256": str, "include_active": bool}
            valid = all(type(parsed[name]) is kind for name, kind in types.items()) and parsed["on_match"] in (DROP, TOMBSTONE)
            if parsed["logs"] and valid and all(map(_is_log, parsed["logs"])):
                certificate: dict[str, Any] = parsed
                return certificate
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    problem = "--certificate: is not a certificate of an erasure, or has no logs"
    raise UsageError(problem, path=path, hint="use the file that erase --certificate wrote")


def _is_log(log: Mapping[str, Any]) -> bool:
    """:raises KeyError, TypeError: it is not a log's object"""
    named = isinstance(log["topic"], str) and type(log["partition"]) is int
    return named and isinstance(log["segments"], list) and all(isinstance(segment, dict) for segment in log["segments"])


def refused_logs(certificate: Mapping[str, Any]) -> frozenset[TopicPartition]:
    """The logs of a certificate from which the run did not erase."""
    refused = (log for log in certificate["logs"] if log.get("erased_from") is False)
    return frozenset(TopicPartition(log["topic"], log["partition"]) for log in refused)


def selected_logs(certificate: Mapping[str, Any], selector: Selector) -> frozenset[TopicPartition]:
    """The logs of a certificate that ``selector`` does not exclude.

    :raises UsageError: there are none
    """
    names = frozenset(TopicPartition(log["topic"], log["partition"]) for log in certificate["logs"])
    if selected := frozenset(filter(selector.matches, names)):
        return selected
    raise UsageError("--certificate: it has none of the selected logs", hint="change --topic or --partition")


def compare(
    certificate: Mapping[str, Any], certified: Certified, expected_logs: frozenset[TopicPartition], *, with_before: bool
) -> VerifyReport:
    """The results, with a violation in each missing log and each log whose fields differ from those of the certificate.

    :param expected_logs: the selected logs of the certificate
    :param with_before: both sides are those of the erasure; otherwise only the fields of its result are compared
    """
    recorded = {(log["topic"], log["partition"]): log for log in certificate["logs"]}
    logs = []
    for log, fields in zip(certified.report.logs, certified.logs, strict=True):
        expected = recorded.get((log.topic, log.partition), {})
        judged = log.status in (Status.HOLDS, Status.INCOMPLETE)
        wrong = [] if not judged else list(_differences(expected, fields, with_before=with_before))
        violations = tuple(Violation(0, problem) for problem in wrong[:1])
        logs.append(replace(log, status=Status.VIOLATED, left={}, violation_count=1, violations=violations) if wrong else log)
    missing = expected_logs - {log.topic_partition for log in logs}
    logs += [LogCertificate.violated(name, 0, "log is missing") for name in sorted(missing)]
    return replace(certified.report, logs=tuple(logs))


def _differences(expected: Mapping[str, Any], actual: Mapping[str, Any], *, with_before: bool) -> list[str]:
    if not expected:
        return ["the certificate does not have this log"]

    def fields(expected: Mapping[str, Any], actual: Mapping[str, Any], place: str = "") -> list[str]:
        return [
            f"{name}{place} is {actual[name]}, the certificate has {expected.get(name)}"
            for name in actual
            if name != "segments" and (with_before or name not in _OF_BEFORE) and actual[name] != expected.get(name)
        ]

    wrong = []
    for segment, expected_segment in zip(actual["segments"], expected["segments"], strict=False):
        wrong += fields(expected_segment, segment, f" of segment {segment['base_offset']}")
    return wrong + fields(expected, actual)


def _log(pair: LogPair | LogCertificate, log: LogCertificate, digests: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {"topic": log.topic, "partition": log.partition, "status": log.status.value}
    if not isinstance(pair, LogPair):
        reason = log.reason or log.violations[0].what
        return {**fields, "reason": reason, "segments": []}
    before, after = ({segment.base_offset: segment for segment in side.segments} for side in (pair.before, pair.after))
    segments = [
        {
            "base_offset": base,
            "records_erased": log.erased.get(base, 0),
            **_of_side("before", before.get(base), digests),
            **_of_side("after", after.get(base), digests),
        }
        for base in sorted({*before, *after})
    ]
    return {
        **fields,
        "log_start_offset": pair.after.log_start_offset,
        "records_before": log.records_before,
        "records_after": log.records_after,
        "records_erased": sum(log.erased.values()),
        "bytes_erased": _size(pair.before) - _size(pair.after),
        "erased_from": not pair.rules.refused,
        "records_remaining": log.remaining,
        "sha256_before": _log_digest(pair.before, digests),
        "sha256_after": _log_digest(pair.after, digests),
        "segments": segments,
    }


def _of_side(side: str, files: SegmentFiles | None, digests: Mapping[str, str]) -> dict[str, Any]:
    size, digest = (None, None) if files is None else (files.size_bytes, digests[files.path()])
    return {f"bytes_{side}": size, f"sha256_{side}": digest}


def _size(side: Side) -> int:
    return sum(segment.size_bytes for segment in side.segments)


def _log_digest(side: Side, digests: Mapping[str, str]) -> str:
    lines = [f"{segment.base_offset} {segment.size_bytes} {digests[segment.path()]}\n" for segment in side.segments]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _digest(files: SegmentFiles) -> str:
    fs, path, digest = MixedFileSystem(), files.path(), hashlib.sha256()
    for position in range(0, files.size_bytes, _READ_BYTES):
        digest.update(fs.read_bytes(path, position, min(_READ_BYTES, files.size_bytes - position)))
    return digest.hexdigest()


_SEAL = "seal"


def sealed(fields: Mapping[str, Any], secret: bytes) -> str:
    """The certificate as JSON: the fields, and their seal.

    :param secret: the secret of the keys, under the certificate's salt
    """
    # the fields as a reader sees them: bytes of names that are not UTF-8 are escaped
    written = json.loads(printable_json(json.dumps(fields, ensure_ascii=False)))
    document = {**written, _SEAL: _seal(written, secret)}
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def require_sealed(certificate: Mapping[str, Any], criteria: KeyCriteria, path: str) -> None:
    """:raises UsageError: the certificate is of other keys
    :raises CompactionError: the certificate has changed since it was written
    """
    secret = criteria.secret(bytes.fromhex(certificate["salt"]))
    if fingerprint(secret) != certificate["keys_sha256"]:
        problem = "--certificate: it belongs to other keys"
        raise UsageError(problem, path=path, hint="give the same --keys and --where as to erase")
    if _seal(certificate, secret) != certificate.get(_SEAL):
        problem = "--certificate: it was changed after it was written, because its seal does not match its fields"
        raise CompactionError(problem, path=path, hint="use the file that erase --certificate wrote")


def _seal(fields: Mapping[str, Any], secret: bytes) -> str:
    other_fields = {name: value for name, value in fields.items() if name != _SEAL}
    text = json.dumps(other_fields, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def unreached(
    log_dir: str, logs: Collection[TopicPartition], unread: Collection[TopicPartition] = (), *, replaced: bool = True
) -> list[str]:
    """The files outside the erased segments that may have records of ``logs``; directories end with ``/``.

    :param unread: logs of which no file was examined
    :param replaced: include ``.deleted`` files, which the run removes once it is certified
    """
    fs, paths = file_system([log_dir]), []
    names = fs.listdir(log_dir)
    marked = frozenset(marked_dirs_of(names, logs))
    for name in names:
        log = parse_partition_dir(name)
        if name in marked or log in unread or log in logs:
            files = [file for file in _listed(fs, join(log_dir, name)) if not _has_no_records(file)]
            if not (name in marked or log in unread):
                files = [file for file in files if not is_log_file(file) and (replaced or not file.endswith(DELETED))]
            paths += [join(name, file) for file in files]
        elif not (is_of_log_dir(name) or is_claim(name) or name in _OF_RUNS):
            paths.append(name)
    return [f"{path.rstrip(_DIRECTORY)}{_DIRECTORY}" if _is_dir(fs, join(log_dir, path)) else path for path in paths]


def _size_of(path: str) -> int:
    try:
        status = None if path.endswith(_DIRECTORY) else file_system([path]).stat(path)
    except StorageError:
        return 0
    return status.size if status is not None and status.is_file else 0


def remains_in(path: str, erased: ErasedKeys) -> Remains:
    """Search a file of ``unreached`` for the keys."""
    counts, complete = Counter[str](), False
    try:
        status = file_system([path]).stat(path)
        if path.endswith(_DIRECTORY) or status is None or not status.is_file:
            return Remains(path)
        for chunk in read_chunks([ByteRange(path, 0, status.size, 0)], -LONG_MAX, LONG_MAX):
            erased.to_erase(chunk, -LONG_MAX, counts)
        complete = True
    except (CompactionError, FormatError):
        # not a segment, or a torn tail
        complete = False
    records = counts[REMAINING]
    return Remains(path, records if complete or records else None)


def _has_no_records(name: str) -> bool:
    """Whether a file of a partition directory has no records, independent of its suffix."""
    file = parse_segment_file(name)
    return name in _OF_RUNS or (is_log_file(name) if file is None else file.kind != LOG)


def _listed(fs: ReadableFileSystem, path: str) -> list[str]:
    """The names in a directory; an empty name for the directory itself if it cannot be read."""
    try:
        return fs.listdir(path) if _is_dir(fs, path) else []
    except StorageError:
        return [""]


def _is_dir(fs: ReadableFileSystem, path: str) -> bool:
    status = fs.stat(path)
    return status is not None and status.is_dir


def search_files(runner: Engine, files: Sequence[str], erased: ErasedKeys) -> list[Remains]:
    """``remains_in`` each of the files."""
    sizes = {path: _size_of(path) for path in files}
    description = f"verify: look for keys in {counted(len(files), 'other file')}"
    return run_packed(runner, "other files", description, files, sizes.__getitem__, partial(remains_in, erased=erased))
