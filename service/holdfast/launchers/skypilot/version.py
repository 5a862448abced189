"""The SkyPilot that this version of Holdfast was written and measured against."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.14.1"
SERIES: Final = "0.14."
"""How all versions begin that are understood."""
