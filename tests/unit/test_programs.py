"""Programs of profiles: found or not, of a known version or not, and never waited for long."""

import os
import time
from datetime import timedelta
from pathlib import Path

from oah.adapters.pty.programs import Programs
from oah.bootstrap.worker import withdrawn_profiles
from oah.core.dialogue.profile import Profile, parse_profile
from oah.settings import Settings

SHORT = timedelta(seconds=1)


def _profile(name: str, *, known: str = "1.2.") -> Profile:
    return parse_profile(
        f'name = "{name}"\nkind = "screen"\nargv = ["{name}"]\n[version]\nargv = ["{name}", "--version"]\n'
        f'known = ["{known}"]\n[screen.composer]\nstart = ">"\n',
        source=name,
    )


def _program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_program_says_its_version(tmp_path: Path) -> None:
    _program(tmp_path, "agent", 'echo "agent version 1.2.3"')
    found = Programs(f"{tmp_path}:/usr/bin:/bin").look(_profile("agent"))
    assert (found.version, found.fault, found.mismatch) == ("1.2.3", None, None)
    assert found.path == str(tmp_path / "agent")


def test_a_version_that_is_not_known_is_a_mismatch(tmp_path: Path) -> None:
    _program(tmp_path, "agent", "echo 1.3.0")
    found = Programs(f"{tmp_path}:/usr/bin:/bin").look(_profile("agent"))
    assert found.fault is None
    assert found.mismatch == "version 1.3.0; the profile was made for 1.2."


def test_a_missing_program_is_a_fault(tmp_path: Path) -> None:
    assert Programs(str(tmp_path)).look(_profile("agent")).fault == "no program 'agent' on the PATH"


def test_slow_and_silent_programs_have_no_version_and_hold_nobody_up(tmp_path: Path) -> None:
    _program(tmp_path, "slow", "sleep 60")
    _program(tmp_path, "dumb", "exit 3")
    begun = time.monotonic()
    found = Programs(f"{tmp_path}:/usr/bin:/bin").look_all([_profile("slow"), _profile("dumb")], within=SHORT)
    assert time.monotonic() - begun < 10
    assert [found[name].version for name in ("slow", "dumb")] == [None, None]
    assert [found[name].mismatch for name in ("slow", "dumb")] == [None, None]


def test_a_version_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    memory, asked = tmp_path / "programs.json", tmp_path / "asked"
    _program(tmp_path, "agent", f"echo x >> {asked}; echo 1.2.3")
    path = f"{tmp_path}:/usr/bin:/bin"
    for _ in range(3):
        found = Programs(path, memory=memory).look_all([_profile("agent")], within=timedelta(seconds=10))
        assert found["agent"].version == "1.2.3"
    assert asked.read_text().count("x") == 1
    _program(tmp_path, "agent", "echo 1.4.0")
    os.utime(tmp_path / "agent", ns=(1, 1))
    assert Programs(path, memory=memory).look(_profile("agent")).version == "1.4.0"


def test_a_worker_withdraws_what_is_missing_and_what_is_not_known(tmp_path: Path) -> None:
    for name, version in (("good", "1.2.9"), ("new", "2.0.0")):
        _program(tmp_path, name, f"echo {version}")
    catalogue = {name: _profile(name) for name in ("good", "new", "gone")}

    def withdrawn(check: str) -> set[str]:
        settings = Settings(
            data_dir=tmp_path / "d",
            worker={"path": f"{tmp_path}:/usr/bin:/bin", "check_profiles": check},  # type: ignore[arg-type]
        )
        return set(withdrawn_profiles(settings, catalogue, tuple(catalogue)))

    assert withdrawn("version") == {"new", "gone"}
    assert withdrawn("program") == {"gone"}
    assert withdrawn("off") == set()
