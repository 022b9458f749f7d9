"""Runs inside `migrate.upgrade`, on its connection and in its transaction."""

from __future__ import annotations

from alembic import context

from orchestrator.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
