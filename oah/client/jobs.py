"""Requeue, maintenance jobs and the audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from oah.client.calls import Calls, given, moment, part, seconds
from oah.client.transport import Json

JOB_ENDS = frozenset({"completed", "failed", "cancelled"})
LOOK_SECONDS = 0.3


class JobCalls(Calls):
    """What operators ask for."""

    def requeue(self, run_id: str, *, reason: str | None = None) -> Json:
        """A terminal run becomes eligible again now. Raises Conflict ``run_requeue_invalid_status``."""
        body = {"reason": reason} if reason is not None else None
        return self._one("POST", f"/v1/runs/{part(run_id)}/requeue", body=body, once=True)

    def requeue_many(
        self,
        run_ids: Iterable[str] | None = None,
        *,
        filter: Json | None = None,  # noqa: A002 - the name of the field in the interface
        dry_run: bool = False,
        reason: str | None = None,
    ) -> Json:
        """Requeue runs by id, or all ended ones that a filter finds: ``status`` (one or several; failed and timed_out
        when left out), ``error_code``, ``recovery_state``, ``workspace``, ``agent``, ``session``, ``created_after``,
        ``since``, ``until`` (when they ended; aware datetimes or RFC 3339).

        Up to a hundred by id are answered one by one in ``items``; else ``job`` names a job to wait for. ``dry_run``:
        ``total`` and a ``sample`` (or the items as they would be). Raises InvalidRequest."""
        which = None
        if filter is not None:
            which = {name: moment(value) if isinstance(value, datetime) else value for name, value in filter.items()}
        ids = None if run_ids is None else list(run_ids)
        body = given(run_ids=ids, filter=which, dry_run=dry_run or None, reason=reason)
        return self._one("POST", "/v1/runs/requeue", body=body, once=True)

    def jobs(self, *, limit: int | None = None, **filters: Any) -> list[Json]:
        """Maintenance jobs, newest first. Filters: state, kind."""
        return self._list("/v1/jobs", filters, limit=limit)

    def job(self, job_id: str) -> Json:
        """How far one came, and what became of how many. Raises NotFound."""
        return self._one("GET", f"/v1/jobs/{part(job_id)}")

    def job_items(self, job_id: str, *, limit: int | None = None) -> list[Json]:
        """What became of each subject, in its order."""
        return self._list(f"/v1/jobs/{part(job_id)}/items", {}, limit=limit)

    def cancel_job(self, job_id: str) -> Json:
        """End it after the chunk at hand; what it did stays done."""
        return self._one("POST", f"/v1/jobs/{part(job_id)}/cancel")

    def wait_job(
        self,
        job_id: str,
        *,
        timeout: timedelta | float | None = None,
        on_progress: Callable[[Json], None] = lambda _: None,
    ) -> Json:
        """The job once it is over; ``on_progress`` sees each look at it. Raises TimeoutError; the job goes on then."""
        deadline = None if timeout is None else time.monotonic() + (seconds(timeout) or 0.0)
        while True:
            found = self.job(job_id)
            on_progress(found)
            if found["state"] in JOB_ENDS:
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job_id} is {found['state']}")
            time.sleep(LOOK_SECONDS)

    def audit(self, *, since: datetime | None = None, limit: int | None = None, **filters: Any) -> list[Json]:
        """Who did what, newest first. Filters: workspace, actor, action (``run.`` finds all on runs), subject."""
        return self._list("/v1/audit", {**filters, "since": moment(since)}, limit=limit)
