"""Values in Redis that nobody could read become dead letters: bytes and all, once, and Redis is clean again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from oah.adapters.redis.poison import LONGEST
from oah.adapters.sql.store import open_store
from oah.errors import Unavailable
from oah.ports.broker import Broker
from oah.ports.dead_letters import DeadLetter, LetterFilter, LetterKind
from oah.services.bury import BuryPoison
from tests.support.broker_desk import Desk
from tests.support.store_clerk import Clerk

SESSION = "oah:{0}:session:s"


@pytest.fixture
def clerk(sqlite_url: str) -> Iterator[Clerk]:
    """What the letters' tables do on PostgreSQL their own contract says."""
    with closing(open_store(sqlite_url)) as store:
        yield Clerk(store, sqlite_url)


@pytest.fixture
def bury(desk: Desk, clerk: Clerk) -> BuryPoison:
    return BuryPoison(clerk.store, desk.broker)


def letters(clerk: Clerk) -> list[DeadLetter]:
    listed = clerk.store.dead_letters(LetterFilter(kind=LetterKind.POISON)).items
    return [clerk.store.dead_letter(each.id, None) for each in listed]


def places(redis_server: Any) -> list[bytes]:
    return sorted(key for key in redis_server.client().keys("oah:*") if b"poison" in key)


def test_a_value_is_carried_with_its_bytes_and_leaves_redis_clean(
    redis_server: Any, desk: Desk, clerk: Clerk, bury: BuryPoison
) -> None:
    value = b"\x00\xff garbage"
    redis_server.client().set(SESSION, value)
    desk.broker._link.set_aside("oah:{0}:lanes", b"\xff no lane")  # type: ignore[attr-defined]
    desk.broker._link.evaluate("misfit", "oah:{0}:epoch", [SESSION])  # type: ignore[attr-defined]
    assert bury() == 2
    found = {each.payload["key"]: each for each in letters(clerk)}
    assert found[SESSION].payload_bytes == value
    assert (found[SESSION].payload["form"], found[SESSION].payload["complete"]) == ("string", True)
    assert found["oah:{0}:lanes"].payload_bytes == b"\xff no lane"
    assert {each.workspace_id for each in found.values()} == {""}
    assert places(redis_server) == []
    assert bury() == 0


def test_what_is_no_string_is_carried_as_a_dump(redis_server: Any, desk: Desk, clerk: Clerk, bury: BuryPoison) -> None:
    redis_server.client().rpush("oah:{g}:workers", "x", "y")
    assert desk.broker.workers() == []
    assert bury() == 1
    [letter] = letters(clerk)
    assert (letter.payload["key"], letter.payload["form"]) == ("oah:{g}:workers", "dump")
    redis_server.client().restore("again", 0, letter.payload_bytes)
    assert redis_server.client().lrange("again", 0, -1) == [b"x", b"y"]
    assert places(redis_server) == []


class Torn:
    """A broker that dies between the letter and the removal."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def set_aside_values(self) -> Any:
        return self._broker.set_aside_values()

    def drop_set_aside(self, values: Any) -> int:
        raise Unavailable("gone")


def test_a_death_in_between_writes_no_second_letter(
    redis_server: Any, desk: Desk, clerk: Clerk, bury: BuryPoison
) -> None:
    desk.broker._link.set_aside("k", b"v")  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        BuryPoison(clerk.store, Torn(desk.broker))()  # type: ignore[arg-type]
    assert bury() == 1
    [letter] = letters(clerk)
    assert (letter.payload_bytes, letter.attempts) == (b"v", 2)


def test_a_place_that_was_taken_again_keeps_its_new_value(
    redis_server: Any, desk: Desk, clerk: Clerk, bury: BuryPoison
) -> None:
    link = desk.broker._link  # type: ignore[attr-defined]
    link.set_aside("first", b"1")
    seen = desk.broker.set_aside_values()
    for number in range(100):
        link.set_aside(f"k{number}", b"%d" % number)
    assert desk.broker.drop_set_aside(seen) == 0
    assert bury() == 100
    assert {each.payload["key"] for each in letters(clerk)} == {f"k{number}" for number in range(100)}
    assert places(redis_server) == []


def test_a_huge_value_is_carried_in_part_and_the_rest_stays_for_a_week(
    redis_server: Any, desk: Desk, clerk: Clerk, bury: BuryPoison
) -> None:
    desk.broker._link.set_aside("k", b"x" * (LONGEST + 10))  # type: ignore[attr-defined]
    assert bury() == 1
    [letter] = letters(clerk)
    assert letter.payload_bytes is not None and len(letter.payload_bytes) == LONGEST
    assert (letter.payload["complete"], letter.payload["size_bytes"]) == (False, LONGEST + 10)
    kept = letter.payload["kept_under"]
    assert redis_server.client().strlen(kept) == LONGEST + 10
    assert redis_server.client().ttl(kept) > 6 * 86_400
    assert bury() == 0


def test_a_name_whose_value_has_expired_is_forgotten(
    redis_server: Any, desk: Desk, clerk: Clerk, bury: BuryPoison
) -> None:
    desk.broker._link.set_aside("k", b"v")  # type: ignore[attr-defined]
    redis_server.client().delete("oah:{0}:poison:1")
    assert bury() == 1
    assert letters(clerk) == []
    assert places(redis_server) == []


def test_garbage_where_garbage_is_listed(redis_server: Any, desk: Desk, clerk: Clerk, bury: BuryPoison) -> None:
    redis_server.client().set("oah:{0}:poison", b"garbage")
    bury()
    bury()
    assert [each.payload_bytes for each in letters(clerk)] == [b"garbage"]
    redis_server.client().hset("oah:{0}:poison", mapping={"next": "many", "x": "y", "7": "k"})
    with closing(redis_server.broker()) as other:
        assert other.set_aside_values() == []
