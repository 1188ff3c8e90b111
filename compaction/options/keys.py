"""Reads the selected keys of ``erase``, and of the verification of its certificate. Commands import it only to read keys."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet

from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.erasure_certificate import read_certificate, require_sealed
from compaction.errors import UsageError
from compaction.files.text_files import read_text
from compaction.formats import keys as key_list
from compaction.formats.keys import KeyCriteria, KeyPattern, KeyPlaces
from compaction.formats.primitives import FormatError
from compaction.options.inputs import Inputs

Listed = tuple[pa.Array, NDArray[np.int64]]


def read_keys(inputs: Inputs) -> tuple[KeyCriteria, KeyPlaces]:
    """The selected keys, which are never printed, and the file and line of each.

    :raises UsageError: there are none, or a file or pattern cannot be read
    """
    patterns = tuple(_pattern(pattern) for text in inputs["where"] for pattern in _patterns(text))
    files = {path: _read(path, inputs) for path in dict.fromkeys(inputs["keys"])}
    all_keys = pa.chunked_array([keys for keys, _ in files.values()], pa.binary())
    if all_keys.nbytes > key_list.MAX_BYTES:
        raise UsageError("--keys: more than 2 GiB of keys", hint="divide the list, and run once for each part")
    keys = all_keys.combine_chunks()
    criteria = KeyCriteria.of(keys, patterns)
    if not len(criteria.keys) and not patterns:
        raise UsageError("no keys are given", hint="give --keys FILE with at least one key, or --where")
    return criteria, KeyPlaces.of(keys, [(path, lines) for path, (_, lines) in files.items()])


def erased_keys(criteria: KeyCriteria, *, tombstones: bool) -> ErasedKeys:
    """The keys for the certifier.

    :raises UsageError: the certifier does not support a pattern
    """
    try:
        return ErasedKeys(criteria, tombstones)
    except FormatError as error:
        hint = "change it, or erase without a certificate"
        raise UsageError(f"--certificate: a pattern {error.message}", hint=hint) from None


def _patterns(text: str) -> list[str]:
    if not text.startswith("@"):
        return [text]
    data = _bytes(text[1:], "--where")
    if data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError("--where: begins with a byte order mark", path=text[1:], hint="save it without")
    # not splitlines(), which also splits at control characters: a shorter pattern would match more keys
    lines = (line.removesuffix(b"\r") for line in data.split(b"\n"))
    return [line.decode("utf-8", "surrogateescape") for line in lines if line]


def _pattern(text: str) -> KeyPattern:
    try:
        return KeyPattern.parse(text)
    except (FormatError, UnicodeEncodeError) as error:
        reason = error.message if isinstance(error, FormatError) else "is not UTF-8"
        raise UsageError(f"--where: a pattern {reason}", hint="e.g. --where 'prefix=user-17:'") from None


def _read(path: str, inputs: Inputs) -> Listed:
    """The keys of a file, and the line of each."""
    kind, column = inputs["keys_format"], inputs["keys_column"]
    try:
        if column is not None:
            return _column(path, column, kind)
        data = _bytes(path, "--keys")
        if len(data) > key_list.MAX_BYTES:
            raise UsageError("--keys: the file is larger than 2 GiB", path=path, hint="divide it, and run once for each part")
        return key_list.read_lines(data, kind)
    except FormatError as error:
        raise UsageError(f"--keys: {error.message}", path=path, hint="correct it, or give another --keys-format") from None


def _column(path: str, name: str, kind: str) -> Listed:
    """The keys of a column of strings, which are decoded like lines, or of bytes."""
    column = _read_column(path, name).combine_chunks()
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not is_text and not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        message = f"--keys-column: {name} has the type {column.type}"
        raise UsageError(message, path=path, hint="give a column of strings or bytes")
    # an empty cell of text is not a key; an empty cell of bytes is the empty key
    has_key = column.is_valid() if not is_text else pc.greater(pc.fill_null(pc.binary_length(column), 0), 0)
    rows = np.flatnonzero(has_key.to_numpy(zero_copy_only=False)) + 1
    cells = column.filter(has_key).cast(pa.binary())
    if not is_text or kind == key_list.TEXT:
        return cells, rows
    return key_list.decode(zip(rows.tolist(), cells.to_pylist(), strict=True), kind), rows


def _read_column(path: str, name: str) -> pa.ChunkedArray:
    _require_file(path, "--keys")
    try:
        if path.lower().endswith(".parquet"):
            return parquet.ParquetFile(path).read([name]).column(name)
        if not path.lower().endswith(".csv"):
            raise UsageError("--keys-column needs a .parquet or .csv file", path=path, hint="see --help")
        options = csv.ConvertOptions(column_types={name: pa.string()}, include_columns=[name])
        return csv.read_csv(path, convert_options=options).column(name)
    except (KeyError, pa.ArrowKeyError):
        raise UsageError(f"--keys-column: there is no column {name}", path=path, hint="check its name") from None
    except pa.ArrowException as error:
        # the text of the error may quote a cell
        message = f"--keys: cannot be read as {path.rpartition('.')[2].lower()} ({type(error).__name__})"
        raise UsageError(message, path=path, hint="check the file") from None


def _require_file(path: str, option: str) -> None:
    if not Path(path).is_file():
        raise UsageError(f"{option}: no such file", path=path, hint="check the name")


def _bytes(path: str, option: str) -> bytes:
    _require_file(path, option)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{option}: cannot be read: {error.strerror}", path=path, hint="check its permissions") from None


def read_sealed(path: str, criteria: KeyCriteria) -> Mapping[str, Any]:
    """The certificate of an erasure of these keys.

    :raises UsageError: the file is not a certificate, or it is one of other keys
    :raises CompactionError: the certificate has changed since it was written
    """
    certificate = read_certificate(read_text(path), path)
    require_sealed(certificate, criteria, path)
    return certificate
