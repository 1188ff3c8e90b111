"""Layouts of exports, each one module or package with reader and writer, and what they share to write."""

#: as pyproject.toml declares them; see ``compaction.storage.export_layout``
LAYOUTS = {
    "aiven": "compaction.exports.aiven:LAYOUT",
    "backup": "compaction.exports.backup:LAYOUT",
    "local-tiered": "compaction.exports.local_tiered:LAYOUT",
}
