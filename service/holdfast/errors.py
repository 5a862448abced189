"""Every error that users can meet.

The docstring of an error class is its message; `status` is its HTTP status, `exit_code` the exit code of the command line.

    HoldfastError
      BadRequest (400)
        BadJobFile (422)   IdempotencyMismatch (422)   BadReport (422)   BadChannel (422)
          BadLimits   PlanNotKept
      Unauthenticated (401)   Forbidden (403)
        SignInRefused
      NotFound (404)
      Conflict (409)
        StaleWrite   IllegalTransition   NotPossibleNow   BudgetSpent   AddressInUse   Fenced
        NotRegistered
      PreconditionFailed (412)
      TooManyRequests (429)
      Unavailable (503)
        StoreUnavailable   LauncherUnreachable   NotObservedYet   EngineNotStarted   NotDelivered
        CheckpointStoreUnreachable   IdentityProviderFailed
      LaunchRefused (422)   CheckpointStoreRefused
      NotInstalled
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """A mistake in user input."""

    pointer: str
    """Its place, as a JSON pointer such as `#/resources/infra`."""
    message: str
    """The mistake and its remedy, in one sentence."""


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    published_slug: ClassVar[str | None] = None
    """The stable name of an error whose class was renamed; None: it follows from the class name."""
    issues: tuple[ValidationIssue, ...] = ()
    """The mistakes of a request, each with its place."""

    def __init__(self, detail: str | None = None) -> None:
        self.detail = detail or self.title()
        super().__init__(self.detail)

    @classmethod
    def title(cls) -> str:
        """The first line of the docstring, as the general message of this error."""
        return (inspect.getdoc(cls) or cls.__name__).splitlines()[0]

    @classmethod
    def slug(cls) -> str:
        """The stable name of this error, as in `docs/reference/errors.md`."""
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__)
        return cls.published_slug or words.lstrip("-")

    @property
    def code(self) -> str:
        """The stable name of this error, for programs."""
        return self.slug()

    @property
    def hint(self) -> str:
        """The general message of this kind of error, with its remedy."""
        return self.title()

    @property
    def field(self) -> str | None:
        """The place of the first mistake, such as `#/resources/infra`; None without one."""
        return self.issues[0].pointer if self.issues else None


class BadRequest(HoldfastError):
    """The request is invalid."""

    status = 400
    exit_code = 2


class BadJobFile(BadRequest):
    """The job file has mistakes; nothing was submitted."""

    status = 422

    def __init__(self, issues: tuple[ValidationIssue, ...]) -> None:
        self.issues = issues
        super().__init__("; ".join(f"{issue.pointer}: {issue.message}" for issue in issues))


class BadLimits(BadJobFile):
    """The limits are invalid; nothing was changed."""


class PlanNotKept(BadJobFile):
    """No plan can keep the deadline and the budget of this job; nothing was submitted."""


class IdempotencyMismatch(BadRequest):
    """This Idempotency-Key was used with a different request; use a new key for a new job."""

    status = 422


class BadReport(BadRequest):
    """A worker's report is invalid; no report of this batch was recorded."""

    status = 422


class BadChannel(BadRequest):
    """The channel cannot be used; nothing was changed."""

    status = 422


class Unauthenticated(HoldfastError):
    """The access token is missing or wrong."""

    status = 401
    exit_code = 5


class Forbidden(HoldfastError):
    """This token does not permit the action."""

    status = 403
    exit_code = 5


class SignInRefused(Forbidden):
    """The sign-in was not completed; start it again, or use an access token."""


class NotFound(HoldfastError):
    """The resource does not exist."""

    status = 404
    exit_code = 4


class Conflict(HoldfastError):
    """The request conflicts with the current state."""

    status = 409
    exit_code = 6


class PreconditionFailed(HoldfastError):
    """The job has changed since you read it; read it again before you repeat the request."""

    status = 412
    exit_code = 6


class StaleWrite(Conflict):
    """The job was changed at the same time; read it again before you repeat the request."""


class IllegalTransition(Conflict):
    """This event cannot follow the events recorded so far."""


class NotPossibleNow(Conflict):
    """The action is not possible in the current state of the job."""


class BudgetSpent(Conflict):
    """The budget for this job is spent; raise it, or wait for the next month."""


class AddressInUse(Conflict):
    """Another process listens on this address; choose another port with --port."""


class Fenced(Conflict):
    """A newer attempt of this job has replaced this worker; stop."""


class NotRegistered(Conflict):
    """This worker is not registered; it has to register before it reports."""

    published_slug = "not-mustered"


class TooManyRequests(HoldfastError):
    """Too many requests of this kind; wait for the time in Retry-After."""

    status = 429
    exit_code = 3

    def __init__(self, detail: str | None = None, *, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Unavailable(HoldfastError):
    """Temporarily unavailable; try again later."""

    status = 503
    exit_code = 3
    retry_after_s: ClassVar[int] = 5
    """Value of the Retry-After header, in seconds."""


class StoreUnavailable(Unavailable):
    """The service's database is unavailable; nothing was recorded."""


class LauncherUnreachable(Unavailable):
    """The launcher did not respond; the state of the job is unchanged."""


class NotObservedYet(Unavailable):
    """The launcher has not been polled since this request; try again."""

    published_slug = "not-looked-yet"
    retry_after_s = 1


class EngineNotStarted(Unavailable):
    """SkyPilot's API server did not start; the end of its log contains the reason."""


class CheckpointStoreUnreachable(Unavailable):
    """The checkpoint store did not respond; nothing was removed."""

    published_slug = "depot-unreachable"


class IdentityProviderFailed(Unavailable):
    """The identity provider gave no valid response; tokens of earlier sign-ins still work."""


class NotDelivered(Unavailable):
    """A message was not delivered; it is sent again later."""

    def __init__(self, detail: str | None = None, *, for_good: bool = False) -> None:
        super().__init__(detail)
        self.for_good = for_good
        """Whether the receiver refused the message permanently."""


class CheckpointStoreRefused(HoldfastError):
    """The checkpoint store permanently refused the request."""

    published_slug = "depot-refused"


class LaunchRefused(HoldfastError):
    """The launcher cannot start this job as specified."""

    status = 422
    exit_code = 2


class NotInstalled(HoldfastError):
    """A required program is not installed."""

    exit_code = 2
