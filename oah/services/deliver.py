"""Delivering: round after round of what one webhook is to be told, each try counted before it is sent.

At least once: a process that dies between a receiver's answer and its record sends again, under the same id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from oah.core.policy import signatures
from oah.core.policy.webhooks import TEST, Again, Delivered, GivenUp, Rules, Verdict, judge, pause
from oah.ports.clock import Clock, Ids
from oah.ports.http import HttpAnswer, HttpCall, HttpFailed, HttpSender
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.ports.webhooks import Round, Sending, Tried

log = logging.getLogger(__name__)

HOLD = timedelta(seconds=10)
"""Beyond its time-out, how long a try belongs to who took it: time to record it on a busy machine."""
SLICE = timedelta(seconds=5)
"""How long a webhook may go on before others have their turn."""
EXCERPT = 500
"""Characters of an answer that the log keeps."""


@dataclass(frozen=True, slots=True)
class DeliverWebhook:
    """The handler of the task ``webhook``. ``at_once``: deliveries of one round."""

    store: Store
    sender: HttpSender
    clock: Clock
    ids: Ids
    telemetry: Telemetry
    rules: Rules = field(default_factory=Rules)
    at_once: int = 16
    version: str = "0"
    going_on: Callable[[], bool] = field(default=lambda: True)

    def __call__(self, webhook_id: str) -> timedelta | None:
        """Rounds until nothing is due, the slice is used up or the process stops; when to come again, None when nothing
        is pending. Raises Unavailable: what was taken is tried again later."""
        until = self.clock.monotonic() + SLICE.total_seconds()
        while self.going_on() and self.clock.monotonic() < until:
            found = self.store.take_deliveries(webhook_id, limit=self.at_once, hold=HOLD)
            if not found.sendings:
                return found.wait
            left_alone = self._round(found)
            if left_alone is not None:
                return left_alone
        return timedelta(0)

    def _round(self, found: Round) -> timedelta | None:
        """Send and record. How long the webhook is left alone now; None: go on."""
        answers = self.sender.send_all([_call(found, each, self.version) for each in found.sendings])
        tried = [self._tried(each, answer) for each, answer in zip(found.sendings, answers, strict=True)]
        wait = pause(found.failures + 1, self.rules)
        off = self.store.end_deliveries(found.webhook_id, tried, pause=wait, off_after=self.rules.rounds)
        for each in tried:
            self.telemetry.count("oah_webhook_deliveries_total", outcome=_outcome(each.verdict))
        if off:
            log.warning("webhook %s was switched off: its receiver takes nothing", found.webhook_id)
            self.telemetry.count("oah_webhooks_switched_off_total")
        return None if any(isinstance(each.verdict, Delivered) for each in tried) else wait

    def _tried(self, sending: Sending, answer: HttpAnswer | HttpFailed) -> Tried:
        entry: dict[str, Any] = {"duration_ms": round(answer.duration.total_seconds() * 1_000)}
        status, retry_after = None, None
        match answer:
            case HttpAnswer():
                status, retry_after = answer.status, answer.retry_after
                entry |= {"status": status, "excerpt": answer.text[:EXCERPT]}
            case HttpFailed():
                entry |= {"error": f"{answer.fault}: {answer.message}"[:EXCERPT]}
        verdict = judge(
            status,
            tries=sending.tries,
            testing=sending.type == TEST,
            retry_after=retry_after,
            chance=self.ids.chance(),
            rules=self.rules,
        )
        return Tried(sending=sending, verdict=verdict, entry=entry)


def _outcome(verdict: Verdict) -> str:
    match verdict:
        case Delivered():
            return "delivered"
        case Again():
            return "retried"
        case GivenUp():
            return "failed"


def _call(found: Round, sending: Sending, version: str) -> HttpCall:
    body, timestamp = sending.body.encode(), int(sending.at.timestamp())
    headers = {
        "content-type": "application/json",
        "user-agent": f"oah-webhooks/{version}",
        "webhook-id": sending.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signatures.sign(found.secret, message_id=sending.id, timestamp=timestamp, body=body),
    }
    return HttpCall(found.url, body, headers, timeout=found.timeout)
