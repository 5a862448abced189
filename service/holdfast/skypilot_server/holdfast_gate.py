"""SkyPilot's admission policy for Holdfast, which asks about Holdfast's own launches only.

This file is copied into SkyPilot's environment, where Holdfast is not installed; `admin_policy: holdfast_gate.Gate`
selects it. With a URL as policy, SkyPilot would ask about every request, including recoveries, and treat no response as
a refusal. This module asks only about launches, so that jobs recover and other users launch while Holdfast is down.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import sky
from sky import admin_policy, exceptions

ADDRESS: Final = "~/.sky/holdfast-gate"
"""File with the address of Holdfast's gate, in one line.
It is read for each question, so changes need no restart."""
TOKEN_ENV: Final = "HOLDFAST_ADMISSION"  # noqa: S105 - the name of a variable
"""Variable with the token of a launch; requests without it pass."""
PROBE_TOKEN: Final = "hfl_probe-0_"  # noqa: S105 - what such a token begins with
"""Prefix of the probe launch's token, by which Holdfast tests whether it is asked."""

_SECRET: Final = re.compile(r"/policy/\w+")


class Gate(sky.AdminPolicy):
    """Admits each Holdfast launch once, by Holdfast's decision; other requests pass unchanged."""

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """Return the request unchanged.

        Raises:
            UserRequestRejectedByPolicy: it is a Holdfast launch, and Holdfast refused it or did not respond.
        """
        if _needs_admission(user_request):
            _request_admission(user_request)
        return sky.MutatedUserRequest(user_request.task, user_request.skypilot_config)

    def __repr__(self) -> str:
        return "holdfast_gate.Gate"


def _needs_admission(request: sky.UserRequest) -> bool:
    """Whether Holdfast decides about the request: a launch of its own, or its probe.

    Validations pass: SkyPilot's jobs controllers validate each recovery with the token of its launch.
    """
    token = (request.task.envs or {}).get(TOKEN_ENV)
    if (
        not token or request.at_client_side
    ):  # The server asks again about a request that a client was asked about.
        return False
    if request.request_name == "validate":
        return str(token).startswith(PROBE_TOKEN)
    return bool(request.request_name == "jobs.launch")


def _request_admission(request: sky.UserRequest) -> None:
    try:
        url = Path(ADDRESS).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise exceptions.UserRequestRejectedByPolicy(
            f"admin policy holdfast_gate: cannot read {ADDRESS} ({error}); holdfast up --configure prints its contents"
        ) from None
    try:
        admin_policy.RestfulAdminPolicy(url).apply(request)
    except (exceptions.UserRequestRejectedByPolicy, exceptions.RestfulPolicyError) as refusal:
        # SkyPilot displays this text to the caller, and the address is a secret.
        raise type(refusal)(_SECRET.sub("/policy/...", str(refusal))) from None
