"""Schedules: runs that time submits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oah.client.calls import Calls, given, part
from oah.client.transport import Json


class ScheduleCalls(Calls):
    """The client's part that speaks of schedules."""

    def create_schedule(
        self,
        name: str,
        cron: str,
        *,
        run: Mapping[str, Any],
        session_id: str | None = None,
        session: Mapping[str, Any] | None = None,
        timezone: str | None = None,
        overlap: str | None = None,
        workspace: str | None = None,
        paused: bool | None = None,
    ) -> Json:
        """A new schedule. ``run``: members of a submit (``input`` at least); one of ``session_id`` and ``session``
        (``agent`` at least: each run gets a session of its own). ``overlap``: ``skip`` (default), ``queue``,
        ``cancel_previous``. Raises InvalidRequest (``invalid_cron``, ``unknown_timezone``), Conflict ``name_taken``."""
        body = given(
            name=name,
            cron=cron,
            run=dict(run),
            session_id=session_id,
            session=None if session is None else dict(session),
            timezone=timezone,
            overlap=overlap,
            workspace=workspace,
            paused=paused,
        )
        return self._one("POST", "/v1/schedules", body=body, once=True)

    def schedules(self, *, workspace: str | None = None, limit: int | None = None) -> list[Json]:
        """Newest first."""
        return self._list("/v1/schedules", {"workspace": workspace}, limit=limit)

    def schedule(self, schedule: str) -> Json:
        """One, by id or name. Raises NotFound."""
        return self._one("GET", _path(schedule))

    def update_schedule(self, schedule: str, **changes: Any) -> Json:
        """``name, cron, timezone, overlap, session_id, session, run, paused``."""
        return self._one("PATCH", _path(schedule), body=changes)

    def delete_schedule(self, schedule: str) -> Json:
        """Its runs stay."""
        return self._one("DELETE", _path(schedule), once=True)

    def trigger_schedule(self, schedule: str) -> Json:
        """Make its run now, besides its times; the firing."""
        return self._one("POST", f"{_path(schedule)}/trigger", once=True)

    def schedule_firings(self, schedule: str, *, limit: int | None = None) -> list[Json]:
        """What came of its fire times, newest first."""
        return self._list(f"{_path(schedule)}/firings", {}, limit=limit)

    def preview_schedule(self, cron: str, *, timezone: str | None = None, count: int | None = None) -> Json:
        """``times`` at which it would fire next, and what it says in words (``told``)."""
        return self._one("POST", "/v1/schedules:preview", body=given(cron=cron, timezone=timezone, count=count))


def _path(schedule: str) -> str:
    return f"/v1/schedules/{part(schedule)}"
