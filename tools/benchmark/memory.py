"""Peak memory of a run: of any Python worker, of the driver, of Spark's JVM. The driver's is without mapped files."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import TracebackType

import psutil

_EVERY_S = 0.1
WORKER, DRIVER, JVM = "worker", "driver", "JVM"


@dataclass
class Peaks:
    """Samples this process and its children, as a context manager; ``mib`` by role."""

    mib: dict[str, float] = field(default_factory=lambda: dict.fromkeys((WORKER, DRIVER, JVM), 0.0))

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._stop.wait(_EVERY_S):
            for process in [own, *own.children(recursive=True)]:
                try:
                    role = _role(process, own)
                    if role is not None:
                        self.mib[role] = max(self.mib[role], _resident(process, mapped=role != DRIVER) / (1 << 20))
                except psutil.Error:
                    continue


def _resident(process: psutil.Process, *, mapped: bool) -> int:
    """Resident bytes, with or without mapped files."""
    info = process.memory_info()
    return int(info.rss if mapped else info.rss - getattr(info, "shared", 0))


def _role(process: psutil.Process, own: psutil.Process) -> str | None:
    command = process.cmdline()
    if any("pyspark.daemon" in word for word in command):
        return WORKER
    if any("org.apache.spark.deploy" in word for word in command):
        return JVM
    if process == own or any(word.endswith("jobs/compact.py") for word in command[:2]):
        return DRIVER
    return None
