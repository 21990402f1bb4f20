"""A program without its screen: one process per run that is given the text and answers with JSON.

It has a terminal like every agent, so that the host owns its tree and what it says beside its answer is recorded; the
answer itself goes into a file, which no terminal wraps and no warning runs into.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from oah.adapters.pty.agents import PtyAgent, Surroundings
from oah.adapters.pty.hearing import Hearing
from oah.adapters.pty.matching import SLICE_SECONDS, Ended, Matcher, compiled
from oah.adapters.pty.screen_start import place_files
from oah.adapters.pty.watch import Watch
from oah.core.dialogue.headless import documents
from oah.core.dialogue.injection import Refusal, plan
from oah.core.dialogue.marker import input_fault
from oah.core.dialogue.outcome import Facts
from oah.core.dialogue.profile import Profile
from oah.core.dialogue.screen_profile import HeadlessRules, screen_profile
from oah.core.dialogue.text import Answer, strip_escapes
from oah.core.model.delivery import Outcome
from oah.errors import AgentError, Broken, Unavailable
from oah.ports.agent import MAX_RESULT_BYTES, AgentSpec, TurnControl, TurnRequest, TurnResult, TurnStatus

ARGUMENT_BYTES = 120_000
"""Longest text given as an argument; Linux takes 128 KiB of one."""
ANSWER_BYTES = 32 * 1024 * 1024
"""Of a longer answer the end is read."""
LAST = "last"
"""The reference of a program that goes on with its last conversation and has no name for it."""

_APART = 'answer=$1; shift; exec "$@" >"$answer" </dev/null'
"""The answer into a file of its own, and nothing to read: some wait for more text when they could."""
_SAID = 16_384
_EMPTIED = timedelta(seconds=10)


class HeadlessAgent(PtyAgent):
    """ports.agent.Agent for profiles of kind `headless`. Nothing runs between turns; the conversation goes on by its
    reference."""

    def __init__(self, spec: AgentSpec, profile: Profile, around: Surroundings) -> None:
        super().__init__(spec, profile, around)
        self.rules = screen_profile(profile.tables, compiled, source=profile.source)
        self._ref: str | None = None

    @property
    def warm(self) -> bool:
        """See ports.agent.Agent. There is nothing to keep."""
        return False

    @property
    def _headless(self) -> HeadlessRules:
        if self.rules.headless is None:
            raise Broken(f"profile {self.profile.name} has no [headless]")
        return self.rules.headless

    def start(self) -> None:
        """Only directories and files: the program starts with the turn."""
        self.prepare()
        self.begin_recording()
        try:
            place_files(self.spec, self.rules.files)
            self.conversation.begin()
            if self.conversation.going_on:
                self._ref = self.conversation.opening.session_ref
            else:
                self.conversation.unnamed()
        except BaseException:
            self.finish_recording()
            self.leave()
            raise

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        """See ports.agent.Agent."""
        text = self._harmless(request.input, command=request.command)
        if isinstance(text, Refusal):
            return self.failed(AgentError(text.reason, code=text.code))
        if control.cancel_requested():
            recording = self.finish_recording()
            self.leave()
            return TurnResult(status=TurnStatus.CANCELLED, tree_empty=True, recording=recording)
        self.note_input(request.input)
        result = self._once(text, request, control)
        if result is None:  # it does not know the conversation any more: a new one, once
            self._ref = None
            self.conversation.refused()
            self.conversation.unnamed()
            result = self._once(text, request, control)
            assert result is not None  # only what went on can be refused
        return result

    def _harmless(self, text: str, *, command: bool) -> str | Refusal:
        """The text as an argument that is no option, and no command unless one is meant."""
        fault = input_fault(text, limit=MAX_RESULT_BYTES)
        if fault is not None:
            return Refusal(*fault)
        planned = plan(text, replace(self.rules.injection, words=()), bracketed=True, command=command)
        if isinstance(planned, Refusal):
            return planned
        if len(planned.text.encode()) > ARGUMENT_BYTES:
            return Refusal("input_rejected", f"the text is longer than the {ARGUMENT_BYTES} bytes of an argument")
        return " " + planned.text if planned.text.startswith("-") else planned.text

    def _once(self, text: str, request: TurnRequest, control: TurnControl) -> TurnResult | None:
        """One process. None: it refused to go on with the conversation."""
        answer = self.scratch / "answer"
        try:
            self.place("answer", "")
            process = self.spawn(self._command(text, answer), {**self._headless.env, **request.env})
        except (AgentError, Unavailable) as error:
            return self.failed(error)
        request.delivered(Outcome.CONFIRMED)
        watch = self.watch(process, request, control)
        hearing = self.hearing(request, control, watch)
        said = Answer(_SAID)
        matcher = Matcher(process.terminal)
        matcher.listen(_Beside(said, watch))
        seen = 0
        while not watch.over():
            if isinstance(matcher.look([]), Ended):
                process.wait(timedelta(seconds=SLICE_SECONDS))
            seen = _progress(answer, seen, watch)
        self.drain(matcher)
        written = _read(answer)
        facts = self.facts(watch)
        if self._refused(facts, said.text() + written) and process.wait_empty(_EMPTIED):
            return None
        return self._concluded(watch, hearing, facts, written, said.text())

    def _command(self, text: str, answer: Path) -> tuple[str, ...]:
        rules = self._headless
        argv = rules.resume if self._ref is not None and rules.resume else rules.argv
        filled = (part.replace("{ref}", self._ref or "") for part in argv)
        return ("sh", "-c", _APART, "sh", str(answer), *(part.replace("{input}", text) for part in filled))

    def _refused(self, facts: Facts, output: str) -> bool:
        resume = self.rules.resume
        if self._ref is None or resume is None or not facts.exited or facts.exit_code == 0 or facts.cancelled:
            return False
        return any(pattern.search(line) for line in output.splitlines() for pattern in resume.refused)

    def _concluded(self, watch: Watch, hearing: Hearing, facts: Facts, written: str, beside: str) -> TurnResult:
        rules = self._headless
        said = documents(written) if rules.reply is not None else ()
        reply = self._plain(written) if rules.reply is None else rules.reply.found(said)
        error = rules.error.found(said) if rules.error is not None else None
        fault = _fault(facts, reply, error, beside)
        if reply and (fault is None or error is None):
            hearing.write(reply)
        self._ref = self._reference(said, worked=fault is None and facts.exit_code == 0)
        result = self.conclude(watch, hearing, facts if fault is None else replace(facts, fault=fault))
        return replace(result, session_ref=self.conversation.current(told=self._ref), exit_code=facts.exit_code)

    def _plain(self, written: str) -> str:
        """All it wrote, but for lines that are none of its reply."""
        noise = self.rules.reply.noise
        lines = strip_escapes(written).splitlines()
        return "\n".join(line for line in lines if not any(pattern.search(line) for pattern in noise)).strip()

    def _reference(self, said: tuple[object, ...], *, worked: bool) -> str | None:
        """The conversation's name: what the program says now, else what was known."""
        rules = self._headless
        if rules.ref is not None:
            return rules.ref.found(said) or self._ref
        return LAST if rules.resume and worked else self._ref


class _Beside:
    """What the program says beside its answer."""

    def __init__(self, said: Answer, watch: Watch) -> None:
        self._said, self._watch = said, watch

    def write(self, text: str) -> None:
        self._said.feed(text)
        self._watch.heard(text)

    def flush(self) -> None:
        """For pexpect."""


def _fault(facts: Facts, reply: str | None, error: str | None, beside: str) -> tuple[str, str] | None:
    """Why the turn failed, if the program ended by itself."""
    if not facts.exited or facts.killed:
        return None
    if error:
        return "agent_failed", error[-2_000:]
    if facts.exit_code != 0:
        return (
            None
            if not beside.strip()
            else ("exit_nonzero", f"exit status {facts.exit_code}: {beside.strip()[-2_000:]}")
        )
    return None if reply is not None else ("no_reply", f"its output has no reply: {beside.strip()[-2_000:]}")


def _progress(answer: Path, seen: int, watch: Watch) -> int:
    """What was added to the answer is progress."""
    try:
        size = answer.stat().st_size
    except OSError:
        return seen
    if size > seen:
        watch.heard(f"{size} bytes\n")
    return size


def _read(answer: Path) -> str:
    try:
        with answer.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - ANSWER_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
