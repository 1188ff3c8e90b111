"""Fields, checksums and variable-length integers: what all formats are made of."""
