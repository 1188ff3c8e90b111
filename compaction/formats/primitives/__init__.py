"""Fields, checksums and variable-length integers, which all formats share."""
