"""The agent of an attempt: the one that is warm, or one that is opened where the session's conversation is.

Two processes never hold one conversation: whoever is here has the session's lease, of which a warm agent's session is
one as well (parked), and takes the warm agent out before anything is opened.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

from oah.core.model.session import Session
from oah.errors import AgentError, LeaseError, OahError
from oah.ports.agent import Agent, AgentSpec, TurnResult
from oah.ports.conversations import OpenedAgent
from oah.ports.homes import HomePlace
from oah.ports.opening import REFUSED, AgentKind
from oah.worker.context import WorkerContext
from oah.worker.parked import CLOSE_GRACE, Parked
from oah.worker.table import Entry, Table
from oah.worker.work import Assignment

log = logging.getLogger(__name__)


class Openings:
    """Called from slot threads."""

    def __init__(self, context: WorkerContext, table: Table, parked: Parked) -> None:
        self._context = context
        self._table = table
        self._parked = parked
        self._places: WeakKeyDictionary[Agent, HomePlace] = WeakKeyDictionary()

    def __call__(self, assignment: Assignment, entry: Entry) -> tuple[Agent, str]:
        """The agent and what it is (`warm`, `resumed`, ...). Raises what ports.agent.AgentFactory.open does, and
        AgentError `home_unavailable`, `secret_missing`."""
        run, session = assignment.started.run, assignment.started.session
        agent = self._parked.take(session.id)
        if agent is not None:
            try:
                agent.bind(run_id=run.id, attempt=run.attempt)
            except Exception as error:
                if not agent.close(CLOSE_GRACE):
                    raise AgentError("the agent's process tree could not be killed", code="agent_unkillable") from error
                raise
            kind = AgentKind.WARM
        else:
            agent = self._opened(assignment, entry)
            kind = agent.opening.kind
        self._context.telemetry.count("oah_agents_opened_total", agent=str(kind))
        assignment.agent = agent
        return agent, str(kind)

    def facts(self, assignment: Assignment, result: TurnResult, kind: str) -> dict[str, Any]:
        """What an outcome says of the agent, its conversation and its home, all as they are after the turn."""
        agent, session = assignment.agent, assignment.started.session
        if agent is None:
            return {"agent": kind}
        opening = agent.opening
        warm = kind == AgentKind.WARM
        found: dict[str, Any] = {
            "agent": kind if warm else str(opening.kind),
            "agent_reason": opening.reason if not warm or opening.reason == "forked" else None,
        }
        if opening.resumable:
            found["session_ref"] = result.session_ref or opening.session_ref
        place, rules = self._places.get(agent), self._context.home_rules(session.lane.profile)
        if place is not None and rules is not None:
            home = self._context.homes.keep(place, session, rules)
            found["home_mode"] = str(home.mode)
            found["home"] = home if home != session.home else None
        return found

    # --- opening ---

    def _opened(self, assignment: Assignment, entry: Entry) -> Agent:
        session = assignment.started.session
        rules = self._context.home_rules(session.lane.profile)
        place = None if rules is None else self._context.homes.place(session, rules)
        env = self._env(session)
        lost = None if place is None else place.lost
        try:
            agent = self._open(assignment, entry, place, env, fresh_because=lost)
        except AgentError as error:
            if error.code != REFUSED:
                raise
            log.warning("session %s: %s: a new conversation begins", session.id, error.message)
            agent = self._open(assignment, entry, place, env, fresh_because="refused")
        if place is not None:
            self._places[agent] = place
            self._tell(assignment, agent, place)
        return agent

    def _open(
        self,
        assignment: Assignment,
        entry: Entry,
        place: HomePlace | None,
        env: dict[str, str],
        *,
        fresh_because: str | None,
    ) -> Agent:
        run, session = assignment.started.run, assignment.started.session
        agent_id = f"{session.id}.{self._context.ids.nonce()[:12]}"
        self._table.agent(session.id, entry.token, agent_id)
        deadline = self._table.deadline(session.id, entry.token)
        if deadline is None:
            raise LeaseError("the session was lost before its agent was opened")
        return self._context.agents.open(
            AgentSpec(
                agent_id=agent_id,
                session_id=session.id,
                workspace_id=session.workspace_id,
                profile=session.lane.profile,
                run_id=run.id,
                attempt=run.attempt,
                worker_id=self._context.worker_id,
                cwd="/" if place is None else place.cwd,
                own_cwd=place is not None and place.own_cwd,
                home="/" if place is None else place.home,
                deadline_boottime=deadline,
                env=env,
                session_ref=session.session_ref,
                fresh_because=fresh_because,
                uid=self._context.rules.agent_uid,
                gid=self._context.rules.agent_gid,
            )
        )

    def _env(self, session: Session) -> dict[str, str]:
        """The session's environment; secrets are looked up now, and nowhere else."""
        env: dict[str, str] = {}
        for name, value in session.env.items():
            if isinstance(value, str):
                env[name] = value
                continue
            wanted = value.get("secret", "")
            found = self._context.secrets.secret(wanted, session.workspace_id)
            if found is None:
                raise AgentError(
                    f"the environment's {name} is the secret {wanted}, which this worker does not have",
                    code="secret_missing",
                    hint=f"set OAH_SECRET_{wanted} for the worker, or put a file {wanted} into OAH_SECRETS_DIR",
                )
            env[name] = found
        return env

    def _tell(self, assignment: Assignment, agent: Agent, place: HomePlace) -> None:
        """Before the turn, for whoever recovers it. What is not recorded now is so with the outcome."""
        opening = agent.opening
        if not opening.resumable:
            return
        try:
            self._context.store.opened(
                assignment.fence,
                OpenedAgent(
                    agent=str(opening.kind),
                    reason=opening.reason,
                    session_ref=opening.session_ref,
                    home=place.state,
                    before=opening.before,
                ),
            )
        except OahError as error:
            log.warning("session %s: its agent is not recorded: %s", assignment.fence.session_id, error)
