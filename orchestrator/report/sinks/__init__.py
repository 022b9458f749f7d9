"""Finished trials in other trackers. Run by the user's own command, never on a rank: no sink can fail a trial."""
