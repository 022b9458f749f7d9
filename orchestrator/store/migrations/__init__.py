"""Alembic's scripts. A revision, once released, is never edited."""
