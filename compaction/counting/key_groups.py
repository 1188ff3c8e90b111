"""Groups keys, for counts of groups: by a prefix, by a regular expression, or by the window of a windowed key of Kafka Streams.

Expressions are those of ``compaction.formats.keys``, of text or of bytes; here they need not match the complete key.

Mirrors ``TimeWindowedSerializer`` and ``SessionWindowedSerializer``, whose keys end with the start of the window
(int64, milliseconds), and ``WindowKeySchema``, the keys of a window store's changelog, which have a sequence number (int32)
after it. A window does not begin before 0 (``TimeWindow``). A start from 2^56 on, in the year 2285384, is taken for text or
another number: in both cases the first of the eight bytes is not 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from compaction.errors import UsageError
from compaction.formats.keys import BYTES, PREFIX, REGEX, expression_errors, require_ascii, text_keys
from compaction.formats.primitives import FormatError

WINDOW, WINDOW_STORE = "window", "window-store"
_TIME_BYTES, _SEQUENCE_BYTES = 8, 4
_LONGEST_PREFIX = 1000
_HINT = "give prefix:NUMBER, regex:EXPRESSION, bytes:EXPRESSION, window or window-store"


@dataclass(frozen=True)
class KeyGroups:
    """``kind`` is ``prefix`` (the first ``text`` bytes), ``regex`` or ``bytes`` (the first group of the expression ``text`` of
    RE2, or its match), ``window`` or ``window-store``. The text may be a part of somebody's key: ``repr`` hides it."""

    kind: str
    text: str = field(default="", repr=False)

    @classmethod
    def parse(cls, argument: str) -> KeyGroups:
        """From ``prefix:NUMBER``, ``regex:EXPRESSION``, ``bytes:EXPRESSION``, ``window`` or ``window-store``.

        :raises UsageError: it is none of these
        """
        kind, colon, text = argument.partition(":")
        groups = cls(kind, text)
        if kind == PREFIX and text.isdecimal() and 0 < int(text) <= _LONGEST_PREFIX:
            return groups
        if kind in (WINDOW, WINDOW_STORE) and not colon:
            return groups
        if kind not in (REGEX, BYTES) or not text:
            raise UsageError(f"group_by: {argument!r} does not group keys", hint=_HINT)
        try:
            if kind == BYTES:
                require_ascii(text)
            with expression_errors():
                # compiled alone first: unbalanced brackets could close the added ones
                pc.match_substring_regex(groups._subjects(pa.array([b""], pa.binary())), text)
                groups.of(pa.array([b""], pa.binary()))
        except FormatError as error:
            raise UsageError(f"group_by: the expression {error}", hint=_HINT) from None
        return groups

    @property
    def windowed(self) -> bool:
        """Whether a group is the start of a window."""
        return self.kind in (WINDOW, WINDOW_STORE)

    @property
    def _after_time(self) -> int:
        return _SEQUENCE_BYTES if self.kind == WINDOW_STORE else 0

    def windowed_key(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The key without its window, and the start of the window; ``None`` if keys are not grouped by windows, or this one has
        none."""
        end = len(key) - self._after_time
        start = key[max(0, end - _TIME_BYTES) : max(0, end)]
        windowed = self.windowed and len(start) == _TIME_BYTES and start[0] == 0
        return (key[: end - _TIME_BYTES], start) if windowed else None

    def of(self, keys: pa.Array) -> pa.Array:
        """The group of each of the binary array ``keys``; null if the key is in none."""
        if self.kind == PREFIX:
            return pc.binary_slice(keys, 0, int(self.text))
        if self.windowed:
            after = self._after_time
            long_enough = pc.greater_equal(pc.binary_length(keys), _TIME_BYTES + after)
            # a slice from the end of a shorter key would be another field
            ends = pc.binary_slice(pc.if_else(long_enough, keys, None), -_TIME_BYTES - after)
            starts = pc.binary_slice(ends, 0, _TIME_BYTES)
            return pc.if_else(pc.starts_with(starts, b"\0"), starts, None)
        subjects = self._subjects(keys)
        matching = pc.if_else(pc.match_substring_regex(subjects, self.text), subjects, None)
        try:
            return self._replaced(matching, self.text).cast(pa.binary())
        except pa.ArrowInvalid:
            return self._replaced(matching, f"({self.text})").cast(pa.binary())

    def _subjects(self, keys: pa.Array) -> pa.Array:
        """The keys to which an expression applies: as strings RE2 takes them as text."""
        return text_keys(keys) if self.kind == REGEX else keys

    def _replaced(self, keys: pa.Array, expression: str) -> pa.Array:
        """The keys with their first match replaced by its first group, and nothing around it."""
        return pc.replace_substring_regex(keys, rf"(?s:\A.*?)(?:{expression})(?s:.*\z)", r"\1")
