"""Recordings: asciicast v2 that plays, bounded, uploaded while the attempt runs; and the blobs they lie in."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.pty.recording import Recording, RecordingWriter
from oah.errors import PayloadTooLarge, RequestError, Unavailable
from oah.ports.agent import TurnStatus
from tests.support import eventually
from tests.support.terminals import Bench, bench


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


def made(blobs: DirectoryBlobs, **more: Any) -> Recording:
    return Recording(blobs, "recordings/r/1.cast", **{"cols": 80, "rows": 24, "title": "t", **more})


def lines(blobs: DirectoryBlobs, key: str = "recordings/r/1.cast") -> list[Any]:
    data = blobs.get(key)
    assert data is not None
    return [json.loads(line) for line in data.splitlines()]


def output(events: list[Any]) -> str:
    return "".join(text for _, kind, text in events[1:] if kind == "o")


def test_an_attempt_leaves_a_recording_that_asciinema_plays(desk: Bench) -> None:
    agent = desk.open("shell")
    result = desk.turn(agent, "printf '\\033[31mred\\033[0m caf\\303\\251\\n'")
    assert result.recording is not None
    events = lines(desk.blobs, result.recording)
    assert (events[0]["version"], events[0]["width"], events[0]["height"]) == (2, 100, 40)
    kinds = {kind for _, kind, _ in events[1:]}
    assert {"o", "i", "m"} <= kinds
    assert [at for at, _, _ in events[1:]] == sorted(at for at, _, _ in events[1:])
    assert "\x1b[31mred\x1b[0m café" in output(events)
    path = desk.directory / "blobs" / result.recording
    played = desk.once(f"{sys.executable} -m asciinema play --speed 1000 {path}")
    assert (played.status, played.error_message) == (TurnStatus.COMPLETED, None), played.output
    assert "red café" in played.output
    assert "red café" in desk.once(f"{sys.executable} -m asciinema cat {path}").output


def test_each_attempt_of_a_warm_agent_has_its_own_recording(desk: Bench) -> None:
    agent = desk.open("shell")
    first, second = desk.turn(agent, "echo one"), desk.turn(agent, "echo two")
    assert first.recording is not None
    assert second.recording is not None
    assert first.recording != second.recording
    assert "two" not in output(lines(desk.blobs, first.recording))
    assert "one" not in output(lines(desk.blobs, second.recording))


def test_a_character_cut_in_two_is_whole_in_the_recording(blobs: DirectoryBlobs) -> None:
    recording = made(blobs)
    for byte in "é☃𝄞".encode():
        recording.feed(bytes([byte]))
        recording.flush()
    recording.feed(b"\xff\xe2")
    recording.finish()
    assert output(lines(blobs)) == "é☃𝄞\ufffd\ufffd"


def test_head_and_tail_are_kept_and_the_cut_is_marked(blobs: DirectoryBlobs) -> None:
    recording = made(blobs, head_bytes=1000, tail_bytes=500)
    for number in range(1000):
        recording.feed(b"%04d\n" % number)
        if number % 100 == 0:
            recording.flush()
    assert recording.finish() == recording.key
    events = lines(blobs)
    text = output(events)
    assert text.startswith("0000\n0001\n")
    assert text.endswith("0998\n0999\n")
    assert len(text) <= 1510
    (mark,) = [text for _, kind, text in events[1:] if kind == "m"]
    assert mark == f"cut: {5000 - len(text)} bytes left out"


def test_it_is_uploaded_while_the_attempt_runs(blobs: DirectoryBlobs) -> None:
    writer = RecordingWriter(seconds=0.2)
    writer.start()
    recording = made(blobs)
    writer.add(recording)
    recording.feed(b"early")
    eventually(lambda: blobs.size(recording.key), what="an upload")
    assert output(lines(blobs)) == "early"
    recording.resized(rows=10, cols=20)
    recording.typed("x")
    assert writer.finish(recording) == recording.key
    recording.feed(b"too late")
    assert recording.finish() == recording.key
    assert [kind for _, kind, _ in lines(blobs)[1:]] == ["o", "r", "i"]
    writer.stop()


def test_a_store_that_fails_ends_the_recording_not_the_run() -> None:
    class Broken(DirectoryBlobs):
        def put(self, key: str, data: bytes) -> None:
            raise Unavailable("full", code="blobs_unavailable")

    recording = made(Broken(Path("/nonesuch")))
    recording.feed(b"x")
    assert recording.finish() is None


def test_blobs_do_what_the_port_says(blobs: DirectoryBlobs) -> None:
    assert (blobs.get("a/b"), blobs.size("a/b"), blobs.delete("a/b")) == (None, None, False)
    blobs.put("a/b", b"one")
    blobs.put("a/b", b"two!")
    assert (blobs.get("a/b"), blobs.get("a/b", limit=2), blobs.size("a/b")) == (b"two!", b"tw", 4)
    assert blobs.append("a/b", b"??") == 6
    assert blobs.append("c", b"new") == 3
    assert list(blobs.chunks("a/b", offset=2, size=3)) == [b"o!?", b"?"]
    assert sorted(blobs.keys()) == ["a/b", "c"]
    assert list(blobs.keys("a/")) == ["a/b"]
    assert blobs.delete("c")
    assert list(blobs.chunks("c")) == []


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../b", "a//b", ".hidden", "a/.b", "a b", "x" * 600, "a/", "é"]
)
def test_a_key_cannot_leave_the_directory(blobs: DirectoryBlobs, key: str) -> None:
    with pytest.raises(RequestError) as caught:
        blobs.put(key, b"x")
    assert caught.value.code == "invalid_key"


def test_blobs_are_bounded_and_a_refused_write_changes_nothing(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path, max_bytes=10)
    blobs.put("a", b"12345")
    for write in (blobs.put, blobs.append):
        with pytest.raises(PayloadTooLarge):
            write("a", b"x" * 11)
    assert blobs.get("a") == b"12345"


def test_a_directory_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    blobs = DirectoryBlobs(tmp_path / "file")
    with pytest.raises(Unavailable) as caught:
        blobs.put("a", b"x")
    assert caught.value.code == "blobs_unavailable"
