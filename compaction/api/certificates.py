"""Reads the certificate of an erasure that an option names, and the keys that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compaction.api import key_inputs
from compaction.api.key_inputs import KeyInputs
from compaction.certifier.verify_request import VerifyRequest
from compaction.errors import UsageError
from compaction.storage.text_files import read_text

if TYPE_CHECKING:
    from compaction.certifier.checks.erased_keys import ErasedKeys
    from compaction.formats.key_criteria import KeyCriteria


def with_certificate(
    path: str, keys: KeyInputs, request: VerifyRequest
) -> tuple[VerifyRequest, Mapping[str, Any], ErasedKeys]:
    """The request for the selected logs of the certificate, the certificate, and its keys.

    :raises UsageError: the file is not a certificate, or other keys are given
    :raises CompactionError: it is not what was written
    """
    from compaction.certifier.erasure_certificate import TOMBSTONE, refused_logs, selected_logs

    criteria = key_inputs.read_criteria(keys)
    certificate = _read(path, criteria)
    request = replace(
        request,
        logs=selected_logs(certificate, request.selector),
        include_active=certificate["include_active"],
        now_ms=certificate["as_of_ms"],
        refused=refused_logs(certificate),
    )
    return request, certificate, key_inputs.erased_keys(criteria, tombstones=certificate["on_match"] == TOMBSTONE)


def certified_salt(path: str, criteria: KeyCriteria) -> bytes | None:
    """The salt of the run that wrote a certificate; ``None`` if there is no certificate of these keys.

    :raises CompactionError: it is not what was written
    """
    try:
        return bytes.fromhex(_read(path, criteria)["salt"])
    except UsageError:
        return None


def _read(path: str, criteria: KeyCriteria) -> Mapping[str, Any]:
    from compaction.certifier.certificate_seal import require_sealed
    from compaction.certifier.erasure_certificate import read_certificate

    certificate = read_certificate(read_text(path), path)
    require_sealed(certificate, criteria, path)
    return certificate
