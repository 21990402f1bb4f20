"""Who holds leases, as the gateway remembers it."""

from __future__ import annotations

import asyncio
from concurrent.futures import wait
from typing import Any, cast

from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.core.model.ids import MailboxId
from oah.gateway.mail import Mail
from oah.ports.telemetry import NullTelemetry


class Client:
    ended = None


class Post:
    """Nobody holds anything when it is asked; while the answer is on its way somebody is handed something."""

    def __init__(self, *, hands_out: bool) -> None:
        self.hands_out = hands_out
        self.mail: Mail | None = None

    def extend(self, holder: str) -> int:
        if self.hands_out:
            assert self.mail is not None
            given = self.mail.lease(
                cast(Any, Client()), holder, MailboxId("mbx_1"), "g", limit=1, priorities=(), most_bytes=1
            )
            wait([asyncio.run_coroutine_threadsafe(given, self.mail.loop)], timeout=10)
        return 0

    def receive(self, *_: object, **__: object) -> list[str]:
        return ["a lease"]


async def _remembered(*, hands_out: bool) -> bool:
    post = Post(hands_out=hands_out)
    mail = Mail(cast(Any, post), cast(Any, None), cast(Any, None), SystemClock(), SystemIds(), NullTelemetry())
    post.mail = mail
    mail.holders["h"] = cast(Any, Client())
    await mail.extend("h")
    mail.close()
    return "h" in mail.holders


def test_who_is_handed_something_while_it_is_asked_about_is_not_forgotten() -> None:
    assert asyncio.run(_remembered(hands_out=True))
    assert not asyncio.run(_remembered(hands_out=False))
