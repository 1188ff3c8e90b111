"""A slow, obvious and complete cleaner for tests to compare with: one batch and one record at a time, in Kafka's own order.

It reads and writes batches with ``struct`` and shares no decision with the package; only the codecs are the package's.
"""
