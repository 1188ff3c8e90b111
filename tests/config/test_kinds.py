"""Values are parsed from text and validated."""

from __future__ import annotations

import math

import pytest

from compaction.config.entries import Kind, Validator, Value, above, choice, in_range, non_zero, parse


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" 12 ", Kind.INT, 12),
        ("-2147483648", Kind.INT, -(2**31)),
        ("+5", Kind.LONG, 5),
        ("9223372036854775807", Kind.LONG, 2**63 - 1),
        ("32767", Kind.SHORT, 32767),
        ("TRUE", Kind.BOOLEAN, True),
        (" false", Kind.BOOLEAN, False),
        ("0.5", Kind.DOUBLE, 0.5),
        (".5d", Kind.DOUBLE, 0.5),
        ("1e-3", Kind.DOUBLE, 0.001),
        ("-Infinity", Kind.DOUBLE, -math.inf),
        ("a , b,c", Kind.LIST, ("a", "b", "c")),
        ("a,a", Kind.LIST, ("a",)),
        ("  ", Kind.LIST, ()),
        (" a b ", Kind.STRING, "a b"),
    ],
)
def test_text_is_parsed_as_kafka_parses_it(text: str, kind: Kind, value: Value) -> None:
    assert parse(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2147483648", Kind.INT),
        ("-2147483649", Kind.INT),
        ("9223372036854775808", Kind.LONG),
        ("32768", Kind.SHORT),
        ("1_000", Kind.LONG),
        ("1.0", Kind.INT),
        ("0x10", Kind.INT),
        ("", Kind.INT),
        ("yes", Kind.BOOLEAN),
        ("1", Kind.BOOLEAN),
        ("NaN", Kind.DOUBLE),
        ("half", Kind.DOUBLE),
        ("٣", Kind.INT),
    ],
)
def test_text_of_another_kind_is_refused(text: str, kind: Kind) -> None:
    with pytest.raises(ValueError, match=f"is not {kind.value}"):
        parse(text, kind)


@pytest.mark.parametrize(
    ("validator", "good", "bad"),
    [
        (in_range(0), [0, 1], [-1]),
        (in_range(0, 1), [0.0, 1.0, 0.5], [-0.1, 1.1]),
        (non_zero, [1, -1, -5], [0]),
        (above(0, 1), [0.1, 1.0], [0.0, 1.01]),
        (choice("a", "b"), ["a", ("a", "b"), ()], ["A", ("a", "c"), ("",)]),
    ],
)
def test_a_validator_refuses_values_out_of_bounds(validator: Validator, good: list[Value], bad: list[Value]) -> None:
    assert [validator(value) for value in good] == [None] * len(good)
    assert all(validator(value) for value in bad)
