"""The directory of a SkyPilot server and a fake interpreter."""

from support.skypilot.server_dir import harness

__all__ = ["harness"]
