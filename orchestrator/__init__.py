"""Measure what a Megatron Bridge training job should recompute."""

__version__ = "0.1.0"
