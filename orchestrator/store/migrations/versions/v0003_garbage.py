"""What Python's garbage collector takes of a step; unknown of attempts that were collected before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("step_gc_ms", sa.Double(), nullable=True))
