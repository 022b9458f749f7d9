"""What a candidate will need, before it runs: bytes by rank and stage, and the cost of what it replays. Pure."""
