"""Key selection of the certifier: matches RE2's expressions without RE2."""
