"""Unwraps the data keys of encrypted segments with the private keys that the user has given, and wraps new ones.

A data key is wrapped by RSA with OAEP, SHA3-512 and MGF1 of SHA3-512 (``RsaEncryptionProvider`` of Aiven's plugin), which the
package cryptography does not offer. Private keys are PEM files (PKCS #8), named by their key ids in ``KEYS_VARIABLE``:
``ID=FILE``, separated by commas. A FILE without an id is the key of every other id. Paths are passed on to workers,
keys are not: each process reads the files. A key in place of its path is refused, and not shown.
"""

from __future__ import annotations

import base64
import re
import secrets
from functools import lru_cache
from hashlib import sha3_512
from typing import TYPE_CHECKING

from compaction.errors import UnsupportedLogError, UsageError
from compaction.files import calls
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.text_files import read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

DATA_KEY_BYTES = 32
_DIGEST_BYTES = sha3_512().digest_size
_MAX_PATH_BYTES = 4096
#: a key in PEM, or its base64, which begins with the tag and the length of a sequence in DER
_KEY = re.compile(r"-----BEGIN|[\r\n]|(^|=)\s*MI[A-Za-z0-9+/]{100}")


def add_private_keys(given: list[str]) -> None:
    """Adds private keys, ``ID=FILE`` or ``FILE``, to those of this call and of its workers.

    :raises UsageError: a file is no private RSA key, a path has a comma, or the package that reads keys is not installed
    """
    for text in given:
        _, path = _parse(text)
        if "," in text:
            raise UsageError("the name of a private key has a comma", path=path, hint="rename the file, or link to it")
        require_cryptography("--private-key")
        _private_key(path)
    if given:
        calls.store_keys(given)
        # a later call without these keys has none
        calls.at_end(data_key.cache_clear)
        calls.at_end(_private_key.cache_clear)


def require_cryptography(what: str) -> None:
    """:raises UsageError: the package cryptography is not installed"""
    try:
        import cryptography  # noqa: F401 - whether it is there
    except ImportError:
        hint = "pip install 'cryptography>=42'"
        raise UsageError(f"{what}: needs the package cryptography, which is not installed", hint=hint) from None


@lru_cache(maxsize=4096)
def data_key(wrapped: str, path: str) -> bytes:
    """The data key of the manifest at ``path``.

    :param wrapped: ``<key id>:<base64>``
    :raises UnsupportedLogError: its private key was not given, or is another one
    """
    name, _, text = wrapped.partition(":")
    try:
        cipher_text = base64.b64decode(text, validate=True)
    except ValueError:
        raise UnsupportedLogError("encryption.dataKey is not KEY-ID:BASE64", path=path) from None
    files = _key_files()
    file = files.get(name, files.get(""))
    if file is None:
        hint = f"give --private-key {name}=FILE, or set {KEYS_VARIABLE}"
        raise UnsupportedLogError(f"is encrypted, and no private key is given for key id {name!r}", path=path, hint=hint)
    require_cryptography("encrypted segments")
    key = _unwrap(_private_key(file), cipher_text)
    if key is None:
        message = f"the private key in {file} does not decrypt the data key of key id {name!r}"
        raise UnsupportedLogError(message, path=path, hint="give the private key of this key id")
    return key


def new_data_key(wrapped: str, path: str) -> tuple[bytes, str]:
    """A new data key, plain and wrapped for the private key that unwraps ``wrapped``.

    :param path: of the manifest that has ``wrapped``
    :raises UnsupportedLogError: see ``data_key``
    """
    data_key(wrapped, path)
    name, files, key = wrapped.partition(":")[0], _key_files(), secrets.token_bytes(DATA_KEY_BYTES)
    private_key = _private_key(files.get(name, files.get("", "")))
    return key, f"{name}:{base64.b64encode(_wrap(private_key, key)).decode()}"


def _wrap(private_key: RSAPrivateKey, message: bytes) -> bytes:
    """The inverse of ``_unwrap`` (RFC 8017, 7.1.1)."""
    numbers = private_key.public_key().public_numbers()
    size = (numbers.n.bit_length() + 7) // 8
    seed = secrets.token_bytes(_DIGEST_BYTES)
    padding = bytes(size - len(message) - 2 * _DIGEST_BYTES - 2)
    block = sha3_512().digest() + padding + b"\x01" + message
    masked = _xor(block, _mask(seed, len(block)))
    masked_seed = _xor(seed, _mask(masked, _DIGEST_BYTES))
    value: int = pow(int.from_bytes(masked_seed + masked, "big"), numbers.e, numbers.n)
    return value.to_bytes(size, "big")


def _unwrap(key: RSAPrivateKey, cipher_text: bytes) -> bytes | None:
    """The data key; ``None`` if it was wrapped for another key. The package has no OAEP with SHA-3."""
    numbers = key.private_numbers()
    size = (numbers.public_numbers.n.bit_length() + 7) // 8
    value = int.from_bytes(cipher_text, "big")
    if size < 2 * (_DIGEST_BYTES + 1) or len(cipher_text) != size or value >= numbers.public_numbers.n:
        return None
    low, high = pow(value, numbers.dmq1, numbers.q), pow(value, numbers.dmp1, numbers.p)
    message = low + numbers.q * (numbers.iqmp * (high - low) % numbers.p)
    data_key = _without_padding(message.to_bytes(size, "big"))
    return data_key if data_key is not None and len(data_key) == DATA_KEY_BYTES else None


def _without_padding(block: bytes) -> bytes | None:
    """The message of an OAEP block (RFC 8017, 7.1.2); ``None`` if it is none."""
    length = _DIGEST_BYTES
    seed = _xor(block[1 : 1 + length], _mask(block[1 + length :], length))
    data = _xor(block[1 + length :], _mask(seed, len(block) - 1 - length))
    label, rest = data[:length], data[length:].lstrip(b"\x00")
    return rest[1:] if block[0] == 0 and label == sha3_512().digest() and rest[:1] == b"\x01" else None


def _mask(seed: bytes, length: int) -> bytes:
    """MGF1."""
    rounds = range(-(-length // _DIGEST_BYTES))
    return b"".join(sha3_512(seed + number.to_bytes(4, "big")).digest() for number in rounds)[:length]


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


@lru_cache(maxsize=64)
def _private_key(path: str) -> RSAPrivateKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(read_text(path).encode(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise UsageError("is not a private RSA key without a password, in PEM", path=path, hint="give a PKCS #8 file")
    return key


def _key_files() -> dict[str, str]:
    return dict(map(_parse, calls.all_keys()))


def _parse(text: str) -> tuple[str, str]:
    """The key id and the path.

    :raises UsageError: it has a key itself
    """
    if len(text) > _MAX_PATH_BYTES or _KEY.search(text):
        hint = "write the key to a file that only you can read, and give ID=FILE"
        raise UsageError("a private key is given by the path of its file; this is not a path", hint=hint)
    name, equals, path = text.partition("=")
    return (name, path) if equals else ("", text)
