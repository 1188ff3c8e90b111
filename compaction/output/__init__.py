"""How a result becomes the log: segments written and verified, swapped in, deleted, or published as a copy."""
