"""Conversations with real programs, recorded at three sizes of the terminal.

Ready is seen, work is seen, a turn is over when its reply is there and not before, and what is drawn otherwise is not
recognised rather than misread.
"""

from collections.abc import Callable
from functools import cache

import pytest

from oah.core.dialogue.reading import Condition
from oah.core.dialogue.screen import folded
from oah.core.dialogue.versions import is_known
from tests.golden.replay import Recording, Replay, Seen, foretold, names, recording, sizes

TALKS = names("talk")
SILENT = {"llm"}
"""Shows nothing while it works."""
SIZES = {(80, 24), (100, 40), (132, 50)}
WIDEST = {"opencode": (116, 50)}
"""Wider, it shows a column of its own beside the conversation; profiles use 100 columns."""

talks = pytest.mark.parametrize("name", TALKS)


def test_every_program_was_recorded_at_every_size() -> None:
    found = sizes(TALKS)
    assert len(found) == 9
    for profile, each in found.items():
        assert each == {*sorted(SIZES)[:2], WIDEST.get(profile, max(SIZES))}, profile


@talks
def test_versions_of_recordings_are_known_to_their_profiles(name: str) -> None:
    each = recording(name)
    assert is_known(each.version, each.rules.versions)


def _complete(seen: Seen, recorded: Recording, text: str) -> bool:
    """Whether the reply has all of the model's words, or their end where the rest was scrolled out of reach."""
    reply = folded(text)
    words = [folded(part) for part in foretold(recorded.texts[seen.number - 1])]
    return all(word in reply for word in words[-3:])


@cache
def played(name: str) -> Replay:
    """The recording as it is, judged once."""
    return Replay(recording(name))


@talks
def test_a_turn_is_over_when_its_reply_is_there_and_not_before(name: str) -> None:
    recorded = recording(name)
    replay = played(name)
    assert Condition.READY in replay.start
    assert [seen.number for seen in replay.turns] == [1, 2, 3]
    for seen in replay.turns:
        assert seen.over_at is not None, f"turn {seen.number} never ended: {seen.conditions}"
        assert _complete(seen, recorded, seen.reply), f"turn {seen.number} was over early: {seen.reply!r}"
        assert seen.over_at <= seen.ended_at + 1.0
        assert not seen.asked, seen.asked
        assert Condition.BLOCKED not in seen.conditions
    slow = replay.turns[1]
    assert recorded.profile in SILENT or Condition.WORKING in slow.conditions
    assert slow.over_at is not None
    assert slow.over_at - slow.begun_at > 2.0


@talks
def test_the_reply_is_what_the_driver_has_read(name: str) -> None:
    recorded = recording(name)
    for seen, said in zip(played(name).turns, recorded.said, strict=True):
        assert folded(seen.reply) == folded(said)


@talks
def test_a_reply_that_is_not_whole_says_so(name: str) -> None:
    """On a program's other screen nothing that scrolls away is kept."""
    recorded = recording(name)
    for seen in played(name).turns:
        words = [folded(part) for part in foretold(recorded.texts[seen.number - 1])]
        whole = all(word in folded(seen.reply) for word in words)
        assert seen.cut is not whole, (seen.number, seen.reply)


# --- programs that have changed ---

_FRAMES = str.maketrans(dict.fromkeys("─▄▀┃╹", "="))
_MARKS = str.maketrans(dict.fromkeys("❯›>", "$"))
_BUSY = ("esc to interrupt", "esc to cancel", "esc interrupt", "Working", "Waiting for", "esc esc", "Thinking")


def _other_words(text: str) -> str:
    for word in _BUSY:
        text = text.replace(word, "x" * len(word))
    return text


FRAMED = {"claude-code", "opencode", "gemini", "qwen", "pi", "copilot"}
MARKED = {"claude-code", "codex", "gemini", "qwen", "copilot", "aider", "llm"}


def _never_taken_for_known(name: str, mutate: Callable[[str], str]) -> None:
    replay = Replay(recording(name), mutate)
    assert Condition.READY not in replay.start, "a start that was drawn otherwise is not ready"
    for seen in replay.turns:
        assert seen.over_at is None, f"turn {seen.number} was said to be over: {seen.reply!r}"


@pytest.mark.parametrize("name", [each for each in TALKS if recording(each).profile in FRAMED])
def test_other_frames_are_not_recognised(name: str) -> None:
    _never_taken_for_known(name, lambda text: text.translate(_FRAMES))


@pytest.mark.parametrize("name", [each for each in TALKS if recording(each).profile in MARKED])
def test_other_prompts_are_not_recognised(name: str) -> None:
    _never_taken_for_known(name, lambda text: text.translate(_MARKS))


@talks
def test_with_other_words_for_work_no_turn_is_over_early(name: str) -> None:
    recorded = recording(name)
    for seen in Replay(recorded, _other_words).turns:
        assert seen.over_at is None or _complete(seen, recorded, seen.reply), f"turn {seen.number}: {seen.reply!r}"


@pytest.mark.parametrize("version", ["3.0.0", "9", "0.9.1", "20.1"])
def test_other_versions_are_not_known(version: str) -> None:
    profiles = {recording(name).profile: recording(name).rules for name in TALKS}
    assert [name for name, rules in profiles.items() if is_known(version, rules.versions)] == []
