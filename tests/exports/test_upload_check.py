"""Uploads that contradict themselves or each other are an error that names one of them, in every layout of tiered storage.

Two leaders have uploaded the same offsets, in objects of the same sizes: what the first one wrote was truncated later.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from compaction.files.calls import KEYS_VARIABLE
from compaction.files.uri import add_tail
from compaction.formats.indexes import TXN_ROW, write_txn_index
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from tests.exports.aiven_objects import KEY_ID
from tests.exports.exchanged_uploads import EPOCHS, LAYOUTS, Export, exchange, problems
from tests.exports.exports import Epochs, write_log_dir
from tests.log.logs import data_batch

FIRST, SECOND = ((0, 0), (1, 30)), ((0, 0), (2, 30))


@pytest.fixture(params=LAYOUTS)
def export(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={tmp_path}/key.pem")
    return Export(tmp_path, request.param)


def edit(log: Path, section: str = "remoteLogSegmentMetadata", **fields: object) -> None:
    """Changes fields of a section of an upload's manifest."""
    path = log.with_suffix(".rsm-manifest")
    manifest = json.loads(path.read_text())
    manifest[section].update(fields)
    path.write_text(json.dumps(manifest))


def test_the_uploads_of_the_newest_leader_are_read(export: Export) -> None:
    for offsets_of_upload, epochs in ((range(30), FIRST[:1]), (range(30, 60), FIRST), (range(30, 60), SECOND)):
        export.add(offsets_of_upload, epochs)
    assert export.records() == [(at, 0 if at < 30 else 2) for at in range(60)]


@pytest.mark.parametrize("kind", ["log", "epochs"])
def test_exchanged_objects_of_two_leaders_are_an_error(export: Export, kind: str) -> None:
    """The batches would be those that the newest leader has truncated."""
    export.add(range(30), FIRST[:1])
    first, second = (export.add(range(30, 60), ((0, 0), (epoch, 30))) for epoch in (2, 3))
    exchange(first, second, ".log" if kind == "log" else EPOCHS if export.layout == "local-tiered" else ".indexes")
    assert str(first.with_suffix("")) in (told := export.error()) or str(second.with_suffix("")) in told
    assert "leader epoch" in told or "authentication tag" in told


@pytest.mark.parametrize("written", [((0, 0), (2, 201)), ((0, 0), (1, 99), (2, 200)), ((0, 0), (1, 100), (2, 199))])
def test_batches_of_other_leader_epochs_in_the_middle_of_an_upload_are_an_error(export: Export, written: Epochs) -> None:
    """Those at both ends agree with its lineage."""
    log = export.add(range(300), ((0, 0), (1, 100), (2, 200)), written)
    assert f"{log} at byte" in (told := export.error())
    assert "its checkpoint 0 from offset 0, 1 from offset 100, 2 from offset 200; restore the objects of this upload" in told


def test_an_upload_whose_leader_epochs_its_own_lineage_lacks_is_an_error(export: Export) -> None:
    """It was the newest, and none of its offsets valid: the log ended before it."""
    for base in (0, 30, 60):
        export.add(range(base, base + 30), ((0, 0), (2, 30)))
    if export.layout == "local-tiered":
        log = export.add(range(90, 120), ((0, 0), (2, 30)), written=((0, 0), (2, 30), (3, 90)))
        told = "the batch of offsets 90 to 90 has leader epoch 3, its checkpoint 0 from offset 0, 2 from offset 30"
    else:
        log = export.add(range(90, 120), ((0, 0), (2, 30)))
        edit(log, segmentLeaderEpochs={"3": 90})
        told = "its leader epochs are 3 from offset 90, in its leader epoch checkpoint 0 from offset 0, 2 from offset 30"
    assert f"{log}" in export.error() and told in export.error()


def test_a_manifest_without_leader_epochs_is_an_error(tmp_path: Path) -> None:
    """All its offsets would be taken for valid."""
    export = Export(tmp_path, "aiven")
    export.add(range(30, 60), SECOND)
    edit(log := export.add(range(30, 60), FIRST), segmentLeaderEpochs={}, eventTimestampMs=2**50)
    assert f"{log}: its leader epochs are empty, in its leader epoch checkpoint 0 from offset 0" in export.error()


def test_an_empty_leader_epoch_checkpoint_is_an_error(tmp_path: Path) -> None:
    (export := Export(tmp_path, "local-tiered")).add(range(30, 60), SECOND)
    log = export.add(range(30, 60), (), written=FIRST)
    assert str(log) in export.error()


@pytest.mark.parametrize(
    "newest", [((0, 0), (2, 60)), ((0, 0), (1, 30), (2, 60)), ((0, 0), (1, 10), (2, 30)), ((1, 0), (2, 30)), ((0, 5), (2, 31))]
)
def test_lineages_with_one_leader_and_different_histories_are_an_error(export: Export, newest: Epochs) -> None:
    """The newest upload agrees with itself, and with what an earlier leader has uploaded."""
    export.add(range(30), SECOND[:1])
    export.add(range(30, 60), FIRST)
    export.add(range(30, 60), SECOND)
    export.add(range(60, 90), newest)
    assert ", that of the newest leader " in (told := export.error()) and "its leader epoch checkpoint has " in told


def test_a_lineage_that_a_log_start_has_cut_agrees_with_the_others(export: Export) -> None:
    export.add(range(30), SECOND[:1])
    export.add(range(30, 60), ((0, 12), (2, 30)))
    export.add(range(60, 90), ((2, 41),))
    export.add(range(90, 120), ((2, 41), (5, 95)))
    assert export.records() == [(at, 2 if at < 95 else 5) for at in range(41, 120)]


def test_a_tail_whose_lineage_contradicts_that_of_the_export_is_an_error(export: Export, tmp_path: Path) -> None:
    export.add(range(30), SECOND[:1])
    export.add(range(30, 60), SECOND)
    address = export.address
    add_tail(address, str(write_log_dir(tmp_path / "local", range(50, 80), epochs=((0, 0), (2, 50)))))
    assert "its leader epoch checkpoint has 0 from offset 0, 2 from offset 30, that of the newest leader 0" in export.error()


@pytest.mark.parametrize("lost", [20, 0.5, "the last batch"])
def test_a_last_upload_that_was_cut_is_an_error(export: Export, lost: object) -> None:
    """An upload is an inactive segment, without the torn tail that an active one may have."""
    export.add(range(60), SECOND[:1])
    log = export.add(range(60, 120), SECOND[:1])
    data = log.read_bytes()
    lost_bytes = len(data_batch(119)) if isinstance(lost, str) else lost if isinstance(lost, int) else len(data) // 2
    log.write_bytes(data[: len(data) - int(str(lost_bytes))])
    assert str(log) in (told := export.error())
    if export.layout != "local-tiered":
        assert f"has {len(data) - int(str(lost_bytes))} bytes, its manifest lists {len(data)}" in told
    elif isinstance(lost, str):
        assert "its time index has offset 119, its batches have 60 to 118" in told
    else:
        assert "its complete batches end at byte" in told


def test_a_cut_upload_whose_manifest_was_cut_too_is_an_error(tmp_path: Path) -> None:
    log = (export := Export(tmp_path, "aiven")).add(range(60), SECOND[:1])
    log.write_bytes(data := log.read_bytes()[:-20])
    edit(log, "chunkIndex", originalFileSize=len(data), finalTransformedChunkSize=len(data) % 512)
    assert f"the segment has {len(data)} bytes" in export.error()


@pytest.mark.parametrize("count", [10, 200])
def test_the_batches_of_another_segment_are_an_error(export: Export, count: int) -> None:
    """Of the same sizes and leader epoch: an upload would have the offsets of two, and those of the first one would be lost."""
    first, second = (export.add(range(at, at + count), SECOND[:1]) for at in (1000, 1000 + count))
    shutil.copy(second, first)
    assert str(first) in export.error()


PAST_END = "its producer snapshot or transaction index has offset 200, its batches have 0 to 199"
#: of an upload of offsets 0 to 199: a file, its content, the error
CONTRADICTIONS = [
    (".snapshot", write_snapshot([ProducerEntry(1, 0, 0, 200, 0, 0, 0, -1)]), PAST_END),
    (".txnindex", write_txn_index(np.array([(1, 50, 200, 50)], TXN_ROW)), PAST_END),
    (".log", b"".join(map(data_batch, range(20))), "{log}: its offset index has an entry for byte"),
    (".log", b"".join(map(data_batch, range(200))) + bytes(100), ""),
]


@pytest.mark.parametrize(
    ("suffix", "data", "told"), CONTRADICTIONS, ids=["producers", "transactions", "index", "zeros at the end"]
)
def test_files_past_the_end_of_an_upload_and_zeros_after_its_batches_are_an_error(
    tmp_path: Path, suffix: str, data: bytes, told: str
) -> None:
    log = (export := Export(tmp_path, "local-tiered")).add(range(200), SECOND[:1])
    log.with_suffix(suffix).write_bytes(data)
    assert str(log) in (error := export.error()) and told.format(log=log) in error


@pytest.mark.parametrize("seed", range(25))
def test_random_uploads_with_exchanged_or_cut_objects_are_read_as_they_were_or_an_error(seed: int) -> None:
    assert problems(seed) == []
