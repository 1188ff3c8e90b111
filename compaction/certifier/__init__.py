"""Verifies the result of a cleaning against its source: no record lost, none changed. Shares no rule with the cleaner.

It finds batches, checks their CRCs and locates their records with code of its own (``reader``,
``kernels.locate``), compares complete keys, and resolves transactions from the markers. It shares with the cleaner:
access to files and stores, the codecs' libraries and frames and the wrappers of magic 0 and 1 (``compaction.formats``), the
formats of indexes, checkpoints and snapshots, and what reads the configuration of a log. Contracts of import-linter hold that.
"""
