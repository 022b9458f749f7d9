"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import settings

# A machine that does other work at the same time is no failure of the code.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
