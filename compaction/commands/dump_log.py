"""``dump-log``: prints segments, indexes and snapshots of Kafka logs at rest as Kafka's own dump tool does."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.api.inputs import Texts, read_keys, texts
from compaction.cli import execution, log_lines, option_groups, standard_streams
from compaction.errors import StorageError, UsageError
from compaction.printable import TerminalOutput
from compaction.results import Result
from compaction.screen.text_table import Line, Style
from compaction.storage.calls import call
from compaction.storage.uri import parse_uri

if TYPE_CHECKING:
    from compaction.dumping.dump_tool import DumpRequest, Offsets, Output
    from compaction.dumping.record_decoders import Decoder

_DESCRIPTION = """\
Print the files of Kafka logs at rest: record batches and records, indexes and producer snapshots.
Standard output and findings are identical to those of Kafka's own dump tool (kafka-dump-log.sh of
Kafka 4.3.1). No file is changed; the directory may be in use by a broker.

The name of a file determines its kind:

  .log                   record batches, with --deep-iteration or --print-data-log records too
  .index .timeindex      entries, each compared with the log in the same directory
  .txnindex              aborted transactions
  .snapshot              the state of producers
  .checkpoint            a snapshot of the KRaft metadata log
  a partition directory  all of these files, segment by segment

Other files are reported on standard error and ignored.

With --output jsonl, each line is a JSON object with type and file; its other fields are named as in
the text. Keys and values, of --print-data-log, are {"text": ...} if they are valid UTF-8, else
{"base64": ...}; a decoder's messages are {"json": ...}. docs/dump-jsonl.md has the fields of each type.
Findings are lines, too; errors remain on standard error.

On a terminal, control characters of keys, values and names are printed as \\xNN or \\uNNNN; a pipe
or a file receives them unchanged.
"""

_EPILOG = """\
findings:
  Index entries that disagree with the log, and gaps between offsets, are listed on standard error
  at the end, as Kafka's tool does. (Cleaning leaves gaps; they are reported with --deep-iteration
  and --print-data-log.) One error line follows for each log with batches that fail their CRC and
  each index that disagrees with its log, with file and byte position, except for a preallocated
  index without entries. Bytes after the last complete batch are reported on standard output. They
  are an error only if they contain valid batches: the end of an active segment may be incomplete,
  or preallocated.

exit status:
  0  all files were printed and are valid
  1  a file is damaged or invalid; its readable part and the other files were printed
  2  the call is wrong (option, no such file); nothing was printed

differences from Kafka's tool:
  For a damaged file, Kafka's tool ends with a stack trace; this one prints the position in one line
  and continues with the next file. Kafka's tool fails at the end of a preallocated segment, this one
  does not. For invalid index entries, Kafka's tool has exit status 0, this one 1. Custom decoder
  classes cannot be loaded. Only one topic decoder can be given.

examples:
  The batches of a segment:
    kafka-log-compaction dump-log --files /var/lib/kafka/orders-0/00000000000000000000.log

  All records with keys and values:
    kafka-log-compaction dump-log --files orders-0/00000000000000000000.log --print-data-log

  The record at offset 4711 in any segment of a log, and the first record of a day:
    kafka-log-compaction dump-log --files orders-0 --offsets 4711 --print-data-log
    kafka-log-compaction dump-log --files orders-0 --timestamp 1735689600000 --print-data-log

  The records as JSON lines, for jq -c 'select(.type == "record") | .key' and other tools:
    kafka-log-compaction dump-log --files orders-0 --print-data-log --output jsonl

  Verify the indexes of a log:
    kafka-log-compaction dump-log --files orders-0 --verify-index-only

  Committed offsets of consumer groups:
    kafka-log-compaction dump-log --files __consumer_offsets-12 --offsets 0: --offsets-decoder
"""

_STRING_DECODER = "org.apache.kafka.tools.api.StringDecoder"
_DECODERS = ("offsets", "transaction-log", "cluster-metadata", "share-group-state", "remote-log-metadata")
_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1


def parser() -> option_groups.Parser:
    """The options of the command."""
    options = option_groups.Parser(_DESCRIPTION, _EPILOG)
    _add_files(options)
    _add_records(options)
    _add_decoders(options)
    _add_indexes(options)
    group = options.add_argument_group("output")
    group.add_argument(
        "--output", choices=("text", "jsonl"), default="text",
        help="text: as Kafka's tool; jsonl: one JSON object per file, batch, record and entry (default: "
        "%(default)s)",
    )  # fmt: skip
    option_groups.add_logging(options.add_argument_group("messages"))
    return options


def _add_files(options: option_groups.Parser) -> None:
    group = options.add_argument_group("files")
    group.add_argument(
        "--files", metavar="F", nargs="+", action="extend", required=True,
        help="files or partition directories, separated by spaces or commas; may be repeated",
    )  # fmt: skip
    option_groups.add_private_keys(group)
    selection = group.add_mutually_exclusive_group()
    selection.add_argument(
        "--offsets", metavar="A:B", type=_offsets, default=None,
        help="print only batches and records of logs with offsets from A to B inclusive, found by the offset index; A: has no "
        "end, :B no start, and A is a single offset",
    )  # fmt: skip
    selection.add_argument(
        "--timestamp", metavar="MS", type=_number(_MAX_LONG), default=None,
        help="print only the first record of a log with a timestamp of at least MS (milliseconds since the epoch), and its "
        "batch, found by the time index",
    )  # fmt: skip


def _add_records(options: option_groups.Parser) -> None:
    group = options.add_argument_group("logs")
    group.add_argument("--print-data-log", action="store_true", help="print records with keys and values, decoded as UTF-8")
    group.add_argument(
        "--deep-iteration", action="store_true",
        help="print records without keys and values; implied by --print-data-log",
    )  # fmt: skip
    group.add_argument(
        "--skip-record-metadata", action="store_true",
        help="print only keys and values of records; omit control records",
    )  # fmt: skip
    group.add_argument(
        "--max-bytes", metavar="N", type=_number(_MAX_INT), default=_MAX_INT,
        help="read only the first N bytes of each log",
    )  # fmt: skip


def _add_decoders(options: option_groups.Parser) -> None:
    group = options.add_argument_group("decoders", "each implies --print-data-log")
    topics = group.add_mutually_exclusive_group()
    topic_help = {
        "offsets": "records are those of __consumer_offsets",
        "transaction-log": "records are those of __transaction_state",
        "cluster-metadata": "records are those of __cluster_metadata",
        "share-group-state": "records are those of __share_group_state",
        "remote-log-metadata": "records are those of __remote_log_metadata",
    }
    for name in _DECODERS:
        topics.add_argument(f"--{name}-decoder", action="store_true", help=topic_help[name])
    for part in ("key", "value"):
        group.add_argument(
            f"--{part}-decoder-class", metavar="CLASS", nargs="?", const=_STRING_DECODER, default=None,
            help=f"decoder of {part}s: org.apache.kafka.tools.api.StringDecoder (the default), IntegerDecoder or LongDecoder",
        )  # fmt: skip


def _add_indexes(options: option_groups.Parser) -> None:
    group = options.add_argument_group("indexes")
    group.add_argument("--verify-index-only", action="store_true", help="compare entries with the log without printing them")
    group.add_argument(
        "--index-sanity-check", action="store_true",
        help="only run the check of a starting broker that decides whether it rebuilds an index",
    )  # fmt: skip
    group.add_argument(
        "--max-message-size", metavar="N", type=_number(_MAX_INT), default=5 * 1024 * 1024,
        help="maximum size of a batch at an offset index entry (default: %(default)s)",
    )  # fmt: skip


def _offsets(text: str) -> Offsets:
    from compaction.dumping.dump_tool import Offsets

    match = re.fullmatch(r"(?P<first>[0-9]{1,19})?(?P<colon>:)?(?P<last>[0-9]{1,19})?", text)
    if match is None or not (match["first"] or match["last"]):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, A:, :B or A, with offsets A and B")
    first = int(match["first"] or 0)
    last = first if match["colon"] is None else None if match["last"] is None else int(match["last"])
    if max(first, last or 0) > _MAX_LONG:
        raise argparse.ArgumentTypeError(f"{text!r} is past the largest offset")
    if last is not None and last < first:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return Offsets(first, last)


def _number(largest: int) -> type[int]:
    class Number(int):
        """An integer within bounds, created by argparse."""

        def __new__(cls, text: str) -> Number:
            if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > largest:
                raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {largest}")
            return super().__new__(cls, text)

    return Number


@dataclass(frozen=True)
class Dumped(Result):
    """The result of a dump.

    :ivar text: standard output of the command
    :ivar findings: standard error of the command: index entries and batches that disagree, damaged files
    :ivar valid: whether all files could be read and are valid
    """

    text: str
    findings: tuple[str, ...]
    valid: bool

    @property
    def exit_code(self) -> int:
        """1 if a file is damaged or invalid."""
        return 0 if self.valid else 1

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """See ``Result``."""
        return map(Line, self.text.splitlines())

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The objects of ``output="jsonl"``: files, batches, records, entries.

        :raises UsageError: the output is text
        """
        try:
            return [json.loads(line) for line in self.text.splitlines()]
        except ValueError:
            raise UsageError("the dump is text", hint='dump(..., output="jsonl") has rows') from None

    def to_dict(self) -> dict[str, Any]:
        """The rows and findings."""
        return {"valid": self.valid, "findings": list(self.findings), "rows": list(self.rows())}


@call()
def dump(
    files: Texts,
    *,
    private_keys: Texts = (),
    offsets: str | None = None,
    timestamp: int | None = None,
    print_data_log: bool = False,
    deep_iteration: bool = False,
    skip_record_metadata: bool = False,
    max_bytes: int = _MAX_INT,
    decoder: str | None = None,
    key_decoder_class: str | None = None,
    value_decoder_class: str | None = None,
    verify_index_only: bool = False,
    index_sanity_check: bool = False,
    max_message_size: int = 5 * 1024 * 1024,
    output: str = "text",
) -> Dumped:
    """Dumps segments, indexes, snapshots or whole partition directories, in memory.

    >>> dumped = compaction.dump(log_dir / "orders-0", print_data_log=True, output="jsonl")
    >>> [row["key"]["text"] for row in dumped.rows() if row["type"] == "record"][:2]
    ['a', 'b']

    The parameters are the options of ``kafka-log-compaction dump-log``.

    :param decoder: ``offsets``, ``transaction-log``, ``cluster-metadata``, ``share-group-state`` or ``remote-log-metadata``
    :param output: ``text`` or ``jsonl``
    :raises UsageError: no such file or decoder
    """
    try:
        offset_range = None if offsets is None else _offsets(offsets)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"offsets: {error}", hint="e.g. 4711 or 100:200") from None
    request = _request({**locals(), "offsets": offset_range})
    findings: list[str] = []
    out = io.BytesIO()
    valid = _dump(request, out, findings.append, findings.append)
    return Dumped(out.getvalue().decode(errors="replace"), tuple(findings), valid)


def _request(parameters: Mapping[str, Any]) -> DumpRequest:
    """The checked request.

    :param parameters: the parameters of ``dump``; ``offsets`` are parsed
    :raises UsageError: the decoder does not exist
    """
    from compaction.dumping.dump_tool import DumpRequest
    from compaction.dumping.index_dump import IndexView
    from compaction.dumping.segment_dump import SegmentView

    read_keys(texts(parameters["private_keys"]))
    decoder, classes = parameters["decoder"], (parameters["key_decoder_class"], parameters["value_decoder_class"])
    contents = bool(parameters["print_data_log"] or decoder or classes != (None, None))
    return DumpRequest(
        files=tuple(parse_uri(path, "--files") for text in texts(parameters["files"]) for path in text.split(",") if path),
        segment=SegmentView(
            deep=parameters["deep_iteration"] or contents,
            contents=contents,
            skip_metadata=parameters["skip_record_metadata"],
            decoder=_topic_decoder(decoder) if decoder else _class_decoder(*classes),
            max_bytes=None if parameters["max_bytes"] == _MAX_INT else parameters["max_bytes"],
        ),
        index=IndexView(parameters["index_sanity_check"], parameters["verify_index_only"], parameters["max_message_size"]),
        offsets=parameters["offsets"],
        timestamp=parameters["timestamp"],
        jsonl=parameters["output"] == "jsonl",
    )


def _topic_decoder(name: str) -> Decoder:
    from compaction.dumping import record_decoders

    decoders = {
        "offsets": record_decoders.decode_offsets,
        "transaction-log": record_decoders.decode_transactions,
        "cluster-metadata": record_decoders.decode_metadata,
        "share-group-state": record_decoders.decode_share_state,
        "remote-log-metadata": record_decoders.decode_remote_log,
    }
    if name not in decoders:
        raise UsageError(f"decoder {name!r} is not known", hint=f"use one of {', '.join(decoders)}")
    return decoders[name]


def _class_decoder(key_class: str | None, value_class: str | None) -> Decoder:
    from compaction.dumping import record_decoders

    class_names = [name or _STRING_DECODER for name in (key_class, value_class)]
    try:
        decode_key, decode_value = (record_decoders.text_decoder(name) for name in class_names)
    except KeyError as error:
        raise UsageError(
            f"decoder class {error} cannot be loaded", hint="use StringDecoder, IntegerDecoder or LongDecoder"
        ) from None
    return record_decoders.decode_with(decode_key, decode_value)


def _dump(request: DumpRequest, out: Output, print_finding: Callable[[str], None], print_error: Callable[[str], None]) -> bool:
    """Dumps the files; whether all could be read and are valid."""
    from compaction.dumping.dump_tool import Dump
    from compaction.storage.clients import require_store
    from compaction.storage.mixed import file_system

    for path in request.files:
        require_store(path)
    return Dump(file_system(request.files), request, out, print_finding, print_error).run(str(Path.cwd()))


def _print(request: DumpRequest) -> int:
    """Dumps the files of a request to standard output and standard error; returns the exit code."""
    # a pipe gets the bytes that Kafka's tool prints; on a terminal, control characters in keys could take effect
    out = TerminalOutput(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer

    def print_finding(line: str) -> None:
        out.flush()
        log_lines.print_line(line)

    def print_error(text: str) -> None:
        out.flush()
        log_lines.print_error(text)

    sys.stdout.flush()
    try:
        with standard_streams.strict_output():
            valid = _dump(request, out, print_finding, print_error)
            out.flush()
    except BrokenPipeError:
        # the reader has closed the pipe; the rest of the buffer is lost
        return 0
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", path="standard output") from error
    return 0 if valid else execution.FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. ``argv``: by default those of the process."""

    return execution.run_command(parser(), argv, lambda arguments: _print(read_request(arguments)))


def read_request(arguments: argparse.Namespace) -> DumpRequest:
    """The checked request of parsed arguments."""
    chosen = [name for name in _DECODERS if getattr(arguments, f"{name.replace('-', '_')}_decoder")]
    return _request({**vars(arguments), "decoder": chosen[0] if chosen else None})
