"""Errors of the client: no answer, and one exception class for each kind of refusal."""

from __future__ import annotations

import functools
from typing import Final

import httpx2
from pydantic import ValidationError

from holdfast.api.schemas.service import Problem
from holdfast.errors import HoldfastError, Unavailable, ValidationIssue

_EXIT_BY_STATUS: Final = {
    400: 2,
    413: 2,
    422: 2,
    401: 5,
    403: 5,
    404: 4,
    409: 6,
    412: 6,
    429: 3,
    503: 3,
}


class ServiceUnreachable(Unavailable):
    """The service does not respond; start it with `holdfast serve`, or set HOLDFAST_URL."""

    def __init__(self, detail: str | None = None, *, is_temporary: bool = False) -> None:
        super().__init__(detail)
        self.is_temporary = is_temporary
        """Whether a repetition may succeed, as during a restart of the service."""


class NoAnswer(ServiceUnreachable):
    """No server responds at the address of the service."""


class Refused(HoldfastError):
    """The service refused the request.

    Each refusal is also an instance of the class in `holdfast.errors` that names its kind, such as NotFound.
    """

    def __init__(self, problem: Problem, retry_after_s: int = 0) -> None:
        self.problem = problem
        if type(self) is Refused:  # A kind that this version does not know.
            self.exit_code = _EXIT_BY_STATUS.get(problem.status, 1)  # type: ignore[misc]
        self.issues = tuple(ValidationIssue(flaw.pointer, flaw.message) for flaw in problem.errors)
        self.retry_after_s = retry_after_s
        """Seconds for which the service asks to wait; 0 if it does not."""
        HoldfastError.__init__(self, problem.detail)

    @property
    def code(self) -> str:
        """The stable name of the error, as in `docs/reference/errors.md`."""
        return self.problem.type.rpartition("#")[2]

    @property
    def hint(self) -> str:
        """The general message of this kind of error, with its remedy."""
        return self.problem.title

    @property
    def request_id(self) -> str | None:
        """The number of the request in the service's log."""
        return self.problem.request_id


def refusal_of(answer: httpx2.Response) -> Refused | None:
    """The refusal in an error response; None if another program than Holdfast sent it."""
    try:
        problem = Problem.model_validate_json(answer.content, extra="ignore")
    except ValidationError:
        return None
    wait = answer.headers.get("Retry-After", "")
    kind = _refusal_class(problem.type.rpartition("#")[2])
    return kind(problem, int(wait) if wait.isdecimal() else 0)


@functools.cache
def _refusal_class(slug: str) -> type[Refused]:
    """The class of refusals of one kind; a kind of a newer service is only `Refused`."""
    kind = _kinds(HoldfastError).get(slug)
    if kind is None:
        return Refused
    return type(kind.__name__, (Refused, kind), {"__doc__": kind.__doc__})


def _kinds(parent: type[HoldfastError]) -> dict[str, type[HoldfastError]]:
    """Kinds of errors of the service by their stable names."""
    found = {parent.slug(): parent} if parent.__module__ == HoldfastError.__module__ else {}
    for child in parent.__subclasses__():
        found |= _kinds(child)
    return found
