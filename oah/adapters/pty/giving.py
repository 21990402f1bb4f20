"""One text on its way into a program: written once, submitted when it was seen, followed until it was taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from oah.adapters.pty.screen_terminal import SLICE, ScreenTerminal
from oah.core.dialogue import injection
from oah.core.dialogue.injection import Delivery, Ended, Phase, Plan, Seen
from oah.core.dialogue.reading import read
from oah.core.policy.throttle import FLOOR, Throttle

TYPING = timedelta(seconds=5)
"""How long a program may take to read a text."""

_LOOK = timedelta(seconds=0.05)
_CLEARS = 2.0
_CLEAR_PAUSE = timedelta(seconds=0.05)


def give(
    screen: ScreenTerminal, plan: Plan, *, mark: int, stop: Callable[[], bool], unwanted: Callable[[], bool], live: bool
) -> Ended | None:
    """None: the turn is over (`stop`), or the text is not wanted any more (`unwanted`) and was not submitted. `mark`:
    the line from which on the text may show; `live`: the program is at work. Raises AgentError."""
    rules = screen.rules.injection
    screen.write(plan.data, TYPING, stop=lambda: stop() or unwanted())
    delivery = Delivery(plan, time.monotonic(), live=live)
    changes = -1
    while not stop():
        if not screen.pump(_LOOK):
            return None
        if unwanted() and delivery.phase is Phase.STAGING:
            return None
        seen = _seen(screen, plan, mark, changes)
        delivery, step = injection.step(delivery, seen, now=time.monotonic(), rules=rules)
        match step:
            case injection.Submit():
                changes = screen.model.changes
                screen.press(rules.submit)
            case injection.Ended():
                return step
            case injection.Wait():
                pass
    return None


def _seen(screen: ScreenTerminal, plan: Plan, mark: int, changes: int) -> Seen:
    now = screen.look()
    return Seen(
        read(now, screen.rules.screen),
        shown=screen.rules.injection.blind and injection.is_shown(plan.text, now, mark),
        moved=changes >= 0 and screen.model.changes != changes,
    )


def clear(screen: ScreenTerminal) -> bool:
    """Empty the composer, line by line. False: something is left in it."""
    end = time.monotonic() + _CLEARS
    while time.monotonic() < end:
        composer = screen.read().composer
        if composer is None or not composer.draft:
            return composer is not None or screen.rules.injection.blind
        screen.press(screen.rules.injection.clear)
        if not screen.pump(_CLEAR_PAUSE):
            return False
    return False


def slow_down(screen: ScreenTerminal, throttle: Throttle, stop: Callable[[], bool]) -> None:
    """Wait as long as earlier failures ask for."""
    if throttle.delay <= FLOOR:
        return
    end = time.monotonic() + throttle.delay.total_seconds()
    while (left := end - time.monotonic()) > 0 and not stop():
        screen.pump(min(SLICE, timedelta(seconds=left)))
