"""Rates of submits, member by member of one batch, under the locks of their workspaces' rows."""

from __future__ import annotations

from collections.abc import Iterable

from oah.adapters.sql.statements import Statements, SubmitSession
from oah.core.model.ids import WorkspaceId
from oah.core.policy.rate import Refused, admit
from oah.errors import LimitReached

RATE_LIMITED = "rate_limited"


class Rates:
    """Of the workspaces of these sessions; where none has a rate nothing is locked or written."""

    def __init__(self, sql: Statements, sessions: Iterable[SubmitSession]) -> None:
        self._sql = sql
        self._rates = {s.session.workspace_id: s.rate for s in sessions if s.rate is not None}
        self._ahead, self._now = sql.lock_rates(sorted(self._rates)) if self._rates else ({}, 0)
        self._taken: dict[str, int] = {}

    def refuse(self, workspace_id: WorkspaceId) -> LimitReached | None:
        """One more run; None: it is counted."""
        rate = self._rates.get(workspace_id)
        if rate is None:
            return None
        answer = admit(self._ahead.get(workspace_id, 0), rate, now_us=self._now)
        if isinstance(answer, Refused):
            wait = answer.retry_after
            return LimitReached(
                f"workspace {workspace_id} may submit {rate.per_minute} runs a minute, {rate.burst} at once",
                code=RATE_LIMITED,
                hint=f"again in {wait.total_seconds():.1f} s",
                retry_after=wait,
            )
        self._ahead[workspace_id] = self._taken[workspace_id] = answer.full_at
        return None

    def write(self) -> None:
        """What was taken."""
        if self._taken:
            self._sql.save_rates(self._taken)
