"""Workers of this machine as a target: the roster is the size, one supervisor follows it, names are free when they
are."""

from __future__ import annotations

from pathlib import Path

import pytest

from oah.adapters.processes.roster import Roster
from oah.adapters.processes.target import ProcessTarget
from oah.errors import Conflict, Unavailable


@pytest.fixture
def ours(tmp_path: Path) -> Roster:
    """The supervisor's side."""
    return Roster(tmp_path, "default")


@pytest.fixture
def target(tmp_path: Path) -> ProcessTarget:
    """The controller's side, in another process as far as the roster can tell."""
    return ProcessTarget(Roster(tmp_path, "default"))


def test_where_nobody_supervises_there_is_no_size(ours: Roster, target: ProcessTarget) -> None:
    with pytest.raises(Unavailable, match="no workers of pool 'default' are supervised"):
        target.read()
    ours.supervise(2, prefix="w", host="here")
    state = target.read()
    assert (state.size, list(state.members), state.host, state.settled) == (2, ["w-1", "w-2"], "here", False)
    ours.close()
    with pytest.raises(Unavailable, match="has ended"):
        target.read()
    with pytest.raises(Unavailable):
        ProcessTarget(Roster(ours.data_dir, "other")).read()


def test_there_is_one_supervisor(ours: Roster, tmp_path: Path) -> None:
    ours.supervise(1, prefix="w", host="here")
    with pytest.raises(Conflict, match="supervised already"):
        Roster(tmp_path, "default").supervise(1, prefix="w", host="here")
    Roster(tmp_path, "gpu").supervise(1, prefix="w", host="here")
    assert ours.supervised()


def test_it_grows_by_free_numbers_and_shrinks_by_name(ours: Roster, target: ProcessTarget) -> None:
    ours.supervise(3, prefix="w", host="here")
    ours.tell_running({"w-1": 11, "w-2": 12, "w-3": 13})
    state = target.read()
    assert (state.settled, state.members["w-2"]) == (True, "pid 12")
    target.resize(state, 2, victims=["w-2"])
    assert ours.read().members == ("w-1", "w-3")
    target.resize(target.read(), 4)
    assert ours.read().members == ("w-1", "w-3", "w-4", "w-5"), "w-2 has not ended yet"
    ours.tell_running({"w-1": 11, "w-3": 13, "w-4": 14, "w-5": 15})
    target.resize(target.read(), 5)
    assert ours.read().members == ("w-1", "w-3", "w-4", "w-5", "w-2")


def test_nobody_goes_who_is_not_named(ours: Roster, target: ProcessTarget) -> None:
    ours.supervise(3, prefix="w", host="here")
    with pytest.raises(Unavailable, match="not known to be empty"):
        target.resize(target.read(), 1, victims=["w-2"])
    assert len(ours.read().members) == 3


def test_what_was_judged_by_an_older_state_is_refused(ours: Roster, target: ProcessTarget) -> None:
    ours.supervise(2, prefix="w", host="here")
    old = target.read()
    target.resize(old, 3)
    with pytest.raises(Unavailable, match="changed meanwhile"):
        target.resize(old, 1, victims=["w-1"])
    assert len(ours.read().members) == 3


def test_a_supervisor_that_begins_again_begins_as_it_is_told(ours: Roster, target: ProcessTarget) -> None:
    ours.supervise(5, prefix="w", host="here")
    old = target.read()
    ours.close()
    ours.supervise(1, prefix="w", host="here")
    assert target.read().size == 1
    with pytest.raises(Unavailable):
        target.resize(old, 6)


def test_a_file_that_is_no_roster_is_said_so(ours: Roster, target: ProcessTarget) -> None:
    ours.supervise(1, prefix="w", host="here")
    (ours.directory / "roster.json").write_text("[]")
    with pytest.raises(Unavailable, match="is no roster"):
        target.read()
    (ours.directory / "running.json").write_text("[]")
    assert ours.running() == {}


def test_it_prefers_as_it_is_asked_to_then_the_latest(ours: Roster, target: ProcessTarget) -> None:
    ours.supervise(4, prefix="w", host="here")
    state = target.read()
    assert target.choose(state, ["w-2", "gone"], 3) == ["w-2", "w-4", "w-3"]
    assert target.choose(state, [], 0) == []
