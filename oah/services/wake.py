"""Waking: the broker hears of the wakes that messages have made, and what time and crashes left undone is done.

The wake itself is a row, written with the message. Everything here is a hint or a repetition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId, SessionId, WorkspaceId
from oah.core.policy.wake import Rules
from oah.errors import LeaseError, Unavailable
from oah.ports.broker import Broker
from oah.ports.mailboxes import Sent
from oah.ports.messages import MailSwept, Woken
from oah.ports.store import Accepted, Store
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions
from oah.services.submit import hear


@dataclass(frozen=True, slots=True)
class TellAgents:
    """What follows a send to agents, in whatever process sent: wakes are heard of, live turns are spoken into, streams
    are told. Losing it costs the relay's, the heartbeat's or a tailer's next look."""

    store: Store
    broker: Broker
    epoch: Callable[[], EpochId | None]

    def __call__(self, sent: Sequence[Sent]) -> None:
        """After the commit."""
        with contextlib.suppress(Unavailable, LeaseError):
            hear(self.broker, self.store, self.epoch(), [each.wake for each in sent if each.wake is not None])
            if owners := {each.look for each in sent if each.look is not None}:
                self.broker.look(owners, quick=True)
            newest: dict[SessionId, int] = {}
            for each in sent:
                if each.session_id is not None and each.event_number:
                    newest[each.session_id] = max(each.event_number, newest.get(each.session_id, 0))
            if newest:
                self.broker.publish(list(newest.items()))


def wake(
    store: Store,
    broker: Broker,
    epoch: EpochId | None,
    session_id: SessionId,
    workspace_id: WorkspaceId | None,
    *,
    by: str,
) -> Woken:
    """By hand. Raises NotFound, Conflict ``session_closed``, Unavailable (the store)."""
    woken = store.wake_session(session_id, workspace_id, by=by)
    with contextlib.suppress(Unavailable, LeaseError):
        if woken.accepted is not None:
            hear(broker, store, epoch, [woken.accepted])
        elif woken.number:
            broker.publish([(session_id, woken.number)])
    return woken


@dataclass(frozen=True, slots=True)
class TendMessages:
    """A leader's duty, once a second. ``overdue``: how long a message may be queued although its recipient is ready."""

    store: Store
    broker: Broker
    telemetry: Telemetry
    decisions: Decisions
    rules: Rules
    overdue: timedelta
    limit: int = 500

    def __call__(self, epoch: EpochId) -> MailSwept:
        """One bounded pass. Raises Unavailable; what the broker did not hear of the relay repeats."""
        swept = self.store.sweep_messages(self.rules, limit=self.limit)
        for what, count in (("expired", swept.expired), ("dead", swept.dead), ("returned", swept.returned)):
            if count:
                self.telemetry.count("oah_agent_messages_ended_total", count, what=what)
        for session_id in swept.stopped:
            self.telemetry.count("oah_wakes_stopped_total")
            self.decisions.note("wake", session_id, "stopped", "too many wakes failed in a row")
        self._hear(epoch, swept.wakes)
        if swept.told:
            self.broker.publish(list(swept.told))
        return swept

    def watch(self) -> int:
        """Messages that nobody delivers although their recipient is ready; how many."""
        late = self.store.overdue_messages(longer_than=self.overdue)
        count = sum(each.count for each in late)
        self.telemetry.gauge("oah_messages_overdue", count)
        for each in late:
            why = f"{each.count} messages wait, the oldest for {each.oldest.total_seconds():.0f} s"
            self.decisions.note("message", each.session_id, "overdue", why)
        return count

    def clear(self) -> None:
        """The figure is another's now."""
        self.telemetry.gauge("oah_messages_overdue", 0)

    def _hear(self, epoch: EpochId, wakes: Sequence[Accepted]) -> None:
        for each in wakes:
            self.telemetry.count("oah_wakes_repaired_total")
            self.decisions.note("wake", each.run.session_id, "made", "messages wait", run_id=each.run.id)
        hear(self.broker, self.store, epoch, wakes)
