"""Scenarios of transactions, idempotent producers and the ends of a round."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.bench import DAY, HOUR, ROUNDS, Scenario
from tests.conformance.scenario_tools import Writer, one_each
from tests.kafka.encode import Producer

SMALL = {"internal.segment.bytes": "600"}
ONE, TWO, THREE = Producer(1), Producer(2), Producer(3)
#: so that producers are active in the first round and expired in the later ones
RECENT = ROUNDS[0] - 4 * HOUR


def transaction_scenarios() -> dict[str, Scenario]:
    """All of them by name."""
    return dict([*_transactions(), *_markers(), *_producers(), *_damage()])


def _transactions() -> Iterator[tuple[str, Scenario]]:
    w = Writer()
    yield "txn-committed", Scenario([[[w.sent(ONE, "aab"), w.commit(ONE)], [w.sent(ONE, "b"), w.commit(ONE)], [w.batch("z")]]])
    w = Writer()
    yield "txn-aborted", Scenario([[[w.batch("ab"), w.sent(ONE, "ab"), w.abort(ONE)], [w.batch("c")], [w.batch("z")]]])
    w = Writer()
    interleaved = [w.sent(ONE, "ab"), w.sent(TWO, "bc"), w.sent(ONE, "c"), w.abort(TWO), w.batch("a"), w.commit(ONE)]
    yield "txn-interleaved", Scenario([[interleaved, [w.batch("d")], [w.batch("z")]]])
    for name, config in (("segments", {}), ("groups", SMALL)):
        w = Writer(size=60)
        spanning = [
            [w.sent(ONE, "abc"), w.sent(TWO, "ab")],
            [w.sent(ONE, "ab"), w.batch("cd")],
            [w.abort(ONE), w.sent(TWO, "e")],
        ]
        spanning += [[w.commit(TWO), w.sent(ONE, "f")], [w.commit(ONE)], [w.batch("z")]]
        yield f"txn-across-{name}", Scenario([spanning], config)
    w = Writer()
    yield "txn-open", Scenario([[[w.batch("aab")], [w.batch("b"), w.sent(ONE, "a")], [w.batch("ab")], [w.batch("z")]]])
    w = Writer()
    yield (
        "txn-compressed",
        Scenario(
            [
                [
                    [w.sent(ONE, "abcab", codec="lz4"), w.abort(ONE), w.sent(TWO, "abcab", codec="zstd"), w.commit(TWO)],
                    [w.batch("z")],
                ]
            ]
        ),
    )
    w = Writer()
    yield (
        "txn-first-dirty-offset-inside",
        Scenario(
            [[[w.sent(ONE, "ab")], [w.sent(ONE, "ab"), w.abort(ONE)], [w.sent(ONE, "a"), w.commit(ONE)], [w.batch("z")]]],
            checkpoint=2,
        ),
    )
    w = Writer()
    # the entry of the first transaction has a last stable offset past the beginning of the second one
    fetched = [w.batch("abc"), w.sent(ONE, "a"), w.abort(ONE), w.sent(ONE, "bd"), w.sent(TWO, "c"), w.abort(ONE), w.abort(TWO)]
    yield "txn-several-of-a-producer-in-one-append", Scenario([[fetched, [w.batch("z")]], [[w.batch("y")]]])
    w = Writer()
    marker_keys: list[bytes | None] = [struct.pack(">hh", 0, kind) for kind in (0, 1)]
    yield (
        "txn-user-keys-like-a-markers",
        Scenario([[[w.batch(marker_keys), w.sent(ONE, "a"), w.commit(ONE)], [w.sent(ONE, "b"), w.abort(ONE)], [w.batch("z")]]]),
    )


def _markers() -> Iterator[tuple[str, Scenario]]:
    w = Writer()
    first = [[w.sent(ONE, "ab"), w.abort(ONE), w.sent(TWO, "ab"), w.commit(TWO)], [w.batch("c")]]
    yield "markers-go-after-their-data", Scenario([first, [[w.batch("ab")]], [[w.batch("d")]]])
    w = Writer()
    first = [[w.sent(ONE, "ab"), w.abort(ONE), w.sent(TWO, "ab"), w.commit(TWO)], [w.batch("c")]]
    yield "markers-go-at-once", Scenario([first, [[w.batch("ab")]], [[w.batch("d")]]], {"delete.retention.ms": "0"})
    w = Writer()
    halves = [[w.sent(ONE, "ab")], [w.sent(ONE, "c")]]
    later = [[w.abort(ONE), w.batch("a")], [w.batch("z")]]
    yield "marker-comes-a-round-later", Scenario([halves, later, [[w.batch("y")]]])
    w = Writer()
    yield (
        "a-transaction-of-nothing",
        Scenario([[[w.commit(ONE), w.abort(TWO)], [w.batch("a")], [w.batch("z")]], [[w.batch("y")]], [[w.batch("x")]]]),
    )
    w = Writer(time_ms=RECENT)
    yield (
        "commit-marker-after-an-empty-batch",
        Scenario([[[w.sent(ONE, "a"), w.commit(ONE), w.batch("a")], [w.batch("b")]], [[w.batch("c")]], [[w.batch("d")]]]),
    )


def _producers() -> Iterator[tuple[str, Scenario]]:
    for name, time_ms in (("active", RECENT), ("expired", ROUNDS[0] - 3 * DAY)):
        w = Writer(time_ms=time_ms)
        parts = [w.sent(ONE, "a", transactional=False), w.sent(ONE, "ab", transactional=False), w.batch("ab")]
        yield f"last-batch-of-an-{name}-producer", Scenario([[parts, [w.batch("z")]], [[w.batch("y")]], [[w.batch("x")]]])
        w = Writer(time_ms=time_ms)
        aborted = [w.sent(ONE, "a"), w.commit(ONE), w.sent(ONE, "b"), w.abort(ONE), w.batch("a")]
        yield (
            f"aborted-batch-is-the-last-of-an-{name}-producer",
            Scenario([[aborted, [w.batch("z")]], [[w.batch("y")]], [[w.batch("x")]]]),
        )
    w = Writer(time_ms=RECENT)
    bumped = Producer(1, 1)
    yield (
        "epoch-bumped-by-a-marker",
        Scenario(
            [
                [[w.sent(ONE, "a"), w.abort(bumped), w.sent(bumped, "a"), w.commit(bumped), w.batch("a")], [w.batch("z")]],
                [[w.batch("y")]],
            ]
        ),
    )
    w = Writer(time_ms=RECENT)
    many = [w.sent(Producer(pid), "ab", transactional=False) for pid in range(10, 20)]
    yield (
        "many-producers",
        Scenario([[many, [w.sent(ONE, "ab", transactional=False)], [w.batch("ab")], [w.batch("z")]], (), [[w.batch("y")]]]),
    )
    w = Writer()
    yield (
        "last-batch-of-the-round-is-emptied",
        Scenario([one_each([w.batch("ab"), w.batch("bc"), w.batch("Z")]), [[w.batch("q")]], [[w.batch("r")]]]),
    )
    w = Writer()
    yield (
        "aborted-data-ends-the-round",
        Scenario([[[w.sent(ONE, "ab"), w.abort(ONE)], [w.batch("z")]], [[w.batch("y")]], [[w.batch("x")]]]),
    )
    w = Writer()
    no_keys = [w.batch("a"), w.batch("...")]
    yield "emptied-batch-ends-the-round", Scenario([[no_keys, [w.batch("z")]], [[w.batch("y")]]])


def _without(suffix: str, *, damages_kafkas: bool = True) -> Scenario:
    w = Writer(size=1000)

    def remove(partition: Path) -> None:
        for file in sorted(partition.glob(f"*{suffix}"))[:1]:
            file.unlink()

    first = [
        [w.sent(ONE, "abc"), w.sent(TWO, "ab"), w.abort(ONE), w.commit(TWO), w.batch("abcdef")],
        [w.batch("ab")],
        [w.batch("z")],
    ]
    return Scenario([first, [[w.batch("y")]]], damage=remove, damages_kafkas=damages_kafkas)


def _damage() -> Iterator[tuple[str, Scenario]]:
    for suffix in (".index", ".timeindex"):
        yield f"missing-{suffix[1:]}", _without(suffix)
    # Kafka does not notice that a transaction index is missing, and would serve aborted records again; the job rebuilds it
    yield "missing-txnindex", _without(".txnindex", damages_kafkas=False)
