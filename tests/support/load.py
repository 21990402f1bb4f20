"""Runs in every state, for tests that take something away under them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.scenes import Act


@dataclass
class Load:
    """Some 200 runs in every state that there is."""

    running: list[str]
    queued: list[str]
    delayed: list[str]
    paused: list[str]
    parked: list[str]
    """Sessions with a warm agent and nothing to do."""
    held: list[str]
    """The sessions of ``paused``."""

    @staticmethod
    def begin(act: Act, *, running: int, seconds: int = 9) -> Load:
        parked = act.sessions(8, "shell")
        act.wait_terminal(act.submit_all(parked, "x=kept; echo ready"))
        held = act.sessions(10)
        for session in held:
            act.client.pause_session(session)
        paused = [*act.submit_all(held, "0.1"), *act.submit_all(held, "0.1")]
        busy = act.submit_all(act.sessions(running), str(seconds))
        act.wait_running(busy)
        behind = act.sessions(40)
        queued = [run for _ in range(3) for run in act.submit_all(behind, "0.05")]
        delayed = act.submit_all(act.sessions(15), "0.1", delay_seconds=4)
        delayed += act.submit_all(behind[:15], "0.1", delay_seconds=5)
        return Load(busy, queued, delayed, paused, parked, held)

    def end(self, act: Act) -> None:
        """All that may run ends; the paused ones have not moved, and run once they may."""
        again = act.submit_all(self.parked, "echo $x")
        act.wait_terminal([*self.running, *self.queued, *self.delayed, *again])
        rows = act.rows(self.paused)
        assert {(row["status"], row["attempt"]) for row in rows.values()} == {("queued", 0)}, "ran while paused"
        for session in self.held:
            act.client.resume_session(session)
        act.wait_terminal(self.paused)
        act.untouched([*self.running, *self.queued, *self.delayed, *self.paused, *again])
        kept = [act.client.result(run)["output"] for run in again]
        assert all("kept" in output for output in kept), f"warm agents were lost: {kept}"
