"""Every error that a person can meet.

The docstring of an error is its message, `status` its HTTP code, `exit_code` what the command line ends with.

    HoldfastError
      BadRequest (400)
        BadJobFile (422)   IdempotencyMismatch (422)   BadReport (422)   BadChannel (422)
          BadLimits
      Unauthenticated (401)   Forbidden (403)
      NotFound (404)
      Conflict (409)
        StaleWrite   IllegalTransition   NotPossibleNow   BudgetSpent   AddressInUse   Fenced   NotMustered
      PreconditionFailed (412)
      TooManyRequests (429)
      Unavailable (503)
        StoreUnavailable   LauncherUnreachable   NotLookedYet   EngineNotStarted   DepotUnreachable
        NotDelivered
      LaunchRefused (422)   DepotRefused
      NotInstalled
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import ClassVar


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, detail: str | None = None) -> None:
        self.detail = detail or self.title()
        super().__init__(self.detail)

    @classmethod
    def title(cls) -> str:
        """The first line of the docstring: what happened, in general."""
        return (inspect.getdoc(cls) or cls.__name__).splitlines()[0]

    @classmethod
    def slug(cls) -> str:
        """The stable name of this kind of problem, as in `docs/reference/errors.md`."""
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__)
        return words.lstrip("-")


class BadRequest(HoldfastError):
    """The request cannot be understood."""

    status = 400
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing wrong in what a person wrote."""

    pointer: str
    """Where: a JSON pointer such as `#/resources/infra`."""
    message: str
    """What was wrong and what to do, as one sentence."""


class BadJobFile(BadRequest):
    """The job file has mistakes; nothing was submitted."""

    status = 422

    def __init__(self, flaws: tuple[Flaw, ...]) -> None:
        self.flaws = flaws
        super().__init__("; ".join(f"{flaw.pointer}: {flaw.message}" for flaw in flaws))


class BadLimits(BadJobFile):
    """These limits cannot be; nothing was changed."""


class IdempotencyMismatch(BadRequest):
    """This Idempotency-Key was used before with another request; use a new key for a new job."""

    status = 422


class BadReport(BadRequest):
    """A worker's report cannot be understood; nothing of this batch was taken."""

    status = 422


class BadChannel(BadRequest):
    """Nothing can be sent there; nothing was changed."""

    status = 422


class Unauthenticated(HoldfastError):
    """The access token is missing or wrong."""

    status = 401
    exit_code = 5


class Forbidden(HoldfastError):
    """This token may not do that."""

    status = 403
    exit_code = 5


class NotFound(HoldfastError):
    """There is no such thing here."""

    status = 404
    exit_code = 4


class Conflict(HoldfastError):
    """The request does not fit the present state."""

    status = 409
    exit_code = 6


class PreconditionFailed(HoldfastError):
    """The job is not as it was when you read it; read it again and decide anew."""

    status = 412
    exit_code = 6


class StaleWrite(Conflict):
    """Someone else wrote to this job first; read it again and decide anew."""


class IllegalTransition(Conflict):
    """This fact cannot follow the facts recorded so far."""


class NotPossibleNow(Conflict):
    """The job is not in a state in which this can be done."""


class BudgetSpent(Conflict):
    """The budget that this would be paid from is spent; raise it, or wait for the next month."""


class AddressInUse(Conflict):
    """Something else listens on this address; choose another port with --port."""


class Fenced(Conflict):
    """A newer placement of this job has taken over; stop."""


class NotMustered(Conflict):
    """This worker is not known here; it has to muster before it reports."""


class TooManyRequests(HoldfastError):
    """Too many requests of this kind; wait as long as Retry-After says."""

    status = 429
    exit_code = 3

    def __init__(self, detail: str | None = None, *, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Unavailable(HoldfastError):
    """Not possible at the moment; try again later."""

    status = 503
    exit_code = 3
    retry_after_s: ClassVar[int] = 5
    """When it is worth another try."""


class StoreUnavailable(Unavailable):
    """The service's database cannot be used; nothing was recorded."""


class LauncherUnreachable(Unavailable):
    """The launcher does not answer; nothing is concluded from its silence."""


class NotLookedYet(Unavailable):
    """The launcher has not been looked at since this worker asked; ask again."""

    retry_after_s = 1


class EngineNotStarted(Unavailable):
    """SkyPilot's API server did not start; the end of its log says why."""


class DepotUnreachable(Unavailable):
    """The checkpoint store does not answer; nothing is concluded from its silence, and nothing removed."""


class NotDelivered(Unavailable):
    """A message was not taken; it is sent again later."""

    def __init__(self, detail: str | None = None, *, for_good: bool = False) -> None:
        super().__init__(detail)
        self.for_good = for_good
        """Whether the receiver wants no more of it."""


class DepotRefused(HoldfastError):
    """The checkpoint store does not do what the service asks of it, and would not if it were asked again."""


class LaunchRefused(HoldfastError):
    """The launcher will never start this job as it is written."""

    status = 422
    exit_code = 2


class NotInstalled(HoldfastError):
    """A program that this needs is not installed here."""

    exit_code = 2
