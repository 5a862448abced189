"""Checks that users of the identity provider can still sign in there.

A user whose account is disabled or deleted, or has no group with a role, loses all tokens. Without a response nothing is
revoked: tokens stop only after the grace period (`HOLDFAST_OIDC_GRACE_HOURS`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

from holdfast.errors import IdentityProviderFailed, SignInRefused, StoreUnavailable
from holdfast.single_sign_on.flows import SingleSignOn

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
"""Seconds between two rounds. A lower value adds queries; a higher value checks users later than they are due."""
MAX_FAILURES: Final = 3
"""Users without a result after which a round ends. A lower value lets single accounts delay others; a higher value repeats
requests to a provider that does not respond."""


@dataclass(frozen=True, slots=True)
class SignInChecks:
    """Checks the users of one provider."""

    single_sign_on: SingleSignOn

    def check_due(self) -> int:
        """Check all users that are due, and return the number of results."""
        sign_ins, provider = self.single_sign_on.sign_ins, self.single_sign_on.provider
        results = failures = 0
        while failures < MAX_FAILURES:
            check = sign_ins.claim_due(self.single_sign_on.issuer)
            if check is None:
                break
            if check.refresh_token is None:
                sign_ins.refuse(check, "the secret of this service has changed")
                results += 1
                continue
            try:
                account = provider.refresh(
                    check.refresh_token, check.subject, partial(sign_ins.keep, check)
                )
            except SignInRefused as refusal:
                log.warning("a sign-in of %s is no longer valid: %s", check.user, refusal.detail)
                sign_ins.refuse(check, refusal.detail)
            except IdentityProviderFailed as error:
                log.warning("%s could not be checked: %s", check.user, error.detail)
                failures += 1
                continue
            else:
                sign_ins.confirm(check, account.groups)
            results += 1
        return results

    async def run(self) -> None:
        """Check users until cancelled."""
        while True:
            round_ = asyncio.create_task(asyncio.to_thread(self.check_due))
            await asyncio.wait([round_])
            if isinstance(error := round_.exception(), StoreUnavailable):
                log.warning("users are checked later: %s", error.detail)
            elif error:
                log.error("unexpected error in the check of users", exc_info=error)
            await asyncio.sleep(EVERY_S)
