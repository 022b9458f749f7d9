"""A pinned revision's worktree says which commit it is, also where there is no git to ask, as in most images."""

MARKER = ".orchestrator-revision"
"""A file at the worktree's top with the full commit. Untracked, so it makes no tree dirty."""
