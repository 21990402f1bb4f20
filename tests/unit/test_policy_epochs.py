"""Whether the broker's data is the incarnation that SQL believes in."""

from dataclasses import replace
from datetime import timedelta

import pytest

from oah.core.model.epoch import EpochState, EpochView
from oah.core.model.ids import EpochId
from oah.core.policy.epochs import Suspect, Suspicion, Trusted, Unfinished, judge

NEW, OLD = EpochId("epoch_2"), EpochId("epoch_1")
GOOD = EpochView(NEW, EpochState.OPEN, "server-a", "server-a", 1, timedelta(seconds=9))


@pytest.mark.parametrize(
    ("view", "newest", "known", "expected"),
    [
        (GOOD, NEW, False, Trusted()),
        (replace(GOOD, state=EpochState.REBUILDING), NEW, False, Unfinished()),
        (replace(GOOD, state=None), NEW, False, Unfinished()),
        (GOOD, None, False, Suspect(Suspicion.FIRST)),
        (replace(GOOD, id=None, state=None), None, False, Suspect(Suspicion.FIRST)),
        (replace(GOOD, id=None, state=None), NEW, False, Suspect(Suspicion.MISSING)),
        (replace(GOOD, id=OLD), NEW, True, Suspect(Suspicion.OLDER)),
        (replace(GOOD, id=EpochId("x")), NEW, False, Suspect(Suspicion.UNKNOWN)),
        (replace(GOOD, server_run_id="server-b"), NEW, False, Suspect(Suspicion.SERVER_CHANGED)),
        (
            replace(GOOD, state=EpochState.REBUILDING, server_run_id="server-b"),
            NEW,
            False,
            Suspect(Suspicion.SERVER_CHANGED),
        ),
        (replace(GOOD, server_run_id=None), NEW, False, Trusted()),
        (replace(GOOD, run_id=None), NEW, False, Trusted()),
    ],
)
def test_judgements(view: EpochView, newest: EpochId | None, known: bool, expected: object) -> None:
    assert judge(view, newest, known=known) == expected
