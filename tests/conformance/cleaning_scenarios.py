"""Scenarios of record retention: keys, codecs, message formats, tombstones, sizes, offsets and the dirty range."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.bench import DAY, MTIME, Scenario, Segments, T
from tests.conformance.scenario_tools import Writer, one_each
from tests.kafka.encode import CODECS, Batch, Record

SMALL = {"internal.segment.bytes": "400"}
LEGACY_CODECS = ("none", "gzip", "snappy", "lz4")


def cleaning_scenarios() -> dict[str, Scenario]:
    """All of them by name."""
    return dict([*_keys(), *_codecs(), *_formats(), *_tombstones(), *_sizes_and_offsets(), *_ranges()])


def _keys() -> Iterator[tuple[str, Scenario]]:
    w = Writer()
    yield "within-a-batch", Scenario([[[w.batch("aabcab")], [w.batch("d")]]])
    w = Writer()
    yield "across-batches", Scenario([[w.each("abcabd"), w.each("a")]])
    w = Writer()
    yield "across-segments", Scenario([[*one_each(w.each("abcabdae")), [w.batch("a")]]])
    w = Writer()
    yield "across-groups", Scenario([[*one_each(w.batch("abcd") for _ in range(6)), [w.batch("a")]]], SMALL)
    w = Writer()
    yield "keys-in-the-active-segment-do-not-count", Scenario([[[w.batch("ab")], [w.batch("ab")]]])
    w = Writer()
    yield "all-unique", Scenario([[*one_each([w.batch("abc"), w.batch("def")]), [w.batch("g")]]])
    w = Writer()
    yield "one-key-only", Scenario([[*one_each(w.batch("aaaa") for _ in range(5)), [w.batch("a")]]], SMALL)
    w = Writer()
    yield "without-a-key", Scenario([[[w.batch("a.b.")], [w.batch("..")], [w.batch(".a")]]])
    w = Writer()
    odd: list[bytes | None] = [b"", b"\x00\xff\xfe", b"k" * 70_000, b"", b"\x00\xff\xfe", b"k" * 70_000, b"k" * 69_999]
    yield "empty-binary-and-long-keys", Scenario([[[w.batch(odd)], [w.batch(odd)], [w.batch("a")]]])
    w = Writer()
    headers = ((b"null", None), (b"empty", b""), (b"", b"v"), (b"twice", b"1"), (b"twice", b"2"))
    with_headers = [record._replace(headers=headers) for record in w.records("abab")]
    yield "headers", Scenario([[[Batch(with_headers).encode()], [w.batch("b")], [w.batch("c")]]])


def _codecs() -> Iterator[tuple[str, Scenario]]:
    for codec in CODECS:
        w = Writer(size=300)
        segments = one_each(w.batch("abcdefgh"[at:] + "abc", codec=codec) for at in range(6))
        yield f"rewritten-{codec}", Scenario([[*segments, [w.batch("a")]]])
    w = Writer()
    mixed = [w.batch("abc" + letter, codec=codec) for letter, codec in zip("defgh", CODECS, strict=True)]
    yield "all-codecs-in-one-log", Scenario([[mixed, [w.batch("b")], [w.batch("a")]]])


def _formats() -> Iterator[tuple[str, Scenario]]:
    for magic in (0, 1):
        for codec in LEGACY_CODECS:
            w = Writer()
            sets = [w.legacy("abcab", magic, codec), w.legacy("cda", magic, codec), w.legacy("ef", magic, codec)]
            yield f"v{magic}-{codec}", Scenario([[sets[:2], sets[2:], [w.batch("a")]]])
    w = Writer()
    yield (
        "all-formats-in-one-segment",
        Scenario(
            [
                [
                    [w.legacy("ab", 0), w.legacy("abc", 1, "gzip"), w.batch("cde"), w.legacy("e", 0, "lz4")],
                    [w.batch("d")],
                    [w.batch("a")],
                ]
            ]
        ),
    )
    w = Writer()
    yield (
        "log-append-time",
        Scenario(
            [
                [
                    [w.batch("aab", log_append_time=T + DAY), w.batch("bcA", log_append_time=T + 2 * DAY)],
                    [w.batch("c")],
                    [w.batch("z")],
                ]
            ]
        ),
    )
    w = Writer()
    stated = [w.batch(keys, max_timestamp=T - DAY) for keys in ("ab", "cd", "eF")]
    stated += [w.batch(keys, max_timestamp=T + DAY, codec="zstd") for keys in ("gh", "ij", "kL")]
    yield "max-timestamps-of-no-record", Scenario([[[*stated, w.batch("ci")], [w.batch("z")]], [[w.batch("y")]]])


def _tombstones() -> Iterator[tuple[str, Scenario]]:
    w = Writer()
    first: Segments = [[w.batch("abA"), w.batch("Bc")], [w.batch("d")]]
    yield "tombstones-before-and-at-their-horizon", Scenario([first, [[w.batch("e")]], [[w.batch("f")]]])
    w = Writer()
    yield (
        "tombstones-go-at-once",
        Scenario([[[w.batch("abA")], [w.batch("d")]], [[w.batch("e")]], [[w.batch("f")]]], {"delete.retention.ms": "0"}),
    )
    w = Writer()
    yield (
        "tombstone-and-value-in-a-compressed-batch",
        Scenario([[[w.batch("aBcAb", codec="zstd")], [w.batch("d")]], [[w.batch("Ce", codec="gzip")]], [[w.batch("f")]]]),
    )
    for name, age in (("kept", DAY // 2), ("gone", 2 * DAY)):
        w = Writer()
        segments = one_each([w.legacy("Ab", 1), w.legacy("c", 1), w.legacy("Cd", 1)])
        yield (
            f"v1-tombstones-{name}-by-mtime",
            Scenario([[*segments, [w.batch("z")]]], checkpoint=3, mtimes={0: MTIME - age, 2: MTIME, 3: MTIME}),
        )


def _sizes_and_offsets() -> Iterator[tuple[str, Scenario]]:
    w = Writer(size=1_300_000)
    big = [w.batch("a"), w.batch("ab"), w.batch("a")]
    yield "batches-over-a-mebibyte", Scenario([[big, [w.batch("c")], [w.batch("d")]]], {"max.message.bytes": "5000000"})
    w = Writer(size=3000)
    yield "several-index-entries", Scenario([[w.each("abcdefghijklmnabcdefgh"), [w.batch("a")], [w.batch("b")]]])
    w = Writer(size=300)
    dense = {"index.interval.bytes": "500"}
    yield "a-dense-index", Scenario([[w.each("abcdefghijklmnabcdefgh"), w.each("abc"), [w.batch("b")]]], dense)
    w = Writer()
    gaps = [w.batch("ab"), w.gap(100), w.batch("ac"), w.gap(5)]
    yield "offset-gaps", Scenario([[[part for part in gaps if part], [w.batch("a")], [w.batch("z")]]])
    w = Writer()
    apart = [
        [w.batch("ab")],
        [w.gap(2**31), w.batch("ac")],
        [w.gap(50), w.batch("d")],
        [w.gap(2**31 - 10), w.batch("e")],
        [w.batch("z")],
    ]
    yield "offsets-too-far-apart-for-one-segment", Scenario([apart])
    w = Writer()
    inner = [Record(offset, T, b"k%d" % (offset % 3), b"v") for offset in (0, 3, 4, 9)]
    w.offset = 15
    yield (
        "a-batch-with-holes",
        Scenario([[[Batch(inner, base_offset=0, last_offset=14).encode()], [w.batch("a")], [w.batch("z")]]]),
    )
    w = Writer()
    yield "an-empty-active-segment", Scenario([[[w.batch("aab")], [w.batch("b")], []]])
    w = Writer()
    records = w.records("abcab")
    back = [record._replace(timestamp=T + 10_000 - at * 700) for at, record in enumerate(records)]
    yield (
        "times-that-go-back",
        Scenario([[[Batch(back[:3]).encode(), Batch(back[3:]).encode()], [w.batch("c")], [w.batch("z")]]]),
    )


def _ranges() -> Iterator[tuple[str, Scenario]]:
    w = Writer()
    four = one_each(w.batch("abcd") for _ in range(4))
    yield "first-dirty-offset-inside-a-segment", Scenario([[[*four[0], *four[1]], *four[2:]]], checkpoint=4)
    w = Writer()
    four = one_each(w.batch("abcd") for _ in range(4))
    yield "first-dirty-offset-inside-a-batch", Scenario([four], checkpoint=6)
    w = Writer()
    yield (
        "clean-records-lose-to-dirty-ones-only",
        Scenario([one_each([w.batch("aab"), w.batch("b"), w.batch("z")])], checkpoint=3),
    )
    w = Writer()
    yield "nothing-dirty", Scenario([one_each([w.batch("aa"), w.batch("a")])], checkpoint=2)
    w = Writer()
    yield "again-without-a-change", Scenario([one_each([w.batch("aab"), w.batch("a")]), (), ()])
    w = Writer()
    yield (
        "more-each-round",
        Scenario([one_each([w.batch("abc"), w.batch("ad")]), one_each([w.batch("b"), w.batch("e")]), [[w.batch("a")]]]),
    )
    w = Writer()
    yield "a-single-segment", Scenario([[[w.batch("aab")]]])
