"""Running what was planned: batches, the driver that works one down, and the launchers that start a step's ranks."""
