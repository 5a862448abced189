"""Writes SkyPilot's set-up commands for hosts and its wheel. Runs in SkyPilot's Python."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sky.backends import wheel_utils
from sky.skylet import constants


def write(folder: Path) -> None:
    """Write `folder/setup.sh`, and `folder/wheels` as in a host's ~/.sky."""
    wheel, wheel_hash = wheel_utils.build_sky_wheel()
    shutil.copytree(wheel, folder / "wheels" / wheel_hash)
    commands = constants.UV_INSTALLATION_COMMANDS + constants.RAY_SKYPILOT_INSTALLATION_COMMANDS
    for name, value in {"{sky_wheel_hash}": wheel_hash, "{cloud}": "aws"}.items():
        commands = commands.replace(name, value)
    (folder / "setup.sh").write_text(f"{commands}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
