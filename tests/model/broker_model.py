"""The state table in Python: what each script does to one session, without any index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

RANK = {"resume": 1, "interactive": 2, "subagent": 3, "background": 4, "suspect": 5}


def highest(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return one or other
    if "suspect" in (one, other):
        return "suspect"
    return min(one, other, key=RANK.__getitem__)


@dataclass(frozen=True)
class Standing:
    """Where a session stands. `cls` is the class it is ready in, or was claimed in."""

    place: str = "idle"
    cls: str | None = None
    heard: str | None = None
    worker: str | None = None
    token: str | None = None
    request: str | None = None
    counter: int = 0
    expired: bool = False
    reasons: frozenset[str] = frozenset()
    """Of a held session, or of a parked one that is held where it stands."""

    @property
    def owned(self) -> bool:
        return self.place in ("leased", "parked")


IDLE = Standing()


def ready(cls: str | None) -> Standing:
    return Standing("ready", cls or "interactive")


class Model:
    """Sessions by name; every method answers what the script should."""

    def __init__(self) -> None:
        self.sessions: dict[str, Standing] = {}

    def copy(self) -> Model:
        other = Model()
        other.sessions = dict(self.sessions)
        return other

    def __getitem__(self, name: str) -> Standing:
        return self.sessions.get(name, IDLE)

    def __setitem__(self, name: str, standing: Standing) -> None:
        self.sessions[name] = standing

    def having(self, *places: str) -> list[str]:
        return sorted(name for name, s in self.sessions.items() if s.place in places)

    def enqueue(self, name: str, cls: str) -> str:
        s = self[name]
        if s.place == "idle":
            self[name] = ready(cls)
        elif s.place == "ready" and s.cls != "suspect":
            self[name] = replace(s, cls=highest(s.cls, cls))
        elif s.owned and not s.reasons:
            self[name] = replace(s, heard=highest(s.heard, cls))
        return self[name].place

    def ensure(self, name: str, cls: str) -> str:
        s = self[name]
        if s.place in ("idle", "held"):
            self[name] = ready(cls)
        elif s.owned:
            self[name] = replace(s, heard=highest(s.heard, cls), reasons=frozenset())
        return self[name].place

    def hold(self, name: str, reason: str) -> str:
        s = self[name]
        if s.place == "parked":
            self[name] = replace(s, heard=None, reasons=s.reasons | {reason})
        elif not s.owned:
            self[name] = Standing("held", s.cls, reasons=s.reasons | {reason})
        return self[name].place

    def claimed(self, name: str, worker: str, request: str, counter: int) -> Standing:
        """The claim took it; it must have been takeable. What it stands as now."""
        s = self[name]
        if s.place == "ready":
            self[name] = Standing("leased", s.cls, None, worker, request, request, counter)
        else:
            assert (s.place, s.worker, s.expired) == ("parked", worker, False), f"{name} was {s}"
            assert s.heard, f"{name} was not called"
            self[name] = replace(s, place="leased", cls=s.heard, heard=None, request=request, counter=counter)
        return self[name]

    def renew(
        self, worker: str, table: dict[str, str], pending: Iterable[str], counter: int, agentless: Iterable[str]
    ) -> tuple[list[str], set[str], set[str]]:
        states = []
        for name, token in table.items():
            s = self[name]
            if not s.owned or s.token != token or s.worker != worker:
                states.append("lost")
            else:
                states.append("expired" if s.expired else "extended")
        returned, strangers = set(), set()
        for name, s in list(self.sessions.items()):
            if not s.owned or s.worker != worker or name in table or s.request in pending or s.counter >= counter:
                continue
            if s.place == "leased" or name in agentless:
                self[name] = ready(highest(s.cls, s.heard))
                returned.add(name)
            else:
                strangers.add(name)
        return states, returned, strangers

    def restore(self, name: str, worker: str, token: str, over: str | None, *, parked: bool, rebuilding: bool) -> bool:
        s = self[name]
        place = "parked" if parked else "leased"
        if s.owned and s.token == token and s.worker == worker and not (rebuilding and s.place != place):
            self[name] = replace(s, expired=False)
            return True
        if s.owned and s.token not in (token, over) and not rebuilding:
            return False
        waited = s.cls if s.place == "ready" else s.heard
        reasons = s.reasons if parked else frozenset()
        self[name] = Standing(place, "interactive", None if reasons else waited, worker, token, reasons=reasons)
        return True

    def free(self, name: str, token: str, target: str, cls: str | None, *, held: bool = False) -> str:
        s = self[name]
        if not s.owned:
            return s.place
        if s.token != token:
            return "other"
        if target == "parked":
            request = None if s.place == "leased" else s.request
            heard, reasons = (None, frozenset({"backoff"})) if held else (highest(s.heard, cls), frozenset())
            self[name] = replace(s, place="parked", heard=heard, request=request, reasons=reasons)
        elif target == "held":
            self[name] = Standing("held", s.cls, reasons=frozenset({"backoff"}))
        elif target == "ready" or s.heard:
            self[name] = ready(highest(cls, s.heard) or s.cls)
        else:
            self[name] = IDLE
        return self[name].place

    def release(self, name: str, token: str, cls: str) -> str:
        s = self[name]
        if not s.owned:
            return s.place
        if s.token != token:
            return "other"
        if s.place == "leased":
            self[name] = ready(highest(cls, s.heard))
        return self[name].place

    def recover(self, name: str, token: str, target: str, cls: str | None) -> str:
        s = self[name]
        if s.owned and s.token != token:
            return "other"
        if s.place in ("idle", "leased", "parked"):
            if target == "held":
                self[name] = Standing("held", s.cls, reasons=frozenset({"backoff"}))
            elif target == "ready" or s.heard:
                self[name] = ready(highest(cls, s.heard) or s.cls)
            else:
                self[name] = IDLE
        return self[name].place

    def cancel(self, name: str) -> str:
        s = self[name]
        if s.place == "ready":
            self[name] = IDLE
        elif s.place == "parked":
            self[name] = replace(s, heard=None)
        return self[name].place
