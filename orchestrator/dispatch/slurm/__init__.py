"""Slurm: one job is one allocation, one trial is one step of it."""
