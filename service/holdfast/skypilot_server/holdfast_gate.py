"""SkyPilot's admission policy for Holdfast: it asks Holdfast about Holdfast's own launches, and nobody about anything else.

This file is copied beside SkyPilot's packages, into a Python where Holdfast is not installed; `admin_policy:
holdfast_gate.Gate` names it there. SkyPilot would ask a URL for every request of everybody, recoveries of jobs among
them, and take silence for a no. This asks only where a launch has to be counted, so that while Holdfast is away jobs
are recovered, and others launch as ever.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import sky
from sky import admin_policy, exceptions

ADDRESS: Final = "~/.sky/holdfast-gate"
"""The file with the address of Holdfast's gate, in one line. It is read for each question: a change needs no start."""
TOKEN_ENV: Final = "HOLDFAST_ADMISSION"  # noqa: S105 - the name of a variable
"""Holds the token of a launch; whoever has none is not ours to judge."""
PROBE_TOKEN: Final = "hfl_probe-0_"  # noqa: S105 - what such a token begins with
"""The launch that never happens, by which Holdfast finds out whether it is asked."""

_SECRET: Final = re.compile(r"/policy/\w+")


class Gate(sky.AdminPolicy):
    """Lets each launch of Holdfast pass once, if Holdfast says so, and all else as it is."""

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """The request as it is.

        Raises:
            UserRequestRejectedByPolicy: it is one of Holdfast's launches, and Holdfast says no or nothing.
        """
        if _has_to_be_counted(user_request):
            _ask(user_request)
        return sky.MutatedUserRequest(user_request.task, user_request.skypilot_config)

    def __repr__(self) -> str:
        return "holdfast_gate.Gate"


def _has_to_be_counted(request: sky.UserRequest) -> bool:
    """Whether Holdfast counts it: a launch of its own, or its probe.

    Validations are not: SkyPilot's jobs controllers have each recovery validated, with the token of its launch.
    """
    token = (request.task.envs or {}).get(TOKEN_ENV)
    if not token or request.at_client_side:  # The server asks again what a client was asked.
        return False
    if request.request_name == "validate":
        return str(token).startswith(PROBE_TOKEN)
    return bool(request.request_name == "jobs.launch")


def _ask(request: sky.UserRequest) -> None:
    try:
        url = Path(ADDRESS).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise exceptions.UserRequestRejectedByPolicy(
            f"admin policy holdfast_gate: {ADDRESS} cannot be read ({error}); holdfast up --configure says what it holds"
        ) from None
    try:
        admin_policy.RestfulAdminPolicy(url).apply(request)
    except (exceptions.UserRequestRejectedByPolicy, exceptions.RestfulPolicyError) as refusal:
        # Whoever asks SkyPilot is shown these words, and the address is a secret.
        raise type(refusal)(_SECRET.sub("/policy/...", str(refusal))) from None
