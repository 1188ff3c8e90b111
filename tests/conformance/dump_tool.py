"""Kafka's own dump tool in a JVM that is reused, and the command under test, run on the same files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError

from compaction.commands import dump_log
from compaction.dumping.dump_tool import Dump
from compaction.storage.local import LocalFileSystem
from tests.kafka.gateway import Gateway, unconverted_errors


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
    request = dump_log.read_request(dump_log.parser().parse_args(["--files", *map(str, files), *options]))
    out, lines, problems = io.BytesIO(), list[str](), list[str]()
    sound = Dump(LocalFileSystem(), request, out, lines.append, problems.append).run(str(Path.cwd()))
    assert sound == (not problems)
    return Dumped(out.getvalue(), "".join(f"{line}\n" for line in lines), True, tuple(problems))
