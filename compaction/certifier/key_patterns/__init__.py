"""Which keys are meant, decided a second time: RE2's expressions, matched without RE2."""
