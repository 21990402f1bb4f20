"""A minute of chaos whose seed is fixed, and the judge of it proven with real violations.

``make chaos`` plays more and longer ones. A failure prints its seed, the plan and what was done; the logs of all
processes, the ledger and the story lie where it says.
"""

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.chaos.driver import play_story

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]

SEED = int(os.environ.get("OAH_CHAOS_SEED", "3"))
SECONDS = float(os.environ.get("OAH_CHAOS_SECONDS", "20"))


def test_a_minute_of_chaos_loses_nothing_and_does_nothing_twice() -> None:
    keep = Path(tempfile.gettempdir()) / "oah-chaos"
    story = play_story(SEED, SECONDS, keep=keep)
    print(story.summary)
    assert not story.violations, str(story)
