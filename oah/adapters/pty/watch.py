"""Between two slices of waiting: is the run cancelled, has its time passed, has its program ended? And the steps that
follow."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from datetime import timedelta

from oah.core.dialogue.ladder import Rung, due
from oah.core.dialogue.limits import Elapsed, Limits, passed
from oah.core.dialogue.progress import Progress
from oah.core.model.timeout import TimeoutReason
from oah.errors import AgentError, LeaseError
from oah.ports.agent import TurnControl, TurnRequest
from oah.ports.terminal import AgentHost, AgentProcess, ExitCause

_KEY_SECONDS = timedelta(seconds=0.5)
CPU_SHARE = 0.05
"""Of one processor: a tree that uses less between two looks only waits, or redraws its spinner."""
CPU_LOOKS = 8
"""Looks at the tree's processor time within an idle time-out."""

_log = logging.getLogger(__name__)


class Watch:
    """Over one turn of one process."""

    def __init__(
        self,
        host: AgentHost,
        process: AgentProcess,
        request: TurnRequest,
        control: TurnControl,
        *,
        key: str,
        again: timedelta | None = None,
        limits: Limits,
        cpu_seconds: Callable[[], float] | None = None,
    ) -> None:
        """`again`: when the interrupt key is pressed once more.

        `cpu_seconds`: what the tree has used so far, where that counts as progress."""
        self._host = host
        self._process = process
        self._request = request
        self._control = control
        self._key = key
        self._again = again
        self._limits = limits
        self._begun = self._progress_at = time.monotonic()
        self._progress = Progress()
        self._cpu = cpu_seconds
        self._cpu_last: tuple[float, float] | None = None
        self._cancelled_at: float | None = None
        self._rung = Rung.NONE
        self.timed_out: TimeoutReason | None = None
        self.killed = False
        self.empty = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled_at is not None

    @property
    def signalled(self) -> bool:
        """The cancel has gone beyond the interrupt key."""
        return self._rung > Rung.KEY

    def over(self) -> bool:
        """Whether the turn ends here: its tree was killed, or its program ended. Takes the rungs of a cancel that are
        due."""
        if self.killed or self._process.exited() is not None:
            return True
        now = time.monotonic()
        self.timed_out = self._passed(now)
        if self.timed_out is not None:
            self.kill()
        elif self._cancelled_at is None and self._control.cancel_requested():
            self._cancelled_at = now
        if self._cancelled_at is not None and not self.killed:
            self._climb(timedelta(seconds=now - self._cancelled_at))
        return self.killed

    def heard(self, text: str) -> None:
        """What the terminal says: progress, or only something that moves."""
        if self._limits.idle is not None and self._progress.feed(text):
            self._progress_at = time.monotonic()

    def progressed(self) -> None:
        """Progress was seen."""
        self._progress_at = time.monotonic()

    def _passed(self, now: float) -> TimeoutReason | None:
        overdue = self._control.overdue()
        if overdue is not None:
            return overdue
        self._look_at_cpu(now)
        idle = timedelta(seconds=now - self._progress_at)
        reason = passed(self._limits, Elapsed(turn=timedelta(seconds=now - self._begun), idle=idle))
        return reason if reason is not TimeoutReason.IDLE or self._idle(idle, now) else None

    def _idle(self, seen: timedelta, now: float) -> bool:
        """Whether nothing else was heard from the run either."""
        quiet = self._control.idle_for(seen)
        if quiet is None:
            return False
        self._progress_at = now - quiet.total_seconds()
        return self._limits.idle is not None and quiet >= self._limits.idle

    def _look_at_cpu(self, now: float) -> None:
        limit = self._limits.idle
        if self._cpu is None or limit is None:
            return
        if self._cpu_last is not None and now - self._cpu_last[0] < limit.total_seconds() / CPU_LOOKS:
            return
        used, last = self._cpu(), self._cpu_last
        self._cpu_last = (now, used)
        if last is not None and used - last[1] >= CPU_SHARE * (now - last[0]):
            self._progress_at = now

    def _climb(self, elapsed: timedelta) -> None:
        ladder = self._request.ladder
        rung = due(elapsed, key=ladder.key, interrupt=ladder.interrupt, terminate=ladder.terminate)
        limit = self._control.kill_after()
        if limit is not None and elapsed >= limit:
            self._rung = rung = Rung.KILL
            self._take(rung)
        while self._rung < rung:
            self._rung = Rung(self._rung + 1)
            self._take(self._rung)
        if self._rung is Rung.KEY and self._again is not None and elapsed >= self._again:
            self._again = None
            self._take(Rung.KEY)

    def _take(self, rung: Rung) -> None:
        _log.info("agent %s: cancel by %s", self._process.agent_id, rung.name.lower())
        match rung:
            case Rung.KEY:
                try:
                    self._process.terminal.write(self._key.encode(), _KEY_SECONDS)
                except AgentError as error:
                    _log.info("agent %s does not take its interrupt key: %s", self._process.agent_id, error)
            case Rung.INTERRUPT:
                self._host.signal(self._process.agent_id, signal.SIGINT)
            case Rung.TERMINATE:
                self._host.signal(self._process.agent_id, signal.SIGTERM)
            case Rung.KILL | Rung.NONE:
                self.kill()

    def kill(self) -> None:
        """Now, the whole tree, verified."""
        self.killed = True
        self.empty = self._host.kill(self._process.agent_id)

    def refuse_fenced(self) -> None:
        """Raises LeaseError when the deadman ended it: the session may already be somebody else's."""
        notice = self._process.exited()
        if notice is not None and notice.cause in (ExitCause.DEADLINE, ExitCause.LATE):
            raise LeaseError(f"the deadman killed agent {notice.agent_id} ({notice.cause})", code="fenced")
