"""A recording as plain text."""

import json

import pytest

from oah.adapters.pty.written import written


def cast(*events: tuple[str, str], height: int = 5, width: int = 20) -> list[bytes]:
    head = json.dumps({"version": 2, "width": width, "height": height})
    lines = [head, *(json.dumps([0.1, kind, text]) for kind, text in events)]
    whole = ("\n".join(lines) + "\n").encode()
    return [whole[at : at + 7] for at in range(0, len(whole), 7)]


def text(chunks: list[bytes]) -> str:
    return b"".join(written(chunks)).decode()


def test_every_line_once_in_order_however_many_scrolled_away() -> None:
    lines = [f"line {number}" for number in range(8_000)]
    assert text(cast(("o", "\r\n".join(lines)))).splitlines() == lines


def test_typed_keys_and_marks_are_no_output() -> None:
    assert text(cast(("i", "secret"), ("m", "run 1"), ("o", "shown"))) == "shown\n"


def test_colours_are_left_out_and_what_was_overwritten_is_gone() -> None:
    assert text(cast(("o", "\x1b[31m10%\r20%\x1b[0m\r\ndone"))) == "20%\ndone\n"


def test_a_new_size_holds_from_then_on() -> None:
    shown = text(cast(("o", "x" * 30 + "\r\n"), ("r", "40x5"), ("o", "y" * 30)))
    assert shown.split() == ["x" * 20, "x" * 10, "y" * 30]


def test_a_recording_that_ends_in_the_middle_or_is_none() -> None:
    whole = b"".join(cast(("o", "one\r\n"), ("o", "two")))
    assert text([whole[:-9]]) == "one\n"
    assert text([b"rubbish\n\n[1]\n", b'{"a": 1}\n[0, "o", 3]']) == "\n"
    assert text([]) == "\n"


def test_of_a_long_one_the_end_is_played_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.adapters.pty.written.MOST_BYTES", 4_000)
    middle = [("o", f"{number:07}\r\n") for number in range(1_000)]
    first, *rest = text(cast(("o", "early\r\n"), *middle, ("o", "late"))).splitlines()
    assert first == "[5011 characters of output before this are left out; the recording has them]"
    assert rest == [f"{number:07}" for number in range(556, 1_000)] + ["late"]
