"""Are the programs of profiles on this machine, and are they the versions that their rules were made for?

A program is asked for its version once and then known by its file, because some take seconds to say it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from oah.core.dialogue.profile import Profile
from oah.core.dialogue.versions import is_known, said_version

ASKING_SECONDS = timedelta(seconds=20)
"""How long one program may take to say its version."""
_AT_ONCE = 4
_SAID_BYTES = 4_096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What was found. `program`: the command, None where OAH brings it. `path`: None when it is not there. `version`:
    None when it has none, or did not say it (in time)."""

    profile: str
    program: str | None = None
    path: str | None = None
    version: str | None = None
    known: tuple[str, ...] = ()

    @property
    def fault(self) -> str | None:
        """Why it cannot run here."""
        return f"no program {self.program!r} on the PATH" if self.program is not None and self.path is None else None

    @property
    def mismatch(self) -> str | None:
        """Why its rules may not fit."""
        if self.version is None or is_known(self.version, self.known):
            return None
        return f"version {self.version}; the profile was made for {', '.join(self.known)}"


class Programs:
    """Looks for programs on one PATH. `memory`: a file in which versions are kept, None for nowhere."""

    def __init__(self, path: str, *, memory: Path | None = None) -> None:
        self._path = path
        self._memory = memory
        self._versions: dict[str, str] = _remembered(memory)
        self._asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def look(self, profile: Profile, *, timeout: timedelta = ASKING_SECONDS) -> Program:
        """Find a profile's program and ask its version."""
        found = self._find(profile)
        if found.path is None:
            return found
        argv = _version_argv(profile)
        if not argv:
            return found
        mark = _mark(found.path)
        with self._asking[mark]:  # profiles of one program come at once, and some take seconds of processor time
            said = self._versions.get(mark)
            if said is None:
                said = _ask(argv, found.path, {**_env(self._path), **profile.env}, timeout)
                self._versions[mark] = said
        return Program(
            profile=found.profile,
            program=found.program,
            path=found.path,
            version=said or None,
            known=found.known,
        )

    def look_all(self, profiles: Iterable[Profile], *, within: timedelta) -> dict[str, Program]:
        """All at once, by profile. What has not said its version in this time has none."""
        chosen = {profile.name: profile for profile in profiles}
        end = time.monotonic() + within.total_seconds()
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="programs")
        asked: dict[str, Future[Program]] = {}
        for name, profile in chosen.items():
            asked[name] = pool.submit(self.look, profile, timeout=within)
        wait(asked.values(), timeout=max(end - time.monotonic(), 0))
        pool.shutdown(wait=False, cancel_futures=True)
        found = {
            name: future.result() if future.done() and not future.cancelled() else self._find(chosen[name])
            for name, future in asked.items()
        }
        self._remember()
        return found

    def _find(self, profile: Profile) -> Program:
        program = profile.argv[0] if profile.argv else None
        version = profile.tables.get("version", {})
        known = tuple(version.get("known", ())) if isinstance(version, Mapping) else ()
        if program is None or program.startswith("{"):
            return Program(profile=profile.name, known=known)
        path = shutil.which(program, path=profile.env.get("PATH", self._path))
        return Program(profile=profile.name, program=program, path=path, known=known)

    def _remember(self) -> None:
        if self._memory is None:
            return
        with contextlib.suppress(OSError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._memory.with_suffix(f".{os.getpid()}")
            known = {mark: said for mark, said in self._versions.items() if said}
            fresh.write_text(json.dumps(known), encoding="utf-8")
            fresh.replace(self._memory)


def _version_argv(profile: Profile) -> tuple[str, ...]:
    version = profile.tables.get("version", {})
    return tuple(version.get("argv", ())) if isinstance(version, Mapping) else ()


def _remembered(memory: Path | None) -> dict[str, str]:
    if memory is None:
        return {}
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _mark(path: str) -> str:
    """A program's file as it is now: another version is another file."""
    try:
        real = os.path.realpath(path)
        facts = os.stat(real)
    except OSError:
        return path
    return f"{real} {facts.st_size} {facts.st_mtime_ns}"


def _env(path: str) -> dict[str, str]:
    return {"PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}


def _ask(argv: tuple[str, ...], path: str, env: Mapping[str, str], timeout: timedelta) -> str:
    """Its version, '' when it does not say one. In a home of its own, which it may fill."""
    with tempfile.TemporaryDirectory(prefix="oah-v-", ignore_cleanup_errors=True) as home:
        try:
            with subprocess.Popen(
                (path, *argv[1:]),
                env={**env, "HOME": home},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                try:
                    said, _ = process.communicate(timeout=timeout.total_seconds())
                except subprocess.TimeoutExpired:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, 9)
                    _log.info("%s did not say its version in %g s", path, timeout.total_seconds())
                    return ""
        except OSError as error:
            _log.info("%s cannot be asked for its version: %s", path, error)
            return ""
    return said_version(said[:_SAID_BYTES].decode("utf-8", "replace")) or ""
