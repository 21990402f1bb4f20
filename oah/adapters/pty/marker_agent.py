"""An interpreter that stays: each run's input is a file that it is told to run, and it says itself when the turn is
over."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from oah.adapters.pty.agents import PtyAgent
from oah.adapters.pty.hearing import Hearing
from oah.adapters.pty.matching import Ended, Match, Matcher, compiled
from oah.adapters.pty.watch import Watch
from oah.core.dialogue.marker import begin_pattern, end_pattern, ended, injection, input_fault, prompt_pattern
from oah.core.dialogue.outcome import Facts
from oah.core.dialogue.text import Answer
from oah.core.model.delivery import Outcome
from oah.errors import AgentError, LeaseError, Unavailable
from oah.ports.agent import MAX_RESULT_BYTES, TurnControl, TurnRequest, TurnResult, TurnStatus
from oah.ports.terminal import ExitCause

_TYPING = timedelta(seconds=10)
_TAKEN = "composer_not_empty"
_PATIENCE = 10.0
"""Seconds that somebody who types at the prompt has to finish the line."""
_TAKES = 0.2
"""Seconds after a person's last key: of several lines, or a line and ^C, the first may be what it has asked after."""
_EXIT_AFTER_END = timedelta(seconds=2)
_SAID = 500
"""Characters of a failed start's output that its error repeats."""
MAX_INPUT_BYTES = MAX_RESULT_BYTES


class _Into:
    """Text into an answer."""

    def __init__(self, answer: Answer) -> None:
        self.write = answer.feed

    def flush(self) -> None:
        """For pexpect."""


class MarkerAgent(PtyAgent):
    """ports.agent.Agent for profiles of kind `marker`."""

    _matcher: Matcher
    _turn = 0
    _status = 0
    _idle = False

    @property
    def warm(self) -> bool:
        """See ports.agent.Agent."""
        return self._idle and self.alive()

    def start(self) -> None:
        """Spawn and wait for the first prompt. Raises what ports.agent.AgentFactory.open says; leaves nothing
        behind."""
        self.prepare()
        self.begin_recording()
        try:
            process = self.spawn((*self.profile.argv, *self.conversation.begin()))
            process.terminal.prompt = re.compile(prompt_pattern(self.nonce).encode())
            self._matcher = Matcher(process.terminal)
            self._await_ready()
        except BaseException:
            empty = self.close(timedelta(0))
            if not empty:
                raise AgentError("a failed start left processes", code="agent_unkillable") from None
            raise
        self._idle = True

    def _await_ready(self) -> None:
        ready = compiled(end_pattern(self.nonce, 0))
        end = time.monotonic() + self.profile.ready.total_seconds()
        said = Answer(_SAID)
        self._matcher.listen(_Into(said))
        while True:
            seen = self._matcher.look([ready])
            if isinstance(seen, Match):
                self._matcher.listen(None)
                return
            reason = self._start_failed(gone=isinstance(seen, Ended))
            if not reason and time.monotonic() > end:
                reason = f"not ready after {self.profile.ready.total_seconds():g} s"
            if reason:
                self.conversation.refuse(said.text())
                raise AgentError(f"{reason}: {said.text().strip() or '(no output)'}", code="agent_not_ready")

    def _start_failed(self, *, gone: bool) -> str:
        """Why it can never be ready, '' while it can. Raises LeaseError `fenced`, Unavailable `host_lost`."""
        process = self.running
        notice = process.wait(_EXIT_AFTER_END) if gone else process.exited()
        if notice is None:
            return "the program gave its terminal up before it was ready" if gone else ""
        if notice.cause in (ExitCause.DEADLINE, ExitCause.LATE):
            raise LeaseError("the deadman killed the agent while it started", code="fenced")
        if notice.cause is ExitCause.HOST_LOST:
            raise Unavailable("the PTY host was lost while the agent started", code="host_lost")
        return f"the program ended before it was ready (exit status {notice.exit_code})"

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        """See ports.agent.Agent."""
        fault = input_fault(request.input, limit=MAX_INPUT_BYTES)
        process = self.process
        if fault is not None or process is None:
            code, reason = fault or ("agent_lost", "the agent is not running")
            return TurnResult(
                status=TurnStatus.FAILED,
                error_code=code,
                error_message=reason,
                keep_warm=self.warm,
                tree_empty=process is None,
                recording=self.finish_recording(),
            )
        if control.cancel_requested():
            return TurnResult(status=TurnStatus.CANCELLED, keep_warm=self.warm, recording=self.finish_recording())
        self._idle = False
        self._turn += 1
        watch = self.watch(process, request, control)
        hearing = self.hearing(request, control, watch)
        try:
            self._inject(request, watch)
            try:
                facts = self._listen(watch, hearing, request)
            finally:
                self.speech.end()
        except AgentError as error:
            watch.refuse_fenced()
            if error.code == _TAKEN and process.exited() is None and not watch.killed:
                return self._unsaid(error, cancelled=watch.cancelled)
            if process.exited() is None:
                watch.kill()
                # A terminal that is gone may be the first sign of a lost host, which is not the agent's fault.
                facts = replace(self.facts(watch), fault=(error.code, error.message))
            else:
                facts = self.facts(watch)
        result = self.conclude(watch, hearing, facts)
        if self.speech.loose:  # or the next run would be given what was said to this one
            result = replace(result, keep_warm=False)
        self._idle = result.keep_warm
        return result

    def _unsaid(self, error: AgentError, *, cancelled: bool) -> TurnResult:
        """Nothing was typed: the program is as it was."""
        self._idle, recording = True, self.finish_recording()
        if cancelled:
            return TurnResult(status=TurnStatus.CANCELLED, keep_warm=self.warm, recording=recording)
        return TurnResult(
            status=TurnStatus.FAILED,
            error_code=error.code,
            error_message=error.message,
            keep_warm=self.warm,
            recording=recording,
        )

    def _inject(self, request: TurnRequest, watch: Watch) -> None:
        process = self.running
        text = request.input if request.input.endswith("\n") else request.input + "\n"
        self.place("input", text)
        self.place_run_env(request.env)
        self.note_input(request.input)
        line = injection(
            self.profile.inject,
            nonce=self.nonce,
            turn=self._turn,
            status=self._status,
            run_id=request.run_id,
            attempt=request.attempt,
        )
        with self._alone(watch):
            process.terminal.set_echo(on=False)
            process.terminal.write(line.encode() + b"\n", _TYPING)

    @contextmanager
    def _alone(self, watch: Watch) -> Iterator[None]:
        """While nobody else types, no line is half typed, and none is at work: what comes before a program asks for the
        next one, it may throw away. Raises AgentError `composer_not_empty`."""
        terminal = self.running.terminal
        end = time.monotonic() + _PATIENCE
        while True:
            with terminal.typing:
                is_taken = time.monotonic() - terminal.pressed_at >= _TAKES
                if is_taken and not terminal.draft and not terminal.given:
                    yield
                    return
            if time.monotonic() >= end or watch.cancelled or watch.over():
                what = "half-typed line stands" if terminal.draft else "line is still at work"
                raise AgentError(f"somebody's {what} at the prompt", code=_TAKEN)
            time.sleep(0.05)

    def _listen(self, watch: Watch, hearing: Hearing, request: TurnRequest) -> Facts:
        begin, end = compiled(begin_pattern(self.nonce, self._turn)), compiled(end_pattern(self.nonce, self._turn))
        waiting = [end, begin]
        self._matcher.listen(None)
        while not watch.over():
            seen = self._matcher.look(waiting)
            if isinstance(seen, Ended):
                self._after_end(watch)
                break
            if isinstance(seen, Match) and seen.index == 1:
                waiting = [end]
                request.delivered(Outcome.CONFIRMED)
                self._matcher.listen(hearing)
                self.speech.begin()
            elif isinstance(seen, Match):
                mark = ended(seen.groups[0] or "0", seen.groups[1])
                self._status = mark.status
                self._matcher.listen(None)
                return self.facts(watch, status=mark.status, message=mark.message)
            hearing.tick()
            self.speech.step(self.running.terminal)
        self.drain(self._matcher)
        self._matcher.listen(None)
        return self.facts(watch)

    def _after_end(self, watch: Watch) -> None:
        """Nobody holds the terminal: the program is about to be gone, or has run away from its terminal."""
        process = self.running
        if process.wait(_EXIT_AFTER_END) is None:
            watch.kill()
