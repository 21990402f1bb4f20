"""People who use the system while it fails: they repeat what was not answered, with the same key, and remember what
they were told."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oah.client import Client
from oah.client.transport import Transport
from oah.errors import RequestError, Unavailable
from tests.support.arena import ledger_line
from tests.support.chaos.plan import Plan, Wish

USERS = 3
LISTENED = 3
"""Sessions whose events somebody follows over everything."""


@dataclass
class Told:
    """What users know in the end. Run ids by the number of the wish."""

    sessions: list[str] = field(default_factory=list)
    runs: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    """Wish → code of the problem."""
    unanswered: list[int] = field(default_factory=list)
    cancels: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """(run, answer), in order."""
    errors: list[str] = field(default_factory=list)
    """Answers that no user should ever see."""
    heard: dict[str, list[int]] = field(default_factory=dict)
    """Session → numbers of the events that a stream has brought, in their order."""


class Users:
    """A few threads, each with its sessions. ``start`` makes the sessions; ``finish`` waits until nobody waits."""

    def __init__(self, plan: Plan, url: str, key: str, ledger: str, log: Callable[[str], None]) -> None:
        self.told = Told()
        self._plan = plan
        self._reach = (url, key)
        self._log = log
        self._began = 0.0
        self._give_up = threading.Event()
        with Client(url, key) as client:
            for each in plan.conversations:
                made = client.create_session(each.agent, pool=each.pool, env={"OAH_LEDGER": ledger})
                self.told.sessions.append(str(made["id"]))
        self._threads = [threading.Thread(target=self._live, args=(n,), daemon=True) for n in range(USERS)]
        for session in self.told.sessions[:: max(1, len(self.told.sessions) // LISTENED)]:
            self.told.heard[session] = []

    def start(self) -> None:
        """The times of the plan count from now on."""
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        for session in self.told.heard:
            threading.Thread(target=self._listen, args=(session,), daemon=True).start()

    def finish(self, *, within: float) -> None:
        """Until everybody has said what they wanted to say and was answered."""
        deadline = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._give_up.set()
        for thread in self._threads:
            thread.join(20)

    def _listen(self, session: str) -> None:
        """Follow a session for ever; the client reconnects and goes on where it was."""
        heard = self.told.heard[session]
        while True:
            try:
                with Client(*self._reach, retries=1) as client:
                    for event in client.stream(session, after=heard[-1] if heard else None):
                        heard.append(event.number)
            except Unavailable:
                self._give_up.wait(0.2)
            except Exception as error:
                self.told.errors.append(f"stream of {session}: {type(error).__name__} {error}")
                return

    def _live(self, number: int) -> None:
        agenda: list[tuple[float, int, Callable[[], None]]] = []
        user = _User(self, Transport(*self._reach, timeout=10, retries=1), agenda)
        for wish in self._plan.wishes:
            if wish.session % USERS == number:
                user.at(wish.at, lambda wish=wish: user.submit(wish))  # type: ignore[misc]
        for index, each in enumerate(self._plan.conversations):
            for begin, end in each.pauses if index % USERS == number else ():
                user.at(begin, lambda index=index: user.post(f"/v1/sessions/{self.told.sessions[index]}/pause"))  # type: ignore[misc]
                user.at(end, lambda index=index: user.post(f"/v1/sessions/{self.told.sessions[index]}/resume"))  # type: ignore[misc]
        while agenda and not self._give_up.is_set():
            due, _, act = heapq.heappop(agenda)
            self._give_up.wait(max(0.0, self._began + due - time.monotonic()))
            try:
                act()
            except RequestError as error:
                self.told.errors.append(f"{error.code} {error.message}")


class _User:
    def __init__(self, users: Users, api: Transport, agenda: list[tuple[float, int, Callable[[], None]]]) -> None:
        self._users = users
        self._api = api
        self._agenda = agenda
        self._count = 0

    def at(self, due: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (due, self._count, act))

    def submit(self, wish: Wish) -> None:
        told, users = self._users.told, self._users
        body = {"input": self._text(wish), **wish.fields}
        if wish.parent is not None and wish.parent in told.runs:
            body["parent_run_id"] = told.runs[wish.parent]
        headers = {"idempotency-key": f"{users._plan.seed}-{wish.number}"}
        try:
            answer = self.post(f"/v1/sessions/{told.sessions[wish.session]}/runs", body, headers)
        except RequestError as error:
            told.refused[wish.number] = str(error.code)
            return
        if answer is None:
            told.unanswered.append(wish.number)
            return
        told.runs[wish.number] = str(answer["id"])
        if wish.cancel_after is not None:
            self.at(time.monotonic() - users._began + wish.cancel_after, lambda: self.cancel(str(answer["id"])))

    def _text(self, wish: Wish) -> str:
        """A shell is told what to type."""
        if self._users._plan.conversations[wish.session].agent != "shell":
            return wish.text
        seconds, *more = wish.text.split()
        return ledger_line(float(seconds), *more)

    def cancel(self, run: str) -> None:
        answer = self.post(f"/v1/runs/{run}/cancel")
        if answer is not None:
            self._users.told.cancels.append((run, answer))

    def post(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any] | None:
        """An answer, however often it must be asked for; None when the story is over before. Raises RequestError."""
        while not self._users._give_up.is_set():
            try:
                answer: dict[str, Any] = self._api.json("POST", path, body=body, headers=headers)
            except RequestError:
                raise
            except Unavailable:
                self._users._give_up.wait(0.2)
            except Exception as error:
                self._users.told.errors.append(f"{path}: {type(error).__name__} {error}")
                self._users._give_up.wait(0.2)
            else:
                return answer
        return None
