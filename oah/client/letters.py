"""Dead letters: what failed finally, looked at, redriven, purged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oah.client.calls import Calls, given, moment, part
from oah.client.transport import Json


class LetterCalls(Calls):
    """The client's part that speaks of dead letters."""

    def dead_letters(
        self,
        *,
        workspace: str | None = None,
        kind: str | None = None,
        session: str | None = None,
        code: str | None = None,
        since: datetime | None = None,
        state: str | None = None,
        limit: int | None = None,
    ) -> list[Json]:
        """Without their payloads, those that died last first. ``state``: ``dead`` or ``redriven``; None: both."""
        return self._list("/v1/dead-letters", _where(workspace, kind, session, code, since, state), limit=limit)

    def dead_letter(self, letter_id: str) -> Json:
        """One letter, whole. Raises NotFound."""
        return self._one("GET", f"/v1/dead-letters/{part(letter_id)}")

    def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        workspace: str | None = None,
        kind: str | None = None,
        session: str | None = None,
        code: str | None = None,
        since: datetime | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Let what they are about go on: those with these ``ids``, or all dead ones that the filter finds.

        ``{items: [{id, outcome, run_id, error}], done, failed, job, more}``; ``job`` when there are many."""
        where = _where(workspace, kind, session, code, since, None)
        body = {"ids": list(ids)} if ids is not None else {"filter": where}
        return self._one("POST", "/v1/dead-letters/redrive", body={**body, "dry_run": dry_run}, once=True)

    def purge(
        self,
        ids: Sequence[str] | None = None,
        *,
        workspace: str | None = None,
        kind: str | None = None,
        session: str | None = None,
        code: str | None = None,
        since: datetime | None = None,
        state: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> Json:
        """Delete letters: those with these ``ids``, or all that the filter finds (``everything`` for one that
        restricts nothing). The same answer as ``redrive``."""
        where = _where(workspace, kind, session, code, since, state)
        params: dict[str, Any] = {**where, **given(id=None if ids is None else list(ids))}
        params |= {"all": "true"} if everything else {}
        params |= {"dry_run": "true"} if dry_run else {}
        return self._one("DELETE", "/v1/dead-letters", params=params, once=True)


def _where(
    workspace: str | None,
    kind: str | None,
    session: str | None,
    code: str | None,
    since: datetime | None,
    state: str | None,
) -> Json:
    return given(workspace=workspace, kind=kind, session=session, code=code, since=moment(since), state=state)
