"""A full-screen program: judged by its screens, given text in two phases, asked about when it asks.

The slot thread pumps the terminal: what the program writes goes into the screen model, what the terminal answers goes
back, and every key is pressed by this one thread, so that nothing interleaves. Every decision is a pure function of
`core/dialogue`; here is only the loop around them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from oah.adapters.pty.agents import PtyAgent, Surroundings
from oah.adapters.pty.matching import compiled
from oah.adapters.pty.screen import ScreenModel
from oah.adapters.pty.screen_start import place_files
from oah.adapters.pty.watch import Watch
from oah.core.dialogue import injection, turn
from oah.core.dialogue.marker import input_fault
from oah.core.dialogue.outcome import Facts
from oah.core.dialogue.profile import Profile
from oah.core.dialogue.reading import Condition, Reading, read
from oah.core.dialogue.reply import reply
from oah.core.dialogue.screen import Screen
from oah.core.dialogue.screen_profile import ScreenProfile, screen_profile
from oah.core.policy.throttle import Outcome, Throttle, after
from oah.errors import AgentError, LeaseError, Unavailable
from oah.ports.agent import MAX_RESULT_BYTES, AgentSpec, TurnControl, TurnRequest, TurnResult, TurnStatus
from oah.ports.terminal import ExitCause

_READ = 65_536
_SLICE = timedelta(seconds=0.1)
"""Longest wait before a deadline or a cancel is looked at again."""

_KEY = timedelta(seconds=2)
_TYPING = timedelta(seconds=10)
_LEAVES = timedelta(seconds=2)
_INTERRUPTED = 130
"""Status of a turn that was interrupted and left a program that is ready again (as shells have it)."""


class ScreenAgent(PtyAgent):
    """ports.agent.Agent for profiles of kind `screen`."""

    _idle = False

    def __init__(self, spec: AgentSpec, profile: Profile, around: Surroundings) -> None:
        super().__init__(spec, profile, around)
        self.rules: ScreenProfile = screen_profile(profile.tables, compiled, source=profile.source)
        self.model = ScreenModel(rows=profile.rows, columns=profile.cols)
        self.throttle = Throttle()
        self._output_at = time.monotonic()

    @property
    def warm(self) -> bool:
        """See ports.agent.Agent."""
        return self._idle and self.alive()

    # -- start ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Spawn and wait until the screen is ready, or asks something. Raises what ports.agent.AgentFactory.open says;
        leaves nothing behind."""
        self.prepare()
        self.begin_recording()
        try:
            place_files(self.spec, self.rules.files)
            self.spawn(self.profile.argv)
            self._await_ready()
        except BaseException:
            empty = self.close(timedelta(0))
            if not empty:
                raise AgentError("a failed start left processes", code="agent_unkillable") from None
            raise
        self._idle = True

    def _await_ready(self) -> None:
        begun = time.monotonic()
        while True:
            ended = not self.pump(_SLICE)
            reading = self.read()
            quiet = time.monotonic() - self._output_at
            waited = time.monotonic() - begun
            if reading.condition in (Condition.READY, Condition.ASKING):
                if quiet >= self.rules.turn.settle.total_seconds():
                    return
            reason = self._start_failed(gone=ended)
            if not reason and reading.condition is Condition.BLOCKED and quiet >= 1.0:
                assert reading.dialog is not None
                raise AgentError(f"{reading.dialog.name}: {_short(reading.dialog.text)}", code="agent_blocked")
            if not reason and reading.condition is Condition.UNRECOGNISED:
                if waited >= self.rules.release.total_seconds() and quiet >= self.rules.turn.settle.total_seconds():
                    return
            if not reason and waited >= self.profile.ready.total_seconds():
                reason = f"not ready after {self.profile.ready.total_seconds():g} s"
            if reason:
                raise AgentError(f"{reason}: {_short(self.model.look().text) or '(no output)'}", code="agent_not_ready")

    def _start_failed(self, *, gone: bool) -> str:
        process = self.running
        notice = process.wait(_LEAVES) if gone else process.exited()
        if notice is None:
            return "the program gave its terminal up before it was ready" if gone else ""
        if notice.cause in (ExitCause.DEADLINE, ExitCause.LATE):
            raise LeaseError("the deadman killed the agent while it started", code="fenced")
        if notice.cause is ExitCause.HOST_LOST:
            raise Unavailable("the PTY host was lost while the agent started", code="host_lost")
        return f"the program ended before it was ready (exit status {notice.exit_code})"

    # -- a turn -----------------------------------------------------------------------------------------------------

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        """See ports.agent.Agent."""
        process = self.process
        fault = input_fault(request.input, limit=MAX_RESULT_BYTES)
        if fault is not None or process is None:
            code, reason = fault or ("agent_lost", "the agent is not running")
            return self._refused(code, reason)
        if control.cancel_requested():
            return TurnResult(status=TurnStatus.CANCELLED, keep_warm=self.warm, recording=self.finish_recording())
        self._idle = False
        self.place_run_env(request.env)
        self.note_input(request.input)
        watch = self.watch(process, request, control)
        hearing = self.hearing(request, control, watch)
        course = _Course(self, watch, control, hearing.write)
        try:
            facts = course.run(request.input)
        except AgentError as error:
            watch.refuse_fenced()
            if process.exited() is None:
                watch.kill()
                facts = replace(self.facts(watch), fault=(error.code, error.message))
            else:
                facts = self.facts(watch)
        result = self.conclude(watch, hearing, facts)
        self._idle = result.keep_warm
        return result

    def _refused(self, code: str, reason: str) -> TurnResult:
        return TurnResult(
            status=TurnStatus.FAILED,
            error_code=code,
            error_message=reason,
            keep_warm=self.warm,
            tree_empty=self.process is None,
            recording=self.finish_recording(),
        )

    # -- terminal ---------------------------------------------------------------------------------------------------

    def pump(self, timeout: timedelta) -> bool:
        """Take what the program wrote, answer what it asks. False at the terminal's end."""
        terminal = self.running.terminal
        data = terminal.take(_READ, timeout)
        if data is None:
            return True
        if not data:
            return False
        self._output_at = time.monotonic()
        answers = self.model.feed(data)
        if answers:
            terminal.write(answers, _KEY)
        return True

    def press(self, key: bytes) -> None:
        """Type a key. Raises AgentError."""
        self.running.terminal.write(key, _KEY)

    def read(self) -> Reading:
        """The judgement about the screen as it is."""
        return read(self.model.look(), self.rules.screen)

    @property
    def output_at(self) -> float:
        """When the program last wrote (monotonic seconds)."""
        return self._output_at


class _Course:
    """One turn: give the text, follow it, say what was answered."""

    def __init__(self, agent: ScreenAgent, watch: Watch, control: TurnControl, heard: Callable[[str], object]) -> None:
        self._agent = agent
        self._watch = watch
        self._control = control
        self._heard = heard
        self._mark = 0
        self._before = ""

    def run(self, text: str) -> Facts:
        """The facts. Raises AgentError for what the program does not take."""
        agent, rules = self._agent, self._agent.rules
        while agent.pump(timedelta(0)) and time.monotonic() - agent.output_at < 0.02:
            pass  # what came while it was parked
        screen = agent.model.look()
        composer = read(screen, rules.screen).composer
        self._mark = screen.scrolled + (composer.first if composer is not None else 0)
        planned = injection.plan(text, rules.injection, bracketed=screen.bracketed_paste)
        if isinstance(planned, str):
            raise AgentError(planned, code="input_rejected")
        self._before = self._reply(screen, planned.text)
        ended = self._give(planned)
        if ended is None:
            return agent.facts(self._watch)
        agent.throttle = after(agent.throttle, ended.outcome)
        if ended.outcome is Outcome.FAILED:
            raise AgentError(ended.reason, code="delivery_failed")
        over = self._follow(planned.text)
        answer = self._reply(agent.model.look(), planned.text)
        if answer:
            self._heard(answer)
        if not over:
            return agent.facts(self._watch)
        self._leave_clean()
        return agent.facts(self._watch, status=_INTERRUPTED if self._watch.cancelled else 0)

    def _give(self, planned: injection.Plan) -> injection.Ended | None:
        """Write the text once and follow it until it was taken. None: the turn ended meanwhile."""
        agent, rules = self._agent, self._agent.rules.injection
        self._pause(agent.throttle.delay.total_seconds() if agent.throttle.failed else 0.0)
        for piece in planned.writes:
            agent.running.terminal.write(piece, _TYPING)
            agent.pump(timedelta(0))
        delivery = injection.Delivery(planned, time.monotonic())
        while not self._watch.over():
            if not agent.pump(timedelta(seconds=0.05)):
                return None
            screen = agent.model.look()
            shown = rules.blind and injection.is_shown(planned.text, screen, self._mark)
            delivery, step = injection.step(
                delivery, read(screen, agent.rules.screen), shown=shown, now=time.monotonic(), rules=rules
            )
            match step:
                case injection.Submit():
                    agent.press(rules.submit)
                case injection.Ended():
                    return step
                case injection.Wait():
                    pass
        return None

    def _follow(self, text: str) -> bool:
        """Until the program waits for the next text (True), or the turn ends otherwise."""
        agent, rules = self._agent, self._agent.rules.turn
        state = turn.Turn(time.monotonic())
        output_at = agent.output_at
        while not self._watch.over():
            if not agent.pump(_SLICE):
                return False
            now = time.monotonic()
            if agent.output_at > output_at:
                output_at = agent.output_at
                state = turn.output(state, output_at)
                self._watch.heard(agent.model.look().text)
            screen = agent.model.look()
            answered = self._reply(screen, text) != self._before
            reading = read(screen, agent.rules.screen)
            state, verdict = turn.judge(state, reading, answered=answered, now=now, rules=rules)
            match verdict:
                case turn.Over():
                    return True
                case turn.Asks(dialog=dialog):
                    raise AgentError(f"{dialog.name}: {_short(dialog.text)}", code="agent_asks")
                case turn.Going():
                    pass
        return False

    def _reply(self, screen: Screen, text: str) -> str:
        rules = self._agent.rules
        return reply(screen, text, rules.reply, rules.screen.composer, mark=self._mark)

    def _leave_clean(self) -> None:
        """An interrupted program may have put our text back into its composer: the next one must not meet it."""
        agent = self._agent
        composer = agent.read().composer
        if composer is not None and composer.draft and self._watch.cancelled:
            agent.press(b"\x15")
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                agent.pump(_SLICE)
                composer = agent.read().composer
                if composer is None or not composer.draft:
                    return
            self._watch.kill()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._watch.over():
            self._agent.pump(timedelta(seconds=min(0.05, max(end - time.monotonic(), 0))))


def _short(text: str) -> str:
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())[-600:]
