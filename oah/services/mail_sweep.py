"""Sweep mailboxes: let time do what it does to messages, mailboxes and leases, and tell who reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.ports.broker import Signals
from oah.ports.mailboxes import AGAIN, GONE, MailboxStore, Sent, Swept
from oah.ports.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class SweepMail:
    """A leader's loop; two at once do no harm. ``for_agents`` hears of delayed messages that agents have now."""

    store: MailboxStore
    signals: Signals
    telemetry: Telemetry
    for_agents: Callable[[Sequence[Sent]], None] = lambda sent: None
    limit: int = 500

    def __call__(self) -> timedelta | None:
        """One bounded pass; zero when there may be more to do. Raises Unavailable."""
        swept = self.store.sweep_mail(limit=self.limit)
        self._count(swept)
        hints = [(mailbox_id, number or AGAIN) for mailbox_id, number in swept.changed]
        self.signals.publish_mail([*hints, *((mailbox_id, GONE) for mailbox_id in swept.gone)])
        if swept.sent:
            self.for_agents(swept.sent)
        full = max(swept.mailboxes, swept.messages, swept.due, swept.freed) >= self.limit
        return timedelta(0) if full else None

    def measure(self) -> None:
        """How much there is."""
        figures = self.store.mail_figures()
        self.telemetry.gauge("oah_mailboxes", figures.mailboxes)
        self.telemetry.gauge("oah_mailbox_messages", figures.messages)

    def clear(self) -> None:
        """No longer leader: the figures are another's now."""
        self.telemetry.forget("oah_mailboxes")
        self.telemetry.forget("oah_mailbox_messages")

    def _count(self, swept: Swept) -> None:
        self.telemetry.count("oah_messages_expired_total", swept.messages)
        self.telemetry.count("oah_messages_due_total", swept.due)
        self.telemetry.count("oah_message_leases_ended_total", swept.freed)
        self.telemetry.count("oah_mailboxes_expired_total", swept.mailboxes)
