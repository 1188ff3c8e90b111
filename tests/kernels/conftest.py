"""Settings of the kernels' tests: the first call of a kernel compiles it, which takes longer than an example may."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
