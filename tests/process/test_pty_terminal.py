"""Terminals: bounded reading, writing with a deadline, the line discipline, matching."""

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest

from oah.adapters.pty.host import PtyHost
from oah.adapters.pty.matching import Ended, Match, Matcher, compiled
from oah.errors import AgentError, InvalidRequest
from tests.support import eventually
from tests.support.terminals import LONG, pty_host, read_all, read_until, spec

SOON = timedelta(seconds=0.5)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PtyHost]:
    with pty_host(tmp_path_factory.mktemp("host"), buffer_bytes=65536) as started:
        yield started


@pytest.fixture
def host(shared: PtyHost) -> Iterator[PtyHost]:
    yield shared
    for agent_id in shared.live():
        assert shared.kill(agent_id)


def matcher_over(host: PtyHost, script: str) -> Matcher:
    return Matcher(host.spawn(spec("bash", "-c", script)).terminal)


def found(matcher: Matcher, *patterns: str) -> Match | Ended:
    compiled_patterns = [compiled(pattern) for pattern in patterns]
    return eventually(lambda: matcher.look(compiled_patterns), what=f"one of {patterns}")


def test_reading_never_waits_for_a_consumer_and_counts_what_it_drops(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "head -c 2000000 /dev/zero | tr '\\0' x; echo END"))
    assert process.wait(LONG) is not None
    rest = read_all(process)
    assert rest.endswith(b"END\r\n")
    assert len(rest) <= 65536
    assert process.terminal.dropped + len(rest) == 2_000_005


def test_a_writer_gives_up_at_its_deadline(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "stty raw -echo; echo up; exec sleep 60"))
    read_until(process, b"up")
    with pytest.raises(AgentError, match=r"read \d+ of 200000") as caught:
        process.terminal.write(b"x" * 200_000, SOON)
    assert caught.value.code == "agent_not_reading"


def test_large_input_passes_to_a_program_that_reads(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "stty raw -echo; echo up; head -c 500000 | md5sum"))
    read_until(process, b"up")
    process.terminal.write(b"y" * 500_000, LONG)
    assert b"  -" in read_all(process)


def test_a_line_the_kernel_would_cut_is_an_error_not_a_loss(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "stty -echo; echo up; read -r a; echo ${#a}; read -r b; echo ${#b}"))
    read_until(process, b"up")
    terminal = process.terminal
    assert terminal.canonical()
    assert not terminal.echoes()
    with pytest.raises(AgentError) as caught:
        terminal.write(b"x" * 4096 + b"\n", LONG)
    assert caught.value.code == "line_too_long"
    terminal.write(b"x" * 4000, LONG)
    with pytest.raises(AgentError):
        terminal.write(b"x" * 96 + b"\n", LONG)
    terminal.write(b"x" * 95 + b"\n", LONG)
    terminal.write(b"y" * 4095 + b"\n", LONG)
    assert read_all(process).split() == [b"4095", b"4095"]


def test_resize_and_echo(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "trap 'stty size' WINCH; echo up; while :; do read -t 0.1 x; done"))
    read_until(process, b"up")
    process.terminal.set_echo(on=True)
    assert process.terminal.echoes()
    process.terminal.resize(rows=20, cols=60)
    read_until(process, b"20 60")


def test_a_closed_terminal_refuses_and_ends(host: PtyHost) -> None:
    process = host.spawn(spec("sleep", "60"))
    process.terminal.close()
    process.terminal.close()
    assert process.terminal.closed
    assert process.terminal.take(10, LONG) == b""
    with pytest.raises(AgentError) as caught:
        process.terminal.write(b"x", SOON)
    assert caught.value.code == "agent_gone"


def test_take_waits_as_long_as_asked(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "read x; echo got $x; sleep 60"))
    assert process.terminal.take(10, timedelta(seconds=0.05)) is None
    process.terminal.write(b"it\n", LONG)
    read_until(process, b"got it")


def test_matching_finds_groups_over_pieces_and_characters(host: PtyHost) -> None:
    matcher = matcher_over(
        host, "printf 'caf\\303'; sleep 0.1; printf '\\251 nu'; sleep 0.1; printf 'mber=42;\\n'; sleep 60"
    )
    seen = found(matcher, r"never", r"café number=(\d+);")
    assert isinstance(seen, Match)
    assert (seen.index, seen.groups) == (1, ("42",))


def test_matching_ends_with_the_terminal_and_keeps_waiting_without(host: PtyHost) -> None:
    assert isinstance(found(matcher_over(host, "echo x"), "never"), Ended)
    assert matcher_over(host, "sleep 60").look([compiled("never")], seconds=0.05) is None


def test_unmatched_text_does_not_pile_up(host: PtyHost) -> None:
    matcher = matcher_over(host, "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo END; sleep 60")
    assert isinstance(found(matcher, "END"), Match)
    assert matcher._spawn._before.tell() < 600_000


def test_a_marker_before_a_flood_is_found(host: PtyHost) -> None:
    """pexpect looks only into the last so many characters of what it read."""
    matcher = matcher_over(host, "echo FIRST; head -c 60000 /dev/zero | tr '\\0' x; sleep 60")
    assert isinstance(found(matcher, "FIRST"), Match)


def test_a_pattern_that_backtracks_elsewhere_is_linear_here(host: PtyHost) -> None:
    matcher = matcher_over(host, "printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'; echo END; sleep 60")
    seen = found(matcher, r"(?:a+)+$", "END")
    assert isinstance(seen, Match)
    assert seen.index == 1


def test_a_pattern_that_re2_refuses_is_named() -> None:
    with pytest.raises(InvalidRequest, match="invalid") as caught:
        compiled(r"(a)\1")
    assert caught.value.code == "invalid_profile"


def test_sinks_see_everything_in_order(host: PtyHost) -> None:
    class Sink:
        def __init__(self) -> None:
            self.data = b""

        def feed(self, data: bytes) -> None:
            self.data += data

        def lost(self, count: int) -> None:
            raise AssertionError(count)

    sink = Sink()
    process = host.spawn(spec("bash", "-c", "read go; seq 1 20000; echo END"))
    process.terminal.record(sink)
    process.terminal.write(b"\n", LONG)
    eventually(lambda: sink.data.endswith(b"END\r\n"), what="the end in the sink")
    lines = sink.data.replace(b"\r", b"").split()
    assert lines == [str(number).encode() for number in range(1, 20001)] + [b"END"]
    assert len(os.listdir("/proc/self/fd")) < 1000
