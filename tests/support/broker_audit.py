"""What must be true of the broker's keys after every call: one place per session, and every index agrees with it."""

from __future__ import annotations

from typing import Any

from oah.adapters.redis import keys

SHARD = keys.EPOCH.at().removesuffix("epoch")


def shift_time(client: Any, ms: int, *, waits_only: bool = False) -> None:
    """As if `ms` had passed: everything that is stamped lies that much earlier. `waits_only`: due times and ends of
    holds, while leases stay as they are."""
    waits = [keys.DUE.at(), keys.HELD.at(), keys.AFFINITY.at()]
    for key in waits if waits_only else [*waits, keys.LEASES.at(), *client.keys(SHARD + "ready:since:*")]:
        for member, score in client.zrange(key, 0, -1, withscores=True):
            if score != float("inf"):
                client.zadd(key, {member: score - ms})
    for key in client.keys(SHARD + "session:*"):
        if not key.endswith(b":queue") and (until := client.hget(key, "until")):
            client.hset(key, "until", int(until) - ms)
    for field in () if waits_only else ("ticked_at", "opened_at"):
        if value := client.hget(keys.EPOCH.at(), field):
            client.hset(keys.EPOCH.at(), field, int(value) - ms)


def sessions(client: Any) -> dict[str, dict[str, str]]:
    """Session → its hash."""
    found = {}
    for key in client.keys(SHARD + "session:*"):
        name = key.decode().removeprefix(SHARD + "session:")
        if not name.endswith(":queue"):
            found[name] = {field.decode(): value.decode() for field, value in client.hgetall(key).items()}
    return found


def audit(client: Any) -> dict[str, dict[str, str]]:
    """Check every index against the hashes, both ways. Returns the hashes."""
    found = sessions(client)
    by_place: dict[str, set[str]] = {place: set() for place in ("ready", "leased", "parked", "held")}
    for name, fields in found.items():
        by_place[fields["state"]].add(name)
    _ready(client, found, by_place["ready"])
    leased = by_place["leased"] | by_place["parked"]
    assert _members(client, keys.LEASES.at()) == leased, "leases"
    held = by_place["held"] | {name for name in by_place["parked"] if "reasons" in found[name]}
    assert _members(client, keys.HELD.at()) == held, "held"
    assert not [name for name in held if found[name].get("heard")], "called, or heard of, while it is held"
    _owners(client, found, leased)
    _called(client, found, by_place["parked"])
    _active(client, found, by_place["leased"])
    assert _members(client, keys.DUE.at()) == {f.decode() for f in client.hkeys(keys.DUE_SESSION.at())}, "due"
    bound = {name for name in by_place["ready"] if "@" in found[name]["lane"]}
    assert _members(client, keys.AFFINITY.at()) == bound, "affinity"
    assert not [name for name in found.keys() - bound if "@" in found[name].get("lane", "")], "bound, but not ready"
    for key in client.keys(SHARD + "wake:*"):
        assert client.llen(key) <= 64, key
    for key in client.keys(SHARD + "session:*:queue"):
        name = key.decode().removeprefix(SHARD + "session:").removesuffix(":queue")
        assert name in found, f"the list of idle session {name}"
    return found


def _members(client: Any, key: str) -> set[str]:
    return {member.decode() for member in client.zrange(key, 0, -1)}


def _ready(client: Any, found: dict[str, dict[str, str]], ready: set[str]) -> None:
    places: dict[str, str] = {}
    rings: set[tuple[str, str]] = set()
    for key in client.keys(SHARD + "ready:*"):
        rest = key.decode().removeprefix(SHARD + "ready:")
        if rest.startswith(("since:", "worker:")):
            continue
        ring, ws = rest.rsplit(":", 1)
        rings.add((ring, ws))
        for member, score in client.zrange(key, 0, -1, withscores=True):
            name = member.decode()
            assert name not in places, f"{name} is in two ready sets: {places[name]} and {rest}"
            places[name] = rest
            rank = float(found[name]["score"]) - int(found[name].get("priority", 0)) * 1e12
            assert rank == score, f"score of {name}"
    assert places == {n: f"{found[n]['lane']}:{found[n]['class']}:{found[n]['ws']}" for n in ready}, "ready sets"
    since = {
        (key.decode().removeprefix(SHARD + "ready:since:"), member)
        for key in client.keys(SHARD + "ready:since:*")
        for member in _members(client, key)
    }
    assert since == {(f"{found[n]['lane']}:{found[n]['class']}", n) for n in ready}, "ready since"
    standing = {
        (key.decode().removeprefix(SHARD + "ring:"), ws)
        for key in client.keys(SHARD + "ring:*")
        for ws in _members(client, key)
    }
    capped = {
        (field.decode().replace(" ", ":"), key.decode().removeprefix(SHARD + "capped:"))
        for key in client.keys(SHARD + "capped:*")
        for field in client.smembers(key)
    }
    assert standing <= rings, f"rings of nothing: {standing - rings}"
    assert rings - standing <= capped, f"ready, but in no ring: {rings - standing - capped}"
    assert not standing & capped, "in a ring although capped"


def _owners(client: Any, found: dict[str, dict[str, str]], leased: set[str]) -> None:
    owned = {
        (key.decode().removeprefix(SHARD + "owned:"), member.decode())
        for key in client.keys(SHARD + "owned:*")
        for member in client.smembers(key)
    }
    assert owned == {(found[name]["worker"], name) for name in leased}, "owned"
    for name, fields in found.items():
        if name not in leased:
            assert not fields.keys() & {"worker", "token", "request", "counter"}, f"{name} has an owner's fields"


def _called(client: Any, found: dict[str, dict[str, str]], parked: set[str]) -> None:
    called = {
        (key.decode().removeprefix(SHARD + "ready:worker:"), member)
        for key in client.keys(SHARD + "ready:worker:*")
        for member in _members(client, key)
    }
    assert called == {(found[name]["worker"], name) for name in parked if "heard" in found[name]}, "called"


def _active(client: Any, found: dict[str, dict[str, str]], leased: set[str]) -> None:
    active = {
        (key.decode().removeprefix(SHARD + "active:"), member.decode())
        for key in client.keys(SHARD + "active:*")
        for member in client.smembers(key)
    }
    groups = {name: ("all", f"ws:{found[name]['ws']}", f"profile:{_profile(found[name])}") for name in leased}
    assert active == {(group, name) for name, of in groups.items() for group in of}, "active"


def _profile(fields: dict[str, str]) -> str:
    return fields["lane"].partition("/")[2]
