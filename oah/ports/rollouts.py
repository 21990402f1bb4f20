"""Rolling restarts: a row says all, so that whoever leads goes on with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from oah.core.model.drain import Drain
from oah.core.model.ids import WorkerId
from oah.core.model.rollout import Member, Rollout, RolloutRules
from oah.ports.commands import CommandKind
from oah.ports.rows import Page


@dataclass(frozen=True, slots=True)
class Order:
    """A command that follows from a step."""

    worker_id: WorkerId
    kind: CommandKind
    drain: Drain | None = None


class RolloutStore(Protocol):
    """Rows of SQL."""

    def create_rollout(
        self, rollout_id: str, pool: str, members: Sequence[Member], rules: RolloutRules, *, by: str, reason: str | None
    ) -> Rollout:
        """With an audit row. Raises Conflict ``rollout_open``: one of the pool goes on."""
        ...

    def rollout(self, rollout_id: str) -> Rollout:
        """Raises NotFound."""
        ...

    def rollouts(self, *, pool: str | None = None, cursor: str | None = None, limit: int = 100) -> Page[Rollout]:
        """Newest first."""
        ...

    def open_rollouts(self) -> list[Rollout]:
        """Those that go on, oldest first."""
        ...

    def save_rollout(self, rollout: Rollout, orders: Sequence[Order], *, by: str) -> bool:
        """Write where it stands together with the commands that follow, and an audit row at its end. False, and
        nothing is written: somebody else has moved it since it was read."""
        ...
