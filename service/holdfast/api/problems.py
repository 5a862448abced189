"""Errors as problem details (RFC 9457): every answer that is not a success says what was wrong and what to do."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from holdfast.api.schemas.service import FlawOut, Problem
from holdfast.api.static_files import missing_page
from holdfast.domain.jobfile.spec import NOT_TEXT
from holdfast.errors import BadJobFile, HoldfastError, TooManyRequests, Unavailable
from holdfast.host import file_descriptors

log = logging.getLogger(__name__)

DOCS: Final = "/docs/errors"
MOST_FLAWS: Final = 100
"""Mistakes of one body that are named. A lower value hides some from people; a higher value costs CPU time for hostile bodies."""
MEDIA_TYPE: Final = "application/problem+json"


def install(app: FastAPI) -> None:
    """Answer every error of `app` with problem details."""
    app.add_exception_handler(HoldfastError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OSError, _os_error)
    app.add_exception_handler(Exception, _bug)


def answer(
    request: Request, problem: Problem, headers: dict[str, str] | None = None
) -> JSONResponse:
    """A response with problem details."""
    problem.request_id = getattr(request.state, "request_id", None)
    body = problem.model_dump(exclude_none=True)
    return JSONResponse(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def of(error: HoldfastError) -> Problem:
    """The problem details of one of our errors."""
    flaws = error.flaws if isinstance(error, BadJobFile) else ()
    return Problem(
        type=f"{DOCS}#{error.slug()}",
        title=error.title(),
        status=error.status,
        detail=error.detail,
        errors=[FlawOut(pointer=flaw.pointer, message=flaw.message) for flaw in flaws],
    )


def refusal(request: Request, error: HoldfastError) -> JSONResponse:
    """The answer to a request that ran into one of our errors."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if isinstance(error, Unavailable | TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_s)
    return answer(request, of(error), headers)


def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HoldfastError)
    return refusal(request, error)


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    flaws = [
        FlawOut(
            pointer="#" + "".join(f"/{step}" for step in flaw["loc"][1:]), message=_message(flaw)
        )
        for flaw in found[:MOST_FLAWS]
    ]
    detail = "; ".join(f"{flaw.pointer}: {flaw.message}" for flaw in flaws)
    if len(found) > MOST_FLAWS:
        detail += f"; and {len(found) - MOST_FLAWS} more mistakes"
    title = "The request does not have the form that is described in /openapi.json."
    problem = Problem(
        type=f"{DOCS}#bad-request", title=title, status=422, detail=detail, errors=flaws
    )
    return answer(request, problem)


def _message(flaw: Mapping[str, Any]) -> str:
    """The text of a validation error."""
    return NOT_TEXT if flaw.get("type") == "string_unicode" else str(flaw["msg"])


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND and (page := missing_page(request)):
        return page
    title = HTTPStatus(error.status_code).phrase
    detail = {
        # FastAPI raises it for a body that it cannot decode; mistakes of JSON are RequestValidationErrors.
        400: "the body is not UTF-8 text; encode it as UTF-8 JSON and send it again",
        404: f"there is nothing at {request.url.path}; /openapi.json lists what there is",
        405: f"{request.method} is not possible at {request.url.path}",
    }.get(error.status_code, str(error.detail))
    slug = title.lower().replace(" ", "-")
    problem = Problem(type=f"{DOCS}#{slug}", title=title, status=error.status_code, detail=detail)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names those of one route only; pages are in no description.
        headers["Allow"] = ", ".join(_methods_at(request)) or headers.get("Allow", "")
    return answer(request, problem, headers)


def _methods_at(request: Request) -> list[str]:
    """Every method that some route has at the path of this request."""
    paths: dict[str, dict[str, object]] = request.app.openapi()["paths"]
    template = {path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in paths}
    here = [
        methods for path, methods in paths.items() if template[path].fullmatch(request.url.path)
    ]
    return sorted({method.upper() for methods in here for method in methods})


def _os_error(request: Request, error: Exception) -> JSONResponse:
    if not file_descriptors.are_exhausted(error):
        raise error
    file_descriptors.note(error)
    return refusal(
        request, Unavailable("the service has no file descriptors left; try again later")
    )


def _bug(request: Request, error: Exception) -> JSONResponse:
    # Not the address itself: those that SkyPilot calls hold a secret.
    route = getattr(request.scope.get("route"), "path", "no route")
    number = getattr(request.state, "request_id", None)
    log.error("bug in %s %s, request %s", request.method, route, number, exc_info=error)
    title = "A mistake of ours."
    detail = "the service met a state that it does not expect; its log says more"
    return answer(
        request, Problem(type=f"{DOCS}#holdfast-error", title=title, status=500, detail=detail)
    )
