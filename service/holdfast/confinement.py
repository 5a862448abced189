"""What users without rights to the service's machine may use of it, as the settings say.

The owner, and admins of the service with a token for all projects, may do everything there; `docs/decisions` says why.
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
    "jobs of all projects run on Slurm as one cluster user, who may read what belongs to the others; "
    f"{_ELSEWHERE}, or to set HOLDFAST_SLURM_MEMBERS"
)
_NO_ROOT: Final = (
    "infra local needs a service that runs as root, which alone can give each job an account of its own, and this one does not; "
    f"{_ELSEWHERE}"
)
_TRUSTING: Final = (
    "infra local is refused while HOLDFAST_TRUST_LOOPBACK makes every program on this machine the owner; "
    f"{_ELSEWHERE}"
)
_SKYPILOT: Final = (
    "infra local is refused while SkyPilot's server on this machine takes requests without a token, so that any program here "
    f"could rent nodes; {_ELSEWHERE}, or to set HOLDFAST_SKYPILOT_TOKEN"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """What confined jobs may use of the service's machine."""

    folders: Folders = field(default_factory=Folders)
    refused: Mapping[Engine, str] = field(default_factory=dict)
    """Why they may not run with an engine, as a sentence."""
    profiles: frozenset[str] = frozenset()
    """Profiles of AWS on this machine that they may name."""


def confinement_of(settings: Settings) -> Confinement:
    """The confinement that the settings describe.

    Raises:
        BadRequest: a folder that they name is none.
    """
    try:
        roots = roots_in(settings.folders or "")
    except ValueError as error:
        raise BadRequest(f"HOLDFAST_FOLDERS: {error}") from error
    refused = {Engine.LOCAL: _why_no_local(settings)}
    if not settings.slurm_members:
        refused[Engine.SLURM] = _SLURM
    return Confinement(
        folders=Folders(settings.home, roots),
        refused={engine: why for engine, why in refused.items() if why},
        profiles=names_in(settings.store_profiles),
    )


def names_in(text: str | None) -> frozenset[str]:
    """The names of a list with commas."""
    return frozenset(filter(None, map(str.strip, (text or "").split(","))))


def _why_no_local(settings: Settings) -> str:
    """Why users' jobs may not run on this machine; empty where they may."""
    if not settings.local_members:
        return _LOCAL
    if os.geteuid() != 0:
        return _NO_ROOT
    if settings.trust_loopback:
        return _TRUSTING
    url = settings.skypilot_url
    return _SKYPILOT if url and addresses.is_here(url) and not settings.skypilot_token else ""
