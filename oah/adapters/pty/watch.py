"""Between two slices of waiting: is the run cancelled, has its time passed, has its program ended? And the steps that
follow."""

from __future__ import annotations

import logging
import signal
import time
from datetime import timedelta

from oah.core.dialogue.ladder import Rung, due
from oah.errors import AgentError, LeaseError
from oah.ports.agent import TurnControl, TurnRequest
from oah.ports.terminal import AgentHost, AgentProcess, ExitCause

_KEY_SECONDS = timedelta(seconds=0.5)

_log = logging.getLogger(__name__)


class Watch:
    """Over one turn of one process."""

    def __init__(
        self, host: AgentHost, process: AgentProcess, request: TurnRequest, control: TurnControl, *, key: str
    ) -> None:
        self._host = host
        self._process = process
        self._request = request
        self._control = control
        self._key = key
        self._begun = time.monotonic()
        self._cancelled_at: float | None = None
        self._rung = Rung.NONE
        self.timed_out = False
        self.killed = False
        self.empty = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled_at is not None

    def over(self) -> bool:
        """Whether the turn ends here: its tree was killed, or its program ended. Takes the rungs of a cancel that are
        due."""
        if self.killed or self._process.exited() is not None:
            return True
        now = time.monotonic()
        timeout = self._request.timeout
        if timeout is not None and now - self._begun >= timeout.total_seconds():
            self.timed_out = True
            self.kill()
        elif self._cancelled_at is None and self._control.cancel_requested():
            self._cancelled_at = now
        if self._cancelled_at is not None and not self.killed:
            self._climb(timedelta(seconds=now - self._cancelled_at))
        return self.killed

    def _climb(self, elapsed: timedelta) -> None:
        ladder = self._request.ladder
        rung = due(elapsed, key=ladder.key, interrupt=ladder.interrupt, terminate=ladder.terminate)
        while self._rung < rung:
            self._rung = Rung(self._rung + 1)
            self._take(self._rung)

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
