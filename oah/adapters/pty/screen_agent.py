"""A full-screen program: judged by its screens, given text in two phases, asked about when it asks.

During a turn the slot thread looks after the terminal and presses every key, so that nothing interleaves; between
turns, and while a turn waits for somebody, the attendant does. Every decision is a pure function of `core/dialogue`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from oah.adapters.pty.agents import DRAIN_SECONDS, PtyAgent, Surroundings
from oah.adapters.pty.course import Course, Refused, shortened
from oah.adapters.pty.matching import compiled
from oah.adapters.pty.process import PtyProcess
from oah.adapters.pty.recorded import recorded_reply
from oah.adapters.pty.screen import ScreenModel
from oah.adapters.pty.screen_start import place_files
from oah.adapters.pty.screen_terminal import SLICE, ScreenTerminal
from oah.adapters.pty.watch import Watch
from oah.core.dialogue.marker import input_fault
from oah.core.dialogue.outcome import Facts
from oah.core.dialogue.place import Place, place
from oah.core.dialogue.profile import Profile
from oah.core.dialogue.reading import Condition
from oah.core.dialogue.screen import Screen
from oah.core.dialogue.screen_profile import ScreenProfile, screen_profile
from oah.core.policy.throttle import Throttle
from oah.errors import AgentError, Conflict, LeaseError, Unavailable
from oah.ports.agent import MAX_RESULT_BYTES, AgentSpec, TurnControl, TurnRequest, TurnResult, TurnStatus
from oah.ports.terminal import ExitCause

_LEAVES = timedelta(seconds=2)
_INTERRUPTED = 130
"""Status of a turn that was interrupted and left a program that is ready again (as shells have it)."""


class ScreenAgent(PtyAgent):
    """ports.agent.Agent for profiles of kind `screen`."""

    _idle = False
    _screen: ScreenTerminal | None = None
    _course: Course | None = None

    def __init__(self, spec: AgentSpec, profile: Profile, around: Surroundings) -> None:
        super().__init__(spec, profile, around)
        self.rules: ScreenProfile = screen_profile(profile.tables, compiled, source=profile.source)
        self.model: ScreenModel = ScreenModel(rows=profile.rows, columns=profile.cols)
        self.throttle = Throttle()

    @property
    def warm(self) -> bool:
        """See ports.agent.Agent."""
        return self._idle and self.alive()

    @property
    def waiting(self) -> bool:
        """Whether a turn waits for somebody's answer."""
        return self._course is not None and self.alive()

    def asks(self) -> bool:
        """See ports.agent.Agent."""
        course = self._course
        return course is None or course.asks()

    @property
    def screen(self) -> ScreenTerminal:
        """The terminal and what it shows."""
        assert self._screen is not None
        return self._screen

    def snapshot(self) -> Screen:
        """What the terminal shows now; any thread, at any time."""
        return self.model.look()

    def resize(self, *, rows: int, columns: int) -> None:
        """Another size for program, screen and recording."""
        self.model.resize(rows=rows, columns=columns)
        super().resize(rows=rows, columns=columns)

    # -- start ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Spawn and wait until the screen is ready, or asks something. Raises what ports.agent.AgentFactory.open says;
        leaves nothing behind."""
        self.prepare()
        self.begin_recording()
        try:
            place_files(self.spec, self.rules.files)
            process = self.spawn((*self.profile.argv, *self.conversation.begin()))
            self._screen = ScreenTerminal(process.terminal, self.model, self.rules)
            self._await_ready(self._screen)
        except BaseException:
            empty = self.close(timedelta(0))
            if not empty:
                raise AgentError("a failed start left processes", code="agent_unkillable") from None
            raise
        self._idle = True
        self.around.attendant.keep(self)

    def _await_ready(self, screen: ScreenTerminal) -> None:
        begun = time.monotonic()
        while True:
            alive = screen.pump(SLICE)
            found = self._place(screen)
            waited = timedelta(seconds=time.monotonic() - begun)
            if found in (Place.FREE, Place.TAKEN, Place.ASKS) or self._is_released(screen, waited):
                return
            self._check_start(screen, gone=not alive, blocked=found is Place.BLOCKED)
            if waited >= self.profile.ready:
                raise self._not_ready(f"not ready after {self.profile.ready.total_seconds():g} s")

    def _place(self, screen: ScreenTerminal) -> Place:
        turn, reading = self.rules.turn, screen.read()
        blind = self.rules.injection.blind
        return place(reading, quiet=screen.stood(reading), settle=turn.settle, rules=turn, blind=blind)

    def _is_released(self, screen: ScreenTerminal, waited: timedelta) -> bool:
        """A start that no rule recognises counts as ready one day; what it shows is asked about in the first turn. One
        that shows nothing has not begun."""
        if waited < self.rules.release or screen.quiet < self.rules.turn.settle.total_seconds():
            return False
        return screen.read().condition is Condition.UNRECOGNISED and bool(screen.look().text.strip())

    def _check_start(self, screen: ScreenTerminal, *, gone: bool, blocked: bool) -> None:
        """Raises when it can never be ready."""
        process = self.running
        notice = process.wait(_LEAVES) if gone else process.exited()
        if notice is None and not gone and not blocked:
            return
        if notice is None and blocked:
            dialog = screen.read().dialog
            said = f"{dialog.name}: {shortened(dialog.text)}" if dialog is not None else ""
            raise AgentError(said, code="agent_blocked")
        screen.drain(DRAIN_SECONDS)
        if notice is None:
            raise self._not_ready("the program gave its terminal up before it was ready")
        if notice.cause in (ExitCause.DEADLINE, ExitCause.LATE):
            raise LeaseError("the deadman killed the agent while it started", code="fenced")
        if notice.cause is ExitCause.HOST_LOST:
            raise Unavailable("the PTY host was lost while the agent started", code="host_lost")
        raise self._not_ready(f"the program ended before it was ready (exit status {notice.exit_code})")

    def shown(self) -> str:
        """Once it is gone: many say at their end how to go on."""
        return "" if self.alive() else self.model.look().text

    def _not_ready(self, reason: str) -> AgentError:
        self.conversation.refuse(self.model.look().text)
        return AgentError(f"{reason}: {shortened(self.model.look().text) or '(no output)'}", code="agent_not_ready")

    # -- a turn -----------------------------------------------------------------------------------------------------

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        """See ports.agent.Agent."""
        fault = input_fault(request.input, limit=MAX_RESULT_BYTES)
        if fault is not None or self.process is None:
            code, reason = fault or ("agent_lost", "the agent is not running")
            return self._refused(code, reason)
        if control.cancel_requested():
            return TurnResult(status=TurnStatus.CANCELLED, keep_warm=self.warm, recording=self.finish_recording())
        self._idle = False
        try:
            self.place_run_env(request.env)
        except AgentError as error:
            return self.failed(error)
        self.note_input(request.input)
        watch = self.watch(self.process, request, control)
        hearing = self.hearing(request, control, watch)
        if self.rules.recorded is not None:
            self.conversation.turns(self.rules.recorded)
        self._course = Course(self.screen, request, hearing, self.speech, self.throttle, recorded=self._recorded)
        return self._drive(self._course, watch, control, None)

    def resume(self, request: TurnRequest, answer: str | None, control: TurnControl) -> TurnResult:
        """See ports.agent.Agent."""
        if self._course is None:
            raise Conflict("no turn of this agent waits", code="not_waiting")
        if answer is not None:
            self._course.check(answer)
        return self._drive(self._course, self.watch(self.running, request, control), control, answer)

    def _drive(self, course: Course, watch: Watch, control: TurnControl, answer: str | None) -> TurnResult:
        self.around.attendant.hand_over(self)
        course.begin(watch, control)
        try:
            if answer is not None:
                course.answer(answer)
            elif course.question is not None:
                course.goes_on()
            question = course.go()
        except Refused as refusal:
            watch.refuse_fenced()
            self._course, self._idle = None, True
            self.around.attendant.keep(self)
            return self._refused(refusal.code, refusal.message)
        except AgentError as error:
            return self._end(course, error)
        finally:
            self.speech.end()
        if question is None:
            return self._end(course, None)
        self.around.attendant.keep(self)
        return TurnResult(status=TurnStatus.WAITING, question=question)

    def _end(self, course: Course, error: AgentError | None) -> TurnResult:
        self._course, self.throttle = None, course.throttle
        watch = course.watch
        if error is not None:
            watch.refuse_fenced()
        if not course.over and not watch.killed:
            self._after_end(course, error)
        course.finish()
        status = (_INTERRUPTED if watch.cancelled else 0) if course.over else None
        facts = self.facts(watch, status=status)
        if error is not None and (watch.killed or not facts.exited):
            facts = replace(facts, fault=(error.code, error.message))
        return self._concluded(course, facts)

    def _after_end(self, course: Course, error: AgentError | None) -> None:
        """The program has ended, has given its terminal up, or is not fit to go on."""
        process = self.running
        if process.wait(_LEAVES if error is None else timedelta(0)) is None:
            course.watch.kill()
        self.screen.drain(DRAIN_SECONDS)

    def _concluded(self, course: Course, facts: Facts) -> TurnResult:
        result = self.conclude(course.watch, course.hearing, facts)
        result = replace(result, delivery=course.delivery, output_cut=course.cut)
        if self.speech.loose:  # or the next run would be given what was said to this one
            result = replace(result, keep_warm=False)
        self._idle = result.keep_warm
        if self._idle:
            self.around.attendant.keep(self)
        return result

    def _recorded(self, text: str, shown: str) -> str | None:
        return recorded_reply(self.screen, self.conversation, text, shown)

    def _refused(self, code: str, reason: str) -> TurnResult:
        return TurnResult(
            status=TurnStatus.FAILED,
            error_code=code,
            error_message=reason,
            keep_warm=self.warm,
            tree_empty=self.process is None,
            recording=self.finish_recording(),
        )

    # -- between turns ----------------------------------------------------------------------------------------------

    def on_words(self, call: Callable[[], None] | None) -> None:
        """See attendant.Attended."""
        if self.process is not None:
            self.process.terminal.wake(call)

    def attend(self) -> None:
        """See attendant.Attended."""
        if self._screen is not None:
            with suppress(AgentError):
                self._screen.catch_up()

    def close(self, grace: timedelta) -> bool:
        """See ports.agent.Agent."""
        self.around.attendant.hand_over(self)
        return super().close(grace)

    def ask_to_leave(self, process: PtyProcess, grace: timedelta) -> None:
        """The submit key is pressed alone, as in a turn."""
        text, submit = self.profile.quit, self.rules.injection.submit.decode()
        keys = [text.removesuffix(submit), submit] if text.endswith(submit) else [text]
        end = time.monotonic() + grace.total_seconds()
        with suppress(AgentError):
            for key in filter(None, keys):
                self.screen.press(key.encode())
                self.screen.pump(SLICE)
            while process.exited() is None and time.monotonic() < end and self.screen.pump(SLICE):
                pass
            self.screen.drain(0.2)
        process.wait(timedelta(seconds=max(end - time.monotonic(), 0)))
