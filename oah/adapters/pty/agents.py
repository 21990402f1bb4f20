"""Agents in terminals: the factory, and what both kinds of agent share."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import oah
from oah.adapters.pty import scratch
from oah.adapters.pty.attendant import Attendant
from oah.adapters.pty.cpu import cpu_seconds
from oah.adapters.pty.hearing import Hearing
from oah.adapters.pty.host import PtyHost
from oah.adapters.pty.live import Live, Lives
from oah.adapters.pty.matching import Ended, Matcher
from oah.adapters.pty.process import PtyProcess
from oah.adapters.pty.recording import HEAD_BYTES, TAIL_BYTES, Recording, RecordingWriter
from oah.adapters.pty.resume import Conversation
from oah.adapters.pty.screen import ScreenModel
from oah.adapters.pty.spawning import FOR_MACHINES
from oah.adapters.pty.speech import Speech
from oah.adapters.pty.watch import Watch
from oah.core.dialogue.housing import limits
from oah.core.dialogue.limits import Limits
from oah.core.dialogue.outcome import Facts, judge
from oah.core.dialogue.profile import Profile
from oah.core.model.artifact import output_key, recording_key
from oah.core.model.ids import SessionId
from oah.errors import AgentError, Broken, Conflict, Unavailable
from oah.ports.agent import AgentSpec, TurnControl, TurnRequest, TurnResult, TurnStatus
from oah.ports.blobs import Blobs
from oah.ports.commands import Delivery
from oah.ports.opening import Opening
from oah.ports.terminal import ExitCause, SpawnSpec

DRAIN_SECONDS = 2.0
"""How long after an exit the rest of its output is read."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TYPED_RECORDED = 65536


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every agent of a worker uses. `scratch_root`: a directory that only this worker uses."""

    host: PtyHost
    blobs: Blobs
    writer: RecordingWriter
    scratch_root: Path
    path: str = DEFAULT_PATH
    head_bytes: int = HEAD_BYTES
    tail_bytes: int = TAIL_BYTES
    attendant: Attendant = field(default_factory=Attendant)
    lives: Lives = field(default_factory=Lives)


class PtyAgent:
    """One agent's directory, recording and end. Subclasses drive its turns."""

    model: ScreenModel | None = None
    """Its screen, where somebody draws it all the time."""
    live: Live | None = None

    def __init__(self, spec: AgentSpec, profile: Profile, around: Surroundings) -> None:
        self.spec, self.profile, self.around = spec, profile, around
        self.nonce = secrets.token_hex(8)
        self.scratch = around.scratch_root / self.nonce
        self.process: PtyProcess | None = None
        self.recording: Recording | None = None
        self._run, self._attempt = spec.run_id, spec.attempt
        self._closed = False
        self._dropped = 0
        self._goes_on = False
        self.speech = Speech()
        self.conversation = Conversation(spec, profile.tables, source=profile.source)

    @property
    def opening(self) -> Opening:
        """See ports.agent.Agent."""
        return self.conversation.opening

    @property
    def agent_id(self) -> str:
        return self.spec.agent_id

    @property
    def running(self) -> PtyProcess:
        """The process, once there is one."""
        if self.process is None:
            raise Broken(f"agent {self.agent_id} was never started")
        return self.process

    # -- start ------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Home and scratch directory. Raises AgentError `spawn_failed`."""
        try:
            scratch.make(self.spec, self.scratch)
            self.place("boot", self.profile.boot)
        except (OSError, AgentError) as error:
            self.discard()
            raise AgentError(f"no directory for the agent: {error}", code="spawn_failed") from error

    def place(self, name: str, text: str) -> None:
        """A file in the scratch directory, readable by the agent only. Raises AgentError `scratch_unwritable`."""
        scratch.write(self.scratch / name, text, uid=self.spec.uid)

    def spawn(self, argv: tuple[str, ...], own: Mapping[str, str] | None = None) -> PtyProcess:
        """Start it, recorded from the first byte. `own`: the environment of the run that it is started for."""
        spec, profile = self.spec, self.profile
        values = {
            "{python}": sys.executable,
            "{scratch}": str(self.scratch),
            "{package}": str(Path(oah.__file__).parent),
        }
        env = {
            "PATH": self.around.path,
            "HOME": spec.home,
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "SHELL": "/bin/sh",
            "OAH_SCRATCH": str(self.scratch),
            "OAH_NONCE": self.nonce,
            **FOR_MACHINES,
            **{name: _filled(value, values) for name, value in profile.env.items()},
            **spec.env,
            **(own or {}),
        }
        process = self.around.host.spawn(
            SpawnSpec(
                agent_id=spec.agent_id,
                argv=tuple(_filled(part, values) if part in profile.argv else part for part in argv),
                env=env,
                cwd=spec.cwd,
                session_id=spec.session_id,
                run_id=self._run,
                attempt=self._attempt,
                worker_id=spec.worker_id,
                deadline_boottime=spec.deadline_boottime,
                rows=profile.rows,
                cols=profile.cols,
                uid=spec.uid,
                gid=spec.gid,
                limits=limits(profile.tables),
            )
        )
        self.process = process
        self.live = Live(
            SessionId(spec.session_id),
            process.terminal,
            self,
            model=self.model,
            rows=profile.rows,
            columns=profile.cols,
        )
        if self.recording is not None:
            process.terminal.record(self.recording)
            self.live.bound(self._run, self._attempt)
        self.around.lives.add(self.live)
        return process

    # -- recording --------------------------------------------------------------------------------------------------

    def bind(self, *, run_id: str, attempt: int) -> None:
        """See ports.agent.Agent. Binding what is bound already changes nothing."""
        if (run_id, attempt) == (self._run, self._attempt) and self.recording is not None:
            return
        self._run, self._attempt = run_id, attempt
        self.finish_recording()
        self.begin_recording()

    def begin_recording(self) -> None:
        """A recording for the bound attempt."""
        recording = Recording(
            self.around.blobs,
            recording_key(self._run, self._attempt),
            cols=self.profile.cols,
            rows=self.profile.rows,
            title=f"{self.profile.name}: run {self._run}, attempt {self._attempt}",
            head_bytes=self.around.head_bytes,
            tail_bytes=self.around.tail_bytes,
        )
        self.recording = recording
        self.around.writer.add(recording)
        if self.process is not None:
            self.process.terminal.record(recording)
        if self.live is not None:
            self.live.bound(self._run, self._attempt)

    def place_run_env(self, own: Mapping[str, str]) -> None:
        """The run's own environment, for a program that stays from run to run: NAME=VALUE, a line each."""
        lines = (f"{name}={value}\n" for name, value in own.items() if "\n" not in value)
        self.place("run.env", "".join(lines))

    def note_input(self, text: str) -> None:
        """The run's input as a chapter and as typed text."""
        if self.recording is not None:
            first = text.strip().splitlines()[0][:80] if text.strip() else "(empty)"
            self.recording.mark(f"run {self._run}: {first}")
            self.recording.typed(text[:_TYPED_RECORDED])

    def finish_recording(self) -> str | None:
        """Its blob's key; None when there is none or nothing could be stored."""
        recording, self.recording = self.recording, None
        if recording is None:
            return None
        if self.process is not None:
            self.process.terminal.record(None)
        if self.live is not None:
            self.live.bound(None, 0)
        return self.around.writer.finish(recording)

    def finish(self) -> str | None:
        """See ports.agent.Agent."""
        return self.finish_recording()

    # -- the end of a turn ------------------------------------------------------------------------------------------

    def watch(self, process: PtyProcess, request: TurnRequest, control: TurnControl) -> Watch:
        """Over a turn that begins now."""
        self._goes_on = request.goes_on
        profile = self.profile
        return Watch(
            self.around.host,
            process,
            request,
            control,
            key=profile.interrupt_key,
            again=profile.interrupt_again,
            limits=Limits(run=request.timeout, deadline=request.deadline_in, idle=request.idle or profile.idle),
            cpu_seconds=(lambda: cpu_seconds(process.tree)) if profile.cpu_is_progress else None,
        )

    def hearing(self, request: TurnRequest, control: TurnControl, watch: Watch) -> Hearing:
        """A listener for this attempt."""
        key = output_key(request.run_id, request.attempt)

        def heard(text: str) -> None:
            watch.heard(text)
            self.speech.heard(text)

        return Hearing(control.on_output, self.around.blobs, key, heard=heard)

    def drain(self, matcher: Matcher) -> None:
        """After the exit: what was still on its way, up to the terminal's end."""
        end = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < end:
            if isinstance(matcher.look([]), Ended):
                return

    def conclude(self, watch: Watch, hearing: Hearing, facts: Facts) -> TurnResult:
        """The result from what was seen. Raises LeaseError `fenced`."""
        process = self.process
        notice = process.exited() if process is not None else None
        outcome = judge(facts, failed_code=self.profile.failed_code)
        recording = None if self._goes_on and outcome.keep_warm else self.finish_recording()
        output, blob = hearing.finish()
        watch.refuse_fenced()
        dropped = self._dropped_since(process)
        empty = bool(process is not None and process.empty) and notice is not None
        if empty:
            self.leave()
        return TurnResult(
            status=TurnStatus(outcome.verdict.value),
            output=output,
            output_blob=blob,
            exit_code=outcome.exit_code,
            error_code=outcome.error_code,
            error_message=outcome.error_message,
            keep_warm=outcome.keep_warm,
            tree_empty=empty,
            recording=recording,
            dropped_bytes=dropped,
            session_ref=self.conversation.current(self.shown),
        )

    def shown(self) -> str:
        """What is to be seen of the program, where that may tell how its conversation is called."""
        return ""

    def _dropped_since(self, process: PtyProcess | None) -> int:
        """Bytes dropped since the last turn."""
        before, self._dropped = self._dropped, process.terminal.dropped if process is not None else 0
        return self._dropped - before

    def facts(self, watch: Watch, *, status: int | None = None, message: str = "") -> Facts:
        """What is known now."""
        notice = self.process.exited() if self.process is not None else None
        return Facts(
            timed_out=watch.timed_out,
            cancelled=watch.cancelled,
            signalled=watch.signalled,
            status=status,
            message=message,
            exited=notice is not None,
            exit_code=notice.exit_code if notice is not None else None,
            host_lost=notice is not None and notice.cause is ExitCause.HOST_LOST,
            killed=watch.killed,
            empty=watch.empty,
        )

    def failed(self, error: AgentError | Unavailable) -> TurnResult:
        """A turn that could not begin."""
        empty = self.process is None or self.around.host.kill(self.agent_id)
        recording = self.finish_recording()
        if empty:
            self.leave()
        return TurnResult(
            status=TurnStatus.FAILED,
            error_code=error.code if empty else "agent_unkillable",
            error_message=error.message,
            tree_empty=empty,
            recording=recording,
        )

    def resume(self, request: TurnRequest, answer: str | None, control: TurnControl) -> TurnResult:
        """See ports.agent.Agent. What has no screen asks nobody."""
        raise Conflict("no turn of this agent waits", code="not_waiting")

    def asks(self) -> bool:
        """See ports.agent.Agent."""
        return True

    def say(self, text: str, timeout: timedelta, *, asked_for: bool = False) -> Delivery:
        """See ports.agent.Agent."""
        return self.speech.say(text, timeout) if self.profile.steer or asked_for else Delivery.UNSUPPORTED

    # -- life -------------------------------------------------------------------------------------------------------

    def resize(self, *, rows: int, columns: int) -> None:
        """Another size for program and recording."""
        self.running.terminal.resize(rows=rows, cols=columns)
        if self.recording is not None:
            self.recording.resized(rows=rows, cols=columns)

    def alive(self) -> bool:
        """See ports.agent.Agent."""
        return self.process is not None and self.process.exited() is None and not self._closed

    def close(self, grace: timedelta) -> bool:
        """See ports.agent.Agent."""
        process = self.process
        empty = True
        if process is not None:
            if self.alive() and grace > timedelta(0) and self.profile.quit:
                self.ask_to_leave(process, grace)
            empty = self.around.host.kill(self.agent_id)
        self.finish_recording()
        self.leave()
        return empty

    def leave(self) -> None:
        """Give back terminal and scratch directory: nothing of the agent is left, or nothing can be done about it."""
        self._closed = True
        if self.process is not None:
            self.process.terminal.close()
        if self.live is not None:
            self.around.lives.remove(self.live)
        self.discard()

    def ask_to_leave(self, process: PtyProcess, grace: timedelta) -> None:
        """Type what makes it leave, and wait for that."""
        try:
            process.terminal.write(self.profile.quit.encode() + b"\n", timedelta(seconds=1))
        except AgentError:
            return
        process.wait(grace)

    def discard(self) -> None:
        """Remove the scratch directory."""
        scratch.discard(self.scratch)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
