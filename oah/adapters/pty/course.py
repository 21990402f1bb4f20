"""One turn of a full-screen program: find the place to type, give the text, follow it, read what was answered.

The loop around the pure judgements of `core/dialogue`. It can be left where the program asks somebody, and continued.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from oah.adapters.pty.asked import AskedQuestion
from oah.adapters.pty.giving import clear, give, slow_down
from oah.adapters.pty.hearing import PROGRESS_SECONDS, Hearing
from oah.adapters.pty.screen_terminal import SLICE, ScreenTerminal
from oah.adapters.pty.speech import Said, Speech
from oah.adapters.pty.watch import Watch
from oah.core.dialogue import injection, turn
from oah.core.dialogue.keys import Typing, typing
from oah.core.dialogue.live import GrowingReply
from oah.core.dialogue.place import Place, place
from oah.core.dialogue.progress import ScreenProgress
from oah.core.dialogue.reading import Condition, Dialog, Reading, read, unknown
from oah.core.dialogue.reply import CUT, is_cut, reply
from oah.core.dialogue.screen import Screen
from oah.core.model.delivery import Outcome
from oah.core.model.question import Question
from oah.core.policy.throttle import Throttle, after
from oah.errors import AgentError, InvalidRequest
from oah.ports.agent import TurnControl, TurnRequest
from oah.ports.commands import Delivery

AUTO_ANSWERS = 100
"""Questions of one turn that a policy answers; more are for a person."""

_ASKS = (Place.ASKS, Place.BLOCKED, Place.UNKNOWN)
_KEY_PAUSE = timedelta(seconds=0.1)


class Refused(AgentError):
    """The text was not given: nothing was typed, the program is as it was."""


class Course:
    """`go`, and after a question `answer` and `go` again. Used by one thread at a time."""

    def __init__(
        self,
        screen: ScreenTerminal,
        request: TurnRequest,
        hearing: Hearing,
        speech: Speech,
        throttle: Throttle,
        *,
        recorded: Callable[[str, str], str | None] = lambda text, shown: None,
    ) -> None:
        """`recorded`: our text and the end of its reply → all of it, by the program's own record."""
        self.screen = screen
        self.request = request
        self.hearing = hearing
        self.throttle = throttle
        self.delivery: Outcome | None = None
        self.over = False
        """The program waits for its next text."""
        self.cut = False
        """Of the reply only the end could be read."""
        self._recorded = recorded
        self._speech = speech
        self._asked = AskedQuestion(screen)
        self._state = turn.Turn(time.monotonic())
        self._mark = 0
        self._text = ""
        self._before = ""
        self._growing = GrowingReply()
        self._moves = ScreenProgress()
        self._latest = ""
        self._shown_at = 0.0
        self._auto = 0

    @property
    def question(self) -> Question | None:
        """What somebody is asked."""
        return self._asked.question

    def begin(self, watch: Watch, control: TurnControl) -> None:
        """Who watches over it from now on."""
        self.watch, self.control = watch, control
        self.hearing.goes_to(control.on_output)

    def go(self) -> Question | None:
        """Until it asks somebody, or the turn is over (None). Raises Refused, AgentError."""
        self._asked.question = None
        if self.delivery is None:
            asked = self._give()
            if asked is not None or self.delivery is None:
                return asked
        self._speech.begin()
        return self._follow()

    # -- before the text --------------------------------------------------------------------------------------------

    def _give(self) -> Question | None:
        slow_down(self.screen, self.throttle, self._stopped)
        begun = time.monotonic()
        while True:
            asked = self._find_place()
            if asked is not None or self._stopped():
                return asked
            with self.screen.terminal.typing:  # a person who types meanwhile waits until the text is submitted
                if self._is_still_empty():
                    self._give_now()
                    return None
            self._check_patience(time.monotonic() - begun)
            self.screen.pump(SLICE)

    def _is_still_empty(self) -> bool:
        self._see_keys()
        composer = self.screen.read().composer
        return not (self.screen.terminal.draft if composer is None else composer.draft)

    def _see_keys(self) -> None:
        """Take what waits; keys that a person pressed a moment ago may not be shown yet."""
        self.screen.catch_up()
        while self.screen.keys_unseen and self.screen.pump(_KEY_PAUSE):
            pass

    def _give_now(self) -> None:
        rules, screen = self.screen.rules, self.screen.look()
        planned = injection.plan(
            self.request.input,
            rules.injection,
            bracketed=screen.bracketed_paste,
            canonical=self.screen.terminal.canonical(),
            command=self.request.command,
            one_line=self.request.one_line,
        )
        if isinstance(planned, injection.Refusal):
            raise Refused(planned.reason, code=planned.code)
        self._mark = _line_of(screen, read(screen, rules.screen))
        self._text = planned.text
        self._before = self._reply(screen)
        ended = give(
            self.screen,
            planned,
            mark=self._mark,
            stop=self.watch.over,
            unwanted=lambda: self.watch.cancelled,
            live=False,
        )
        if ended is not None:
            self.delivery = ended.outcome
            self.throttle = after(self.throttle, ended.outcome)
            if ended.outcome is Outcome.FAILED:
                raise AgentError(ended.reason, code="delivery_failed")
            self._state = turn.Turn(time.monotonic())
            self.request.delivered(ended.outcome)
        elif self.watch.cancelled and not self.watch.over():
            self.over = clear(self.screen)

    def _find_place(self) -> Question | None:
        """Wait until the composer is there and empty. Raises Refused when somebody else's line stays in it."""
        self.screen.catch_up()
        taken_at: float | None = None
        while not self._stopped():
            reading = self.screen.read()
            found = self._place(reading)
            if found is Place.FREE:
                return None
            if found is Place.TAKEN:
                taken_at = time.monotonic() if taken_at is None else taken_at
                self._check_patience(time.monotonic() - taken_at)
            else:
                taken_at = None
            asked = self._asks(reading.dialog) if found in _ASKS else None
            if asked is not None or not self.screen.pump(SLICE):
                return asked
        return None

    def _place(self, reading: Reading) -> Place:
        rules, quiet = self.screen.rules, self.screen.stood(reading)
        return place(reading, quiet=quiet, settle=timedelta(0), rules=rules.turn, blind=rules.injection.blind)

    def _check_patience(self, waited: float) -> None:
        if waited >= self.screen.rules.injection.patience.total_seconds():
            raise Refused("somebody's half-typed line stands in the composer", code="composer_not_empty")

    def _stopped(self) -> bool:
        return self.watch.over() or self.watch.cancelled

    # -- after it ---------------------------------------------------------------------------------------------------

    def _follow(self) -> Question | None:
        while not self.watch.over():
            if not self.screen.pump(SLICE):
                return None
            verdict = self._judge()
            match verdict:
                case turn.Over():
                    self.over = True
                    return None
                case turn.Unseen():
                    self._nothing_seen()
                    self.over = True
                    return None
                case turn.Asks(dialog=dialog):
                    asked = self._asks(dialog)
                    if asked is not None:
                        return asked
                case turn.Going():
                    pass
        return None

    def _judge(self) -> turn.Verdict:
        screen = self.screen.look()
        reading = read(screen, self.screen.rules.screen)
        self._state = turn.output(self._state, max(self.screen.output_at, self.screen.key_at))
        answered = self._progress(screen, reading)
        if self._moves.look(screen.lines, scrolled=screen.scrolled, said=self._latest):
            self.watch.progressed()
        self._speak(screen, reading)
        stood = self.screen.stood(reading) if reading.dialog is not None else 0.0
        self._state, verdict = turn.judge(
            self._state, reading, answered=answered, now=self.screen.heard_at, rules=self.screen.rules.turn, stood=stood
        )
        return verdict

    def _progress(self, screen: Screen, reading: Reading) -> bool:
        """Show what is new of the reply, a few times a second; whether there is one (or it was interrupted)."""
        if reading.condition is not Condition.READY and time.monotonic() - self._shown_at < PROGRESS_SECONDS:
            return False
        self._shown_at = time.monotonic()
        self._latest = self._reply(screen, working=reading.condition is Condition.WORKING)
        moved = self.screen.rules.screen.composer.at_cursor and _line_of(screen, reading) > self._mark
        answered = bool(self._latest and self._latest != self._before) or moved or self.watch.cancelled
        if self._latest != self._before and reading.dialog is None:
            self.hearing.show(self._growing.look(self._latest))
        return answered

    def _nothing_seen(self) -> None:
        if self.delivery is Outcome.UNVERIFIED and not self.screen.rules.injection.blind:
            raise AgentError("the text was given, and nothing came of it", code="delivery_unconfirmed")

    def _reply(self, screen: Screen, *, working: bool = False) -> str:
        """While it works, what says so ends the reply."""
        rules = self.screen.rules
        said = replace(rules.reply, stop=(*rules.reply.stop, *rules.screen.busy)) if working else rules.reply
        return reply(screen, self._text, said, rules.screen.composer, mark=self._mark)

    # -- questions --------------------------------------------------------------------------------------------------

    def _asks(self, dialog: Dialog | None) -> Question | None:
        """The question, unless a policy answers it. Raises AgentError `agent_blocked`."""
        if dialog is not None and dialog.kind.blocks:
            raise AgentError(f"{dialog.name}: {shortened(dialog.text)}", code="agent_blocked")
        if self.watch.cancelled:
            return None  # nobody is asked any more: the cancel goes on until the program has left the dialog
        question = dialog.question if dialog is not None else unknown(self.screen.look())
        self._asked.put(dialog)
        said = self.control.answer(question) if self._auto < AUTO_ANSWERS else None
        typed = self._typing(question, said) if said is not None else None
        if typed is None:
            self._asked.question = question
            return question
        self._auto += 1
        self._type(typed)
        return None

    def check(self, text: str) -> None:
        """Raises InvalidRequest `answer_unfit` when it is no answer to the question."""
        question = self.question
        if question is None or self._typing(question, text) is None:
            hint = "; ".join(f"{choice.key}: {choice.words}" for choice in question.choices) if question else ""
            raise InvalidRequest("that is no answer to the question", code="answer_unfit", hint=hint or None)

    def answer(self, text: str) -> None:
        """Type the answer to the question, unless somebody has given it at the terminal. Raises AgentError."""
        question = self.question
        typed = self._typing(question, text) if question is not None else None
        if typed is None or not self._type(typed):
            self.goes_on()

    def asks(self) -> bool:
        """Whether the question still stands. Any thread, while nobody drives the turn."""
        return self._asked.asks()

    def goes_on(self) -> None:
        """Somebody has answered at the terminal: what comes of that is a part of the turn."""
        self._state = replace(turn.key(self._state, time.monotonic()), worked=True)
        self._asked.left()

    def _typing(self, question: Question, text: str) -> Typing | None:
        return typing(question, text, self.screen.rules.keys, self.screen.rules.injection)

    def _type(self, typed: Typing) -> bool:
        """False: the question has gone, somebody was faster. Whoever types at the terminal meanwhile waits, so that no
        key of theirs comes between the look and the answer, nor keeps it waiting for ever."""
        with self.screen.terminal.typing:
            self._see_keys()
            if not self._asked.stands():
                return False
            if typed.text:
                self.screen.press(typed.text)
                self.screen.pump(_KEY_PAUSE)
            if typed.key:
                self.screen.press(typed.key)
        self._state = turn.replied(self._state, self._asked.dialog, time.monotonic())
        self.screen.pump(_KEY_PAUSE)
        return True

    # -- what others say --------------------------------------------------------------------------------------------

    def _speak(self, screen: Screen, reading: Reading) -> None:
        """Give what waits to be said, while the composer is there and empty: never into a dialog, never into a line
        that somebody has begun."""
        composer = reading.composer
        if not self._speech.waits or composer is None or composer.draft or self._stopped():
            return
        if self.screen.keys_unseen:
            return
        said = self._speech.next()
        if said is None:
            return
        planned = injection.plan(
            said.text,
            self.screen.rules.injection,
            bracketed=screen.bracketed_paste,
            canonical=self.screen.terminal.canonical(),
        )
        if isinstance(planned, injection.Refusal):
            self._speech.settle(said, Delivery.MISSED)
            return
        self._say(said, planned, screen, reading)

    def _say(self, said: Said, planned: injection.Plan, screen: Screen, reading: Reading) -> None:
        live = reading.condition is Condition.WORKING
        mark = _line_of(screen, reading)
        try:
            with self.screen.terminal.typing:
                ended = give(
                    self.screen,
                    planned,
                    mark=mark,
                    stop=self.watch.over,
                    unwanted=lambda: self.watch.cancelled,
                    live=live,
                )
        except AgentError:
            self._speech.settle(said, Delivery.UNVERIFIED)
            raise
        if ended is not None:
            self.throttle = after(self.throttle, ended.outcome)
        if ended is not None and ended.outcome is Outcome.FAILED and clear(self.screen):
            self._speech.settle(said, Delivery.MISSED)
            return
        confirmed = ended is not None and ended.outcome is Outcome.CONFIRMED
        self._speech.settle(said, Delivery.DELIVERED if confirmed else Delivery.UNVERIFIED)
        self._state = turn.key(self._state, time.monotonic())

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The answer as it stands, exactly; an interrupted program's composer is emptied, or the program ended."""
        screen = self.screen.look()
        text = self._reply(screen) if self._text else ""
        if not text and not self.over:
            text = self._latest
        if text != self._before:
            rules = self.screen.rules
            self.cut = is_cut(screen, self._text, rules.reply, rules.screen.composer, mark=self._mark)
            whole = self._recorded(self._text, text) if self.cut else text
            self.cut = whole is None
            self.hearing.keep(f"{CUT}\n{text}" if whole is None else whole)
            self.hearing.show(self._growing.end(text))
        if self.over and self.watch.cancelled and not self.watch.killed and not clear(self.screen):
            self.over = False
            self.watch.kill()


def shortened(text: str) -> str:
    """A screen as one line of an error message."""
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())[-600:]


def _line_of(screen: Screen, reading: Reading) -> int:
    """The composer's first line, counted from the first line that ever was; without one, the cursor's."""
    return screen.scrolled + (reading.composer.first if reading.composer is not None else screen.row)
