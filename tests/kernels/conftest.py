"""hypothesis settings: no deadline, as the first call of a kernel compiles it, and examples are slow on a busy machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("kernels", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernels")
