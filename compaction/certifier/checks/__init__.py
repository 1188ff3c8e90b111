"""The single checks of the certifier, over batches, keys, transactions and indexes."""
