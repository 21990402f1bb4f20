"""In which order one claim looks through lanes and classes.

Guarantees: what waited and may go on (`resume`) is looked at first; the classes share first looks by weight, evenly
spread; every lane is first in every class at some claim, so nothing starves, suspects included; the order is a function
of the claim's counter. Suspects are looked at last, except in their own turn, and only with a place for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass

Order = tuple[tuple[Lane, ReadyClass], ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """First looks per cycle and class. `subagent_reserve`: so many slots take only `resume` and `subagent`, so that
    parents that wait for children cannot fill a pool."""

    interactive: int = 8
    subagent: int = 4
    background: int = 1
    suspect: int = 1
    subagent_reserve: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The claim to be made: the lanes served, idle slots, whether a place for a suspect is free."""

    lanes: tuple[Lane, ...]
    idle: int
    suspect_place: bool = True


@cache
def turns(rules: Rules) -> tuple[ReadyClass, ...]:
    """One cycle of first looks, evenly spread (each step the class that is furthest behind its share)."""
    weights = {
        ReadyClass.INTERACTIVE: rules.interactive,
        ReadyClass.SUBAGENT: rules.subagent,
        ReadyClass.BACKGROUND: rules.background,
        ReadyClass.SUSPECT: rules.suspect,
    }
    total = sum(weights.values())
    credit = dict.fromkeys(weights, 0)
    cycle: list[ReadyClass] = []
    for _ in range(total):
        for ready_class, weight in weights.items():
            credit[ready_class] += weight
        first = max(credit, key=lambda each: credit[each])
        credit[first] -= total
        cycle.append(first)
    return tuple(cycle)


def order(view: View, rules: Rules, *, counter: int) -> Order:
    """The (lane, class) pairs of claim number `counter`, first look first. Empty without lanes."""
    if not view.lanes:
        return ()
    cycle = turns(rules)
    first = cycle[counter % len(cycle)]
    classes = [ReadyClass.RESUME, first]
    for ready_class in (ReadyClass.INTERACTIVE, ReadyClass.SUBAGENT, ReadyClass.BACKGROUND, ReadyClass.SUSPECT):
        if ready_class not in classes:
            classes.append(ready_class)
    if not view.suspect_place:
        classes.remove(ReadyClass.SUSPECT)
    if view.idle <= rules.subagent_reserve:
        classes = [ReadyClass.RESUME, ReadyClass.SUBAGENT]
    lanes = _turned(view.lanes, counter // len(cycle) + counter % len(cycle))
    return tuple((lane, ready_class) for ready_class in classes for lane in lanes)


def _turned(lanes: Sequence[Lane], by: int) -> Sequence[Lane]:
    start = by % len(lanes)
    return (*lanes[start:], *lanes[:start])
