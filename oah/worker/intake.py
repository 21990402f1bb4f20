"""What a worker takes, and who listens for it: the claimer and the ear are told together."""

from __future__ import annotations

from collections.abc import Callable

from oah.worker.claimer import Claimer
from oah.worker.ear import Ear
from oah.worker.elastic import Elastic


class Intake:
    """From any thread. ``changed``: the registry is to hear of it."""

    def __init__(self, claimer: Claimer, ear: Ear, elastic: Elastic, *, changed: Callable[[], None]) -> None:
        self._claimer = claimer
        self._ear = ear
        self._changed = changed
        elastic.pressed, elastic.opened = self.press, self.opened
        elastic.taking = lambda: claimer.takes

    @property
    def cordoned(self) -> bool:
        """Whether somebody does not want it to take new runs."""
        return self._claimer.cordoned

    @property
    def taking(self) -> bool:
        """Whether it takes new runs when a slot is free."""
        return not (self._claimer.cordoned or self._claimer.pressed)

    def cordon(self, *, cordoned: bool) -> None:
        """Take no new runs, or take them again."""
        self._claimer.cordoned = cordoned
        self._turned()

    def press(self, *, under: bool) -> None:
        """The machine is under pressure, or no more."""
        self._claimer.pressed = under
        self._turned()

    def opened(self) -> None:
        """There are more slots."""
        self._turned()

    def freed(self) -> None:
        """A slot is idle again."""
        self._claimer.slot_freed(deaf=self._ear.deaf)
        self._ear.undeafen()

    def settled(self) -> None:
        """Outcomes that bounded the claims are gone."""
        if self._ear.deaf and self._claimer.wanted() > 0:
            self._ear.undeafen()

    def _turned(self) -> None:
        self._changed()
        self._claimer.hint()
        self._ear.nudge()
