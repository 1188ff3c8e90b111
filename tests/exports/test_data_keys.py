"""Private keys: which ones are refused, and that none of them is shown. Data keys are unwrapped in ``test_aiven.py``."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from compaction.errors import UnsupportedLogError, UsageError
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.data_keys import add_private_keys, data_key
from tests.exports.aiven_objects import new_key
from tests.exports.exports import no_exports_known, require_cryptography

__all__ = ["no_exports_known"]


#: of 512 bits, which the package reads and does not generate
SHORT_KEY = """
MIIBVQIBADANBgkqhkiG9w0BAQEFAASCAT8wggE7AgEAAkEAq3nnE3HPUA03lwUA
vLBVJRsUa71MxzbwAU2N6EDAD3OG3wQiqwCNyvcaDi6LS2FJbaI0d9av3d7ELwum
FhM3nwIDAQABAkBFT37Bc00ytET1/AWyPywLVYjJi7iPBXu5axmi+RkopQYtFngu
JopRT30f9DCYBu1nWFpuSPWK7V0Wiy60zNVRAiEA2aY5uPdeza/50yFPd7FddruX
O6MJUdZ96Y4pbhN3n8UCIQDJsOOQ1cIZ3ceAkSC1loB5oRM/HwcfBT5Vf2yYdRKs
EwIhAJyVHx/4L6dQ/C2t4EsfOjuKeCH6iGDtLEbT9PBxZvV1AiB8+xsZLgy4gKDW
v5fYTqnQNQs7Kxv7kgE9c9e0ZZ+rdwIhALsfd+l2ZbkmWyzXzwu66qr0lwenqTHq
MLiJZGhIyRZ5
"""


@pytest.fixture
def pem(tmp_path: Path) -> str:
    require_cryptography()
    new_key(tmp_path / "a,b.pem")
    return (tmp_path / "a,b.pem").read_text()


@pytest.mark.parametrize("name", ["", "key1="])
@pytest.mark.parametrize("form", ["pem", "one line", "base64", "long"])
def test_a_key_in_place_of_its_path_is_refused_and_not_shown(
    name: str, form: str, pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = pem.splitlines()[1:-1]
    given = {"pem": pem, "one line": " ".join(pem.splitlines()), "base64": "".join(lines), "long": lines[3] * 100}[form]
    with pytest.raises(UsageError, match="is given by the path of its file; this is not a path") as error:
        add_private_keys([name + given])
    assert not any(line in str(error.value) for line in lines)
    monkeypatch.setenv(KEYS_VARIABLE, name + given)
    with pytest.raises(UsageError, match="this is not a path"):
        data_key(f"key1:{base64.b64encode(bytes(256)).decode()}", "a.rsm-manifest")


@pytest.mark.usefixtures("pem")
def test_a_path_with_a_comma_is_refused(tmp_path: Path) -> None:
    """Workers would read two paths."""
    with pytest.raises(UsageError, match="name of a private key has a comma"):
        add_private_keys([f"key1={tmp_path}/a,b.pem"])


def test_a_key_that_is_too_short_for_the_padding_is_another_key(tmp_path: Path) -> None:
    require_cryptography()
    file = tmp_path / "short.pem"
    file.write_text(f"-----BEGIN PRIVATE KEY-----{SHORT_KEY}-----END PRIVATE KEY-----\n")
    add_private_keys([f"key1={file}"])
    with pytest.raises(UnsupportedLogError, match="short.pem does not decrypt the data key of key id 'key1'"):
        data_key(f"key1:{base64.b64encode(bytes(64)).decode()}", "a.rsm-manifest")
