"""Bury: what Redis could not read becomes a dead letter, and letters beyond the bound give way, where people see it.

Quarantined runs are buried by the transaction that quarantines them; this is the rest, which the leader does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta

from oah.ports.broker import Broker, PoisonValue
from oah.ports.dead_letters import NO_WORKSPACE, Evicted, LetterKind, NewLetter
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry

LOOK_BACK = timedelta(minutes=5)
"""A letter becomes visible a moment after its time; a leader that was away for longer looks everywhere first."""


@dataclass(slots=True)
class EvictLetters:
    """Keep at most ``keep`` dead letters of a workspace and kind, a batch a call: a bound that was lowered must not
    keep the leader from what is urgent. It looks everywhere until it found nothing once: there may have been nobody
    to look for a while. Raises Unavailable."""

    store: Store
    broker: Broker
    telemetry: Telemetry
    keep: int
    _looked: bool = False

    def __call__(self) -> int:
        """How many gave way."""
        evicted = self._evict(None if not self._looked else LOOK_BACK)
        self._looked = self._looked or not evicted
        for kind, count in self.store.count_dead_letters().items():
            self.telemetry.gauge("oah_dead_letters_now", count, kind=str(kind))
        return evicted

    def begin(self) -> None:
        """A new leadership."""
        self._looked = False

    def clear(self) -> None:
        """No longer leader: the figure is another's now."""
        self.telemetry.forget("oah_dead_letters_now")

    def _evict(self, since: timedelta | None) -> int:
        evicted = self.store.evict_dead_letters(keep=self.keep, since=since)
        self._publish(evicted)
        return len(evicted)

    def _publish(self, evicted: list[Evicted]) -> None:
        hints = [(each.session_id, each.number) for each in evicted if each.session_id is not None and each.number]
        if hints:
            self.broker.publish(hints)


@dataclass(frozen=True, slots=True)
class BuryPoison:
    """Carry values that were set aside from Redis into SQL. Written first, removed second: a death in between writes
    the same letter again, which changes nothing but its count. Raises Unavailable."""

    store: Store
    broker: Broker

    def __call__(self) -> int:
        """How many were carried."""
        found = self.broker.set_aside_values()
        for value in filter(lambda each: each.data, found):
            self.store.add_dead_letter(letter_of(value))
        return self.broker.drop_set_aside(found)


def letter_of(value: PoisonValue) -> NewLetter:
    """The same bytes under the same key are the same letter."""
    digest = hashlib.sha256(value.key.encode() + b"\0" + value.data).hexdigest()[:32]
    return NewLetter(
        id=f"dl_poison_{digest}",
        workspace_id=NO_WORKSPACE,
        kind=LetterKind.POISON,
        subject=digest,
        code="unreadable",
        reason=f"the value under {value.key} could not be read",
        payload={
            "key": value.key,
            "form": "dump" if value.dumped else "string",
            "size_bytes": value.size,
            "complete": value.complete,
            "kept_under": None if value.complete else value.place,
        },
        payload_bytes=value.data,
    )
