"""Settings of the test run.

Property tests have no deadline, since the first call of a kernel compiles it. Where CI is set they try the same
examples every time, so that a change is not refused for what was found by chance; elsewhere each run tries others.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("cleanfeed", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "cleanfeed")
