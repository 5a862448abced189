"""A job with checkpoints in memory, and the checkpoint collector."""

from support.retention import new_harness

__all__ = ["new_harness"]
