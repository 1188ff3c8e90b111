"""The fuzzer: feeds damaged bytes to every reader, with numba's bounds checking on.

``python -m tests.damage.fuzz --inputs 20000 --seed 1`` spreads that many inputs over the targets; hypothesis
shrinks and prints failures. Bounds checking needs a separate compilation, cached in ``--cache``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis import strategies

#: kernels with bounds checks, which numba does not tell from others
BOUNDS_CHECKED = Path.home() / ".cache" / "kafka-log-compaction" / "numba-bounds"
#: the share of each target, in percent
SHARES = {"walk": 20, "passes": 30, "columns": 10, "payload": 10, "small files": 10, "job": 20}


def main(argv: list[str] | None = None) -> int:
    """Run the fuzzer; returns 1 if it found anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(SHARES), default=None)
    parser.add_argument("--cache", type=Path, default=BOUNDS_CHECKED)
    options = parser.parse_args(argv)
    if os.environ.get("NUMBA_BOUNDSCHECK") != "1":
        command = [sys.executable, "-m", "tests.damage.fuzz", *(sys.argv[1:] if argv is None else argv)]
        return subprocess.run(command, env=bounds_checked(options.cache), check=False).returncode
    require_bounds_checks()
    total = 0
    for target, share in SHARES.items():
        if options.only in (None, target):
            inputs = options.inputs if options.only else options.inputs * share // 100
            began = time.monotonic()
            outcomes = run(target, inputs, options.seed)
            done = outcomes.total()
            total += done
            summary = ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))
            print(f"{target}: {done} inputs, seed {options.seed}, {time.monotonic() - began:.0f} s; {summary}", flush=True)
    print(f"{total} damaged inputs, nothing found")
    return 0


def bounds_checked(cache: Path = BOUNDS_CHECKED) -> dict[str, str]:
    """The environment of a process with bounds checks."""
    cache.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}


def require_bounds_checks() -> None:
    """Make sure that bounds checking is on."""
    import numba
    import numpy as np

    @numba.njit
    def beyond(array):  # type: ignore[no-untyped-def]
        return array[len(array)]

    try:
        beyond(np.zeros(1))
    except IndexError:
        return
    raise SystemExit("bounds checking is off")


class Found(AssertionError):
    """A finding, with the smallest input that shows it."""

    def __init__(self, target: str, drawn: Any) -> None:
        super().__init__(f"{target}: {drawn!r:.2000}")
        self.target, self.drawn = target, drawn


def run(target: str, inputs: int, seed: int) -> Counter[str]:
    """Feed one target; returns the number of inputs by outcome.

    :raises Found: from what the target raised
    """
    import hypothesis

    outcomes = Counter[str]()
    last: Any = None
    strategy, feed = TARGETS[target]()
    settings = hypothesis.settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )

    def one(drawn: Any) -> None:
        nonlocal last
        last = drawn
        outcomes[feed(drawn) or "fed"] += 1

    try:
        hypothesis.seed(seed)(settings(hypothesis.given(strategy)(one)))()
    except Exception as error:
        # hypothesis ends with the smallest input that it has found
        raise Found(target, last) from error
    return outcomes


def values_of(found: Found) -> dict[str, Any]:
    """A finding as the values of a case: the bytes of each file, or of a single input, which may have a name."""
    drawn = found.drawn
    if isinstance(drawn, bytes):
        drawn = {"": drawn}
    elif isinstance(drawn, tuple):
        drawn = {getattr(drawn[0], "name", drawn[0]): drawn[1]}
    return {"target": found.target, "files": {name: b64encode(data).decode() for name, data in drawn.items()}}


def problems(values: Mapping[str, Any]) -> list[str]:
    """What the target of a case raises."""
    from compaction.formats.codecs import Codec

    target, files = values["target"], {name: b64decode(text) for name, text in values["files"].items()}
    drawn: Any = files
    if target != "job":
        ((name, data),) = files.items()
        drawn = {"payload": lambda: (Codec[name], data), "small files": lambda: (name, data)}.get(target, lambda: data)()
    try:
        TARGETS[target]()[1](drawn)
    except Exception as error:
        return [f"{target}: {error!r}"]
    return []


Target = tuple["strategies.SearchStrategy[Any]", Callable[[Any], "str | None"]]


def _segments() -> strategies.SearchStrategy[bytes]:
    """Draw a damaged segment."""
    from hypothesis import strategies as st

    from tests.damage.harm import harmed
    from tests.damage.valid_logs import KINDS

    valid = {kind: b"".join(make(0)) for kind, make in KINDS.items()}
    return st.sampled_from(sorted(valid)).flatmap(lambda kind: harmed(valid[kind]))


def _walk() -> Target:
    from tests.damage import targets

    return _segments(), targets.walk


def _in_scratch(feed: Callable[[bytes, Path], None]) -> Callable[[bytes], None]:
    from tests.damage.targets import scratch

    def fed(data: bytes) -> None:
        with scratch() as directory:
            feed(data, directory)

    return fed


def _passes() -> Target:
    from tests.damage import targets

    return _segments(), _in_scratch(targets.passes)


def _columns() -> Target:
    from tests.damage import targets

    return _segments(), _in_scratch(targets.columns)


def _payload() -> Target:
    from hypothesis import strategies as st

    from compaction.formats.codecs import Codec, compress
    from tests.damage.harm import harmed_bytes
    from tests.damage.targets import payload

    plain = b"".join(b"some text %d " % (i % 50) for i in range(6000))
    packed = [(codec, compress(codec, plain[:size])) for codec in Codec if codec for size in (0, 40, 3000, len(plain))]
    drawn = st.sampled_from(packed).flatmap(lambda pair: harmed_bytes(pair[1]).map(lambda data: (pair[0], data)))
    return drawn, lambda pair: payload(*pair)


def _small_files() -> Target:
    from hypothesis import strategies as st

    from tests.damage.harm import harmed_bytes
    from tests.damage.small_files import VALID
    from tests.damage.targets import journal, scratch, small_file

    def fed(pair: tuple[str, bytes]) -> None:
        if pair[0] != "journal":
            return small_file(*pair)
        with scratch() as directory:
            return journal(pair[1], directory)

    valid = sorted(VALID)
    return st.sampled_from(valid).flatmap(lambda name: harmed_bytes(VALID[name]).map(lambda data: (name, data))), fed


def _job() -> Target:
    from hypothesis import strategies as st

    from tests.damage.harm import harmed, harmed_bytes
    from tests.damage.targets import JobTarget
    from tests.damage.valid_logs import KINDS, valid_log

    logs = {kind: valid_log(kind).files for kind in KINDS}
    names = {kind: sorted(files) for kind, files in logs.items()}
    # half of the damage goes to the logs themselves
    which = st.sampled_from(sorted(logs)).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.one_of(st.sampled_from([n for n in names[kind] if n.endswith(".log")]), st.sampled_from(names[kind])),
        )
    )

    def damage(chosen: tuple[str, str]) -> strategies.SearchStrategy[dict[str, bytes]]:
        files, name = logs[chosen[0]], chosen[1]
        way = harmed if name.endswith(".log") else harmed_bytes
        return way(files[name]).map(lambda data: {**files, name: data})

    job = JobTarget()
    return which.flatmap(damage), lambda files: job(files).value


TARGETS: dict[str, Callable[[], Target]] = {
    "walk": _walk,
    "passes": _passes,
    "columns": _columns,
    "payload": _payload,
    "small files": _small_files,
    "job": _job,
}


if __name__ == "__main__":
    sys.exit(main())
