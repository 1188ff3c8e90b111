"""Binds the certificate of an erasure to its keys: its ``seal`` is an HMAC-SHA256 of all its other fields, under a secret that
is derived from the keys and patterns.

Digests of an erasure's result can be computed again; its request and the state before it cannot. The seal detects changes by
anyone who does not have the keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from compaction.errors import CompactionError, UsageError
from compaction.formats.key_criteria import KeyCriteria, fingerprint
from compaction.printable import printable_json

_SEAL = "seal"


def sealed(fields: Mapping[str, Any], secret: bytes) -> str:
    """The certificate as JSON: the fields, and their seal.

    :param secret: the secret of the keys, under the certificate's salt
    """
    # the fields as a reader sees them: bytes of names that are not UTF-8 are escaped
    written = json.loads(printable_json(json.dumps(fields, ensure_ascii=False)))
    document = {**written, _SEAL: _seal(written, secret)}
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def require_sealed(certificate: Mapping[str, Any], criteria: KeyCriteria, path: str) -> None:
    """:raises UsageError: the certificate is of other keys
    :raises CompactionError: the certificate has changed since it was written
    """
    secret = criteria.secret(bytes.fromhex(certificate["salt"]))
    if fingerprint(secret) != certificate["keys_sha256"]:
        problem = "--certificate: it belongs to other keys"
        raise UsageError(problem, path=path, hint="give the same --keys and --where as to erase")
    if _seal(certificate, secret) != certificate.get(_SEAL):
        problem = "--certificate: it was changed after it was written, because its seal does not match its fields"
        raise CompactionError(problem, path=path, hint="use the file that erase --certificate wrote")


def _seal(fields: Mapping[str, Any], secret: bytes) -> str:
    other_fields = {name: value for name, value in fields.items() if name != _SEAL}
    text = json.dumps(other_fields, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
