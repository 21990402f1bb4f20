"""The demo's verdict can be a bad one, and its kill hits work."""

from pathlib import Path
from typing import Any

import pytest

from oah.cli import demo
from oah.cli.board import summary
from oah.cli.story import Story


class Client:
    """Answers what the test says."""

    def __init__(self, attempts: list[dict[str, Any]], output: str = "working\nsurvived\n") -> None:
        self._attempts = attempts
        self._output = output

    def attempts(self, run_id: str) -> list[dict[str, Any]]:
        return self._attempts

    def result(self, run_id: str) -> dict[str, Any]:
        return {"output": self._output}

    def workers(self) -> list[dict[str, Any]]:
        return [{"id": "worker-1.a", "name": "worker-1"}, {"id": "worker-2.b", "name": "worker-2"}]


class Fleet:
    """Notes what was asked of it."""

    worker_names = ("worker-1", "worker-2")

    def __init__(self) -> None:
        self.done: list[str] = []

    def kill(self, name: str) -> int:
        self.done.append(f"kill {name}")
        return 7

    def start_one(self, name: str) -> None:
        self.done.append(f"start {name}")


def _run(run_id: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "id": run_id,
        "session_id": "ses_1",
        "status": status,
        "attempt": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "started_at": "2026-01-01T00:00:01Z",
        **more,
    }


def _story(**more: Any) -> Story:
    story = Story(Path("/nowhere"), sessions={"ses_1": "shell"}, runs=["v", "r"], victim="v", **more)
    story.seen = {"v": _run("v", attempt=2), "r": _run("r")}
    return story


GOOD = [{"worker_id": "worker-1.a"}, {"worker_id": "worker-2.b"}]
KILLED = {"killed_worker": "worker-1", "killed_id": "worker-1.a"}


def test_all_is_well() -> None:
    assert demo.faults(Client(GOOD), _story(**KILLED)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (Client(GOOD[:1]), "not recovered"),
        (Client([{"worker_id": "worker-2.b"}, {"worker_id": "worker-2.b"}]), "not recovered"),
        (Client([GOOD[0], GOOD[0]]), "the dead worker"),
        (Client(GOOD, output="working"), "did not give its answer"),
    ],
)
def test_a_kill_without_a_recovery_fails_the_demo(client: Client, words: str) -> None:
    [fault] = demo.faults(client, _story(**KILLED))  # type: ignore[arg-type]
    assert words in fault


def test_no_kill_and_a_failed_run_fail_the_demo() -> None:
    [fault] = demo.faults(Client(GOOD), _story())  # type: ignore[arg-type]
    assert "no worker was killed" in fault
    story = _story(**KILLED)
    story.seen["r"] = _run("r", "failed", error={"code": "x", "message": "broken"})
    [fault] = demo.faults(Client(GOOD), story)  # type: ignore[arg-type]
    assert fault == "r failed broken"


def test_the_worker_that_works_is_killed_once_and_started_again_after_the_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(demo.time, "monotonic", lambda: now[0])
    fleet, said = Fleet(), []
    story = _story()

    def step(seconds: float, **victim: Any) -> None:
        now[0] += seconds
        story.seen["v"] = _run("v", **victim)
        demo.act(fleet, Client(GOOD), story, said.append)  # type: ignore[arg-type]

    step(0, status="queued")
    step(1, status="running", worker_id="worker-2.b")
    assert fleet.done == []
    step(1.5, status="running", worker_id="worker-2.b")
    assert fleet.done == ["kill worker-2"]
    step(1, status="running", worker_id="worker-2.b")
    step(5, status="running", worker_id="worker-1.a", attempt=2)
    assert story.recovered_after == pytest.approx(6.0)
    step(1, status="running", worker_id="worker-1.a", attempt=2)
    step(1, status="completed", attempt=2)
    assert fleet.done == ["kill worker-2", "start worker-2"]
    assert story.restarted
    assert len(said) == 3


def test_the_summary_counts() -> None:
    text = "\n".join(summary(_story(**KILLED, recovered_after=6.4), took=19.4))
    assert "2 runs in 1 sessions: 2 completed" in text
    assert "median 1.00 s" in text
    assert "worker-1 was killed; 1 run(s) recovered, the watched one after 6.4 s" in text
    assert "took 19 s" in text
