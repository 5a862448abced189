"""Fixtures of a SkyPilot server directory and a fake interpreter."""

from support.skypilot.server_dir import harness

__all__ = ["harness"]
