"""Say a text into the live run of a session: what became of it, and what to do where it came too late.

The submit has written a command under the id of the run that the text would otherwise have become. Its worker takes it
once, says it once and answers once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import OnBusy, ReadyClass, Run
from oah.core.model.session import Session
from oah.errors import Conflict, NotFound, Unavailable
from oah.ports.broker import Broker
from oah.ports.commands import Delivery
from oah.ports.store import Accepted, NewRun, Store

SILENT = "worker_silent"
"""No worker took the text, and none will."""
PATIENCE = timedelta(seconds=10)
"""How long the asker waits for the worker's answer; longer than the worker needs (``worker/speaker.py``)."""


def call(store: Store, broker: Broker, accepted: Accepted) -> int:
    """Tell the owner of the run to look; the number after which the session's events may bring the answer."""
    owner = accepted.run.worker_id
    if owner is not None and not accepted.replayed:
        try:
            broker.look([owner], quick=True)
        except Unavailable:
            pass  # it reads its commands with every heartbeat
    return store.session(accepted.run.session_id, None).event_seq


def answer(store: Store, request: RunId) -> Delivery | None:
    """What is known now. Raises NotFound, Unavailable."""
    spoken = store.spoken(request)
    if spoken is None:
        raise NotFound(f"nothing was said under {request}")
    return spoken.answer


def last_answer(store: Store, request: RunId) -> Delivery:
    """The answer once patience is at its end. Raises Unavailable: no worker took it, nothing was and will be said."""
    spoken = store.spoken(request)
    if spoken is None:
        raise NotFound(f"nothing was said under {request}")
    if spoken.answer is not None:
        return spoken.answer
    if not spoken.taken and store.withdraw_command(spoken.command_id):
        raise Unavailable("the run's worker does not answer; nothing was said", code=SILENT)
    return answer(store, request) or Delivery.UNVERIFIED


def instead(new: NewRun, request: RunId) -> NewRun:
    """The run that the text becomes because it missed the live one: under the id that the request has."""
    return replace(new, id=request, on_busy=OnBusy.ENQUEUE, idempotency_key=None, request_hash=None)


def refusal(session_id: SessionId) -> Conflict:
    """Its agent cannot be spoken to while it works."""
    return Conflict(
        f"the agent of session {session_id} takes no text while it works",
        code="steer_unsupported",
        hint="use on_busy=enqueue or interrupt",
    )


def made_before(run: Run, session: Session) -> Accepted:
    """The run that an earlier repetition has made of the text."""
    return Accepted(run, session.lane, ReadyClass(run.run_class.value), None, 0, replayed=True)
