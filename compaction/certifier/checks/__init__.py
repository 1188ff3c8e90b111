"""The certifier's checks of batches, records, keys, transactions and indexes."""
