"""Settings of the test run: property tests have no deadline, since the first call of a kernel compiles it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("cleanfeed", deadline=None)
settings.load_profile("cleanfeed")
