"""The lines of the how-to in a shell agent: a child by curl, awaited and read, on a worker with one slot."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from oah.testing.fleet import Fleet
from tests.support.source import ROOT
from tests.support.warm import warm

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def test_a_child_runs_in_the_slot_of_the_run_that_waits_for_it(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "child-runs.md").read_text()
    [lines] = re.findall(r"```sh\n(.*?)```", page, flags=re.S)
    script = tmp_path / "script.sh"
    script.write_text(f"set -eu\n{lines}\n")
    directory = Path(tempfile.mkdtemp(prefix="oah-c-", dir="/tmp"))
    env = {"OAH_WORKER__SLOTS": "1"}
    with Fleet(directory / "d", api_with_workers=True, redis_url="memory://", env=env, starter=warm()) as fleet:
        client = fleet.client
        session = client.create_session("shell", cwd=str(tmp_path))["id"]
        done = client.wait(client.submit(session, f"bash {script}", timeout=90)["id"], timeout=90)
        output = client.output(done["id"])
        assert done["status"] == "completed" and done["exit_code"] == 0, (done["error"], output)
        assert output.count("six times seven") == 1, output
        [child] = client.runs(parent=done["id"])
        assert (child["status"], child["class"], child["attempt"]) == ("completed", "subagent", 1)
        below = client.session(child["session_id"])
        assert (below["state"], below["parent_run_id"]) == ("closed", done["id"])
        told = [event.type for event in client.stream(done["id"], after=0) if event.type != "run.output"]
        assert told == ["run.queued", "run.started", "run.waiting_tool", "run.resumed", "run.completed"]
    shutil.rmtree(directory, ignore_errors=True)
