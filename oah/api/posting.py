"""A message as it comes in: JSON, or the payload itself as the body with everything else in headers.

Whatever is not declared as JSON is a payload, byte by byte, so that ``curl --data-binary @file`` sends a file.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from oah.api.schemas import Body, Number
from oah.core.model.ids import WorkspaceId
from oah.core.model.mailbox import SESSION_PREFIX
from oah.core.model.message import MessageMode, Sender, priority_of
from oah.errors import InvalidRequest
from oah.ports.mailboxes import ForAgent, Outgoing

JSON = "application/json"
OPTION = "oah-"
CARRIED = "oah-header-"
DEDUP = "idempotency-key"

_NAME = re.compile(r"[!-9;-~]{1,256}\Z")
"""Printable ASCII but the colon."""


class MessageBody(Body):
    """POST /mailboxes/{address}/messages as JSON. Exactly one of ``payload`` (text) and ``payload_base64``."""

    payload: str | None = None
    payload_base64: str | None = None
    priority: str | None = None
    headers: dict[str, str | list[str]] = Field(default_factory=dict)
    ttl_seconds: Number | None = None
    delay_seconds: Number | None = None
    key: str | None = None
    tags: list[str] = Field(default_factory=list)


def request_body() -> dict[str, Any]:
    """What the OpenAPI document says of it."""
    return {
        "required": True,
        "content": {
            JSON: {"schema": MessageBody.model_json_schema()},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }


def declared_json(request: Request) -> bool:
    """Whether the body says of itself that it is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON


async def outgoing(request: Request, workspace_id: WorkspaceId, address: str, sender: Sender) -> Outgoing:
    """The message of a request. Raises InvalidRequest, RequestValidationError."""
    raw = await request.body()
    headers = {name: _text(value) for name, value in request.headers.items()}
    if declared_json(request):
        body = _parsed(raw)
        payload = _payload(body)
        carried = header_lines(body.headers)
    else:
        body, payload = _from_headers(headers), raw
        carried = header_lines({name[len(CARRIED) :]: value for name, value in headers.items() if _is_carried(name)})
    return Outgoing(
        workspace_id=workspace_id,
        address=address,
        payload=payload,
        priority=priority_of(body.priority),
        headers=carried,
        sender=sender.by,
        dedup_key=headers.get(DEDUP) or None,
        key=body.key,
        tags=tuple(body.tags),
        ttl=span(body.ttl_seconds, "ttl_seconds"),
        delay=span(body.delay_seconds, "delay_seconds"),
        for_agent=ForAgent(mode=MessageMode.WAIT, sender=sender) if address.startswith(SESSION_PREFIX) else None,
    )


def span(value: float | None, what: str) -> timedelta | None:
    """A duration of so many seconds. Raises InvalidRequest."""
    if value is None:
        return None
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidRequest(f"{what} is out of range") from None


def header_lines(values: Mapping[str, str | list[str]]) -> bytes:
    """Headers as they are stored: ``Name: value`` lines. Raises InvalidRequest."""
    lines = []
    for name, each in values.items():
        if not _NAME.match(name):
            raise InvalidRequest(f"{name[:80]!r} is no name of a header: printable ASCII without blanks and colons")
        for value in [each] if isinstance(each, str) else each:
            if any(not c.isprintable() and c != "\t" for c in value):
                raise InvalidRequest(f"the value of header '{name}' has line breaks or control characters")
            lines.append(f"{name}: {value}\r\n".encode())
    return b"".join(lines)


def _parsed(raw: bytes) -> MessageBody:
    try:
        return MessageBody.model_validate_json(raw)
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors(include_url=False)]
        raise RequestValidationError(faults) from error


def _payload(body: MessageBody) -> bytes:
    if (body.payload is None) == (body.payload_base64 is None):
        raise InvalidRequest("give either 'payload' (text) or 'payload_base64'")
    if body.payload is not None:
        try:
            return body.payload.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("payload contains a lone surrogate", hint="payload_base64 takes any bytes") from None
    try:
        return base64.b64decode(body.payload_base64 or "", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("payload_base64 is no base64") from None


def _text(value: str) -> str:
    """Headers come as Latin-1 and are mostly meant as UTF-8."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        return value


def _is_carried(name: str) -> bool:
    return name.startswith(CARRIED) and len(name) > len(CARRIED)


def _from_headers(headers: Mapping[str, str]) -> MessageBody:
    """The options of a raw body. A header that looks like one and is none is a typo. Raises InvalidRequest."""
    known = {"priority", "ttl-seconds", "delay-seconds", "key", "tags"}
    found = {name[len(OPTION) :]: value for name, value in headers.items() if name.startswith(OPTION)}
    unknown = {name for name in found if name not in known and not name.startswith("header-")}
    if unknown:
        raise InvalidRequest(f"unknown header: {_listed(unknown)}", hint=f"there are {_listed(known)}, OAH-Header-NAME")
    return MessageBody(
        priority=found.get("priority"),
        ttl_seconds=_number("OAH-TTL-Seconds", found.get("ttl-seconds")),
        delay_seconds=_number("OAH-Delay-Seconds", found.get("delay-seconds")),
        key=found.get("key"),
        tags=[tag.strip() for tag in found.get("tags", "").split(",") if tag.strip()],
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(f"OAH-{name.title().replace('Ttl', 'TTL')}" for name in names))


def _number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"{name} is no number of seconds: {text[:40]!r}")
    return value
