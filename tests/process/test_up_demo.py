"""`make demo`'s program, as from a pipe: it ends well, and for the right reason."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


@pytest.mark.timeout(150)
def test_the_demo_kills_a_worker_and_every_run_completes(short_tmp: Path) -> None:
    data_dir = short_tmp / "d"
    done = subprocess.run(
        [sys.executable, "-m", "oah.cli.demo", "--data-dir", str(data_dir)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    log = (data_dir / "fleet.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log[-3000:]
    assert re.search(r"kill -9 \d+: worker-\d dies while it drives run_", done.stdout)
    assert re.search(r"recovered: attempt 2 of the run began \d+\.\d s after the kill", done.stdout)
    assert "19 runs in 6 sessions: 19 completed" in done.stdout
    assert "\x1b" not in done.stdout
    casts = list(data_dir.rglob("*.cast"))
    assert len(casts) >= 19
    for cast in casts:
        head, *rest = cast.read_text().splitlines()
        assert json.loads(head)["version"] == 2
        assert all(len(json.loads(line)) == 3 for line in rest)
