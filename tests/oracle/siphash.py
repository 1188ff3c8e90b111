"""SipHash with 128 bits of output as its paper and reference code describe it, on Python's own integers."""

from __future__ import annotations

_MASK = 2**64 - 1


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


class _State:
    """The four words of the state."""

    def __init__(self, low: int, high: int) -> None:
        text = b"somepseudorandomlygeneratedbytes"
        first, second, third, fourth = (int.from_bytes(text[at : at + 8], "big") for at in range(0, 32, 8))
        # 128 bits of output: v1 ^= 0xee
        self.v = [low ^ first, high ^ second ^ 0xEE, low ^ third, high ^ fourth]

    def rounds(self, count: int) -> None:
        v0, v1, v2, v3 = self.v
        for _ in range(count):
            v0 = (v0 + v1) & _MASK
            v1 = _rotated(v1, 13) ^ v0
            v0 = _rotated(v0, 32)
            v2 = (v2 + v3) & _MASK
            v3 = _rotated(v3, 16) ^ v2
            v0 = (v0 + v3) & _MASK
            v3 = _rotated(v3, 21) ^ v0
            v2 = (v2 + v1) & _MASK
            v1 = _rotated(v1, 17) ^ v2
            v2 = _rotated(v2, 32)
        self.v = [v0, v1, v2, v3]

    def folded(self) -> int:
        return self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]


def naive_siphash(low: int, high: int, data: bytes, compression: int = 1, finalization: int = 3) -> tuple[int, int]:
    """SipHash-c-d-128 of ``data`` under the secret ``low``, ``high`` (its first and its last eight bytes, little-endian): the
    first and the last eight bytes of the output likewise."""
    state = _State(low, high)
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        state.v[3] ^= word
        state.rounds(compression)
        state.v[0] ^= word
    state.v[2] ^= 0xEE
    state.rounds(finalization)
    first = state.folded()
    state.v[1] ^= 0xDD
    state.rounds(finalization)
    return first, state.folded()
