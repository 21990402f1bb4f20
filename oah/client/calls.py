"""What the parts of the client share: one document, a whole list, a path segment, fields that were given."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from oah.client.transport import Json, Transport
from oah.errors import NotFound

PAGE = 200


class Calls:
    """Base of the client's parts: calls over one transport."""

    _api: Transport

    def _one(self, method: str, path: str, **more: Any) -> Json:
        document: Json = self._api.json(method, path, **more) or {}
        return document

    def _list(self, path: str, params: Mapping[str, Any], *, limit: int | None = None) -> list[Json]:
        items: list[Json] = []
        cursor: str | None = None
        while True:
            want = PAGE if limit is None else min(PAGE, limit - len(items))
            page = self._api.json("GET", path, params={**params, "cursor": cursor, "limit": want})
            items += page["items"]
            cursor = page.get("next_cursor")
            if cursor is None or (limit is not None and len(items) >= limit):
                return items


def part(text: str) -> str:
    """One path segment: an id from outside must not lead elsewhere. An empty one would name the collection."""
    if text in ("", ".", ".."):
        raise NotFound(f"{text!r} is no id")
    return quote(text, safe="")


def given(**fields: Any) -> Json:
    """Without what is None."""
    return {name: value for name, value in fields.items() if value is not None}


def seconds(value: timedelta | float | None) -> float | None:
    """A duration as the interface has it."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def moment(value: datetime | None) -> str | None:
    """A moment as the interface has it."""
    return None if value is None else value.astimezone().isoformat()
