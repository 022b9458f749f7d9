"""`v_trials` and `v_compare` count every run of a control: an upgrade makes all views anew, and no table changes."""

from __future__ import annotations

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    pass
