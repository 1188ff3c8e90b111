"""Settings of the kernels' tests: the first call of a kernel compiles it, which takes longer than an example may, and a busy
machine makes examples slowly."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("kernels", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernels")
