"""Has Aiven's plugin read back what ``--output-layout aiven`` has written.

``python -m tests.exports.aiven_plugin --classpath CLASSPATH``: that of the plugin's ``core`` and ``filesystem`` with what they
need (``tests/golden/README.md``). The golden objects are compacted in each encoding. The plugin then reads every segment as a
broker has it do, by the sizes from before the compaction: it must return the bytes that this project reads.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from compaction.exports import Place
from compaction.exports.aiven import AivenReader
from compaction.exports.stored_segments import read_file
from compaction.files.data_keys import add_private_keys
from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from tests.exports.exports import CODINGS, LOG_NAME
from tests.golden import AIVEN_OBJECTS
from tests.kafka.gateway import java_executable

_KINDS = {".log": ".log", ".index": ".OFFSET", ".timeindex": ".TIMESTAMP", ".snapshot": ".PRODUCER_SNAPSHOT"}


def compacted(source: Path, target: Path, key: Path) -> None:
    command = [sys.executable, "-m", "compaction", "compact", "--log-dir", f"aiven+file://{source}", "--include-active"]
    command += ["--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0", "--output-dir", str(target)]
    command += ["--output-layout", "aiven", "--private-key", f"key1={key}", "--verify", "--quiet"]
    subprocess.run(command, check=True)


def settings(coding: str, key: Path) -> list[str]:
    """Of the plugin."""
    pair = "encryption.key.pairs.key1"
    keys = [f"{pair}.private.key.file={key}", f"{pair}.public.key.file={key.with_name('public-key.pem')}"]
    encryption = ["encryption.enabled=true", "encryption.key.pair.id=key1", "encryption.key.pairs=key1", *keys]
    compression = ["compression.enabled=true"] if "zstd" in coding else []
    return ["chunk.size=256", *compression, *(encryption if "encrypted" in coding else [])]


def write_public_key(key: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    public = load_pem_private_key(key.read_bytes(), None).public_key()
    key.with_name("public-key.pem").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def compare(root: Path, found: Path) -> tuple[int, int]:
    """The number of segments and of their bytes; what the plugin read is what this project reads."""
    address, files, size = parse_uri(f"aiven+file://{root}", "--log-dir"), MixedFileSystem(), 0
    layout = AivenReader(Place(files, address, str(root)))
    (log,) = layout.logs()
    segments = layout.stored(log).segments
    for segment in segments:
        stem = found / Path(segment.path).relative_to(root).with_suffix("")
        for kind, suffix in _KINDS.items():
            file = segment.files[kind]
            # encoded logs are in the layout
            data = read_file(files, file)
            assert Path(f"{stem}{suffix}").read_bytes() == data, (segment.path, kind)
            size += len(data)
        txns = Path(f"{stem}.TRANSACTION")
        expected = read_file(files, segment.files[".txnindex"]) if ".txnindex" in segment.files else b""
        assert (txns.read_bytes() if txns.exists() else b"") == expected, segment.path
        lineage = Path(f"{stem}.LEADER_EPOCH").read_text().splitlines()
        assert segment.lineage is not None
        assert lineage[2:] == [f"{entry.epoch} {entry.start_offset}" for entry in segment.lineage()], segment.path
    assert join(address, LOG_NAME).endswith(str(log))
    return len(segments), size


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--classpath", required=True)
    classpath = options.parse_args().classpath
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with tarfile.open(AIVEN_OBJECTS) as archive:
            archive.extractall(scratch, filter="data")
        key = scratch / "private-key.pem"
        write_public_key(key)
        add_private_keys([f"key1={key}"])
        java, classes = java_executable(), scratch / "classes"
        driver = Path(__file__).with_name("ReadBack.java")
        subprocess.run([f"{java}c", "-d", str(classes), "-cp", classpath, str(driver)], check=True)
        for coding in CODINGS:
            target, found = scratch / "compacted" / coding, scratch / "read" / coding
            compacted(scratch / coding, target, key)
            command = [java, "-cp", f"{classes}:{classpath}", "io.aiven.kafka.tieredstorage.ReadBack"]
            subprocess.run([*command, str(target), str(scratch / coding), str(found), *settings(coding, key)], check=True)
            segments, size = compare(target, found)
            sys.stdout.write(f"{coding}: {segments} segments, {size} bytes read back\n")


if __name__ == "__main__":
    main()
