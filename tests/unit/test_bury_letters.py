"""The leader's look at the bound of dead letters: everywhere first, then where something came; readers are told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from oah.core.model.ids import SessionId, WorkspaceId
from oah.ports.dead_letters import Evicted, LetterKind
from oah.ports.telemetry import NullTelemetry
from oah.services.bury import LOOK_BACK, EvictLetters


class Store:
    """Answers evictions from a script."""

    def __init__(self, *answers: list[Evicted]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, timedelta | None]] = []

    def evict_dead_letters(self, *, keep: int, since: timedelta | None) -> list[Evicted]:
        self.asked.append((keep, since))
        return self.answers.pop(0) if self.answers else []

    def count_dead_letters(self) -> dict[LetterKind, int]:
        return {LetterKind.RUN: 3, LetterKind.POISON: 0}


class Broker:
    def __init__(self) -> None:
        self.published: list[tuple[str, int]] = []

    def publish(self, hints: Any) -> None:
        self.published += hints


class Telemetry(NullTelemetry):
    def __init__(self) -> None:
        self.levels: dict[str, float] = {}

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.levels[labels["kind"]] = value

    def forget(self, name: str, **labels: str) -> None:
        self.levels.clear()


def gone(number: int, session: str | None = "s1") -> Evicted:
    return Evicted(f"d{number}", WorkspaceId("w"), LetterKind.RUN, session and SessionId(session), number)


def test_everywhere_first_then_lately_and_everywhere_again_after_a_change_of_leaders() -> None:
    store, broker, telemetry = Store([gone(1), gone(0, None)], [gone(2)]), Broker(), Telemetry()
    evict = EvictLetters(store, broker, telemetry, 500)  # type: ignore[arg-type]
    assert [evict(), evict(), evict()] == [2, 1, 0], "a batch a call"
    assert store.asked == [(500, None)] * 3, "until nothing is left"
    assert broker.published == [("s1", 1), ("s1", 2)]
    assert evict() == 0
    assert store.asked[-1] == (500, LOOK_BACK)
    evict.begin()
    evict()
    assert store.asked[-1] == (500, None)
    assert telemetry.levels == {"run": 3, "poison": 0}
    evict.clear()
    assert telemetry.levels == {}
