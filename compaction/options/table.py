"""The table of all options. A row has an option's type, as a keyword of the Python API, and its ``Option``.

The rows of a class belong together; a command takes the rows of some classes. A new option is a row here, in a class of its own
if no class has the same commands, and its use.
"""

# fmt: off
# ruff: noqa: UP037 - annotations are evaluated here, and the types of Spark are not imported
import os
import re
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from compaction.config.request import BENEFIT, DIRTY
from compaction.config.sources import CONFIGURED
from compaction.exports import LAYOUTS
from compaction.options.option import Option
from compaction.options.values import NamedSettings, Texts, Time, iso_time_ms, milliseconds, pairs, texts_of_policies
from compaction.rules.kafka_rules import NEWEST, OLDEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession
AUTO, LOCAL, SPARK, CONNECT = "auto", "local", "spark", "connect"
TEXT, JSON, JSONL = "text", "json", "jsonl"
#: encodings of keys in files, see ``compaction.formats.keys``
KEY_FORMATS = ("text", "hex", "base64", "json")
DECODERS = ("offsets", "transaction-log", "cluster-metadata", "share-group-state", "remote-log-metadata")
STRING_DECODER = "org.apache.kafka.tools.api.StringDecoder"
#: of a dump
MAX_BYTES, MAX_MESSAGE_BYTES = 2**31 - 1, 5 * 1024 * 1024

#: the headings of the help, in order
GROUPS = (
    _LOGS, _FILES, _KEYS, _COMPARISON, _OVER_TIME, _CONFIGURATION, _RULES, _FIRST, _RUN, _PRINTED, _DECODERS, _INDEXES,
) = (
    "logs", "files", "keys", "comparison", "policies through time", "configuration", "rules",
    "what to clean first, and how much", "run and output", "what is printed", "decoders (each implies --print-data-log)",
    "indexes",
)


def number(largest: int) -> "Callable[[str], int]":
    """Reads a number between 0 and ``largest``, inclusive."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > largest:
            raise ValueError(f"{text!r} is not a number between 0 and {largest}")
        return int(text)

    return read


def _value(group: str, flag: str, metavar: str | None, text: str, **more: Any) -> Option:
    return Option(group, flag, text, metavar, **more)


def _many(group: str, flag: str, metavar: str, text: str, **more: Any) -> Option:
    return Option(group, flag, f"{text}; may be repeated", metavar, default=(), many=True, **more)


def _switch(group: str, flag: str, text: str, **more: Any) -> Option:
    return Option(group, flag, text, default=False, **more)


class Selection(TypedDict, total=False):
    topics: Annotated[Texts, _many(_LOGS, "--topic", "REGEX", "only topics whose full name matches one of these regular"
        " expressions", usual=True)]
    partitions: Annotated[Texts, _many(_LOGS, "--partition", "TOPIC-N", "only these partitions, in addition to those of"
        " --topic; each must exist")]
    allow_empty: Annotated[bool, _switch(_LOGS, "--allow-empty", "exit with 0 if no log is selected; by default, that is a"
        " usage error")]
    tail: Annotated[str | None, _value(_LOGS, "--tail", "DIR", "a log directory at rest with the segments that are not yet"
        " in an export of tiered storage")]


class PrivateKeys(TypedDict, total=False):
    private_keys: Annotated[Texts, _many(_LOGS, "--private-key", "[ID=]FILE", "a private RSA key (PEM) of an encrypted"
        " export, for this key id or for all other ids")]


class Keys(TypedDict, total=False):
    keys: Annotated[Texts, _many(_KEYS, "--keys", "FILE", "a file with keys, one per line; with --keys-column, a Parquet or"
        " CSV file", usual=True)]
    keys_format: Annotated[str, _value(_KEYS, "--keys-format", None, "encoding of the keys in --keys; json: a string, or a"
        " key as dump-log prints it (default: text)", default=TEXT, choices=KEY_FORMATS, recorded=True)]
    keys_column: Annotated[str | None, _value(_KEYS, "--keys-column", "NAME", "the column with the keys, if --keys is a"
        " .parquet or .csv file", recorded=True)]
    where: Annotated[Texts, _many(_KEYS, "--where", "PATTERN", "all keys that match a pattern: prefix=TEXT, regex=EXPRESSION"
        " (RE2, matches complete keys in UTF-8), bytes=EXPRESSION (RE2, matches complete keys as bytes), or @FILE with one"
        " pattern per line", usual=True, recorded=True, hidden=True)]


class Erasing(TypedDict, total=False):
    on_match: Annotated[str, _value(_KEYS, "--on-match", None, "drop the records, or replace each by a tombstone of the same"
        " key, offset and timestamp, without headers (default: drop)", default="drop", choices=("drop", "tombstone"),
        recorded=True)]
    accept_remaining: Annotated[bool, _switch(_RUN, "--accept-remaining", "exit with 0, not 1, if records of the keys remain"
        " where the run does not erase: in last segments without --include-active, and in all places that make a certificate"
        " incomplete")]


class Certificate(TypedDict, total=False):
    certificate: Annotated[str | os.PathLike[str] | None, _value(_RUN, "--certificate", "FILE",
        "write a certificate in JSON: the erased records, and the proof that nothing else was changed; exit with 1 if"
        " records of the keys remain in the log directories", usual=True, recorded=True, texts={
            "verify": "a certificate of erase to verify; needs the keys that were given to erase",
        })]


class Now(TypedDict, total=False):
    as_of: Annotated[Time | None, _value(_CONFIGURATION, "--as-of", "TIME", "current time for every rule, to repeat a run"
        " exactly, e.g. 2026-11-22T02:00Z (default: now)", read=iso_time_ms, texts={
            "count": "with --bytes: count the ages of records up to this time, e.g. 2026-11-22T02:00Z (default: now)",
        }, others=(
            Option(_CONFIGURATION, "--as-of-ms", "the same in milliseconds since the epoch", "MS", read=milliseconds),
        ))]


class Configuration(Now, total=False):
    config: Annotated[Texts, _many(_CONFIGURATION, "--config", "FILE", "a broker's server.properties, or TOML (name ends in"
        " .toml); later files win")]
    settings: Annotated[NamedSettings, _many(_CONFIGURATION, "--set", "KEY=VALUE",
        "a topic-level or broker-level setting that overrides all other sources", texts_of=pairs, usual=True)]
    metadata: Annotated[Texts, _many(_CONFIGURATION, "--metadata", "DIR", "a log directory, or its __cluster_metadata-0,"
        " with the metadata log for log directories of the same cluster.id and for exports; it is only read")]
    assume_default_policy: Annotated[bool, _switch(_CONFIGURATION, "--assume-default-policy",
        "if no source sets a topic's cleanup.policy, use the broker's default, or Kafka's: delete")]


class Rules(TypedDict, total=False):
    kafka_version: Annotated[str, _value(_RULES, "--kafka-version", "VERSION", "apply the log cleaner's rules of this Kafka"
        f" version, {OLDEST} to {NEWEST}, e.g. 3.9 or 3.9.1 (default: {AUTO}, the version of each log's cluster by its"
        " metadata.version or inter.broker.protocol.version, else the newest)", default=AUTO)]


class Tasks(TypedDict, total=False):
    engine: Annotated[str, _value(_RUN, "--engine", None, "run tasks in processes on this machine (local,"
        " needs no Java), as Spark jobs (spark), or on a Spark Connect server (connect); the result is the same (default: auto,"
        " which is connect with SPARK_REMOTE, spark under spark-submit, and local otherwise)", default=AUTO,
        choices=(AUTO, LOCAL, SPARK, CONNECT), usual=True)]
    cores: Annotated[int | None, _value(_RUN, "--cores", "N", "run at most N worker processes on this machine; not on Spark,"
        " which has settings for it (default: as many as the CPUs, the CPU quota and the memory of this process allow)",
        read=number(2**15))]

    # only the Python API has it
    spark: Annotated["SparkSession | None", _value(_RUN, "", None, "the caller's session, which is neither stopped nor"
        " configured")]


class DryRun(TypedDict, total=False):
    dry_run: Annotated[bool, _switch(_RUN, "--dry-run", "write nothing; report the figures of the run", usual=True)]


class Active(TypedDict, total=False):
    include_active: Annotated[bool, _switch(_RUN, "--include-active", "also clean the last segment of each log; only for"
        " exports to which no broker appends", usual=True, recorded=True, texts={
            "erase": "also erase from the last segment of each log; a broker can append to the result",
            "dry-run": "compare runs with --include-active, which also clean the last segment of each log; only for exports",
            "verify": "the logs were cleaned with --include-active",
        })]


class Keyless(TypedDict, total=False):
    allow_keyless: Annotated[bool, _switch(_RUN, "--allow-keyless", "clean logs even if many of their records have no key;"
        " compaction drops these records, and refuses such logs by default", recorded=True, texts={
            "dry-run": "compare runs with --allow-keyless, which also clean logs with many records without a key",
        })]


class Copy(TypedDict, total=False):
    output_dir: Annotated[str | os.PathLike[str] | None, _value(_RUN, "--output-dir", "DIR",
        "write all logs to this new directory and do not change the source; it appears only when it is complete", usual=True)]
    output_layout: Annotated[str | None, _value(_RUN, "--output-layout", None, "layout of --output-dir: tiered storage"
        " (aiven, local-tiered), or a backup set of kafka-backup (backup, needs --accept-loss) (default: a log directory)",
        choices=LAYOUTS)]
    accept_loss: Annotated[str | None, _value(_RUN, "--accept-loss", None, "accept that a backup set has no transactions,"
        " producers, leader epochs and delete horizons, or that local-tiered is not encrypted; uncommitted: also omit"
        " records after the start of an open transaction or the high watermark", const="format",
        choices=("format", "uncommitted"))]
    replace: Annotated[bool, _switch(_RUN, "--replace", "replace an earlier output in --output-dir that was written with"
        " --replace or --if-done, or to an object store; it remains until the new one is complete")]
    if_done: Annotated[str | None, _value(_RUN, "--if-done", None, "for repeated tasks: do nothing if --output-dir has the"
        " complete, unchanged result of the same request; needs --as-of, for erase also --certificate", choices=("skip",))]


class Since(TypedDict, total=False):
    since: Annotated[str | os.PathLike[str] | None, _value(_RUN, "--since", "DIR",
        "continue this previous copy of the same logs: take unchanged segments from it, and read only new ones from the"
        " source; it must have been written with --if-done, --replace or --since, or to an object store", usual=True)]


class Cleaning(Since, total=False):
    """Only compact has these."""

    release_early: Annotated[bool, _switch(_RUN, "--release-early", "remove replaced segments as soon as the swaps of their"
        " wave have ended, without regard to file.delete.delay.ms")]
    verify: Annotated[bool, _switch(_RUN, "--verify", "verify the result afterwards, as the command verify does; exit with 1"
        " if a record was lost or changed", usual=True)]
    order: Annotated[str, _value(_FIRST, "--order", None, "clean the dirtiest logs first, or those that are expected to free"
        " the most bytes for each byte that is rewritten (default: dirty)", default=DIRTY, choices=(DIRTY, BENEFIT))]
    max_duration: Annotated[str | int | None, _value(_FIRST, "--max-duration", "TIME",
        "begin no wave that would end after this time, e.g. 2h; the other logs are deferred to the next run")]
    max_rewrite: Annotated[str | int | None, _value(_FIRST, "--max-rewrite", "SIZE",
        "rewrite segments of at most this size, e.g. 500GiB; defer the other logs")]
    min_freed: Annotated[str | None, _value(_FIRST, "--min-freed", "SHARE", "defer logs that are expected to free less than"
        " this share of what would be rewritten, e.g. 10%")]


class Policies(TypedDict, total=False):
    policies: Annotated["Texts | Sequence[Mapping[str, object]]", _many(_COMPARISON, "--policy", "K=V,K=V",
        f"settings to compare, or {CONFIGURED} (default: {CONFIGURED})", texts_of=texts_of_policies, usual=True)]
    over_time: Annotated[bool, _switch(_OVER_TIME, "--over-time", "simulate the policies since the first record of the logs",
        usual=True)]
    from_time: Annotated[Time | None, _value(_OVER_TIME, "--from", "TIME", "show the time from here on (default: the first"
        " record)", read=iso_time_ms)]
    to_time: Annotated[Time | None, _value(_OVER_TIME, "--to", "TIME", "show the time up to here (default: --as-of)",
        read=iso_time_ms)]
    every: Annotated[str | int | None, _value(_OVER_TIME, "--every", "TIME", "time between two samples, e.g. 6h (default:"
        " 1d, or less if there are few days)")]
    ahead: Annotated[str | int | None, _value(_OVER_TIME, "--ahead", "TIME", "go on for this time, e.g. 30d, with the"
        " arrivals of the last 30 days")]


class Proof(TypedDict, total=False):
    several_rounds: Annotated[bool, _switch(_RUN, "--several-rounds", "allow more than one round of cleaning, in which"
        " delete horizons may have been set and have passed")]
    strict: Annotated[bool, _switch(_RUN, "--strict", "report retained superseded records as violations; Kafka may retain"
        " some, without loss")]


class Counts(TypedDict, total=False):
    isolation_level: Annotated[str, _value(_RUN, "--isolation-level", None, "read_uncommitted: with aborted data, and up to"
        " the high watermark (default: read_committed)", default="read_committed",
        choices=("read_committed", "read_uncommitted"))]
    top: Annotated[int, _value(_RUN, "--top", "N", "name the N largest keys of each topic; keys may be personal data"
        " (default: none)", default=0, read=number(1000), usual=True)]
    by: Annotated[str, _value(_RUN, "--by", None, "measure of the size of keys (default: bytes)", default="bytes",
        choices=("bytes", "records"))]
    by_partition: Annotated[bool, _switch(_RUN, "--partitions", "also print a line for each partition", usual=True)]
    stored: Annotated[bool, _switch(_RUN, "--bytes", "show where the bytes of the .log files are, of all stored records",
        usual=True)]
    group_by: Annotated[str | None, _value(_RUN, "--group-by", "GROUPS", "with --bytes: sums by group of keys: prefix:NUMBER,"
        " by the first bytes; regex:EXPRESSION, of keys as text, or bytes:EXPRESSION, of keys as bytes, by its first group or"
        " its match; window, by the start of the window of a windowed key of Kafka Streams; window-store, the same in a store's"
        " changelog", usual=True)]


class Health(TypedDict, total=False):
    broker_logs: Annotated[Texts, _many(_LOGS, "--broker-log", "FILE", "the broker's log-cleaner.log or server.log, older"
        " files first", usual=True)]
    quick: Annotated[bool, _switch(_LOGS, "--quick", "do not check the cleanable ranges of logs for damage", usual=True)]
    show_topics: Annotated[bool, _switch(_PRINTED, "--show-topics", "name topics in the JSON document, which hides their names"
        " by default so that you can send it", usual=True)]


class DumpOptions(PrivateKeys, total=False):
    offsets: Annotated[str | None, _value(_FILES, "--offsets", "A:B", "print only batches and records of logs with offsets"
        " from A to B inclusive, found by the offset index; A: has no end, :B no start, and A is a single offset", usual=True)]
    timestamp: Annotated[int | None, _value(_FILES, "--timestamp", "MS", "print only the first record of a log with a"
        " timestamp of at least MS (milliseconds since the epoch), and its batch, found by the time index",
        read=number(2 ** 63 - 1), usual=True)]
    print_data_log: Annotated[bool, _switch(_PRINTED, "--print-data-log", "print records with keys and values, decoded as"
        " UTF-8", usual=True)]
    deep_iteration: Annotated[bool, _switch(_PRINTED, "--deep-iteration", "print records without keys and values; implied by"
        " --print-data-log", usual=True)]
    skip_record_metadata: Annotated[bool, _switch(_PRINTED, "--skip-record-metadata",
        "print only keys and values of records; omit control records")]
    max_bytes: Annotated[int, _value(_PRINTED, "--max-bytes", "N", "read only the first N bytes of each log",
        default=MAX_BYTES, read=number(MAX_BYTES))]
    decoder: Annotated[str | None, _value(_DECODERS, "", None, "the decoder of an internal topic's messages",
        choices=DECODERS, others=(
            Option(_DECODERS, "--offsets-decoder", "records are those of __consumer_offsets", const="offsets"),
            Option(_DECODERS, "--transaction-log-decoder", "records are those of __transaction_state", const="transaction-log"),
            Option(_DECODERS, "--cluster-metadata-decoder", "records are those of __cluster_metadata",
                const="cluster-metadata"),
            Option(_DECODERS, "--share-group-state-decoder", "records are those of __share_group_state",
                const="share-group-state"),
            Option(_DECODERS, "--remote-log-metadata-decoder", "records are those of __remote_log_metadata",
                const="remote-log-metadata"),
        ))]
    key_decoder_class: Annotated[str | None, _value(_DECODERS, "--key-decoder-class", "CLASS",
        f"decoder of keys: {STRING_DECODER} (the default), IntegerDecoder or LongDecoder", const=STRING_DECODER)]
    value_decoder_class: Annotated[str | None, _value(_DECODERS, "--value-decoder-class", "CLASS",
        "decoder of values: as of keys", const=STRING_DECODER)]
    verify_index_only: Annotated[bool, _switch(_INDEXES, "--verify-index-only",
        "compare entries with the log without printing them", usual=True)]
    index_sanity_check: Annotated[bool, _switch(_INDEXES, "--index-sanity-check",
        "only run the check of a starting broker that decides whether it rebuilds an index")]
    max_message_size: Annotated[int, _value(_INDEXES, "--max-message-size", "N",
        f"maximum size of a batch at an offset index entry (default: {MAX_MESSAGE_BYTES})", default=MAX_MESSAGE_BYTES,
        read=number(2 ** 31 - 1))]
    output: Annotated[str, _value(_PRINTED, "--output", None, "text: as Kafka's tool; jsonl: one JSON object per file,"
        " batch, record and entry (default: text)", default=TEXT, choices=(TEXT, JSONL), usual=True)]


class CompactOptions(
    Selection, PrivateKeys, Configuration, Rules, DryRun, Active, Keyless, Cleaning, Copy, Tasks, total=False
):
    """The keywords of ``compaction.compact``."""


class ExpireOptions(Selection, PrivateKeys, Configuration, DryRun, Copy, Tasks, total=False):
    """The keywords of ``compaction.expire``."""


class EraseOptions(
    Selection, PrivateKeys, Keys, Erasing, Configuration, Rules, DryRun, Active, Certificate, Copy, Tasks, total=False
):
    """The keywords of ``compaction.erase``."""


class DryRunOptions(
    Selection, PrivateKeys, Configuration, Rules, Policies, Active, Keyless, Tasks, total=False
):
    """The keywords of ``compaction.dry_run``."""


class VerifyOptions(
    Selection, PrivateKeys, Certificate, Keys, Configuration, Rules, Active, Proof, Tasks, total=False
):
    """The keywords of ``compaction.verify``."""


class CountOptions(Selection, PrivateKeys, Counts, Now, Tasks, total=False):
    """The keywords of ``compaction.count``."""


class DoctorOptions(Selection, PrivateKeys, Configuration, Health, total=False):
    """The keywords of ``compaction.doctor``."""


class NoOptions(TypedDict):
    """A command without keywords."""


# options of command lines only
LOG_DIRS = {"log_dirs": _many(_LOGS, "--log-dir", "DIR", "log directories at rest: a stopped broker's log.dirs, a"
        " backup, an export", required=True, usual=True)}
OPTIONAL_LOG_DIRS = {"log_dirs": _many(_LOGS, "--log-dir", "DIR", "log directories at rest, or of a running broker (default:"
        " check only the machine)", usual=True)}
SIDES = {
    "before": _many(_LOGS, "--before", "DIR", "log directories before cleaning", usual=True),
    "after": _many(_LOGS, "--after", "DIR", "log directories after cleaning; logs are paired by topic and"
        " partition", usual=True),
    "in_place": _many(_LOGS, "--in-place", "DIR", "log directories that were cleaned in place; they are"
        " compared with the .deleted files of the last run", usual=True),
}
FILES = {"files": _many(_FILES, "--files", "F", "files or partition directories, separated by spaces or commas",
        required=True, usual=True)}
EXPLAIN = {
    "explain": _many(_COMPARISON, "--explain", "TOPIC-N", "do not compare; explain why these partitions are"
        " or are not cleaned under each policy", usual=True),
    "strict": _switch(_COMPARISON, "--strict", "exit with 1 if a run would refuse a log under any policy"
        f" (default: only under {CONFIGURED})"),
}
WHY = {"why": _value(_RUN, "--why", "TOPIC-N:OFFSET", "explain only the fate of this record of --before", usual=True)}
REPORT = {"report": _value(_RUN, "--report", "FILE", "write a report in JSON (schema_version 1)", usual=True)}
HTML = {"html": _value(_RUN, "--html", "FILE", "write the result as a self-contained HTML page", usual=True, texts={
            "count": "write a self-contained HTML page; with --bytes, of where the bytes are",
        })}
METRICS = {"metrics": _value(_RUN, "--metrics", "FILE", "write the figures as OpenMetrics text, for a collector that reads"
        " files")}
ALL_ROWS = {"all": _switch(_RUN, "--all", "print every log, not only the topics with the largest effect")}
QUIET = {"quiet": _switch(_RUN, "--quiet", "print only the last line of the result, and no progress")}
OUTPUT = {"output": _value(_RUN, "--output", None, "format of standard output: text, or the report as a JSON document"
        " (default: text)", default=TEXT, choices=(TEXT, JSON))}
MESSAGES = {
    "log_format": _value(_RUN, "--log-format", None, "format of errors, progress and log lines on standard"
        " error (default: text)", default=TEXT, choices=(TEXT, JSON)),
    "verbose": _switch(_RUN, "--verbose", "print each step with its time, details of each log, and stack"
        " traces with errors"),
}
STATUS = {"status": _switch(_RUN, "--status", "compile nothing; show the cached kernels and their directory",
        usual=True)}
SHELL = {"shell": _value(_RUN, "shell", None, "the shell", choices=("bash", "fish", "tcsh", "zsh"), usual=True)}
#: the command line of a command that writes a report
REPORTED = (LOG_DIRS, REPORT, HTML, METRICS, ALL_ROWS, QUIET, OUTPUT, MESSAGES)
