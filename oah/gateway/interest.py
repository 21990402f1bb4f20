"""Who listens to which ordinary subject: a tree of tokens, with ``*`` for one and ``>`` for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Listener(Protocol):
    """A subscription in the tree."""

    @property
    def subject(self) -> str: ...

    @property
    def queue(self) -> str | None: ...


L = TypeVar("L", bound=Listener)


class _Node(Generic[L]):
    __slots__ = ("here", "next")

    def __init__(self) -> None:
        self.next: dict[str, _Node[L]] = {}
        self.here: dict[int, L] = {}


class Interest(Generic[L]):
    """The subscriptions of one workspace."""

    def __init__(self) -> None:
        self._root: _Node[L] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, listener: L) -> None:
        """Each only once."""
        node = self._root
        for token in listener.subject.split("."):
            node = node.next.setdefault(token, _Node())
        if id(listener) not in node.here:
            node.here[id(listener)] = listener
            self._count += 1

    def remove(self, listener: L) -> None:
        """Nothing where it is not; branches that carry nothing any more go, too."""
        path = [self._root]
        tokens = listener.subject.split(".")
        for token in tokens:
            node = path[-1].next.get(token)
            if node is None:
                return
            path.append(node)
        if path[-1].here.pop(id(listener), None) is None:
            return
        self._count -= 1
        for token, node, parent in zip(reversed(tokens), reversed(path), reversed(path[:-1]), strict=False):
            if node.here or node.next:
                return
            del parent.next[token]

    def matching(self, subject: str) -> Iterator[L]:
        """All whose pattern matches a literal subject."""
        return _walk(self._root, subject.split("."), 0)

    def chosen(self, subject: str, pick: Callable[[int], int], but: Callable[[L], bool]) -> list[L]:
        """Who gets a message: every plain listener, and of each queue group one, picked by ``pick(how many)``; none of
        those that ``but`` names."""
        plain: list[L] = []
        groups: dict[str, list[L]] = {}
        for listener in self.matching(subject):
            if but(listener):
                continue
            if listener.queue is None:
                plain.append(listener)
            else:
                groups.setdefault(listener.queue, []).append(listener)
        return plain + [members[pick(len(members))] for members in groups.values()]


def _walk(node: _Node[L], tokens: list[str], at: int) -> Iterator[L]:
    if at == len(tokens):
        yield from node.here.values()
        return
    rest = node.next.get(">")
    if rest is not None:
        yield from rest.here.values()
    for token in (tokens[at], "*"):
        branch = node.next.get(token)
        if branch is not None:
            yield from _walk(branch, tokens, at + 1)
