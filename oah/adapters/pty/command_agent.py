"""One program per run: its exit is the outcome, all it wrote is the answer."""

from __future__ import annotations

import json
from datetime import timedelta

from oah.adapters.pty.agents import PtyAgent
from oah.adapters.pty.matching import SLICE_SECONDS, Ended, Matcher
from oah.core.dialogue.marker import input_fault
from oah.errors import AgentError, Unavailable
from oah.ports.agent import MAX_RESULT_BYTES, TurnControl, TurnRequest, TurnResult, TurnStatus

_ARGUMENT_BYTES = 100_000
"""Longer inputs go through a file: Linux takes 128 KiB per argument."""
_SHELLS = ("sh", "bash", "dash", "/bin/sh", "/bin/bash")


class CommandAgent(PtyAgent):
    """ports.agent.Agent for profiles of kind `command`. Nothing runs between turns."""

    @property
    def warm(self) -> bool:
        """See ports.agent.Agent. There is nothing to keep."""
        return False

    def start(self) -> None:
        """Only the directories: the program starts with the turn."""
        self.prepare()
        self.begin_recording()

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        """See ports.agent.Agent."""
        fault = input_fault(request.input, limit=MAX_RESULT_BYTES)
        if fault is not None:
            return self.failed(AgentError(fault[1], code=fault[0]))
        if control.cancel_requested():
            recording = self.finish_recording()
            self.leave()
            return TurnResult(status=TurnStatus.CANCELLED, tree_empty=True, recording=recording)
        self.note_input(request.input)
        try:
            self.place("input", request.input)
            process = self.spawn(self._command(request.input), request.env)
        except (AgentError, Unavailable) as error:
            return self.failed(error)
        watch = self.watch(process, request, control)
        hearing = self.hearing(request, control, watch)
        matcher = Matcher(process.terminal)
        matcher.listen(hearing)
        self.speech.begin()
        while not watch.over():
            if isinstance(matcher.look([]), Ended):
                process.wait(timedelta(seconds=SLICE_SECONDS))
            hearing.tick()
            self.speech.step(process.terminal)
        self.drain(matcher)
        self.speech.end()
        return self.conclude(watch, hearing, self.facts(watch))

    def _command(self, text: str) -> tuple[str, ...]:
        argv = self.profile.argv
        is_shell = argv[0] in _SHELLS and argv[-2:] == ("-c", "{input}")
        if is_shell and (words := _words(text)):
            return words
        if is_shell and len(text.encode()) > _ARGUMENT_BYTES:
            text = '. "$OAH_SCRATCH/input"'
        return tuple(part.replace("{input}", text) if "{input}" in part else part for part in argv)


def _words(text: str) -> tuple[str, ...]:
    """The command when the input is a JSON list of strings, else nothing."""
    if not text.lstrip().startswith("["):
        return ()
    try:
        words = json.loads(text)
    except ValueError:
        return ()
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return ()
    return tuple(words)
