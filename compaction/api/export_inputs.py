"""The options for exports that are not log directories: newer segments of a local log directory, and private keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compaction.config import TomlSettings
from compaction.errors import UsageError
from compaction.storage.layouts.data_keys import add_private_keys
from compaction.storage.uri import add_tail, is_layout, parse_uri


def join_tail(tail_dir: str | None, paths: Sequence[str]) -> None:
    """Joins the log directory of ``--tail`` to the exports among ``paths``.

    :raises UsageError: none of them is an export
    """
    if tail_dir is None:
        return
    tail = parse_uri(tail_dir, "--tail")
    if not any(map(is_layout, paths)):
        raise UsageError("--tail continues an export of tiered storage, and none is given", hint="e.g. aiven+s3://BUCKET/PREFIX")
    for path in paths:
        add_tail(path, tail)


def read_keys(private_keys: Iterable[str], tomls: Iterable[TomlSettings] = ()) -> None:
    """Adds the private keys of TOML files, then those of ``--private-key``.

    :raises UsageError: a file is not a private key
    """
    configured = [f"{name}={path}" for toml in tomls for name, path in toml.keys.items()]
    add_private_keys([*configured, *private_keys])
