"""Prints segments, indexes, snapshots and checkpoints of Kafka logs at rest, as Kafka's own dump tool does, and checks them.

Run it with ``spark-submit jobs/dump_log.py --help``, or with ``python``: no Spark session is started.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compaction.errors import UsageError  # noqa: E402 - the checkout must be on the path first
from compaction.fs.uri import place  # noqa: E402
from compaction.printable import TerminalOutput  # noqa: E402
from jobs import _command, _logging, _options  # noqa: E402

if TYPE_CHECKING:
    from compaction.dump.decoders import Decoder
    from compaction.dump.tool import DumpRequest, Offsets

_DESCRIPTION = """\
Print the files of Kafka logs at rest: record batches and records, indexes, producer snapshots
and checkpoints. For the files that Kafka's own dump tool (kafka-dump-log.sh of Kafka 4.3.0) knows,
standard output is the same, character for character, and so is what it finds wrong. Nothing is
written to any file, and a directory that a broker uses may be read.

What a file is, its name tells:

  .log                   record batches, with --deep-iteration or --print-data-log records too
  .index .timeindex      entries, each held against the log beside it
  .txnindex              aborted transactions
  .snapshot              the state of producers
  .checkpoint            a snapshot of the KRaft metadata log
  leader-epoch-checkpoint, partition.metadata, recovery-point-offset-checkpoint,
  log-start-offset-checkpoint, replication-offset-checkpoint, cleaner-offset-checkpoint,
  meta.properties, .kafka_cleanshutdown
                         checkpoints, each entry held against the logs beside it
  a log directory        all of its checkpoints and those of its partitions
  a partition directory  all of its files, a segment at a time

Other files are named on standard error and passed over.

On a terminal control characters of keys, values and names are shown as \\xNN or \\uNNNN; a pipe or
a file is given them as they are.
"""

_EPILOG = """\
findings:
  Index entries that disagree with the log, and gaps between offsets (cleaning makes these; they
  are looked for with --deep-iteration and --print-data-log), are listed on standard error at the
  end, as Kafka's tool does. Then comes one line, with file and byte position (of a checkpoint: the
  line), for everything that is wrong: batches that fail their CRC, indexes that disagree with their
  log, checkpoints that contradict their logs. Bytes after the last whole batch are told on standard
  output; they are an error only where sound batches follow among them, since the end of an active
  segment may be torn.

exit status:
  0  everything was printed, and nothing is wrong with it
  1  a file is damaged or wrong; what could be read of it was printed, and the other files too
  2  the call is wrong (option, no such file); nothing was printed

differences from Kafka's tool:
  Where that dies of a damaged file with a stack trace, this one tells the place in one line and
  goes on with the next file. It finds wrong entries with exit status 0, this one with 1. Decoder
  classes of your own cannot be loaded. Of --offsets-decoder and its like one may be given.

examples:
  What is in this segment, batch by batch?
    spark-submit jobs/dump_log.py --files /var/lib/kafka/orders-0/00000000000000000000.log

  Every record, with key and value:
    spark-submit jobs/dump_log.py --files orders-0/00000000000000000000.log --print-data-log

  The record at offset 4711, wherever in the log it is, and the first one of a day:
    spark-submit jobs/dump_log.py --files orders-0 --offsets 4711 --print-data-log
    spark-submit jobs/dump_log.py --files orders-0 --timestamp 1735689600000 --print-data-log

  Are the indexes of a log sound?
    spark-submit jobs/dump_log.py --files orders-0 --verify-index-only

  What do the checkpoints of a log directory say, and do the logs agree?
    spark-submit jobs/dump_log.py --files /var/lib/kafka

  Which offsets were committed?
    spark-submit jobs/dump_log.py --files __consumer_offsets-12 --offsets 0: --offsets-decoder
"""

_STRING_DECODER = "org.apache.kafka.tools.api.StringDecoder"
_DECODERS = ("offsets", "transaction-log", "cluster-metadata", "share-group-state", "remote-log-metadata")
_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1


def parser() -> _options.Parser:
    """The command's options."""
    options = _options.Parser(_DESCRIPTION, _EPILOG)
    _add_files(options)
    _add_records(options)
    _add_decoders(options)
    _add_indexes(options)
    _options.add_logging(options.add_argument_group("what is told"))
    return options


def _add_files(options: _options.Parser) -> None:
    group = options.add_argument_group("what to dump")
    group.add_argument(
        "--files", metavar="F", nargs="+", action="extend", required=True,
        help="files, log directories or partition directories, separated by blanks or commas; may be repeated",
    )  # fmt: skip
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--offsets", metavar="A:B", type=_offsets, default=None,
        help="of logs, only the batches (and records) with an offset from A up to and including B, found by the offset index; "
        "A: is from A on, :B up to B, A that one",
    )  # fmt: skip
    where.add_argument(
        "--timestamp", metavar="MS", type=_number(_MAX_LONG), default=None,
        help="of logs, only the first record whose timestamp is MS (milliseconds since the epoch) or later, and its batch, "
        "found by the time index",
    )  # fmt: skip


def _add_records(options: _options.Parser) -> None:
    group = options.add_argument_group("logs")
    group.add_argument("--print-data-log", action="store_true", help="print records with their keys and values, read as UTF-8")
    group.add_argument(
        "--deep-iteration", action="store_true",
        help="print records, without keys and values; included in --print-data-log",
    )  # fmt: skip
    group.add_argument(
        "--skip-record-metadata", action="store_true",
        help="leave out what is not key or value of a record, and all of control records",
    )  # fmt: skip
    group.add_argument(
        "--max-bytes", metavar="N", type=_number(_MAX_INT), default=_MAX_INT,
        help="read no further than this many bytes of each log",
    )  # fmt: skip


def _add_decoders(options: _options.Parser) -> None:
    group = options.add_argument_group("decoders", "each includes --print-data-log")
    topics = group.add_mutually_exclusive_group()
    told = {
        "offsets": "records are those of __consumer_offsets",
        "transaction-log": "records are those of __transaction_state",
        "cluster-metadata": "records are those of __cluster_metadata",
        "share-group-state": "records are those of __share_group_state",
        "remote-log-metadata": argparse.SUPPRESS,
    }
    for name in _DECODERS:
        topics.add_argument(f"--{name}-decoder", action="store_true", help=told[name])
    for part in ("key", "value"):
        group.add_argument(
            f"--{part}-decoder-class", metavar="CLASS", nargs="?", const=_STRING_DECODER, default=None,
            help=f"how to read {part}s: org.apache.kafka.tools.api.StringDecoder (the default), IntegerDecoder or LongDecoder",
        )  # fmt: skip


def _add_indexes(options: _options.Parser) -> None:
    group = options.add_argument_group("indexes")
    group.add_argument("--verify-index-only", action="store_true", help="hold entries against the log without printing them")
    group.add_argument(
        "--index-sanity-check", action="store_true",
        help="make only the check by which a broker that starts decides whether to build an index anew",
    )  # fmt: skip
    group.add_argument(
        "--max-message-size", metavar="N", type=_number(_MAX_INT), default=5 * 1024 * 1024,
        help="the largest batch that an offset index entry may point at (default: %(default)s)",
    )  # fmt: skip


def _offsets(text: str) -> Offsets:
    from compaction.dump.tool import Offsets

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
        """A whole number within bounds, for argparse to make."""

        def __new__(cls, text: str) -> Number:
            if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > largest:
                raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and {largest}")
            return super().__new__(cls, text)

    return Number


def read_request(arguments: argparse.Namespace) -> DumpRequest:
    """The checked request.

    :raises UsageError: a decoder that there is not
    """
    from compaction.dump.index_files import IndexView
    from compaction.dump.segment import SegmentView
    from compaction.dump.tool import DumpRequest

    chosen = [name for name in _DECODERS if getattr(arguments, f"{name.replace('-', '_')}_decoder")]
    classes = (arguments.key_decoder_class, arguments.value_decoder_class)
    contents = bool(arguments.print_data_log or chosen or classes != (None, None))
    return DumpRequest(
        files=tuple(place(path, "--files") for given in arguments.files for path in given.split(",") if path),
        segment=SegmentView(
            deep=arguments.deep_iteration or contents,
            contents=contents,
            skip_metadata=arguments.skip_record_metadata,
            decoder=_topic_decoder(chosen[0]) if chosen else _class_decoder(*classes),
            max_bytes=None if arguments.max_bytes == _MAX_INT else arguments.max_bytes,
        ),
        index=IndexView(arguments.index_sanity_check, arguments.verify_index_only, arguments.max_message_size),
        offsets=arguments.offsets,
        timestamp=arguments.timestamp,
    )


def _topic_decoder(name: str) -> Decoder:
    from compaction.dump import decoders

    known = {
        "offsets": decoders.decode_offsets,
        "transaction-log": decoders.decode_transactions,
        "cluster-metadata": decoders.decode_metadata,
        "share-group-state": decoders.decode_share_state,
    }
    if name not in known:
        raise UsageError(f"--{name}-decoder is not supported", hint="use --print-data-log, or Kafka's own tool")
    return known[name]


def _class_decoder(key_class: str | None, value_class: str | None) -> Decoder | None:
    """``None`` for strings, which need no decoder."""
    from compaction.dump import decoders

    given = [name or _STRING_DECODER for name in (key_class, value_class)]
    try:
        of_keys, of_values = (decoders.text_decoder(name) for name in given)
    except KeyError as error:
        raise UsageError(
            f"decoder class {error} cannot be loaded", hint="there are StringDecoder, IntegerDecoder and LongDecoder"
        ) from None
    return None if given == [_STRING_DECODER, _STRING_DECODER] else decoders.decode_with(of_keys, of_values)


def dump(request: DumpRequest) -> int:
    """Carries out a request on standard output and standard error; the exit code."""
    from compaction.dump.tool import Dump
    from compaction.stores.mixed import file_system

    # a pipe is given the very bytes that Kafka's tool prints; a terminal would obey what a key says
    out = TerminalOutput(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer

    def tell(line: str) -> None:
        out.flush()
        _logging.print_line(line)

    def fail(text: str) -> None:
        out.flush()
        _logging.print_error(text)

    sys.stdout.flush()
    try:
        sound = Dump(file_system(request.files), request, out, tell, fail).run(str(Path.cwd()))
        out.flush()
    except BrokenPipeError:
        # the reader wants no more; what is left in the buffer has nowhere to go when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0 if sound else _command.FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    :param argv: the options, those of the process when ``None``
    """
    return _command.run_command(parser(), argv, lambda arguments: dump(read_request(arguments)))


if __name__ == "__main__":
    sys.exit(main())
