"""Settings that every test shares."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

# A machine that does other work at the same time is no failure of the code.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

_REAL_THINGS = {
    "slurmctld": "/usr/sbin/slurmctld",
    "PostgreSQL": "/usr/lib/postgresql/*/bin/postgres",
    "Chromium": "/usr/bin/chromium",
    "chromedriver": "/usr/bin/chromedriver",
}


def pytest_configure(config: pytest.Config) -> None:
    """In continuous integration nothing may be left out because a server is not installed."""
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        missing = [name for name, place in _REAL_THINGS.items() if not any(Path("/").glob(place.lstrip("/")))]
        if missing:
            raise pytest.UsageError(f"{', '.join(missing)} not installed: run `make packages` first")


def pytest_report_header() -> str:
    found = [name for name, place in _REAL_THINGS.items() if any(Path("/").glob(place.lstrip("/")))]
    return f"real servers for tests: {', '.join(found) or 'none'}; git: {shutil.which('git') or 'none'}"
