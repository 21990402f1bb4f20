"""Every key that exists in Redis, what it means, and who makes it right again after a flush or an old snapshot.

All keys of a dispatch shard share the hash tag ``{<shard>}``, all global ones ``{g}``. Scripts get one key, derive the
prefix from it, and say ``key_session(sid)``, which the loader replaces from this table: a key that is not listed here
cannot be named in a script.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import Formatter

PREFIX = "oah"
GLOBAL = "g"


@dataclass(frozen=True, slots=True)
class Key:
    """One kind of key. ``pattern`` is what follows the prefix; ``healer`` is the one who rebuilds or removes it."""

    name: str
    pattern: str
    kind: str
    meaning: str
    healer: str
    shared: bool = False
    """Under the global tag instead of a shard's."""
    anywhere: bool = False
    """Under both."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the variable parts, in order."""
        return tuple(field for _, field, _, _ in Formatter().parse(self.pattern) if field)

    def at(self, *parts: str, shard: int | None = 0) -> str:
        """The key itself; ``shard`` None: under the global tag."""
        tag = GLOBAL if self.shared or shard is None else str(shard)
        return f"{PREFIX}:{{{tag}}}:{self.pattern.format(**dict(zip(self.parts, parts, strict=True)))}"


EPOCH = Key("epoch", "epoch", "hash", "id, run_id, schema, state, opened_at, ticked_at", "the leader mints it")
SEQ = Key("seq", "seq", "string", "counter: scores of ready sets", "ensure with a score lifts it")
SESSION = Key("session", "session:{sid}", "hash", "state of a session; absent = idle", "restore, ensure, hold, cancel")
QUEUE = Key("queue", "session:{sid}:queue", "list", "ids of queued runs as heard, a hint", "reconcile rewrites it")
READY = Key("ready", "ready:{lane}:{class}:{ws}", "zset", "ready sessions by score", "ensure; claim drops strays")
SINCE = Key("since", "ready:since:{lane}:{class}", "zset", "session → ready since, by the broker's clock", "ensure")
RING = Key("ring", "ring:{lane}:{class}", "zset", "workspaces with ready sessions, by virtual time", "ensure, claim")
RINGS = Key("rings", "rings", "hash", "lane and class → virtual time where its ring stood when it emptied", "claim")
CALLED = Key("called", "ready:worker:{wid}", "zset", "parked sessions whose owner is called", "ensure; leader: forget")
AFFINITY = Key("affinity", "affinity", "zset", "ready sessions that wait for a host → when it is asked about", "tick")
LEASES = Key("leases", "leases", "zset", "leased and parked sessions → deadline", "restore, renew")
OWNED = Key("owned", "owned:{wid}", "set", "sessions of one worker incarnation", "restore, renew; leader: forget")
CLAIM = Key("claim", "claim:{wid}", "string", "the last request that took sessions", "claim; leader: forget")
DUE = Key("due", "due", "zset", "delayed runs → due time", "reconcile enqueues again")
DUE_SESSION = Key("due_session", "due:session", "hash", "delayed run → its session", "reconcile enqueues again")
HELD = Key("held", "held", "zset", "held sessions, also parked → until (inf: none by itself)", "reconcile holds again")
ACTIVE = Key(
    "active",
    "active:{group}",
    "set",
    "sessions of a workspace, a profile or all that hold a slot",
    "reconcile, restore",
)
CAPS = Key("caps", "caps", "hash", "all, profile:<name> or pool:<name> → cap (0: paused)", "reconcile: caps")
FULL = Key("full", "full", "set", "lanes with ready sessions that were at one of these caps", "claim")
WS = Key("ws", "ws:{ws}", "hash", "weight, cap (0: paused), and where it left each ring", "reconcile: limits")
CAPPED = Key("capped", "capped", "set", "workspaces out of their rings because of a cap", "tick")
CAPPED_RINGS = Key("capped_rings", "capped:{ws}", "set", "the rings that a capped workspace is out of", "tick")
LANES = Key("lanes", "lanes", "set", "lanes that have ready sessions", "ensure; tick drops empty ones")
WAKE = Key("wake", "wake:{lane}", "list", "wake tokens, at most 64", "tick arms it again")
POISON = Key(
    "poison", "poison", "hash", "place → key whose value could not be read", "bounded, for operators", anywhere=True
)
POISONED = Key(
    "poisoned", "poison:{n}", "any", "a value that could not be read, as it was", "expires after 7 days", anywhere=True
)

WORKERS = Key("workers", "workers", "zset", "worker incarnations → last report", "worker; leader: forget", shared=True)
WORKER = Key("worker", "worker:{wid}", "hash", "a worker's report, expires", "the worker", shared=True)
CONTROL = Key("control", "control:{wid}", "list", "hints to look into SQL, expires", "leader: forget", shared=True)
SERVED = Key(
    "served", "served", "zset", "lane of a host → last report of a worker that serves it", "the worker", shared=True
)
LEADER = Key("leader", "leader", "string", "leader lease", "expires", shared=True)
EVENTS = Key("events", "events", "channel", "hints of new events", "tailers read SQL every second", shared=True)
MAIL = Key("mail", "mail", "channel", "hints of new messages", "readers ask SQL every two seconds", shared=True)

KEYS = tuple(value for value in list(globals().values()) if isinstance(value, Key))
"""All of them."""


_CALL = re.compile(r"\bkey_(\w+)\(([^()]*)\)")


def in_lua(text: str, *, shared: bool) -> str:
    """Lua text in which every ``key_<name>(…)`` is the key itself, made from PREFIX: no function is made or called.

    Raises LookupError for a key that is not in the table, or not under the tag the script is sent to.
    """
    known = {key.name: key for key in KEYS if key.shared == shared or key.anywhere}

    def expression(found: re.Match[str]) -> str:
        name, given = found.groups()
        arguments = [word.strip() for word in given.split(",")] if given.strip() else []
        if name not in known or len(known[name].parts) != len(arguments):
            raise LookupError(f"no key '{found.group()}' in keys.py")
        return _expression(known[name], arguments)

    return _CALL.sub(expression, text)


def _expression(key: Key, arguments: list[str]) -> str:
    pieces, left = ["PREFIX"], iter(arguments)
    for literal, field, _, _ in Formatter().parse(key.pattern):
        if literal:
            pieces.append(f"'{literal}'")
        if field:
            pieces.append(next(left))
    return f"({' .. '.join(pieces)})"
