"""Whom the keeper looks at often. While there is nobody, it sleeps until it is time to look at all of them.

For the loop's thread. Who is noted wakes the keeper; who is neither slow nor unknown any more is dropped when it is
looked at.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Generic, TypeVar

Of = TypeVar("Of")


class Attention(Generic[Of]):
    """One of the process."""

    def __init__(self) -> None:
        self.unsent: set[Of] = set()
        """Something waits to go out to them."""
        self.nameless: set[Of] = set()
        """They have to say who they are."""
        self.keyed: set[Of] = set()
        """They have shown a key that may end."""
        self._bell = asyncio.Event()

    @property
    def closely(self) -> bool:
        """Whether somebody has to be looked at often."""
        return bool(self.unsent or self.nameless)

    def note(self, among: set[Of], who: Of) -> None:
        """From now on."""
        if who not in among:
            among.add(who)
            self._bell.set()

    def forget(self, who: Of) -> None:
        """It has gone."""
        for among in (self.unsent, self.nameless, self.keyed):
            among.discard(who)

    async def rest(self, seconds: float) -> None:
        """Until somebody is noted, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._bell.wait(), seconds)
        self._bell.clear()
