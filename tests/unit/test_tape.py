"""The last bytes of a terminal, and the frames they travel in."""

from hypothesis import given
from hypothesis import strategies as st

from oah.core.dialogue.draft import draft_after, gives
from oah.core.dialogue.frames import Note, Output, Snapshot, decoded, encoded, size_of
from oah.core.dialogue.tape import Tape

pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=40)


@given(pieces, st.integers(1, 64), st.integers(0, 1000))
def test_a_tape_gives_every_byte_by_its_offset_or_says_that_it_is_gone(
    written: list[bytes], keep: int, start: int
) -> None:
    tape = Tape(keep=keep, start=start)
    for piece in written:
        tape.append(piece)
    whole = b"".join(written)
    assert tape.end == start + len(whole)
    assert tape.end - tape.start <= 2 * keep + 0 or len(whole) <= 2 * keep
    assert tape.end - tape.start >= min(len(whole), keep)
    for offset in range(start, tape.end + 1):
        found = tape.read(offset, 7)
        assert found == (whole[offset - start :][:7] if offset >= tape.start else None)
    assert tape.read(tape.end + 1, 1) is None


@given(pieces, st.randoms(use_true_random=False))
def test_bytes_that_come_twice_are_taken_once(written: list[bytes], chance) -> None:
    whole = b"".join(written)
    tape = Tape(keep=10_000)
    at = 0
    while at < len(whole):
        begin = chance.randint(0, at)
        end = chance.randint(begin, len(whole))
        assert tape.put(begin, whole[begin:end])
        at = max(at, end)
        assert tape.read(0, 10_000) == whole[:at]


def test_a_gap_begins_anew() -> None:
    tape = Tape(keep=100)
    tape.append(b"abc")
    assert not tape.put(10, b"xyz")
    assert (tape.start, tape.end, tape.read(10, 9)) == (10, 13, b"xyz")


def test_frames_come_back_as_they_went() -> None:
    for frame in (
        Snapshot(2**40, b"\x1b[2Jhello"),
        Output(0, b""),
        Output(17, b"\x00\xff"),
        Note("size", {"rows": 40, "cols": 100}),
    ):
        assert decoded(encoded(frame)) == frame


def test_what_is_no_frame_is_none() -> None:
    for message in (b"", b"S", b"X" + bytes(8), "", "[]", "{}", '{"type": 3}', "{" * 100_000, "nonsense"):
        assert decoded(message) is None


def test_output_after_a_snapshot_begins_at_its_offset() -> None:
    assert Output(10, b"abcdef").after(13) == b"def"
    assert Output(10, b"abcdef").after(4) == b"abcdef"
    assert Output(10, b"abcdef").after(99) == b""


def test_sizes_that_a_terminal_can_have() -> None:
    assert size_of({"rows": 24, "cols": 80}) == (24, 80)
    for rows, columns in ((1, 80), (24, 9), (501, 80), (24, 1001), ("24", 80), (None, None)):
        assert size_of({"rows": rows, "cols": columns}) is None


def test_a_half_typed_line_is_noticed_and_forgotten_with_its_end() -> None:
    draft = draft_after(0, b"rm -r")
    assert draft == 5
    assert draft_after(draft, b"f\x7f\x7f") == 4
    for end in (b"\r", b"\n", b"\x03", b"\x15"):
        assert draft_after(draft, end) == 0
    assert draft_after(0, b"\x7f") == 0


def test_only_a_line_that_is_given_has_the_program_at_work() -> None:
    assert all(gives(keys) for keys in (b"ls\r", b"\n", b"sleep 9\x03"))
    assert not any(gives(keys) for keys in (b"", b"rm -r", b"\x15", b"\x04", b"\x7f"))
