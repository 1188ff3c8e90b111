"""Layouts of exports, each one module or package with reader and writer; the modules here write for several layouts."""

#: by name, as an entry point gives them; see ``compaction.storage.export_layout``
LAYOUTS = {
    "aiven": "compaction.exports.aiven:LAYOUT",
    "backup": "compaction.exports.backup:LAYOUT",
    "local-tiered": "compaction.exports.local_tiered:LAYOUT",
}
