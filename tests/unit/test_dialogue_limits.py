"""When a turn's limits are passed, and what of a terminal's output is progress."""

from datetime import timedelta

import pytest

from oah.core.dialogue.limits import Elapsed, Limits, passed
from oah.core.dialogue.progress import Progress, shape
from oah.core.model.run import StopReason
from oah.core.model.timeout import TimeoutReason


def seconds(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)


@pytest.mark.parametrize(
    ("run", "deadline", "idle", "turn", "quiet", "reason"),
    [
        (None, None, None, 1e6, 1e6, None),
        (10, None, None, 9.9, 9.9, None),
        (10, None, None, 10, 0, TimeoutReason.RUN),
        (None, 5, None, 5, 0, TimeoutReason.DEADLINE),
        (None, 0, None, 0, 0, TimeoutReason.DEADLINE),
        (None, None, 3, 100, 2.9, None),
        (None, None, 3, 100, 3, TimeoutReason.IDLE),
        (10, 8, 3, 11, 0, TimeoutReason.DEADLINE),
        (8, 10, 3, 11, 0, TimeoutReason.RUN),
        (10, None, 3, 10.5, 9.5, TimeoutReason.IDLE),
    ],
)
def test_the_limit_whose_moment_came_first(
    run: float | None, deadline: float | None, idle: float | None, turn: float, quiet: float, reason: object
) -> None:
    limits = Limits(run=seconds(run), deadline=seconds(deadline), idle=seconds(idle))
    assert passed(limits, Elapsed(turn=timedelta(seconds=turn), idle=timedelta(seconds=quiet))) is reason


def test_every_reason_has_words_and_every_stop_of_a_limit_its_reason() -> None:
    assert all(reason.error.code == reason and reason.error.message for reason in TimeoutReason)
    limits = {stop: TimeoutReason.of_stop(stop) for stop in StopReason}
    assert {stop for stop, reason in limits.items() if reason} == {each for each in StopReason if each.of_one_attempt}
    assert TimeoutReason.of_stop(None) is None


FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def progress(*pieces: str) -> list[bool]:
    seen = Progress()
    return [seen.feed(piece) for piece in pieces]


def test_appended_text_is_progress_also_when_it_repeats_itself() -> None:
    assert progress("ok\r\n", "ok\r\n", ".", ".", "\x1b[32mok\x1b[0m\n") == [True] * 5
    assert progress("", "\r\n", " \n", "\x1b[0m") == [False] * 4


@pytest.mark.parametrize(
    "frame",
    [
        "\r{spin} Working… ({n}s)",
        "\x1b[2K\x1b[1G{spin} Working… {n} tokens",
        "\x08{spin}",
        "\x1b[1A\x1b[2K{spin} Working ({n}s · esc to interrupt)\r\n",
        "\x1b[3A\r{spin} Working {n}\r\n> \r\n  hints\r\n",
        "\x1b[?25l\x1b[5;1H{spin} Working {n}\x1b[K",
    ],
)
def test_a_spinner_is_none(frame: str) -> None:
    pieces = [frame.format(spin=FRAMES[n % 10], n=n) for n in range(200)]
    seen = progress(*pieces)
    assert not any(seen[3:]), frame


def test_a_spinner_with_many_words_stops_being_progress() -> None:
    words = [f"{a}{b}ing" for a in ("pond", "mus", "brew", "dream", "work") for b in "abcdefghijklmnopqr"]
    seen = progress(*(f"\r* {words[n % len(words)]}… {n}s" for n in range(400)))
    assert not any(seen[len(words) + 2 :])
    assert any(seen)


def test_what_stands_between_the_frames_is_progress() -> None:
    seen = Progress()
    for n in range(20):
        seen.feed(f"\r{FRAMES[n % 10]} Working {n}s")
    assert seen.feed("\r\x1b[KReading file a.py\r\n")
    seen.feed("\r⠋ Working 21s")
    assert not seen.feed("\r⠙ Working 22s")
    assert seen.feed("\r\x1b[KReading file b-other.py\r\n"), "another line"
    assert seen.feed("plain\r\n"), "after a drawn line has ended text is appended again"
    assert seen.feed("plain\r\n")


def test_a_percentage_that_grows_is_progress_and_a_counter_is_not() -> None:
    seen = progress(*(f"\rDownloading {n}%" for n in range(10)), "\r.")
    assert seen[1:] == [True] * 10
    assert not any(progress(*(f"\rWaiting {n}" for n in range(10)), "\r")[3:])


def test_sequences_cut_in_two_are_not_text() -> None:
    frame = "\x1b[1A\x1b[2K⠋ Working\r\n"
    assert not any(progress(*(frame * 30))[len(frame) * 3 :])


def test_a_cleared_screen_is_a_new_page() -> None:
    seen = Progress()
    seen.feed("\x1b[H\x1b[2J")
    assert seen.feed("same\r\n")
    assert seen.feed("same\r\n")
    assert seen.feed("\x1b[?1049h") is False
    seen.feed("same\r\n")
    assert not seen.feed("same\r\n"), "a full screen is drawn"
    seen.feed("\x1b[?1049l")
    assert seen.feed("same\r\n")


def test_the_shape_of_a_line_is_its_words() -> None:
    assert shape("⠋ Working… (12s · ↑ 1.2k tokens)") == "Working s k tokens"
    assert shape("  45 % of it") == "45 of it"
    assert shape("│ ╰──╯ 12:30") == ""
