"""Forks Spark's Python workers from a process that has loaded the kernels; replaces ``pyspark.daemon``.

Workers run their first task without delay and share the memory pages of loaded modules. Spark adds zip files and jars to
``sys.path``, and every task re-reads their directories; they are removed from it if PySpark is installed as well.

Loading takes a second, and Spark starts its daemon with the first task. A driver on the same machine loads earlier
(:class:`Preloaded`), while the JVM starts. Spark's daemon is then a small process that passes its file descriptors and
environment to a fork of the preloaded process, and waits until that ends.

``spark.python.daemon.module`` is set to this module, which must be importable before the files of a task are available:
locally, or on executors whose environment contains this package.
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

from compaction.kernels.compiling.ownership import why_not_private
from compaction.startup.import_path import drop_archives, module_command
from compaction.startup.local_dirs import private_dirs

#: environment variable with the socket of a preloaded process
ADDRESS = "KAFKA_LOG_COMPACTION_PRELOADED"
_PRELOAD = "--preload"
_WORKER = "pyspark.worker"
_STANDARD_FILES = (0, 1, 2)
_LENGTH_BYTES = 8
_FORKED = b"1"
_LOAD_RETRY_S = 0.2


def load() -> list[str]:
    """Imports the modules of tasks and loads compiled kernels; returns the groups that are not compiled yet."""
    drop_archives()
    import pyspark.worker  # noqa: F401

    import compaction.spark.pipeline  # noqa: F401
    from compaction.startup import kernel_groups
    from compaction.startup.background import PASSES, RARE
    from compaction.startup.freeze_gc import freeze_gc

    missing = kernel_groups.missing(*PASSES, *RARE)
    kernel_groups.load(*{*PASSES, *RARE}.difference(missing))
    freeze_gc()
    return [group for group in PASSES if group in missing]


class Preloaded:
    """A process that loads and then forks a daemon whenever Spark starts one. It ends with its parent process.

    :param environment: the workers' environment variables from ``spark.executorEnv``
    :raises OSError: no directory for its socket, or other users can write to it
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._directory = private_dirs(tempfile.gettempdir())
        reason = why_not_private(Path(self._directory))
        if reason:
            Path(self._directory).rmdir()
            raise PermissionError(reason)
        #: the daemon's value of the environment variable ``ADDRESS``
        self.address = str(Path(self._directory) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()
            self._process = self._started(listener.fileno(), environment)

    @staticmethod
    def _started(listener: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - this interpreter, this package
            module_command("compaction.spark.daemon", _PRELOAD, str(listener), _WORKER),
            pass_fds=[listener],
            # portable_hash needs the same seed in all workers; Spark's default
            env={"PYTHONHASHSEED": "0", **os.environ, **environment},
            # closed whenever this process ends, even if it is killed
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # an interrupt at the terminal is for the driver
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The id of the preloaded process."""
        return self._process.pid

    def end(self) -> None:
        """Ends the process; daemons that it forked belong to Spark."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _serve(listening: int) -> None:
    """Loads, then forks a daemon for each connection, until standard input is closed."""
    with socket.socket(fileno=listening) as listener:
        # kernels that are not compiled yet are being compiled by other processes
        while load() and not select.select([listener, sys.stdin], [], [], _LOAD_RETRY_S)[0]:
            pass
        # children are reaped automatically
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            caller = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                _take_over(caller)
                return
            caller.close()
        # a parent that was killed has not removed it
        shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


def _take_over(caller: socket.socket) -> None:
    """Becomes the daemon that Spark started: takes over its file descriptors, environment and work."""
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
        return not why_not_private(directory)
    except OSError:
        return False


def _delegated() -> bool:
    """Lets a preloaded process do the work of this one and waits for its end; ``False`` if there is none."""
    address = os.environ.get(ADDRESS)
    # an interrupt at the terminal is for the driver
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the listener receives the environment of this process, which includes Spark's secret
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
            # Spark has its daemon now: even if that fails, this process must not be a second one
            with suppress(OSError):
                # open until the daemon and its workers have ended
                preloaded.recv(1)
            return True
    except OSError:
        return False


if __name__ == "__main__":
    if sys.argv[1:2] == [_PRELOAD]:
        _serve(int(sys.argv[2]))
    elif not _delegated():
        load()
        _manage()
