"""What is recorded when an agent that can go on with a conversation was opened: before its first turn, so that also an
attempt which is lost in the middle leaves behind where its conversation is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

from oah.adapters.sql.aggregate import Aggregate
from oah.adapters.sql.rows import session_of
from oah.adapters.sql.tables import run_attempts, runs, sessions
from oah.adapters.sql.text import cleaned, cleaned_or_none
from oah.core.model.event import EventType
from oah.core.model.ids import SessionId
from oah.ports.conversations import OpenedAgent
from oah.ports.rows import RunFence


class Conversations(Aggregate):
    """Agents as they were opened."""

    def unbind_homes(self, sessions_: Sequence[tuple[SessionId, str]]) -> int:
        """Under the locks: a run that was started meanwhile has said where it is."""
        done = 0
        for session_id, place in sessions_:
            with self._transaction([session_id]) as transaction:
                row = transaction.sessions.get(session_id)
                home = None if row is None else session_of(row).home
                if home is None or home.only_at != place:
                    continue
                left = replace(home, bound=False).document()
                transaction.connection.execute(update(sessions).where(sessions.c.id == session_id).values(home=left))
                done += 1
        return done

    def opened(self, fence: RunFence, agent: OpenedAgent) -> bool:
        """Fenced like every write of a worker."""
        ref, reason = cleaned_or_none(agent.session_ref), cleaned_or_none(agent.reason)
        with self._transaction([fence.session_id]) as transaction:
            ours = (
                runs.c.id == fence.run_id,
                runs.c.session_id == fence.session_id,
                runs.c.attempt == fence.attempt,
                runs.c.claim_token == fence.token,
                runs.c.status.in_(("running", "waiting_tool")),
            )
            if transaction.connection.execute(select(runs.c.id).where(*ours)).first() is None:
                return False
            # A conversation that is given up has no name until the new one is known.
            kept: dict[str, Any] = {} if ref is None and agent.agent != "fresh" else {"session_ref": ref}
            home = None if agent.home is None else agent.home.document()
            if home is not None:
                kept["home"] = home
            if kept:
                transaction.connection.execute(update(sessions).where(sessions.c.id == fence.session_id).values(**kept))
            transaction.connection.execute(
                update(run_attempts)
                .where(run_attempts.c.run_id == fence.run_id, run_attempts.c.attempt == fence.attempt)
                .values(
                    agent=cleaned(agent.agent),
                    agent_reason=reason,
                    home=None if agent.home is None else str(agent.home.mode),
                )
            )
            said = {
                "agent": agent.agent,
                "reason": reason,
                "session_ref": ref,
                "before": cleaned_or_none(agent.before),
                "home": None if home is None else {"mode": home["mode"], "host": home["host"]},
            }
            transaction.append_event(
                fence.session_id,
                EventType.RUN_AGENT,
                run_id=fence.run_id,
                attempt=fence.attempt,
                data={name: value for name, value in said.items() if value is not None},
            )
        return True
