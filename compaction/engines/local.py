"""Runs tasks in worker processes on this machine, without Java.

Tasks exchange values through *spools*, files without a name; the driver gives each task the positions of its values. A task
needs the same memory as on Spark. Small jobs run in this process.

Workers never import the main module of their driver. The driver starts one process, the *parent*, which runs ``serve`` with the
entries of the driver's module path. The parent imports what tasks need, forks the workers, and sends the driver one end of a
socket pair for each. A worker serves its connection: one task, one answer. The parent then waits for its children, and tells
the driver which of them ended, and how.

Sockets and files have no names. A worker ends when its connection is closed, so with its driver, however that ends; as a fork
of the driver may still have the connection open, the parent ends its children when its own parent has changed. The driver
learns of a worker's end from its connection, from the parent, or from the end of that: no call waits for a worker that is gone.
It signals no process but the parent, which it has not yet waited for.

Other users cannot open a spool, and nothing remains after ``kill -9``: it ends with its process. Processes of the run read it
while its owner appends. Results of tasks are on the temporary file system; values that the driver shares with all tasks stay in
memory.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn, TypeVar, cast

from compaction.engine import Emit, Inputs, Items, Job, Place, Places, Source
from compaction.engines.limits import oom_kills, usable_cores
from compaction.errors import CompactionError
from compaction.files import read_counter
from compaction.files.calls import environment
from compaction.files.filesystem import storage_errors

if TYPE_CHECKING:
    from compaction.screen.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

_NAME = "kafka-log-compaction"
_USE = "hold intermediate results"


class Piece(NamedTuple):
    """A pickled value: bytes [start, start + size) of a file that process ``pid`` has open as ``descriptor``."""

    pid: int
    descriptor: int
    start: int
    size: int

    def load(self) -> Any:
        """The value.

        :raises OSError: its writer has ended
        """
        if self.pid == os.getpid():
            return pickle.loads(_read(self.descriptor, self.start, self.size))  # noqa: S301 - written by this process
        with open(of_process(self.pid, self.descriptor), "rb", buffering=0) as file:  # noqa: PTH123 - not a path of a file
            return pickle.loads(_read(file.fileno(), self.start, self.size))  # noqa: S301 - written by a process of this run


def of_process(pid: int, descriptor: int) -> str:
    """The name by which other processes of this user open a file that has none."""
    return f"/proc/{pid}/fd/{descriptor}"


def _read(descriptor: int, start: int, size: int) -> bytes:
    parts, filled = [], 0
    while filled < size:
        data = os.pread(descriptor, size - filled, start + filled)
        if not data:
            raise EOFError(f"intermediate results end at {start + filled}, not at {start + size}")
        parts.append(data)
        filled += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Spool:
    """A file to append to, opened by the first value. One thread uses it. If its directory cannot hold it, errors name that.

    :param opened: opens the file
    :param location: for errors; by default the temporary directory
    """

    def __init__(self, opened: Callable[[], BinaryIO], location: str = "") -> None:
        self._opened, self._location = opened, location
        self._file: BinaryIO | None = None
        self._end = 0

    @classmethod
    def on_disk(cls) -> Spool:
        return cls(_unnamed_file)

    @classmethod
    def in_memory(cls) -> Spool:
        return cls(lambda: open(os.memfd_create(_NAME), "w+b", buffering=0), "memory")  # noqa: PTH123

    def put(self, value: Any) -> Piece:
        """Appends a value.

        :raises StorageError: the temporary directory is full, or takes no file
        """
        data = memoryview(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        if self._file is None:
            self._file = self._opened()
        start, descriptor = self._end, self._file.fileno()
        with storage_errors(self._location or tempfile.gettempdir(), _USE):
            while data:
                written = os.pwrite(descriptor, data, self._end)
                self._end, data = self._end + written, data[written:]
        return Piece(os.getpid(), descriptor, start, self._end - start)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._end = None, 0


def _unnamed_file() -> BinaryIO:
    with storage_errors(tempfile.tempdir or "the temporary directory", _USE):
        return tempfile.TemporaryFile(buffering=0)


#: jobs that read less run in this process: a worker takes as long to start
INLINE_BYTES = 32 << 20

#: places with the positions of their values
Placed = list[tuple[Place, Piece]]


class _Shuffled(NamedTuple):
    """See ``compaction.engine.Shuffle``. The values are in the spools of the processes, which end with the engine."""

    results: list[Any]
    placed: Sequence[Placed]

    @property
    def parts(self) -> int:
        return len(self.placed)

    def close(self) -> None: ...


class LocalEngine:
    """Implements ``compaction.engine.Engine``; a context manager that ends the workers.

    :param cores: number of worker processes; by default the cores that this process may use
    :param progress: shows the bytes that the tasks of each pass have read
    """

    def __init__(self, cores: int | None = None, progress: Progress | None = None, inline_bytes: int = INLINE_BYTES) -> None:
        #: number of tasks that run concurrently
        self.cores = cores or usable_cores()
        self._inline_bytes = inline_bytes
        #: shows the bytes that the tasks of each pass have read
        self.progress = progress
        self._workers: Workers | None = None
        #: of the tasks that run in this process
        self._spool = Spool.on_disk()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers and removes all spools. Kills running tasks, too: their results are no longer needed."""
        workers, self._workers = self._workers, None
        self._spool.close()
        if workers is not None:
            workers.close()

    def run(self, job: Job, source: Inputs, work: Callable[..., R]) -> list[R]:
        """The result of ``work`` for each task, in order."""
        source = Source.over(source)
        return self._map(job, partial(_run, source.of(work), source.known), source)

    def shuffle(self, job: Job, source: Inputs, emit: Emit, places: Places, *, merges: bool = False) -> _Shuffled:
        """Runs the tasks; the driver has the positions of their values. Each place comes once in any case."""
        shuffled = _Shuffled([], [[] for _ in range(places.parts)])
        source = Source.over(source)
        for results, placed in self._map(job, partial(_emit, source.of(emit), source.known), source):
            shuffled.results.extend(results)
            for place_of_piece, piece in placed:
                shuffled.placed[places(place_of_piece)].append((place_of_piece, piece))
        return shuffled

    def _map(self, job: Job, work: Callable[[Any, Spool], R], source: Source) -> list[R]:
        """``work`` of the inputs of each task, in order."""
        nothing = [None] * len(source)
        placed = nothing if source.items is None else cast(_Shuffled, source.items).placed
        inputs = list(zip(nothing if source.tasks is None else source.tasks, placed, strict=True))
        sizes = job.task_bytes if len(job.task_bytes) == len(inputs) else [0] * len(inputs)
        try:
            with job.shown(self.progress):
                if self._workers is None:
                    if not job.in_workers and sum(job.task_bytes) < self._inline_bytes:
                        return [self._advanced(work(task, self._spool), size) for task, size in zip(inputs, sizes, strict=True)]
                    self._workers = Workers(self.cores)
                return self._results(self._workers, inputs, work, sizes)
        except BaseException:
            self.close()
            raise

    def _results(
        self, workers: Workers, inputs: Sequence[Any], work: Callable[[Any, Spool], R], sizes: Sequence[int]
    ) -> list[R]:
        """The results of workers, given the bytes that each task reads. Shows the bytes read so far."""
        results: dict[int, R] = {}
        ended, shown, before = 0, 0, workers.read_bytes()
        for found in workers.results(work, inputs):
            if found is not None:
                number, result = found
                results[number] = result
                ended += sizes[number]
            reached = min(sum(sizes), max(ended, workers.read_bytes() - before))
            if reached > shown:
                self._advanced(None, reached - shown)
                shown = reached
        return [results[number] for number in range(len(inputs))]

    def _advanced(self, result: R, size: int) -> R:
        if size and self.progress is not None:
            self.progress.advance(size)
        return result


def _run(function: Callable[[Any, Any, Any], R], known: Any, inputs: tuple[Any, Placed | None], _: Spool) -> R:
    """Runs a task."""
    task, placed = inputs
    return function(task, None if placed is None else _by_place(placed), known)


def _emit(function: Emit, known: Any, inputs: tuple[Any, Placed | None], spool: Spool) -> tuple[list[Any], Placed]:
    """Runs a task that emits values: returns those for the driver, and the positions of the others."""
    results, placed = list[Any](), Placed()
    for place, value in _run(function, known, inputs, spool):
        if place is None:
            results.append(value)
        else:
            placed.append((place, spool.put(value)))
    return results, placed


def _by_place(placed: Placed) -> Items:
    """The values of each place, one in memory at a time."""
    pieces: dict[Place, list[Piece]] = {}
    for place, piece in placed:
        pieces.setdefault(place, []).append(piece)
    for place, of_place in pieces.items():
        yield place, map(Piece.load, of_place)


#: seconds between looks at the bytes that workers have read
POLL_INTERVAL_S = 0.2
#: seconds for which the end of a process is waited for
_END_S = 5.0
#: seconds between looks of the parent at its own parent
_ORPHAN_S = 1.0
_PACKAGE_PATH = str(Path(__file__).absolute().parents[2])
#: what the parent sends with a connection, and before an error
_CONNECTION, _ERROR = b"c", b"e"
#: the modules of tasks, and numba
_TASK_MODULES = ("compaction.passes.clean_into", "compaction.kernels.cache")
#: a worker's number and exit code, which is negative for a signal
_EXIT = struct.Struct("<ii")


class Workers:
    """Worker processes; one thread at a time uses them.

    :param count: number of processes
    :raises CompactionError: they do not start
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._jobs = 0
        self._oom_kills = oom_kills()
        self._connections: list[Connection] = []
        self._parent: subprocess.Popen[bytes] | None = None
        self._control, theirs = socket.socketpair()
        self._read_counts = os.memfd_create("kafka-log-compaction")
        try:
            os.ftruncate(self._read_counts, count * read_counter.SIZE)
            with theirs, ThreadPoolExecutor(1) as thread:
                # in a thread, which interrupts do not reach: a process that starts is known
                thread.submit(self._start, theirs).result()
            self._receive_connections()
        except OSError as error:
            self.close()
            raise _cannot_start(error.strerror or str(error)) from error
        except BaseException:
            self.close()
            raise

    def _start(self, theirs: socket.socket) -> None:
        # interrupts of the terminal's process group are for the driver; the mask is inherited
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        path = [entry for entry in sys.path if os.path.isabs(entry)] + [_PACKAGE_PATH]  # noqa: PTH117
        arguments = (self.count, of_process(os.getpid(), self._read_counts), tempfile.gettempdir())
        program = f"import sys; sys.path[:] = {path!a}; from {__name__} import serve; serve{arguments!a}"
        flags = ["-I", "-X", f"utf8={sys.flags.utf8_mode}", *["-B"] * sys.dont_write_bytecode]
        command = [sys.executable, *flags, "-c", program]
        self._parent = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)  # noqa: S603

    def _receive_connections(self) -> None:
        for _ in range(self.count):
            kind, descriptors, _, _ = socket.recv_fds(self._control, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if kind == _ERROR:
                with self._control.makefile("rb") as error:
                    raise _cannot_start(error.read().decode(errors="replace"))
            if not descriptors:
                raise _cannot_start(f"their parent process {self._how_the_parent_ended()}")
            self._connections.append(Connection(descriptors[0]))

    def results(self, work: Callable[[T, Spool], R], tasks: Iterable[T]) -> Iterator[tuple[int, R] | None]:
        """The number and the result of each task, in the order of their ends; ``None`` if none ended for ``POLL_INTERVAL_S``. A
        caller that does not take all of them, or gets an error, closes the workers.

        :param work: pickled once, into memory
        :raises CompactionError: a worker has ended
        """
        self._jobs += 1
        shared, remaining = Spool.in_memory(), enumerate(tasks)
        idle, running = [*self._connections], dict[Connection, int]()
        try:
            job = self._jobs, shared.put((environment(), work))
            while True:
                while idle and (item := next(remaining, None)) is not None:
                    running[idle[-1]], task = item
                    self._send(idle.pop(), (*job, task))
                if not running:
                    return
                ready = self._await(running)
                for connection in ready:
                    yield running.pop(connection), self._receive(connection)
                    idle.append(connection)
                if not ready:
                    yield None
        finally:
            shared.close()

    def _await(self, running: Iterable[Connection]) -> list[Connection]:
        ready = wait([*running, self._control], POLL_INTERVAL_S)
        if self._control in ready or (not ready and self._parent is not None and self._parent.poll() is not None):
            raise self._ended()
        return [connection for connection in ready if isinstance(connection, Connection)]

    def _send(self, connection: Connection, message: Any) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            connection.send_bytes(data)
        except OSError:
            raise self._ended() from None

    def _receive(self, connection: Connection) -> Any:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            raise self._ended() from None
        succeeded, value = pickle.loads(data)  # noqa: S301 - written by a worker
        if succeeded:
            return value
        error, trace = value
        raise error from _WorkerTrace(trace)

    def _ended(self) -> CompactionError:
        """The error for the end of a worker, with the cause as far as it is known."""
        self._control.settimeout(_END_S)
        with suppress(OSError):
            exit_status = self._control.recv(_EXIT.size)
            if len(exit_status) == _EXIT.size:
                message = f"a worker process {_how(_EXIT.unpack(exit_status)[1])}"
                if oom_kills() <= self._oom_kills:
                    return CompactionError(message, hint="nothing was changed by this step; run it again")
                message += ", and the kernel has ended a process for lack of memory since it started"
                hint = f"nothing was changed by this step; run it with fewer workers than {self.count}: --cores N"
                return CompactionError(message, hint=hint)
        message = f"the parent of the worker processes {self._how_the_parent_ended()}"
        return CompactionError(message, hint="nothing was changed by this step; run it again")

    def _how_the_parent_ended(self) -> str:
        if self._parent is not None and _ends(self._parent):
            return _how(self._parent.returncode)
        return "has closed its connection"

    def read_bytes(self) -> int:
        """Bytes that tasks have read so far."""
        return read_counter.sum_of(os.pread(self._read_counts, self.count * read_counter.SIZE, 0))

    def close(self) -> None:
        """Ends the workers and removes their spools. Kills running tasks, too: their results are no longer needed."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        for connection in self._connections:
            connection.close()
        os.close(self._read_counts)
        if self._parent is not None and not _ends(self._parent):
            self._parent.kill()
            _ends(self._parent)


class _WorkerTrace(Exception):
    """The stack trace of an error in a worker, as its cause."""


def _ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process ends within ``_END_S``."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _cannot_start(reason: str) -> CompactionError:
    hint = "nothing was changed; solve this and run again, or use --engine spark"
    return CompactionError(f"worker processes cannot start: {reason}", hint=hint)


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"
    return f"ended with exit code {exit_code}"


def serve(count: int, read_counts: str, temporary: str) -> NoReturn:
    """Runs the parent of the workers in this process, whose standard input is its connection with the driver.

    :param read_counts: the file into which workers count what they read
    :param temporary: the directory of spools
    """
    driver = os.getppid()
    # the driver may ignore it, which is inherited, and ends of children were lost
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=_without_standard_input())
    try:
        _import_tasks()
        tempfile.tempdir = temporary
        children = {_fork(number, control, read_counts): number for number in range(count)}
    except Exception as error:  # noqa: BLE001 - the driver raises it
        with suppress(OSError):
            control.sendall(_ERROR + f"{type(error).__name__}: {error}".encode(errors="replace"))
        os._exit(1)
    mutex = threading.Lock()
    threading.Thread(target=_end_with_driver, args=(control, driver, children, mutex), daemon=True).start()
    while children:
        # it remains a child, and its number its own, until it is removed
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        with mutex, suppress(OSError):
            process, status = os.waitpid(-1, os.WNOHANG)
            control.sendall(_EXIT.pack(children.pop(process), os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _without_standard_input() -> int:
    """Another descriptor of standard input, which is then empty. So is standard error if it is closed: its number is the first
    one that is free."""
    null = os.open(os.devnull, os.O_RDWR)
    descriptor = os.dup(0)
    os.dup2(null, 0)
    return descriptor


def _import_tasks() -> None:
    """Imports what the first task needs. Reads no file of a log and maps no buffer: workers would share it."""
    for module in _TASK_MODULES:
        import_module(module)
    gc.freeze()


def _fork(number: int, control: socket.socket, read_counts: str) -> int:
    """Forks a worker, and sends its connection to the driver. Returns its process number."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = os.fork()
        if process == 0:
            try:
                control.close()
                theirs.close()
                read_counter.count_at(os.open(read_counts, os.O_RDWR), number)
                _work(Connection(ours.detach()))
            except BaseException:  # noqa: BLE001 - nothing else of this process runs
                traceback.print_exc()
            finally:
                os._exit(1)
        socket.send_fds(control, [_CONNECTION], [theirs.fileno()])
    return process


def _end_with_driver(control: socket.socket, driver: int, children: dict[int, int], mutex: threading.Lock) -> None:
    poll = select.poll()
    poll.register(control, 0)
    while not poll.poll(1000 * _ORPHAN_S) and os.getppid() == driver:
        pass
    with mutex:
        for process in children:
            os.kill(process, signal.SIGKILL)


def _work(connection: Connection) -> None:
    """Runs tasks until the driver closes the connection."""
    threading.Thread(target=_end_with_connection, args=(connection.fileno(),), daemon=True).start()
    spool, current = Spool.on_disk(), 0
    work: Any = None
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        answer = b""
        try:
            job, piece, task = pickle.loads(data)  # noqa: S301 - written by the driver
            if job != current:
                stores, work = piece.load()
                os.environ.update(stores)
                current = job
            answer = pickle.dumps((True, work(task, spool)), pickle.HIGHEST_PROTOCOL)
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            answer = _failure(error)
        with suppress(OSError):
            connection.send_bytes(answer)


def _end_with_connection(descriptor: int) -> None:
    """Ends this process at once when the driver has closed its connection: a task in progress is of no use."""
    poll = select.poll()
    poll.register(descriptor, 0)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def _failure(error: BaseException) -> bytes:
    """The answer for a task that raised ``error``: itself, or its text if it cannot be sent, or is not one of a task."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, Exception):
        with suppress(Exception):
            answer = pickle.dumps((False, (error, trace)))
            pickle.loads(answer)  # noqa: S301 - written here
            return answer
    return pickle.dumps((False, (RuntimeError(f"{type(error).__name__} in a task: {error}"), trace)))
