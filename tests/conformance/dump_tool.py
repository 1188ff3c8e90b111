"""Kafka's own dump tool in a JVM that is reused, and the command under test, run on the same files."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError

from compaction.cli.parser import Parser
from compaction.commands import dump_log
from compaction.dumping.dump_tool import Dump
from compaction.files.local import LocalFileSystem
from tests.kafka.gateway import Gateway, unconverted_errors

KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
DEPTHS: tuple[tuple[str, ...], ...] = (
    (),
    ("--deep-iteration",),
    ("--print-data-log",),
    ("--print-data-log", "--skip-record-metadata"),
    ("--deep-iteration", "--skip-record-metadata"),
    ("--print-data-log", "--max-bytes", "700"),
    ("--value-decoder-class", "--max-bytes", "2147483647"),
)


class Dumped(NamedTuple):
    """The output of a tool, and whether it completed. ``problems`` are the lines that only the command under test prints."""

    out: bytes
    err: str
    finished: bool
    problems: tuple[str, ...] = ()


class KafkaDump:
    """``DumpLogSegments``, with its streams captured."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._system = gateway.cls("java.lang.System")

    def run(self, files: Sequence[Path], *options: str) -> Dumped:
        """Its output for ``files``; it raises if a file is damaged."""
        before = self._system.out, self._system.err
        out, err = self._stream(), self._stream()
        arguments = self._gateway.array("java.lang.String", ["--files", ",".join(map(str, files)), *options])
        self._system.setOut(out[1])
        self._system.setErr(err[1])
        finished = True
        try:
            with unconverted_errors():
                self._gateway.cls("org.apache.kafka.tools.DumpLogSegments").main(arguments)
        except Py4JJavaError:
            finished = False
        finally:
            self._system.setOut(before[0])
            self._system.setErr(before[1])
        return Dumped(bytes(out[0].toByteArray()), bytes(err[0].toByteArray()).decode(), finished)

    def _stream(self) -> tuple[Any, Any]:
        held = self._gateway.cls("java.io.ByteArrayOutputStream")()
        return held, self._gateway.cls("java.io.PrintStream")(held, True, "UTF-8")


def our_dump(files: Sequence[Path], *options: str) -> Dumped:
    """The output of the command under test for ``files``."""
    given = Parser(dump_log.OPTIONS).parse_args(["--files", *map(str, files), *options])
    request = dump_log.read_request(given.files, dump_log.OPTIONS.complete(vars(given)))
    out, lines, problems = io.BytesIO(), list[str](), list[str]()
    sound = Dump(LocalFileSystem(), request, out, lines.append, problems.append).run(str(Path.cwd()))
    assert sound == (not problems)
    return Dumped(out.getvalue(), "".join(f"{line}\n" for line in lines), True, tuple(problems))


def agree(kafka: KafkaDump, files: Sequence[Path], *options: str) -> Dumped:
    """Both print the same for ``files``; returns the output of the command under test."""
    theirs, ours = kafka.run(files, *options), our_dump(files, *options)
    assert theirs.finished
    assert ours.out == theirs.out
    assert ours.err == theirs.err
    return ours


def agree_up_to_the_damage(kafka: KafkaDump, files: Sequence[Path], *options: str, zeros: bool = False) -> Dumped:
    """Both print the same until Kafka's tool fails, and one error line says why; or neither fails. Kafka's fails at the
    ``zeros`` of a preallocated end, where ours says how many bytes they are."""
    theirs, ours = kafka.run(files, *options), our_dump(files, *options)
    if theirs.finished:
        assert (ours.out, ours.err) == (theirs.out, theirs.err)
    elif zeros and (said := ours.out.removeprefix(theirs.out.removesuffix(b"\n")).strip()):
        assert re.fullmatch(rb"Found \d+ invalid bytes at the end of \d+\.log", said), said
    else:
        assert ours.out.removesuffix(b"\n") == theirs.out.removesuffix(b"\n")
        assert len(ours.problems) >= 1
        assert "\n" not in ours.problems[0]
    return ours._replace(finished=theirs.finished)


def agree_on_all(kafka: KafkaDump, files: Sequence[Path]) -> None:
    """Both print the same for each of these files, at every depth, up to a damage."""
    for file in files:
        for options in DEPTHS:
            agree_up_to_the_damage(kafka, [file], *options)
