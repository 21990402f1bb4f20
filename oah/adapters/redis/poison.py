"""Values that could not be read: set aside by whoever met them, listed, and carried away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis import exceptions as foreign

from oah.adapters.redis import failures, keys
from oah.adapters.redis.link import Answer, Call, Link, Word
from oah.ports.broker import PoisonValue

LONGEST = 1024 * 1024
"""Bytes of a value that are carried away; a longer one stays where it was set aside until it expires."""
SHARDS = (0, None)
"""The tags under which values are set aside: the dispatch shard's and the global one."""


class RedisPoison:
    """Reading what may be garbage, and what was found to be."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def poison(self, *, limit: int = 100) -> list[tuple[str, bytes]]:
        """Values that could not be read, with the key they lay under; those that were no strings as DUMP has them."""
        found = [(value.key, value.data) for value in self._set_aside() if value.data]
        return found[:limit]

    def set_aside_values(self) -> list[PoisonValue]:
        """All of them; one without data has expired and left its name."""
        return list(self._set_aside())

    def drop_set_aside(self, values: Sequence[PoisonValue]) -> int:
        """A place that has got another value since it was read keeps it."""
        dropped = 0
        for value in values:
            words: list[Word] = [value.number, value.turn, int(not value.complete)]
            answer = self._link.evaluate("drop_poison", keys.POISON.at(shard=None if value.shared else 0), words)
            dropped += answer[1] == b"1"
        return dropped

    def _set_aside(self) -> Iterator[PoisonValue]:
        for shard in SHARDS:
            places = self._ask([["HGETALL", keys.POISON.at(shard=shard)]])[0]
            names = dict(zip(places[::2], places[1::2], strict=True))
            turn = names.pop(b"next", b"0")
            for place, name in names.items():
                if place.isdigit() and turn.isdigit():
                    yield self._value(int(place), name, turn=int(turn), shared=shard is None)

    def _value(self, number: int, name: bytes, *, turn: int, shared: bool) -> PoisonValue:
        key = keys.POISONED.at(str(number), shard=None if shared else 0)
        data, size = self._link.exchange([["GETRANGE", key, 0, LONGEST - 1], ["STRLEN", key]])
        dumped = isinstance(data, foreign.ResponseError)
        if dumped:
            data = self._link.exchange([["DUMP", key]])[0]
            data = data if isinstance(data, bytes) else b""
            size, data = len(data), data[:LONGEST]
        return PoisonValue(
            key=name.decode("utf-8", "replace"),
            data=data,
            size=size,
            dumped=dumped,
            place=key,
            number=number,
            turn=turn,
            shared=shared,
        )

    def _ask(self, commands: list[list[Word]]) -> list[Answer]:
        """Plain reads. What lies under a key in another type is set aside, and the key counts as empty."""
        answers = self._link.exchange(commands)
        misfits = [command for command, answer in zip(commands, answers, strict=True) if failures.misfit(answer)]
        if misfits:
            self._link.run(None, [Call("misfit", [str(key)]) for _, key, *_ in misfits])
            answers = self._link.exchange(commands)
        for answer in answers:
            if isinstance(answer, foreign.ResponseError):
                raise failures.translate(answer, address=self._link.dial.address)
        return answers
