"""The synchronous client: one method per thing the HTTP interface does.

``Client(url, key)`` is safe to use from many threads; a context manager closes it. Documents are dicts as the HTTP
reference names them. Lists come as whole lists (pages are followed) unless ``limit`` is given.

Sessions:   create_session, sessions, session, update_session, close_session, session_queue, pause_session,
            resume_session
Runs:       submit, submit_many, run, runs, wait, stream, cancel, requeue, note, result, output,
            attempts, recording
Inside:     steps, send_input, begin_step, end_step, report_progress, begin_wait, resume_run
Terminals:  screen, attach
Fleet:      workers, worker, cordon, cordons, uncordon, drain, wait_drained, cordon_pool, uncordon_pool, drain_pool,
            restart_pool, rollouts, rollout, abort_rollout, wait_rollout, queue, queue_session,
            queue_faults, repair_queue, pools, pool, pool_metric, recovery,
            diagnosis, controller, agents
Governance: pauses, pause, resume, caps, set_cap
Tenancy:    workspaces, workspace, create_workspace, update_workspace, keys, create_key, revoke_key
Webhooks:   create_webhook, webhooks, webhook, update_webhook, delete_webhook, test_webhook, webhook_deliveries,
            webhook_delivery, redeliver
Schedules:  create_schedule, schedules, schedule, update_schedule, delete_schedule, trigger_schedule,
            schedule_firings, preview_schedule
Jobs:       requeue_many, jobs, job, job_items, wait_job, cancel_job, audit
Mailboxes:  create_mailbox, mailboxes, mailbox, delete_mailbox, send_message, messages, message, delete_message,
            purge_mailbox, subscribe, receive_messages, ack_message, nack_message, extend_leases, trace_message
Agents' messages: send_to_session, session_messages, session_message, message_cursors, ack_session_messages,
            wake_session
Dead letters: dead_letters, dead_letter, redrive, purge
Health:     health, ready, metrics

Errors are those of ``oah.errors``: RequestError and its kinds for what the caller can fix, Unavailable when the API or
its database did not answer after all retries. ``wait`` raises TimeoutError when its time is up; the run goes on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypedDict

import httpx

from oah.client.agent_messages import AgentMessageCalls
from oah.client.calls import given, moment, part, seconds
from oah.client.governance import GovernanceCalls
from oah.client.inside import InsideCalls
from oah.client.jobs import JobCalls
from oah.client.letters import LetterCalls
from oah.client.mailboxes import MailboxCalls
from oah.client.pauses import PauseCalls
from oah.client.pools import PoolCalls
from oah.client.schedules import ScheduleCalls
from oah.client.sse import RUN_ENDS, Event, follow
from oah.client.tenancy import TenancyCalls
from oah.client.terminal import TerminalCalls
from oah.client.transport import Json, Transport
from oah.client.webhooks import WebhookCalls

__all__ = ["Client", "Event", "SubmitItem", "TERMINAL"]

TERMINAL = frozenset({"completed", "failed", "cancelled", "timed_out"})


class SubmitItem(TypedDict, total=False):
    """One item of ``submit_many``; ``session_id`` and ``input`` are required, a missing key is generated."""

    session_id: str
    input: str
    idempotency_key: str
    run_class: str
    delay_seconds: float
    timeout_seconds: float
    priority: int
    metadata: Mapping[str, Any]


class Client(
    TenancyCalls,
    WebhookCalls,
    LetterCalls,
    JobCalls,
    InsideCalls,
    TerminalCalls,
    MailboxCalls,
    AgentMessageCalls,
    ScheduleCalls,
    GovernanceCalls,
    PauseCalls,
    PoolCalls,
):
    """A connection to one API. ``timeout`` (seconds) bounds each answer, ``retries`` how often a call is repeated."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8787",
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._api = Transport(url, key, timeout=timeout, retries=retries, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    # --- sessions ---------------------------------------------------------------------------------------------------

    def create_session(
        self,
        agent: str | None = None,
        *,
        pool: str | None = None,
        workspace: str | None = None,
        title: str | None = None,
        cwd: str | None = None,
        worktree: Mapping[str, str] | None = None,
        env: Mapping[str, str | Mapping[str, str]] | None = None,
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        wake: str | None = None,
        idempotency_key: str | None = None,
    ) -> Json:
        """A new conversation with ``agent``; in ``env`` a secret of the workers is ``{"secret": NAME}``; ``worktree``:
        ``{"repo": PATH, "ref": BRANCH}``; ``wake``: whether a message starts the agent (``eager``, ``lazy``). Raises
        InvalidRequest ``unknown_agent``.

        With the key of a run it is for children of that run: ``agent`` and ``pool`` are its own when left out, and
        ``idempotency_key`` (of a run only) finds the session that the run has opened under it before."""
        body = given(agent=agent, pool=pool, workspace=workspace, title=title, cwd=cwd, worktree=worktree, env=env)
        body |= given(labels=labels, metadata=metadata, wake=wake)
        headers = None if idempotency_key is None else {"idempotency-key": idempotency_key}
        return self._one("POST", "/v1/sessions", body=body, headers=headers, once=headers is None)

    def sessions(
        self, *, workspace: str | None = None, state: str | None = None, limit: int | None = None
    ) -> list[Json]:
        """Sessions, newest first."""
        return self._list("/v1/sessions", {"workspace": workspace, "state": state}, limit=limit)

    def session(self, session_id: str) -> Json:
        """One session. Raises NotFound."""
        return self._one("GET", f"/v1/sessions/{part(session_id)}")

    def update_session(self, session_id: str, **changes: Any) -> Json:
        """Change ``title``, ``labels``, ``metadata``, ``wake``."""
        return self._one("PATCH", f"/v1/sessions/{part(session_id)}", body=changes)

    def close_session(self, session_id: str, *, cancel: bool = False) -> Json:
        """Take no more runs. Raises Conflict while a run is active, unless ``cancel``."""
        params = {"cancel": "true"} if cancel else None
        return self._one("DELETE", f"/v1/sessions/{part(session_id)}", params=params)

    def session_queue(self, session_id: str) -> list[Json]:
        """Queued and active runs in the order in which they will run."""
        return self._list(f"/v1/sessions/{part(session_id)}/queue", {})

    def pause_session(self, session_id: str) -> Json:
        """Start no further run until ``resume_session``."""
        return self._one("POST", f"/v1/sessions/{part(session_id)}/pause")

    def resume_session(self, session_id: str, *, unkillable: bool = False) -> Json:
        """Undo ``pause_session``; ``unkillable``: also the hold for a process that could not be killed."""
        params = {"unkillable": "true"} if unkillable else None
        return self._one("POST", f"/v1/sessions/{part(session_id)}/resume", params=params)

    # --- runs -------------------------------------------------------------------------------------------------------

    def submit(
        self,
        session_id: str,
        input: str,  # noqa: A002 - the name of the field in the interface
        *,
        run_class: str | None = None,
        delay: timedelta | float | None = None,
        run_at: datetime | None = None,
        timeout: timedelta | float | None = None,
        deadline: datetime | None = None,
        start_timeout: timedelta | float | None = None,
        idle_timeout: timedelta | float | None = None,
        step_timeout: timedelta | float | None = None,
        max_retries: int | None = None,
        retry: Mapping[str, Any] | None = None,
        order: str | None = None,
        priority: int | None = None,
        recovery: Mapping[str, Any] | None = None,
        on_busy: str | None = None,
        parent_run_id: str | None = None,
        command: bool = False,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Json:
        """Accept a run; when this returns, its row is committed. ``{id, status, position, replayed}``.

        ``timeout``: of one attempt, ``deadline``: of all of it, ``start_timeout``: until its first start,
        ``idle_timeout``: without progress, ``step_timeout``: of a step that names none of its own.

        ``max_retries``: further attempts after failed ones (left out: what the agent's profile says), ``retry``: their
        pauses (``initial_seconds``, ``factor``, ``max_seconds``, ``jitter``) and error codes (``on``), ``order``: the
        session waits meanwhile (``strict``) or goes on (``skip_failed``). ``priority`` (-100 to 100): higher ones start
        first among runs of their class and workspace; the order within a session stays.

        ``recovery``: what becomes of it when its worker is lost (``strategy``, ``max_attempts``); what is left out the
        profile, the workspace or the deployment says.

        ``command``: the text may be a command of the agent's program (``/compact``); without it such a text fails the
        run with ``command_refused``, or arrives as a text.

        Repeats after a lost answer find the same run, by the key given or one made here. Raises Conflict
        (``session_busy``, ``idempotency_conflict``), LimitReached, NotFound, InvalidRequest, PayloadTooLarge.
        """
        fields: Json = {"class": run_class, "delay_seconds": seconds(delay), "run_at": moment(run_at)}
        body = given(
            input=input,
            timeout_seconds=seconds(timeout),
            deadline=moment(deadline),
            start_timeout_seconds=seconds(start_timeout),
            idle_timeout_seconds=seconds(idle_timeout),
            step_timeout_seconds=seconds(step_timeout),
            max_retries=max_retries,
            retry=retry or None,
            recovery=recovery or None,
            order=order,
            priority=priority,
            on_busy=on_busy,
            parent_run_id=parent_run_id,
            command=command or None,
            metadata=metadata,
            **fields,
        )
        headers = {"idempotency-key": idempotency_key or new_key()}
        response = self._api.call("POST", f"/v1/sessions/{part(session_id)}/runs", body=body, headers=headers)
        return {**response.json(), "replayed": response.headers.get("idempotent-replayed") == "true"}

    def submit_many(self, items: Sequence[SubmitItem]) -> list[Json]:
        """Up to 1,000 runs at once; per item the run, or ``{"error": problem}``. Order inside a session is kept."""
        body = {"items": [_item(item) for item in items]}
        answer: list[Json] = self._api.json("POST", "/v1/runs:batch", body=body)["items"]
        return answer

    def run(self, run_id: str) -> Json:
        """One run. Raises NotFound."""
        return self._one("GET", f"/v1/runs/{part(run_id)}")

    def runs(self, *, limit: int | None = None, **filters: Any) -> list[Json]:
        """Runs, newest first. Filters: status, workspace, session, parent, error_code, recovery_state, run_class,
        created_after."""
        if "run_class" in filters:
            filters["class"] = filters.pop("run_class")
        return self._list("/v1/runs", filters, limit=limit)

    def wait(self, run_id: str, *, timeout: timedelta | float | None = None) -> Json:
        """The run once it is terminal. Raises TimeoutError; the run goes on then."""
        deadline = None if timeout is None else time.monotonic() + (seconds(timeout) or 0.0)
        run = self.run(run_id)
        last = None
        while run["status"] not in TERMINAL:
            for event in follow(self._api, _run_events(run_id), after=last, deadline=deadline, ends=RUN_ENDS):
                last = event.number
            run = self.run(run_id)
        return run

    def stream(
        self,
        id: str,  # noqa: A002 - a run's or a session's
        *,
        after: int | None = None,
        timeout: timedelta | float | None = None,
    ) -> Iterator[Event]:
        """Events of a run (ends after its terminal event) or of a session (never ends), from ``after`` on.

        Reconnects by itself and goes on where it was, without gap or repeat. An event of type ``reset`` says that
        older ones are gone. Raises TimeoutError, NotFound.
        """
        deadline = None if timeout is None else time.monotonic() + (seconds(timeout) or 0.0)
        if id.startswith("ses"):
            return follow(self._api, f"/v1/sessions/{part(id)}/events", after=after, deadline=deadline)
        return follow(self._api, _run_events(id), after=after, deadline=deadline, ends=RUN_ENDS)

    def steer(self, session_id: str, text: str, *, idempotency_key: str | None = None) -> Json:
        """Say a text into the session's live run; a run of its own where nothing is active.

        ``delivery``: ``delivered`` (its terminal has shown the text), ``unverified`` (typed, not proved) or ``queued``
        (it became the run ``id``). Raises Conflict ``steer_unsupported``, Unavailable when the worker is silent.
        """
        return self.submit(session_id, text, on_busy="steer", idempotency_key=idempotency_key)

    def cancel(self, run_id: str, *, grace: timedelta | float | None = None, force: bool = False) -> Json:
        """Ask for the end of a run: a queued one is cancelled at once, an active one by its worker; its children too.

        ``result``: ``removed``, ``signalled`` or ``too_late``. ``grace``: when its agent is killed should it not have
        ended by then; ``force``: at once. Left out: after the graces of the worker's ladder.
        """
        body = given(grace_seconds=seconds(grace), force=force or None)
        return self._one("POST", f"/v1/runs/{part(run_id)}/cancel", body=body or None)

    def note(self, run_id: str, note: str) -> Json:
        """Write an operator's note on a run."""
        return self._one("PATCH", f"/v1/runs/{part(run_id)}", body={"note": note})

    def result(self, run_id: str) -> Json:
        """``{status, output, exit_code, error}``; ``output`` is the agent's answer as text."""
        return self._one("GET", f"/v1/runs/{part(run_id)}/result")

    def output(self, run_id: str) -> str:
        """The whole answer, also where ``result`` shows only a part of it. Raises NotFound ``no_output``."""
        return self._api.call("GET", f"/v1/runs/{part(run_id)}/output").text

    def attempts(self, run_id: str) -> list[Json]:
        """Every execution of the run, and why it was started."""
        return self._list(f"/v1/runs/{part(run_id)}/attempts", {})

    def recording(self, run_id: str, *, attempt: int | None = None, text: bool = False) -> bytes:
        """The asciicast of an attempt (the last one by default), or what it showed as plain text. Raises NotFound
        ``no_recording``."""
        params = {"attempt": attempt, "format": "text" if text else None}
        return self._api.call("GET", f"/v1/runs/{part(run_id)}/transcript", params=params).content

    # --- fleet ------------------------------------------------------------------------------------------------------

    def recovery(self) -> Json:
        """What recovery did: counts, quarantine, latest times, main reasons."""
        return self._one("GET", "/v1/recovery")

    def diagnosis(self, *, waiting_seconds: float | None = None, limit: int | None = None) -> Json:
        """What has not moved for too long: silent owners, unheeded cancels, unkillable sessions, runs that wait."""
        return self._one("GET", "/v1/diagnosis", params=given(waiting_seconds=waiting_seconds, limit=limit))

    def controller(self) -> Json:
        """Leader and epoch."""
        return self._one("GET", "/v1/controller")

    def agents(self) -> list[Json]:
        """Agent programs that sessions may be created for."""
        return self._list("/v1/agents", {})

    # --- health -----------------------------------------------------------------------------------------------------

    def health(self) -> Json:
        """The process is alive."""
        return self._one("GET", "/healthz")

    def ready(self) -> Json:
        """The process can serve. Raises Unavailable otherwise."""
        return self._one("GET", "/readyz")

    def metrics(self) -> str:
        """The exposition for Prometheus."""
        return self._api.call("GET", "/metrics").text


def new_key() -> str:
    """An idempotency key."""
    return uuid.uuid4().hex


def _run_events(run_id: str) -> str:
    return f"/v1/runs/{part(run_id)}/events"


def _item(item: SubmitItem) -> Json:
    fields: Json = dict(item)
    if "run_class" in fields:
        fields["class"] = fields.pop("run_class")
    fields.setdefault("idempotency_key", new_key())
    return fields
