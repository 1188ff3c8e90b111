"""Messages are read by their schemas: every rule of the encoding, on bytes written by hand.

``tests/conformance/test_dump.py`` compares the tables with Kafka's definitions, and messages that Kafka has written.
"""

from __future__ import annotations

import struct

import pytest

from compaction.dumping.message_schemas import Field, MessageError, Versions, read_table
from compaction.formats.java_text import json_text

TABLE = """
0 plain 0-2 -: small int8, unsigned uint16, big int64, flag bool, ratio float64, name string, note string? =null,
    raw bytes, ids [int32], since int32 1+ =-1, only int16 1
1 flexible 0 0: name string, note string?, raw bytes?, ids [uuid]?, parts [{id int32, label string #0}],
    extra int32 #5 =-1, inner {id int32}? , more {id int32}? #1 =null
2 mixed 0-3 2: name string, late int32 2+ #0, tagged int16 1+ #1@3+ =4
"""


class TestTables:
    def test_attributes_of_fields_are_parsed(self) -> None:
        fields = {field.name: field for field in read_table(TABLE)[2, "mixed"].fields}
        assert fields["name"] == Field("name", "string")
        assert fields["late"] == Field("late", "int32", versions=Versions(2, 1 << 15), tag=0)
        assert fields["tagged"].is_tagged(3)
        assert not fields["tagged"].is_tagged(2)
        assert fields["tagged"].default_value() == 4


class TestPlain:
    DATA = (
        struct.pack(">bHqbd", -3, 65_000, 2**40, 1, 0.25)
        + struct.pack(">h", 3) + b"abc" + struct.pack(">h", -1)
        + struct.pack(">i", 2) + b"\x00\xff" + struct.pack(">iii", 2, 7, -8)
    )  # fmt: skip

    def test_version_0(self) -> None:
        plain = read_table(TABLE)[0, "plain"]
        values, end = plain.read(self.DATA + b"rest", 0)
        assert end == len(self.DATA)
        assert values == {
            "small": -3, "unsigned": 65_000, "big": 2**40, "flag": True, "ratio": 0.25, "name": "abc", "note": None,
            "raw": b"\x00\xff", "ids": [7, -8],
        }  # fmt: skip
        assert json_text(plain.to_json(values, 0)) == (
            '{"small":-3,"unsigned":65000,"big":1099511627776,"flag":true,"ratio":0.25,"name":"abc","note":null,'
            '"raw":"AP8=","ids":[7,-8]}'
        )

    def test_fields_of_later_versions(self) -> None:
        plain = read_table(TABLE)[0, "plain"]
        values, _ = plain.read(self.DATA + struct.pack(">ih", 12, 13), 1)
        assert (values["since"], values["only"]) == (12, 13)
        later, _ = plain.read(self.DATA + struct.pack(">i", 12), 2)
        assert "only" not in later

    def test_values_read_in_one_version_are_written_in_another_with_defaults(self) -> None:
        plain = read_table(TABLE)[0, "plain"]
        form = plain.to_json(plain.read(self.DATA, 0)[0], 1)
        assert (form["since"], form["only"]) == (-1, 0)

    @pytest.mark.parametrize("cut", range(len(DATA)))
    def test_a_message_that_ends_early_is_refused(self, cut: int) -> None:
        with pytest.raises(MessageError):
            read_table(TABLE)[0, "plain"].read(self.DATA[:cut], 0)

    def test_null_in_a_non_nullable_field_is_refused_with_javas_message(self) -> None:
        broken = self.DATA[:20] + struct.pack(">h", -1)
        with pytest.raises(MessageError, match="non-nullable field name was serialized as null"):
            read_table(TABLE)[0, "plain"].read(broken, 0)


class TestFlexible:
    def test_compact_forms_and_tagged_fields(self) -> None:
        flexible = read_table(TABLE)[1, "flexible"]
        part = struct.pack(">i", 9) + b"\x01" + b"\x00\x03" + b"\x03hi"
        data = (
            b"\x03ab" + b"\x00" + b"\x00"
            + b"\x02" + bytes(15) + b"\x01"
            + b"\x02" + part
            + b"\x01" + struct.pack(">i", 4) + b"\x00"
        )  # fmt: skip
        data += b"\x03" + b"\x05\x04" + struct.pack(">i", 77) + b"\x07\x02zz" + b"\x01\x06\x01" + struct.pack(">i", 5) + b"\x00"
        values, end = flexible.read(data, 0)
        assert end == len(data)
        assert json_text(flexible.to_json(values, 0)) == (
            '{"name":"ab","note":null,"raw":null,"ids":["AAAAAAAAAAAAAAAAAAAAAQ"],"parts":[{"id":9,"label":"hi"}],'
            '"extra":77,"inner":{"id":4},"more":{"id":5}}'
        )

    def test_tagged_fields_with_their_default_are_omitted(self) -> None:
        flexible = read_table(TABLE)[1, "flexible"]
        data = b"\x01" + b"\x01" + b"\x01" + b"\x00" + b"\x01" + b"\xff" + b"\x00"
        values, _ = flexible.read(data, 0)
        assert flexible.to_json(values, 0) == {"name": "", "note": "", "raw": "", "ids": None, "parts": [], "inner": None}

    def test_a_collection_larger_than_the_message_is_refused(self) -> None:
        with pytest.raises(MessageError, match="collection of size 99, but there are only 1 bytes"):
            read_table(TABLE)[1, "flexible"].read(b"\x01\x01\x01\x64\x00", 0)


def test_the_version_determines_the_flexible_encoding() -> None:
    mixed = read_table(TABLE)[2, "mixed"]
    assert mixed.read(struct.pack(">h", 1) + b"x", 0)[0] == {"name": "x"}
    assert mixed.read(b"\x02x" + struct.pack(">h", 6) + b"\x01\x00\x04" + struct.pack(">i", 5), 2)[0] == {
        "name": "x",
        "tagged": 6,
        "late": 5,
    }
    assert mixed.read(b"\x02x\x01\x01\x02" + struct.pack(">h", 8), 3)[0] == {"name": "x", "tagged": 8}
