"""Who is meant by a name, and that a command does not depend on its hint."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.drain import Drain
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport, WorkerState
from oah.errors import Conflict, NotFound, Unavailable
from oah.ports.commands import CommandKind
from oah.services import commands
from tests.support.worker_doubles import Scripted

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
FIRST = WorkerReport(
    id=WorkerId("w.1"), name="w", host="ant", pid=1, pool="default", profiles=("shell",), state=WorkerState.BUSY,
    slots=4, busy=1, parked=0, cordoned=False, draining=False, version="1", started_at=BEGIN,
)  # fmt: skip
SECOND = replace(FIRST, id=WorkerId("w.2"), started_at=BEGIN + timedelta(minutes=1))
ELSEWHERE = replace(FIRST, id=WorkerId("w.3"), host="bee", pool="gpu")


def test_of_a_name_the_latest_life_is_meant() -> None:
    """A worker that was killed is in the registry until its report expires; the command must not go to it."""
    for order in ([FIRST, SECOND], [SECOND, FIRST]):
        assert commands.find(Scripted(workers=[order]), "w") == SECOND
    assert commands.find(Scripted(workers=[[FIRST, SECOND]]), "w.1") == FIRST


def test_a_name_that_several_hosts_have_is_not_guessed() -> None:
    broker = Scripted(workers=[[FIRST, ELSEWHERE]])
    with pytest.raises(Conflict) as caught:
        commands.find(broker, "w")
    assert caught.value.code == "ambiguous_worker" and "ant, bee" in caught.value.message
    assert commands.find(broker, "w.3") == ELSEWHERE
    with pytest.raises(NotFound):
        commands.find(broker, "nobody")


def test_a_pool_is_told_with_one_hint_which_may_be_lost() -> None:
    store = Scripted(command_worker=[None])
    broker = Scripted(workers=[[SECOND, FIRST, ELSEWHERE]], look=[Unavailable("away")])
    wish = Drain(timedelta(seconds=1))
    told = commands.command_pool(store, broker, "default", CommandKind.DRAIN, by="op", drain=wish)
    assert [each.id for each in told] == ["w.1", "w.2"]
    assert [(args[0], more["data"]) for _, args, more in store.calls] == [("w.1", wish.data()), ("w.2", wish.data())]
    assert broker.called("look") == 1
    commands.command_pool(store, broker, "gpu", CommandKind.CORDON, by="op", drain=wish)
    assert store.calls[-1][2]["data"] is None, "only a drain says how long"
    with pytest.raises(NotFound):
        commands.command_pool(store, broker, "none", CommandKind.CORDON, by="op")
