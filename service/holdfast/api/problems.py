"""Errors as problem details (RFC 9457).

Every unsuccessful response contains the error and the remedy.
"""

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
from holdfast.domain.jobfile.resources import NOT_TEXT
from holdfast.errors import BadJobFile, HoldfastError, TooManyRequests, Unavailable
from holdfast.host import resources
from holdfast.log_context import log_context

log = logging.getLogger(__name__)

DOCS: Final = "/docs/errors"
MAX_ISSUES: Final = 100
"""Maximum number of reported mistakes in one body.

A lower value hides some; a higher value costs CPU time for hostile bodies.
"""
MEDIA_TYPE: Final = "application/problem+json"


def install(app: FastAPI) -> None:
    """Respond to every error of `app` with problem details."""
    app.add_exception_handler(HoldfastError, _handle_holdfast_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(OSError, _handle_os_error)
    app.add_exception_handler(Exception, _handle_unexpected_error)


def problem_response(
    request: Request, problem: Problem, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Create a response with problem details."""
    problem.request_id = getattr(request.state, "request_id", None)
    body = problem.model_dump(exclude_none=True)
    return JSONResponse(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def problem_of(error: HoldfastError) -> Problem:
    """Convert a Holdfast error to problem details."""
    flaws = error.issues if isinstance(error, BadJobFile) else ()
    return Problem(
        type=f"{DOCS}#{error.slug()}",
        title=error.title(),
        status=error.status,
        detail=error.detail,
        errors=[FlawOut(pointer=flaw.pointer, message=flaw.message) for flaw in flaws],
    )


def error_response(request: Request, error: HoldfastError) -> JSONResponse:
    """Create the response to a Holdfast error."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if isinstance(error, Unavailable | TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_s)
    return problem_response(request, problem_of(error), headers)


def _handle_holdfast_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HoldfastError)
    return error_response(request, error)


def _handle_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    flaws = [
        FlawOut(
            pointer="#" + "".join(f"/{step}" for step in flaw["loc"][1:]), message=_message(flaw)
        )
        for flaw in found[:MAX_ISSUES]
    ]
    detail = "; ".join(f"{flaw.pointer}: {flaw.message}" for flaw in flaws)
    if len(found) > MAX_ISSUES:
        detail += f"; and {len(found) - MAX_ISSUES} more mistakes"
    title = "The request does not match its schema in /openapi.json."
    problem = Problem(
        type=f"{DOCS}#bad-request", title=title, status=422, detail=detail, errors=flaws
    )
    return problem_response(request, problem)


def _message(flaw: Mapping[str, Any]) -> str:
    """Return the text of a validation error."""
    return NOT_TEXT if flaw.get("type") == "string_unicode" else str(flaw["msg"])


def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND and (page := missing_page(request)):
        return page
    title = HTTPStatus(error.status_code).phrase
    detail = {
        # FastAPI raises it for a body that it cannot decode; mistakes of JSON are RequestValidationErrors.
        400: "the body is not UTF-8 text; encode it as UTF-8 JSON and send it again",
        404: f"there is no resource at {request.url.path}; /openapi.json lists all routes",
        405: f"{request.method} is not allowed at {request.url.path}",
    }.get(error.status_code, str(error.detail))
    slug = title.lower().replace(" ", "-")
    problem = Problem(type=f"{DOCS}#{slug}", title=title, status=error.status_code, detail=detail)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette lists the methods of only one route; pages are not in the description.
        headers["Allow"] = ", ".join(_methods_at(request)) or headers.get("Allow", "")
    return problem_response(request, problem, headers)


def _methods_at(request: Request) -> list[str]:
    """List the methods of all routes at the path of this request."""
    paths: dict[str, dict[str, object]] = request.app.openapi()["paths"]
    template = {path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in paths}
    here = [
        methods for path, methods in paths.items() if template[path].fullmatch(request.url.path)
    ]
    return sorted({method.upper() for methods in here for method in methods})


def _handle_os_error(request: Request, error: Exception) -> JSONResponse:
    if not resources.are_exhausted(error):
        raise error
    resources.note_exhausted_descriptors(error)
    return error_response(
        request, Unavailable("the service has no file descriptors left; try again later")
    )


def _handle_unexpected_error(request: Request, error: Exception) -> JSONResponse:
    # Not the path itself: the paths that SkyPilot calls contain a secret.
    route = getattr(request.scope.get("route"), "path", "no route")
    number = getattr(request.state, "request_id", None)
    with log_context(**({"request": number} if number else {})):
        log.error("bug in %s %s, request %s", request.method, route, number, exc_info=error)
    title = "Internal error."
    detail = "the service encountered an unexpected error; see its log for details"
    return problem_response(
        request, Problem(type=f"{DOCS}#holdfast-error", title=title, status=500, detail=detail)
    )
