"""Permissions of users' jobs on the service's machine, according to the settings.

The owner, and admins with a token for all projects, may use everything; `docs/decisions` gives the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast import addresses
from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import BadRequest
from holdfast.host.allowed_folders import Folders, roots_in
from holdfast.settings import Settings

_ELSEWHERE: Final = "write another infra, or ask an admin of the service to submit it"
_LOCAL: Final = (
    f"infra local runs on the service's own machine; {_ELSEWHERE}, or to set HOLDFAST_LOCAL_MEMBERS"
)
_SLURM: Final = (
    "jobs of all projects run on Slurm as one cluster user, who may read the data of all of them; "
    f"{_ELSEWHERE}, or to set HOLDFAST_SLURM_MEMBERS"
)
_NO_ROOT: Final = (
    "infra local requires a service that runs as root, which can give each job its own account, and this one does not; "
    f"{_ELSEWHERE}"
)
_TRUSTING: Final = (
    "infra local is refused while HOLDFAST_TRUST_LOOPBACK makes every program on this machine the owner; "
    f"{_ELSEWHERE}"
)
_SKYPILOT: Final = (
    "infra local is refused while SkyPilot's server on this machine accepts requests without a token, so that any program here "
    f"could rent nodes; {_ELSEWHERE}, or to set HOLDFAST_SKYPILOT_TOKEN"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """Resources of the service's machine that confined jobs may use."""

    folders: Folders = field(default_factory=Folders)
    refused: Mapping[Engine, str] = field(default_factory=dict)
    """Reasons why they may not run with an engine."""
    profiles: frozenset[str] = frozenset()
    """AWS profiles on this machine that they may name."""


def confinement_of(settings: Settings, refused: Mapping[Engine, str]) -> Confinement:
    """The confinement that the settings describe.

    `refused` contains why users may not run with an engine.

    Raises:
        BadRequest: a configured directory is invalid.
    """
    try:
        roots = roots_in(settings.folders or "")
    except ValueError as error:
        raise BadRequest(f"HOLDFAST_FOLDERS: {error}") from error
    return Confinement(
        folders=Folders(settings.home, roots),
        refused=refused,
        profiles=names_in(settings.store_profiles),
    )


def names_in(text: str | None) -> frozenset[str]:
    """Parse a list of names separated by commas."""
    return frozenset(filter(None, map(str.strip, (text or "").split(","))))


def why_no_local(settings: Settings) -> str:
    """Why users' jobs may not run on this machine; empty where they may."""
    if not settings.local_members:
        return _LOCAL
    if os.geteuid() != 0:
        return _NO_ROOT
    if settings.trust_loopback:
        return _TRUSTING
    url = settings.skypilot_url
    return _SKYPILOT if url and addresses.is_here(url) and not settings.skypilot_token else ""


def why_no_slurm(settings: Settings) -> str:
    """Why users' jobs may not run on Slurm; empty where they may."""
    return "" if settings.slurm_members else _SLURM
