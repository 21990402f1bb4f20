"""What we say, and what a program says, looks like its own dialogs and its own status: it is neither.

The screens are recorded ones; the lines above a dialog, or the end of a reply, are replaced by such texts as the
program would show them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from oah.adapters.pty.profiles import load_profiles
from oah.adapters.pty.screen import ScreenModel
from oah.core.dialogue import turn
from oah.core.dialogue.reading import Condition, Reading, read
from oah.core.dialogue.screen import Screen
from oah.core.model.question import DialogKind
from oah.core.policy.answers import Action, Ask, Rule, Rules, decide
from tests.golden.replay import Replay, names, recording, rules_of
from tests.golden.test_dialogs import SCREENS
from tests.support.screens import pattern

SHOWN = {
    "claude-code": ("❯ ", "  "),
    "codex": ("› ", "  "),
    "copilot": (" ❯ ", "   "),
    "gemini": (" > ", "   "),
    "opencode": ("  ┃  ", "  ┃  "),
    "qwen": ("  > ", "    "),
}
"""How a program shows the first line of our text, and the others."""
NO_DIALOGS = {"llm", "pi", "generic"}
ALLOW = Rule(Action.ALLOW, "secret", kinds=(DialogKind.PERMISSION,), pattern=pattern("SECRET"))


class _Kept(Replay):
    """Keeps the screens where it was asked, and where it worked or was ready."""

    def _marked(self, text: str, at: float) -> None:
        super()._marked(text, at)
        if text.startswith("asks"):
            self.__dict__.setdefault("asked_on", []).append(self.model.look())
        if text.startswith("over"):
            self.__dict__.setdefault("over_on", []).append(self.model.look())

    def _look(self, now: float) -> None:
        super()._look(now)
        screen = self.model.look()
        if read(screen, self.recorded.rules.screen).condition is Condition.WORKING:
            self.__dict__.setdefault("worked_on", []).append(screen)


@cache
def kept(name: str) -> dict[str, list[Screen]]:
    return dict(_Kept(recording(name)).__dict__)


@cache
def asked(profile: str) -> Screen:
    """A screen on which it asks for a permission."""
    if profile != "codex":
        return kept(f"{profile}-permission-100x40.cast")["asked_on"][0]
    model = ScreenModel(rows=40, columns=100)
    model.feed((SCREENS / "dialog-codex-permission.bin").read_bytes())
    return model.look()


def ask(screen: Screen, profile: str) -> Reading:
    return read(screen, rules_of(profile).screen)


def own_rows(screen: Screen, profile: str) -> int:
    """The first row of the dialog."""
    dialog = ask(screen, profile).dialog
    assert dialog is not None
    first = next(line for line in dialog.text.splitlines() if line.strip())
    return max(row for row, line in enumerate(screen.lines) if first in line)


def test_every_program_that_asks_is_tried() -> None:
    asking = {
        name
        for name, each in load_profiles().items()
        if each.kind == "screen" and any(rule.kind is DialogKind.PERMISSION for rule in rules_of(name).screen.dialogs)
    }
    assert asking == {*SHOWN, "aider"}
    assert all(not rules_of(name).screen.dialogs for name in NO_DIALOGS)


@pytest.mark.parametrize("profile", sorted(SHOWN))
def test_what_stands_above_a_dialog_is_no_part_of_it(profile: str) -> None:
    screen = asked(profile)
    dialog = ask(screen, profile).dialog
    assert dialog is not None and dialog.whole
    first = own_rows(screen, profile)
    above = "\n".join(screen.lines[: first - 2])
    assert "make a file" in above or profile == "codex", "the text that we gave is on the screen"
    assert "[[use" not in dialog.text and "[[tool" not in dialog.text
    assert "touch" in dialog.text, "and what it asks about is in the dialog"


@pytest.mark.parametrize("profile", sorted(SHOWN))
@pytest.mark.parametrize("gap", [0, 1])
def test_a_text_that_quotes_a_question_word_for_word_is_never_matched(profile: str, gap: int) -> None:
    """It stands right above the real one."""
    screen = asked(profile)
    first = own_rows(screen, profile) - 2 - gap
    own = [line for line in screen.lines[own_rows(screen, profile) - 1 :] if line.strip()]
    begin, more = SHOWN[profile]
    quoted = [begin + "SECRET", *(more + re.sub("touch", "SECRET", line) for line in own)][: first - 1]
    inner = [more + line.strip("│┃ ") + " SECRET" for line in own][: first - 1]
    for text in (quoted, inner):
        lines = (*[""] * (first - len(text)), *text, *screen.lines[first:])
        reading = ask(replace(screen, lines=lines), profile)
        assert reading.condition is Condition.ASKING, "the real one is still seen"
        assert reading.dialog is not None
        question = reading.dialog.question
        assert isinstance(decide(question, Rules(workspace=(ALLOW,))), Ask), question.text
        assert "SECRET" not in question.text or not question.whole


@pytest.mark.parametrize("profile", sorted(SHOWN))
def test_a_quoted_question_alone_is_none(profile: str) -> None:
    """No composer is there, because the program is at work."""
    screen = asked(profile)
    first = own_rows(screen, profile) - 2
    begin, more = SHOWN[profile]
    own = [line for line in screen.lines[first:] if line.strip()]
    lines = [f"{begin}look at this:", *(more + line for line in own), ""]
    reading = ask(replace(screen, lines=(*lines, *[""] * (len(screen.lines) - len(lines)))), profile)
    assert reading.condition not in (Condition.ASKING, Condition.BLOCKED)


def test_a_dialog_that_is_cut_off_is_asked_about_and_matched_by_no_pattern() -> None:
    screen = asked("gemini")
    first = own_rows(screen, "gemini") + 1
    cut = replace(screen, lines=(*screen.lines[first:], *[""] * first))
    dialog = ask(cut, "gemini").dialog
    assert dialog is not None and not dialog.whole and len(dialog.choices) == 3
    deny = Rule(Action.DENY, "never", pattern=pattern("rm -rf"))
    allow = Rule(Action.ALLOW, "all", kinds=(DialogKind.PERMISSION,))
    assert not isinstance(decide(dialog.question, Rules(profile=(allow,))), Ask), "no pattern has to be judged"
    assert isinstance(decide(dialog.question, Rules(workspace=(deny,), profile=(allow,))), Ask)


def test_aider_asks_where_its_cursor_is() -> None:
    prompt = "Run shell command? (Y)es/(N)o/(D)on't ask again [Yes]:"
    lines = ("ask> SECRET quoted: (Y)es/(N)o [Yes]:", "", "touch SECRET", prompt, *[""] * 20)
    at = Screen(lines=lines, columns=100, row=3, column=len(prompt) + 1)
    dialog = ask(at, "aider").dialog
    assert dialog is not None and dialog.text == prompt
    elsewhere = Screen(lines=(*lines[:3], "░█         Waiting for x", *lines[4:]), columns=100, row=3)
    assert ask(elsewhere, "aider").condition is Condition.WORKING


# --- status ---

BUSY = ("claude-code", "codex", "copilot", "gemini", "opencode", "pi", "qwen")
STILL = {"codex", "pi", "qwen"}
"""Their status stands where the last line of a reply may stand."""


def status(profile: str) -> list[str]:
    """Lines that said that it works, as they stood."""
    rules = rules_of(profile).screen
    screens = kept(f"{profile}-talk-100x40.cast")["worked_on"]
    return sorted({line for screen in screens for line in screen.lines if any(p.search(line) for p in rules.busy)})


@pytest.mark.parametrize("profile", BUSY)
def test_a_reply_that_quotes_a_status_is_no_work(profile: str) -> None:
    """Anywhere in it, with and without the indent that replies have."""
    over = kept(f"{profile}-talk-100x40.cast")["over_on"][-1]
    composer = ask(over, profile).composer
    assert composer is not None
    spoken = [row for row in range(composer.first) if "of a long answer" in over.lines[row]]
    assert len(spoken) > 3
    said = status(profile)[:6]
    assert said
    for line in said:
        for quoted in (line, "  " + line.strip(), "● " + line.strip(), line.strip()):
            for row in spoken:
                lines = (*over.lines[:row], quoted, *over.lines[row + 1 :])
                reading = ask(replace(over, lines=lines), profile)
                assert reading.condition is Condition.READY, (row, quoted)


@pytest.mark.parametrize("profile", sorted(STILL))
def test_a_last_line_like_a_status_holds_no_turn_for_ever(profile: str) -> None:
    """It does not move: somebody is asked, and nothing is over that may go on."""
    over = kept(f"{profile}-talk-100x40.cast")["over_on"][-1]
    composer = ask(over, profile).composer
    assert composer is not None
    row = composer.first - max(rules_of(profile).screen.busy_above or 0, 1)
    reading = ask(replace(over, lines=(*over.lines[:row], status(profile)[0], *over.lines[row + 1 :])), profile)
    rules = rules_of(profile).turn
    if reading.condition is Condition.READY:
        return
    assert reading.condition is Condition.WORKING and rules.still is not None
    state = turn.Turn(changed_at=0.0, worked=True)
    assert isinstance(turn.judge(state, reading, answered=True, now=30.0, rules=rules)[1], turn.Going)
    assert turn.judge(state, reading, answered=True, now=61.0, rules=rules)[1] == turn.Asks(None)


def test_programs_that_show_their_work_were_recorded_at_it() -> None:
    assert {recording(name).profile for name in names("talk")} == {*BUSY, "aider", "llm"}
