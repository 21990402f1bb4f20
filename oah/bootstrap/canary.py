"""Tries an agent program as a worker would use it: found, of a known version, started, ready, spoken to, left.

A bird in a mine: an update of the program that its profile does not fit is to be found here, not in somebody's run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.pty.agents import Surroundings
from oah.adapters.pty.factory import Opened, PtyAgents
from oah.adapters.pty.host import PtyHost
from oah.adapters.pty.programs import Programs
from oah.adapters.pty.recording import RecordingWriter
from oah.adapters.pty.screen_agent import ScreenAgent
from oah.adapters.system.clock import SystemClock
from oah.core.dialogue.profile import Kind, Profile
from oah.core.dialogue.reading import Condition
from oah.core.model.question import Question
from oah.core.model.timeout import TimeoutReason
from oah.errors import OahError
from oah.ports.agent import AgentSpec, TurnRequest, TurnResult, TurnStatus

MISMATCH = "adapter_mismatch"
"""The program does not do what its profile says."""

TEXTS = ("Answer with the one word PERIWINKLE and nothing else.", "Which one word did you just answer? Only the word.")
"""Harmless, cheap, and the second shows whether it is one conversation."""

_MISFITS = frozenset({"agent_not_ready", "delivery_failed", "delivery_unconfirmed", "no_reply"})
_LEAVE = timedelta(seconds=5)
_LIFE = timedelta(minutes=5)


@dataclass(kw_only=True)
class Report:
    """What was found. `fault`: a stable name, None when all is well; `reason` says more, `screen` shows it."""

    profile: str
    kind: str
    program: str | None = None
    path: str | None = None
    version: str | None = None
    warning: str | None = None
    ready_seconds: float | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    fault: str | None = None
    reason: str | None = None
    screen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`env`: as a session's. `home`: None for one that is thrown away. `converse`: two turns, which need a model.
    `patience`: for the start, and for each turn."""

    path: str
    env: Mapping[str, str] = field(default_factory=dict)
    home: Path | None = None
    converse: bool = False
    patience: timedelta = timedelta(seconds=90)


def try_agent(profile: Profile, trial: Trial) -> Report:
    """The whole trial. Nothing of it stays but what the program wrote into a given home."""
    path = trial.env.get("PATH", trial.path)
    found = Programs(path).look(profile)
    report = Report(
        profile=profile.name,
        kind=str(profile.kind),
        program=found.program,
        path=found.path,
        version=found.version,
        warning=found.mismatch,
    )
    if found.fault is not None:
        report.fault, report.reason = "program_not_found", found.fault
    elif profile.kind is not Kind.NOOP:
        with _desk(profile, trial, path) as desk:
            desk.fill(report)
    return report


@contextlib.contextmanager
def _desk(profile: Profile, trial: Trial, path: str) -> Iterator[_Desk]:
    """A PTY host and everything below one directory, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="oah-c-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        host = PtyHost(state_dir=directory / "host", worker_id="canary", margin=timedelta(seconds=5))
        writer = RecordingWriter()
        writer.start()
        host.start()
        try:
            around = Surroundings(host, DirectoryBlobs(directory / "blobs"), writer, directory / "scratch", path=path)
            chosen = replace(profile, ready=min(profile.ready, trial.patience))
            agents = PtyAgents({profile.name: chosen}, around)
            agents.prepare()
            yield _Desk(agents, chosen, trial, directory)
        finally:
            host.stop()
            writer.stop()


class _Desk:
    """One trial."""

    def __init__(self, agents: PtyAgents, profile: Profile, trial: Trial, directory: Path) -> None:
        self._agents, self._profile, self._trial, self._directory = agents, profile, trial, directory
        self._ref: str | None = None

    def fill(self, report: Report) -> None:
        """Start it; talk, if that is wished; leave."""
        agent: Opened | None = None
        try:
            begun = time.monotonic()
            agent = self._open()
            report.ready_seconds = round(time.monotonic() - begun, 2)
            self._look(agent, report)
            for number, text in enumerate(TEXTS if self._trial.converse and report.fault is None else ()):
                if agent is None:
                    agent = self._open()
                self._say(agent, number, text, report)
                if report.fault is not None:
                    break
                if not agent.alive():
                    self._closed(agent, report)
                    agent = None
        except OahError as error:
            report.fault, report.reason = MISMATCH if error.code in _MISFITS else error.code, error.message
        finally:
            if agent is not None:
                self._closed(agent, report)

    def _open(self) -> Opened:
        work = self._directory / "work"
        work.mkdir(exist_ok=True)
        deadline = SystemClock().boottime() + (_LIFE + 3 * self._trial.patience).total_seconds()
        return self._agents.open(
            AgentSpec(
                agent_id=f"canary-{time.monotonic_ns()}",
                session_id="canary",
                workspace_id="canary",
                profile=self._profile.name,
                run_id="canary",
                attempt=1,
                worker_id="canary",
                cwd=str(work),
                home=str(self._trial.home or self._directory / "home"),
                deadline_boottime=deadline,
                env=self._trial.env,
                session_ref=self._ref,
            )
        )

    def _look(self, agent: Opened, report: Report) -> None:
        """A start that was let through is not yet one that was understood."""
        if not isinstance(agent, ScreenAgent):
            return
        reading = agent.screen.read()
        if reading.condition is Condition.UNRECOGNISED:
            report.fault, report.reason = MISMATCH, "no rule of the profile recognises its start"
        elif reading.dialog is not None:
            report.fault, report.reason = "agent_asks", f"it asks: {reading.dialog.name}"
        if report.fault is not None:
            report.screen = agent.snapshot().text

    def _say(self, agent: Opened, number: int, text: str, report: Report) -> None:
        agent.bind(run_id=f"canary-{number}", attempt=1)
        request = TurnRequest(run_id=f"canary-{number}", attempt=1, input=text, timeout=self._trial.patience)
        begun = time.monotonic()
        result = agent.turn(request, _Alone())
        self._ref = result.session_ref or self._ref
        seconds = round(time.monotonic() - begun, 2)
        report.turns.append({"status": str(result.status), "seconds": seconds, "reply": result.output[:500]})
        _judge(result, report)
        if report.fault is not None and isinstance(agent, ScreenAgent):
            report.screen = agent.snapshot().text

    def _closed(self, agent: Opened, report: Report) -> None:
        if not agent.close(_LEAVE) and report.fault is None:
            report.fault, report.reason = "agent_unkillable", "processes of it are left"


def _judge(result: TurnResult, report: Report) -> None:
    if result.status is TurnStatus.WAITING:
        name = result.question.name if result.question is not None else "something"
        report.fault, report.reason = "agent_asks", f"it asks: {name}"
    elif result.status is TurnStatus.TIMED_OUT:
        report.fault, report.reason = MISMATCH, "the end of a turn was not seen"
    elif result.status is not TurnStatus.COMPLETED:
        code = result.error_code or str(result.status)
        report.fault, report.reason = MISMATCH if code in _MISFITS else code, result.error_message
    elif not result.output.strip():
        report.fault, report.reason = MISMATCH, "no reply was found on its screen"


class _Alone:
    """ports.agent.TurnControl of somebody who only waits."""

    def cancel_requested(self) -> bool:
        return False

    def kill_after(self) -> timedelta | None:
        return None

    def overdue(self) -> TimeoutReason | None:
        return None

    def idle_for(self, seen: timedelta) -> timedelta | None:
        return seen

    def answer(self, question: Question) -> str | None:
        return None

    def on_output(self, text: str) -> None:
        pass


def path_here() -> str:
    """Where programs of this machine's user are found."""
    return os.environ.get("PATH", os.defpath)
