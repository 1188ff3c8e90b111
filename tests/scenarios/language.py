"""The language of scenarios: a log as text, its settings, when it is cleaned, and what Kafka leaves.

A file has scenarios; each begins with ``scenario NAME`` and has these lines, in the order in which things happen. ``#``
begins a comment. Times are relative to the record at offset 0 (``3d``, ``-4h``, ``29d20h``); each offset is a second later.

| line | meaning |
| --- | --- |
| ``set KEY VALUE`` | a topic-level setting, beside compaction of everything dirty |
| ``writer [size=N] [time=TIME] [offset=N]`` | bytes of a value, the time of offset 0, the next offset |
| ``checkpoint N`` | the cleaner's checkpoint at the next cleaning, otherwise that of the last one; ``none``: it is lost |
| ``high-watermark N``, ``log-start N`` | the broker's state, until another line changes it; ``none``: the log end |
| ``only-kafka`` | only Kafka itself can write this log: its indexes depend on how the batches were appended |
| ``as-leader`` | Kafka appends as a leader does, which sets offsets, times and epoch of the batches |
| ``version N`` | the answers are of this version of Kafka |
| ``killed`` | the broker that appends before the next cleaning does not shut down |
| ``without FILE [ours]`` | at the next cleaning the log lacks its first file with a suffix (``.index``), that of an inactive |
| | segment (``2.index``), or ``newest.snapshot``; ``ours``: not Kafka's copy |
| ``segment [LINE | LINE ...]`` | a new segment, perhaps with its batches; the last one is the active one |
| ``mtime TIME`` | the modification time of the segment above, otherwise 29d |
| ``batch KEYS [time=T] [codec=C] [epoch=N] [append-time=T] [max-time=T] [base=N] [last=N]`` | a record for each key; also |
| | ``[producer=P.EPOCH] [sequence=N] [in-transaction=yes] [horizon=T]`` |
| ``record KEY [offset=N] [time=T] [value=V] [header:NAME=VALUE ...]`` | a record more, in the batch or message set above |
| ``bytes HEX`` | a batch that the other lines cannot express |
| ``v0 KEYS [codec=C]``, ``v1 ...`` | a message set |
| ``sent P KEYS [codec=C]``, ``plain P KEYS`` | a batch of producer P (``P.EPOCH``), in a transaction and not |
| ``commit P``, ``abort P`` ``[time=T] [horizon=T]`` | the marker that ends its transaction |
| ``gap N`` | skips offsets |
| ``clean [at=TIME]`` | what is above is appended, and the log is cleaned: at 30d, then a millisecond before 31d, then at 31d |
| ``expire`` | the same, but only segments are deleted by retention |

``KEYS`` are letters: a capital letter is a tombstone of its key, a dot a record without a key, an apostrophe none at all. Other
keys are separated by commas: ``0x00ff``, ``""``, ``key-5``, and ``k*70000``, which repeats a letter. A value is text,
``0x00ff``, ``""`` or ``none``.

The ``time`` of a batch is that of its first record; ``none``: its records have no time.

After ``clean`` come the lines of the answer, which begin with ``>`` and are written from Kafka's files by ``python -m
tests.scenarios``: ``deleted N, log start N`` if segments were deleted; ``skipped``, ``refused`` if the cleaner fails, or the
offset that is cleaned up to; then each segment with the batches that remain, and a digest of its files. ``a3`` is key ``a`` at
offset 3, ``c4,d5`` are one batch, ``commit.1@7`` is a marker, ``(9)`` a batch without records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.kafka.encode import ABORT, COMMIT, Batch, Legacy, Producer, Record, marker

#: the producer's timestamp of offset 0
T = 1_700_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
#: the times of the rounds
ROUNDS = (T + 30 * DAY, T + 31 * DAY - 1, T + 31 * DAY)
#: the modification time of segment files for which the scenario sets no other
MTIME = T + 29 * DAY
HERE = Path(__file__).resolve().parent
_UNITS = {"d": DAY, "h": HOUR, "m": 60_000, "s": 1_000, "ms": 1}

Segments = Sequence[Sequence[bytes]]
#: the checkpoint is that of the last cleaning
KNOWN = -1


@dataclass(frozen=True)
class Round:
    """One cleaning.

    ``segments`` are appended before it, possibly none; the last of them is the active one until more are appended. ``mtimes``
    are the modification times of some, by their index. A
    ``checkpoint`` replaces that of the cleaner, unless it is ``KNOWN``; a ``high_watermark`` of ``None`` is the log end.
    ``killed``: the broker that appended did not shut down. ``lost`` and ``lost_ours`` name files to remove. ``answer`` has the
    lines of Kafka's.
    """

    now_ms: int
    segments: Segments = ()
    mtimes: Mapping[int, int] = field(default_factory=dict)
    checkpoint: int | None = KNOWN
    log_start: int = 0
    high_watermark: int | None = None
    killed: bool = False
    lost: Sequence[str] = ()
    lost_ours: Sequence[str] = ()
    answer: Sequence[str] = ()

    @property
    def was_killed(self) -> bool:
        """Whether a broker wrote something and was then killed."""
        return self.killed and bool(self.segments)


@dataclass(frozen=True)
class Scenario:
    """One log, its appends and its settings.

    ``config`` adds topic-level settings to compaction of everything dirty. ``only_kafka``: its files cannot be made without
    Kafka. ``expires``: its rounds are ``expire``. ``version`` is that of the answers, empty for the reference.
    """

    rounds: Sequence[Round] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    only_kafka: bool = False
    as_leader: bool = False
    expires: bool = False
    version: str = ""

    @property
    def answers(self) -> list[list[str]]:
        """Kafka's answer after each round."""
        return [list(each.answer) for each in self.rounds]

    @property
    def needs_kafka(self) -> bool:
        """Whether files without records beside them are not enough."""
        placed = any(not name.startswith(".") for each in self.rounds for name in each.lost)
        return self.only_kafka or self.as_leader or placed or any(each.was_killed for each in self.rounds)

    @property
    def knows_what_was_cleaned(self) -> bool:
        """Whether no checkpoint is past the end of a round."""
        return all(each.checkpoint in (None, KNOWN, 0) for each in self.rounds)

    @property
    def topic_config(self) -> dict[str, str]:
        """All topic-level settings."""
        policy = {"cleanup.policy": "delete", "retention.ms": "-1"} if self.expires else {"cleanup.policy": "compact"}
        return {**policy, "min.cleanable.dirty.ratio": "0", **self.config}

    @property
    def deletes(self) -> bool:
        """Whether segments are deleted by retention, or below the log start."""
        return self.expires or "delete" in self.config.get("cleanup.policy", "")


@cache
def scenarios(name: str) -> Mapping[str, Scenario]:
    """Those of the file ``NAME.txt``, by their names."""
    return {scenario: parse(lines) for scenario, lines in sections((HERE / f"{name}.txt").read_text(encoding="utf-8"))}


def files() -> list[str]:
    """The names of all files."""
    return sorted(path.stem for path in HERE.glob("*.txt"))


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """The lines of each scenario of a file."""
    for section in re.split(r"^scenario ", text, flags=re.MULTILINE)[1:]:
        name, *lines = section.splitlines()
        yield name.partition("#")[0].strip(), lines


def with_answers(text: str, answers: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """A file's text with other answers, by scenario and round."""
    lines, name, number = [], "", 0
    for line in text.splitlines():
        if line.startswith(">"):
            continue
        lines.append(line)
        if line.startswith("scenario "):
            name, number = line.partition("#")[0].split()[1], 0
        elif line.split()[:1] in (["clean"], ["expire"]):
            lines += [f"> {each}" for each in answers[name][number]]
            number += 1
    return "\n".join(lines) + "\n"


def time_of(text: str) -> int:
    """A time relative to the record at offset 0, in ms since the epoch."""
    match = re.fullmatch(r"(-?)((?:\d+(?:ms|d|h|m|s))+)", text)
    if match is None:
        raise ValueError(f"no time: {text!r}")
    parts = re.findall(r"(\d+)(ms|d|h|m|s)", match[2])
    return T + (-1 if match[1] else 1) * sum(int(number) * _UNITS[unit] for number, unit in parts)


def keys_of(text: str) -> str | list[bytes | None]:
    """The keys of a line."""
    if text == "'":
        return []
    if re.fullmatch(r"[A-Za-z.]+", text):
        return text
    return [_key(each) for each in text.split(",")]


def _text(text: str) -> bytes:
    if text == '""':
        return b""
    return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()


def _key(text: str) -> bytes | None:
    letter, star, times = text.partition("*")
    return letter.encode() * int(times) if star and not text.startswith("0x") else _text(text)


class _Parser:
    """The state of a scenario while its lines are read."""

    def __init__(self) -> None:
        self.scenario = Scenario()
        #: the next offset, the bytes of a value, and the time of offset 0; each offset is a second later
        self.offset, self.size, self.time_ms = 0, 20, T
        #: the next sequence number by producer
        self.sequences: dict[int, int] = {}
        self.rounds: list[Round] = []
        self.next = Round(0)
        self.segments: list[list[bytes | Batch | Legacy]] = []
        self.config: dict[str, str] = {}

    def line(self, line: str) -> None:
        if line.startswith(">"):
            last = self.rounds[-1]
            self.rounds[-1] = replace(last, answer=(*last.answer, line[1:].strip()))
            return
        line = line.partition("#")[0].strip()
        if line.startswith("segment "):
            self._segment()
            for batch in line.removeprefix("segment ").split(" | "):
                self.line(batch)
            return
        words = line.split()
        if not words:
            return
        headers = [word.removeprefix("header:") for word in words if word.startswith("header:")]
        words = [word for word in words if not word.startswith("header:")]
        named = {match[1].replace("-", "_"): match[2] for word in words[1:] if (match := re.fullmatch(r"([a-z-]+)=(.*)", word))}
        plain = [word for word in words[1:] if not re.match(r"[a-z-]+=", word)]
        if words[0] in _STATE:
            state: dict[str, Any] = {_STATE[words[0]]: None if plain[0] == "none" else int(plain[0])}
            self.next = replace(self.next, **state)
        elif words[0] in ("only-kafka", "as-leader"):
            flag: dict[str, Any] = {words[0].replace("-", "_"): True}
            self.scenario = replace(self.scenario, **flag)
        elif words[0] == "record":
            self._record(headers, *plain, **named)
        else:
            getattr(self, f"_{words[0]}")(*plain, **named)

    def records(self, text: str) -> list[Record]:
        """A record for each of the keys of a line."""
        made = []
        for key in keys_of(text):
            value: bytes | None = (b"%d:" % self.offset).ljust(self.size, b"v")
            if isinstance(key, str):
                value = None if key.isupper() else value
                key = None if key == "." else key.lower().encode()
            made.append(Record(self.offset, self.time_ms + self.offset * 1000, key, value))
            self.offset += 1
        return made

    def _set(self, name: str, *value: str) -> None:
        self.config[name] = " ".join(value)

    def _writer(self, size: str = "", time: str = "", offset: str = "") -> None:
        if size:
            self.size = int(size)
        if time:
            self.time_ms = time_of(time)
        if offset:
            self.offset = int(offset)

    def _mtime(self, time: str) -> None:
        self.next = replace(self.next, mtimes={**self.next.mtimes, len(self.segments) - 1: time_of(time)})

    def _version(self, version: str) -> None:
        self.scenario = replace(self.scenario, version=version)

    def _killed(self) -> None:
        self.next = replace(self.next, killed=True)

    def _without(self, file: str, whose: str = "") -> None:
        lost = {"lost_ours": (*self.next.lost_ours, file)} if whose == "ours" else {"lost": (*self.next.lost, file)}
        self.next = replace(self.next, **lost)  # type: ignore[arg-type]

    def _segment(self) -> None:
        self.segments.append([])

    def _batch(self, keys: str = "'", time: str = "", **named: str) -> None:
        records = self.records(keys)
        if time:
            times = [-1] * len(records) if time == "none" else range(time_of(time), 2**62, 1000)
            records = [record._replace(timestamp=each) for record, each in zip(records, times, strict=False)]
        fields: dict[str, Any] = {}
        if "producer" in named:
            fields["producer_id"], fields["producer_epoch"] = _producer(named.pop("producer"))
        for name, text in named.items():
            field_name, read = _FIELDS[name]
            fields[field_name] = read(text)
        self.segments[-1].append(Batch(records, **fields))

    def _record(self, headers: Sequence[str], key: str, offset: str = "", time: str = "", value: str = "") -> None:
        batch = self.segments[-1][-1]
        assert not isinstance(batch, bytes)
        if offset:
            self.offset = int(offset)
        (record,) = self.records(key)
        if time:
            record = record._replace(timestamp=time_of(time))
        if value:
            record = record._replace(value=None if value == "none" else _text(value))
        pairs = [header.partition("=")[::2] for header in headers]
        found = tuple((_text(name), None if text == "null" else _text(text)) for name, text in pairs)
        record = record._replace(headers=found)
        self.segments[-1][-1] = replace(batch, records=[*batch.records, record])

    def _v0(self, keys: str = "'", codec: str = "none", magic: int = 0) -> None:
        self.segments[-1].append(Legacy(self.records(keys), magic, codec))

    def _v1(self, keys: str = "'", codec: str = "none") -> None:
        self._v0(keys, codec, 1)

    def _sent(self, producer: str, keys: str, codec: str = "none", *, transactional: bool = True) -> None:
        number, epoch = _producer(producer)
        first = self.sequences.get(number, 0)
        self.sequences[number] = first + len(keys)
        sender: dict[str, Any] = {"producer_id": number, "producer_epoch": epoch, "base_sequence": first}
        self.segments[-1].append(Batch(self.records(keys), codec, **sender, transactional=transactional))

    def _plain(self, producer: str, keys: str) -> None:
        self._sent(producer, keys, transactional=False)

    def _commit(self, producer: str, **times: str) -> None:
        self._end(producer, COMMIT, **times)

    def _abort(self, producer: str, **times: str) -> None:
        self._end(producer, ABORT, **times)

    def _end(self, producer: str, kind: int, time: str = "", horizon: str = "") -> None:
        (record,) = self.records(".")
        at = time_of(time) if time else record.timestamp
        horizon_ms = time_of(horizon) if horizon else None
        self.segments[-1].append(marker(record.offset, at, _producer(producer), kind, delete_horizon=horizon_ms))

    def _bytes(self, text: str) -> None:
        self.segments[-1].append(bytes.fromhex(text))

    def _gap(self, offsets: str) -> None:
        self.offset += int(offsets)

    def _clean(self, at: str = "") -> None:
        now_ms = time_of(at) if at else ROUNDS[len(self.rounds)]
        segments = [[_encoded(batch) for batch in segment] for segment in self.segments]
        self.rounds.append(replace(self.next, now_ms=now_ms, segments=segments))
        self.next = replace(self.next, mtimes={}, checkpoint=KNOWN, killed=False, lost=(), lost_ours=())
        self.segments = []

    def _expire(self) -> None:
        self._clean()
        self.scenario = replace(self.scenario, expires=True)

    def result(self) -> Scenario:
        return replace(self.scenario, rounds=self.rounds, config=self.config)


_STATE = {"checkpoint": "checkpoint", "high-watermark": "high_watermark", "log-start": "log_start"}
#: of a batch: the field of ``Batch``, and what reads it
_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "codec": ("codec", str),
    "epoch": ("leader_epoch", int),
    "append_time": ("log_append_time", time_of),
    "max_time": ("max_timestamp", time_of),
    "base": ("base_offset", int),
    "last": ("last_offset", int),
    "sequence": ("base_sequence", int),
    "in_transaction": ("transactional", bool),
    "horizon": ("delete_horizon", time_of),
}


def _producer(text: str) -> Producer:
    number, _, epoch = text.partition(".")
    return Producer(int(number), int(epoch or 0))


def _encoded(batch: bytes | Batch | Legacy) -> bytes:
    return batch if isinstance(batch, bytes) else batch.encode()


def parse(lines: Sequence[str]) -> Scenario:
    """A scenario's lines, without the first.

    :raises ValueError: a line is not of the language
    """
    parser = _Parser()
    for number, line in enumerate(lines, 2):
        try:
            parser.line(line)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
            raise ValueError(f"line {number} of the scenario, {line.strip()!r}: {error}") from error
    return parser.result()
