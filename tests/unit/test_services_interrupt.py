"""What a submit that interrupts does after its commit: a user waits for the answer, so Redis is not waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oah.core.model.ids import RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.run import OnBusy
from oah.errors import Unavailable
from oah.ports.store import NewRun, Stopped
from oah.services.interrupt import make_way
from tests.support.worker_doubles import Scripted

OWNER = WorkerId("w.1")


@pytest.mark.parametrize("look", [None, Unavailable("no answer")])
def test_the_owner_is_told_without_waiting_and_its_absence_is_no_error(look: Any) -> None:
    new = NewRun(RunId("new"), SessionId("s"), WorkspaceId("w"), input="x", on_busy=OnBusy.INTERRUPT)
    accepted: Any = SimpleNamespace(replayed=False, stopped=Stopped(RunId("old"), OWNER))
    store: Any = Scripted(children_to_cancel=[[]])
    broker: Any = Scripted(look=[look])
    make_way(store, broker, None, new, accepted)
    assert broker.calls == [("look", ([OWNER],), {"quick": True})]
    assert store.called("children_to_cancel") == 1, "SQL is there"
