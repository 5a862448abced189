"""One line above what a person asked for, when the service cannot see what it is telling about."""

from __future__ import annotations

from holdfast.api.schemas import LauncherOut
from holdfast.cli import output
from holdfast.cli.output import moment
from holdfast.client import Client, Refused, ServiceUnreachable

NAMES = {"skypilot": "SkyPilot", "slurm": "Slurm"}


def warn(client: Client) -> None:
    """Say on standard error which engines do not answer; nothing where all do, or where the service is older."""
    try:
        launchers = client.launchers()
    except (Refused, ServiceUnreachable):
        return  # What was asked for has been answered; this is only beside it.
    for launcher in launchers:
        if launcher.trouble and launcher.since:
            output.say(f"! {sentence(launcher)}")


def sentence(launcher: LauncherOut) -> str:
    """What is wrong with a launcher, and since when."""
    assert launcher.since
    name = NAMES.get(launcher.engine, launcher.engine)
    return (
        f"{name} cannot be asked since {moment(launcher.since)}; nothing is concluded from its silence, "
        f"and what is shown may be older: {launcher.trouble}"
    )
