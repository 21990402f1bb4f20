"""Figures that scaling asks for every few seconds, on every database."""

from __future__ import annotations

from oah.core.model.lane import Lane
from oah.ports.figures import LaneRuns
from tests.support.store_clerk import Clerk


def test_active_runs_by_lane(clerk: Clerk) -> None:
    assert clerk.store.lane_runs() == {}
    python, gpu = Lane("default", "python"), Lane("gpu", "shell")
    for name, lane in (("a", python), ("b", python), ("c", gpu), ("d", gpu), ("e", gpu)):
        clerk.session(name, lane=lane)
        for _ in range(3):
            clerk.submit(name)
    assert clerk.store.lane_runs() == {}, "what is queued is the broker's figure"
    for name in "abcd":
        clerk.start(name)
    clerk.behind.query("UPDATE runs SET status = 'waiting_tool' WHERE session_id = 'c' AND status = 'running'")
    assert clerk.store.lane_runs() == {python: LaneRuns(2, 0), gpu: LaneRuns(1, 1)}
