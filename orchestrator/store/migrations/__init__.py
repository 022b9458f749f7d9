"""Alembic's scripts. A revision, once released, is never edited; what comes after it is a new one.

To make one: change `models`, add its number to `schema.REVISIONS`, and on a database of the newest release

    with store.writing() as connection:
        alembic.command.revision(migrate.config(connection), "what changes", autogenerate=True, rev_id="0002")
"""
