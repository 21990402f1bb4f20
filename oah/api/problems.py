"""Problem details (RFC 9457) with a stable `code`, for every answer that is not a success."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from oah.errors import (
    Conflict,
    Forbidden,
    LeaseError,
    LimitReached,
    NotFound,
    OahError,
    PayloadTooLarge,
    RequestError,
    Unauthorized,
    Unavailable,
)

MEDIA_TYPE = "application/problem+json"

_STATUS: tuple[tuple[type[OahError], int], ...] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (PayloadTooLarge, 413),
    (LimitReached, 429),
    (RequestError, 400),
    (Unavailable, 503),
    (LeaseError, 503),
)
_CODE = {400: "invalid_request", 404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}


def document(
    status: int, code: str, detail: str, *, hint: str | None = None, errors: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The members of a problem."""
    problem: dict[str, Any] = {
        "type": f"urn:oah:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
    }
    if hint:
        problem["hint"] = hint
    if errors:
        problem["errors"] = list(errors)
    return problem


def response(
    status: int,
    code: str,
    detail: str,
    *,
    hint: str | None = None,
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem as an answer. ASCII only: it may quote text that has no UTF-8."""
    body = json.dumps(document(status, code, detail, hint=hint, errors=errors)).encode()
    return Response(body, status, dict(headers or {}), MEDIA_TYPE)


def status_of(error: OahError) -> int:
    """The HTTP status of an error of ours."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def of(error: OahError) -> Response:
    """An error of ours as an answer."""
    status = status_of(error)
    return response(status, error.code, error.message, hint=error.hint, headers=_headers(error))


def member(error: OahError) -> dict[str, Any]:
    """An error of ours as a member of an answer about many things."""
    problem = document(status_of(error), error.code, error.message, hint=error.hint)
    if isinstance(error, LimitReached) and error.retry_after is not None:
        problem["retry_after_seconds"] = error.retry_after.total_seconds()
    return problem


def _headers(error: OahError) -> dict[str, str]:
    match error:
        case Unauthorized():
            return {"www-authenticate": 'Bearer realm="oah"'}
        case Unavailable():
            return {"retry-after": str(max(1, math.ceil(error.retry_after.total_seconds())))}
        case LimitReached(retry_after=timedelta() as wait):
            return {"retry-after": str(max(1, math.ceil(wait.total_seconds())))}
        case LeaseError() | LimitReached():
            return {"retry-after": "1"}
        case _:
            return {}


def _validation(error: RequestValidationError) -> Response:
    """Which fields are wrong and why, without repeating what was sent."""
    faults = [
        {"field": ".".join(str(part) for part in fault["loc"]), "message": str(fault["msg"])}
        for fault in error.errors()[:20]
    ]
    first = f"{faults[0]['field']}: {faults[0]['message']}" if faults else "the request is malformed"
    return response(422, "invalid_request", first, errors=faults)


def install(app: FastAPI) -> None:
    """Answer every failure of the app with a problem."""

    @app.exception_handler(OahError)
    async def _ours(_: Request, error: OahError) -> Response:
        return of(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        return _validation(error)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        code = _CODE.get(error.status_code, "error")
        return response(error.status_code, code, str(error.detail), headers=error.headers)

    @app.exception_handler(Exception)
    async def _bug(_: Request, __: Exception) -> Response:
        return response(500, "broken", "the server has met a bug; its log says more")
