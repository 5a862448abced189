"""A SkyPilot launcher over a fake SkyPilot."""

from support.skypilot.launcher import new_harness

__all__ = ["new_harness"]
