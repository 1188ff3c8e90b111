"""``dump-log``: prints segments, indexes and snapshots of Kafka logs at rest as Kafka's own dump tool does."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.cli import execution, log_lines, standard_streams
from compaction.errors import StorageError, UsageError
from compaction.files.uri import parse_uri
from compaction.options.inputs import read_private_keys
from compaction.options.option import CommandOptions
from compaction.options.table import FILES, JSONL, MAX_BYTES, MESSAGES, STRING_DECODER, DumpOptions
from compaction.options.values import Texts, texts
from compaction.printable import Output, TerminalOutput
from compaction.results import Result
from compaction.screen.text_table import Line, Style

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from compaction.dumping.dump_tool import DumpRequest, Offsets
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

_MAX_LONG = 2**63 - 1

OPTIONS = CommandOptions("dump-log", DumpOptions, FILES, MESSAGES, description=_DESCRIPTION, epilog=_EPILOG)


def _offsets(text: str) -> Offsets:
    """:raises UsageError: not a range of offsets"""
    from compaction.dumping.dump_tool import Offsets

    match = re.fullmatch(r"(?P<first>[0-9]{1,19})?(?P<colon>:)?(?P<last>[0-9]{1,19})?", text)
    first, last = (int(match[name] or 0) for name in ("first", "last")) if match is not None else (0, 0)
    if match is None or not (match["first"] or match["last"]):
        error = "is not A:B, A:, :B or A, with offsets A and B"
    elif max(first, last) > _MAX_LONG:
        error = "is past the largest offset"
    elif match["last"] is not None and last < first:
        error = "ends before it begins"
    else:
        return Offsets(first, first if match["colon"] is None else None if match["last"] is None else last)
    raise UsageError(f"--offsets: {text!r} {error}", hint="e.g. 4711 or 100:200")


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


@OPTIONS.function
def dump(files: Texts, **options: Unpack[DumpOptions]) -> Dumped:
    """Dumps segments, indexes, snapshots or whole partition directories, in memory.

    >>> dumped = compaction.dump(log_dir / "orders-0", print_data_log=True, output="jsonl")
    >>> [row["key"]["text"] for row in dumped.rows() if row["type"] == "record"][:2]
    ['a', 'b']

    The parameters are the options of ``kafka-log-compaction dump-log``.

    :param decoder: ``offsets``, ``transaction-log``, ``cluster-metadata``, ``share-group-state`` or ``remote-log-metadata``
    :param output: ``text`` or ``jsonl``
    :raises UsageError: no such file or decoder
    """
    findings: list[str] = []
    out = io.BytesIO()
    valid = _dump(read_request(files, options), out, findings.append, findings.append)
    return Dumped(out.getvalue().decode(errors="replace"), tuple(findings), valid)


def read_request(files: Texts, options: DumpOptions) -> DumpRequest:
    """The checked request.

    :raises UsageError: a value is wrong
    """
    from compaction.dumping.dump_tool import DumpRequest
    from compaction.dumping.index_dump import IndexView
    from compaction.dumping.segment_dump import SegmentView

    read_private_keys(texts(options["private_keys"]))
    decoder, classes = options["decoder"], (options["key_decoder_class"], options["value_decoder_class"])
    contents = options["print_data_log"] or decoder is not None or classes != (None, None)
    return DumpRequest(
        files=tuple(parse_uri(path, "--files") for text in texts(files) for path in text.split(",") if path),
        segment=SegmentView(
            deep=options["deep_iteration"] or contents,
            contents=contents,
            skip_metadata=options["skip_record_metadata"],
            decoder=_class_decoder(*classes) if decoder is None else _topic_decoder(decoder),
            max_bytes=None if options["max_bytes"] == MAX_BYTES else options["max_bytes"],
        ),
        index=IndexView(options["index_sanity_check"], options["verify_index_only"], options["max_message_size"]),
        offsets=None if options["offsets"] is None else _offsets(options["offsets"]),
        timestamp=options["timestamp"],
        jsonl=options["output"] == JSONL,
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
    return decoders[name]


def _class_decoder(key_class: str | None, value_class: str | None) -> Decoder:
    from compaction.dumping import record_decoders

    class_names = [name or STRING_DECODER for name in (key_class, value_class)]
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
    from compaction.files.mixed import file_system
    from compaction.files.object_store import require_store

    for path in request.files:
        require_store(path)
    return Dump(file_system(request.files), request, out, print_finding, print_error).run(str(Path.cwd()))


def _body(arguments: argparse.Namespace) -> int:
    """Dumps the files to standard output and standard error; returns the exit code."""
    request = read_request(arguments.files, OPTIONS.complete(vars(arguments)))
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


main = partial(execution.run_command, OPTIONS, _body)
