"""Workers of this machine as a `ScaleTarget`."""

from __future__ import annotations

from collections.abc import Sequence

from oah.adapters.processes.roster import Entry, Roster
from oah.errors import Conflict, Unavailable
from oah.ports.scaling import TargetState


class ProcessTarget:
    """Workers are known by their names. Who goes is who is named: nobody else is ever taken."""

    name = "processes"

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def read(self) -> TargetState:
        """Raises Unavailable where nobody supervises."""
        entry = self._roster.read()
        if not self._roster.supervised():
            raise Unavailable(
                f"whoever supervised the workers of pool '{self._roster.pool}' on this machine has ended",
                code="no_supervisor",
                hint="`oah up --workers MIN..MAX` or `oah worker supervise`, with the controller's data directory",
            )
        pids = self._roster.running()
        members = {name: f"pid {pids[name]}" if name in pids else "starting" for name in entry.members}
        return TargetState(
            size=len(entry.members),
            members=members,
            settled=set(pids) == set(members),
            host=entry.host,
            detail={"version": entry.version, "prefix": entry.prefix},
        )

    def choose(self, state: TargetState, idle: Sequence[str], count: int) -> Sequence[str]:
        """As it is wished; then the latest."""
        wanted = [name for name in idle if name in state.members]
        return [*wanted, *(name for name in reversed(list(state.members)) if name not in wanted)][:count]

    def resize(self, state: TargetState, size: int, *, victims: Sequence[str] = ()) -> None:
        """Raises Unavailable: it has changed meanwhile, or more would have to go than are named."""
        members = [name for name in state.members if name not in victims]
        if len(members) > size:
            raise Unavailable("would take workers that are not known to be empty", code="victims_uncertain")
        entry = Entry(tuple(state.members), state.detail["version"], state.detail["prefix"], state.host)
        # A name is free when its process has ended: it has a directory that only one may use.
        taken = {*state.members, *self._roster.running()}
        number = 1
        while len(members) < size:
            name = f"{entry.prefix}-{number}"
            if name not in taken:
                members.append(name)
            number += 1
        try:
            self._roster.change(entry, members)
        except Conflict as error:
            raise Unavailable(error.message, code=error.code) from error

    def close(self) -> None:
        """It holds nothing."""
