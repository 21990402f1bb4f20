"""Two `oah up` on one data directory: the second is told who has it; however the first ends, it lets go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from oah.cli.main import oah
from oah.cli.sole import sole
from oah.errors import Conflict

HOLDER = """
import sys, time
from pathlib import Path
from oah.cli.sole import sole
with sole(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_is_refused_in_one_line(tmp_path: Path) -> None:
    at = tmp_path / "d"
    with sole(at):
        result = CliRunner().invoke(oah, ["up", "--data-dir", str(at)])
        assert result.exit_code == 4
        assert f"oah up runs on {at} already (pid {os.getpid()})" in result.stderr
        assert "--data-dir" in result.stderr
        assert sorted(os.listdir(at)) == ["up.lock"], "nothing was started"
    with sole(at), sole(tmp_path / "other"):
        pass


def test_who_is_killed_lets_go(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match=f"pid {holder.pid}"), sole(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with sole(tmp_path):
            pass
