"""Forks Spark's Python workers from a process that has the kernels loaded; started by Spark instead of ``pyspark.daemon``.

A worker then begins its first task at once, and workers share the pages of what was loaded. Spark puts zip files and jars on
the module path, and each task makes Python read their directories anew; where PySpark is installed as well, they are taken off
the path.

Loading takes a second, and Spark starts its daemon when the first task is to run. Where the driver is on the same machine it
has that done before (:class:`Preloaded`), while the JVM makes itself ready: Spark's daemon is then a small process that hands
its files and surroundings to a fork of the one that has loaded, and waits for its end.

``spark.python.daemon.module`` names this module. It must be importable before a task's own files are there: locally, or on
executors whose environment holds this package.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from compaction.kernels.compiling.ownership import why_not_own

#: where a process listens that has loaded
ADDRESS = "KAFKA_LOG_COMPACTION_PRELOADED"
_AHEAD = "--ahead"
_WORKER = "pyspark.worker"
_STANDARD_FILES = (0, 1, 2)
_LENGTH_BYTES = 8
_FORKED = b"1"
_LOOK_AGAIN_S = 0.2


def drop_archives() -> None:
    """Take zip files and jars off the module path, if PySpark is found without them."""
    kept = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
    if any((Path(place) / "pyspark" / "worker.py").is_file() for place in kept):
        sys.path[:] = kept
        for place in list(sys.path_importer_cache):
            if place.endswith((".zip", ".jar")) or ".zip/" in place:
                del sys.path_importer_cache[place]


def load() -> list[str]:
    """Import what tasks use, and load the kernels that are compiled; the groups of kernels that are not."""
    import pyspark.worker  # noqa: F401

    import compaction.spark.pipeline  # noqa: F401
    from compaction.startup import warm_up
    from compaction.startup.background import PASSES, RARE
    from compaction.startup.freeze_gc import settle

    missing = warm_up.missing(*PASSES, *RARE)
    warm_up.load(*{*PASSES, *RARE}.difference(missing))
    settle()
    return [group for group in PASSES if group in missing]


class Preloaded:
    """A process that loads, and then waits for Spark to ask for a daemon. It ends with the process that made it.

    :param environment: what ``spark.executorEnv`` gives to workers
    :raises OSError: there is no place for its socket, or only one where others could put theirs
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._place = tempfile.mkdtemp(prefix="kafka-log-compaction-")
        reason = why_not_own(Path(self._place))
        if reason:
            Path(self._place).rmdir()
            raise PermissionError(reason)
        #: for the daemon, as its environment variable ``ADDRESS``
        self.address = str(Path(self._place) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()
            self._process = self._started(listener.fileno(), environment)

    @staticmethod
    def _started(listener: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - this interpreter, this package
            [sys.executable, "-m", __name__, _AHEAD, str(listener), _WORKER],
            pass_fds=[listener],
            # portable_hash asks for the same seed everywhere; Spark's own default
            env={"PYTHONHASHSEED": "0", **os.environ, **environment},
            # closed when this process ends, however it does
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # an interrupt at the terminal is for the driver
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process that has loaded."""
        return self._process.pid

    def end(self) -> None:
        """Let it go; daemons that it forked are Spark's."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._place, ignore_errors=True)


def _serve(listening: int) -> None:
    """Load, then fork a daemon for each who asks, until standard input is closed."""
    with socket.socket(fileno=listening) as listener:
        # in the first run of all others are still compiling
        while load() and not select.select([listener, sys.stdin], [], [], _LOOK_AGAIN_S)[0]:
            pass
        # nobody waits for those that end
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            caller = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                _take_over(caller)
                return
            caller.close()
        # a maker that was killed could not
        shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


def _take_over(caller: socket.socket) -> None:
    """Be the daemon that Spark started: its files, its surroundings, its work."""
    size, files, _, _ = socket.recv_fds(caller, _LENGTH_BYTES, len(_STANDARD_FILES))
    with caller.makefile("rb") as stream:
        state = json.loads(stream.read(int.from_bytes(size, "little")))
    for file, standard in zip(files, _STANDARD_FILES, strict=True):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(state["directory"])
    os.environ.clear()
    os.environ.update(state["environment"])
    sys.argv[1:] = state["arguments"]
    sys.path[:] = state["path"]
    caller.sendall(_FORKED)
    _manage()


def _manage() -> None:
    from pyspark import daemon

    drop_archives()
    daemon.manager()


def _is_own(directory: Path) -> bool:
    try:
        return not why_not_own(directory)
    except OSError:
        return False


def _is_taken_over() -> bool:
    """Have a process that has loaded do the work of this one, until it ends; ``False`` where there is none."""
    address = os.environ.get(ADDRESS)
    # who listens there is given all that this process has, Spark's secret among it
    if not address or not _is_own(Path(address).parent):
        return False
    state = {
        "directory": str(Path.cwd()),
        "environment": dict(os.environ),
        "arguments": sys.argv[1:],
        "path": sys.path,
    }
    data = json.dumps(state).encode()
    try:
        with socket.socket(socket.AF_UNIX) as preloaded:
            preloaded.connect(address)
            socket.send_fds(preloaded, [len(data).to_bytes(_LENGTH_BYTES, "little")], _STANDARD_FILES)
            preloaded.sendall(data)
            if not preloaded.recv(len(_FORKED)):
                return False
            # from here on Spark has its daemon: a second one must not answer it, whatever becomes of the first
            with suppress(OSError):
                # open as long as the daemon or a worker of its is there
                preloaded.recv(1)
            return True
    except OSError:
        return False


if __name__ == "__main__":
    if sys.argv[1:2] == [_AHEAD]:
        _serve(int(sys.argv[2]))
    elif not _is_taken_over():
        load()
        _manage()
