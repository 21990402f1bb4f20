"""What a profile says about where its program lives: its home, and the bounds of its processes.

* ``[home]`` ``mode``: ``local``, ``archived`` or ``shared`` (see model/home.py; left out: as the deployment says);
  ``exclude``: names (globs) that need not be packed.
* ``[worktree]`` ``repo``, ``ref``: sessions that name no working directory get a git worktree of that repository.
* ``[limits]`` ``open_files``, ``processes`` (of its user), ``memory_bytes`` (address space), ``file_bytes`` (of any
  file it writes), ``cpu_seconds``, ``core_bytes``: bounds of each process, as setrlimit has them; what is left out
  is as the worker's own, but for core dumps, of which there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oah.core.model.home import HomeMode, HomeRules, is_ref, worktree_of
from oah.errors import InvalidRequest

LIMITS = ("open_files", "processes", "memory_bytes", "file_bytes", "cpu_seconds", "core_bytes")


def home_rules(table: Mapping[str, Any], default: HomeMode) -> HomeRules:
    """From the tables of a profile that was checked."""
    section, resume = table.get("home", {}), table.get("resume", {})
    return HomeRules(
        mode=HomeMode(section.get("mode", default)),
        exclude=tuple(section.get("exclude", ())),
        same_cwd=bool(resume) and not resume.get("any_cwd", False),
        worktree=worktree_of(table.get("worktree")),
    )


def limits(table: Mapping[str, Any]) -> dict[str, int]:
    """Bounds by their names."""
    return {"core_bytes": 0, **table.get("limits", {})}


def check_housing(table: Mapping[str, Any], *, source: str) -> None:
    """Raises InvalidRequest `invalid_profile` that names file and key."""
    section = table.get("home", {})
    unknown = sorted(set(section) - {"mode", "exclude"})
    if unknown:
        raise _invalid(source, f"unknown key 'home.{unknown[0]}'")
    mode, exclude = section.get("mode", HomeMode.LOCAL), section.get("exclude", [])
    if mode not in set(HomeMode):
        raise _invalid(source, f"home.mode {mode!r}: one of {', '.join(HomeMode)}")
    if not isinstance(exclude, list) or not all(isinstance(each, str) for each in exclude):
        raise _invalid(source, "home.exclude must be a list of strings")
    _check_worktree(table.get("worktree"), source)
    for name, value in table.get("limits", {}).items():
        if name not in LIMITS:
            raise _invalid(source, f"unknown key 'limits.{name}'")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
            raise _invalid(source, f"limits.{name} must be a whole number")


def _check_worktree(section: object, source: str) -> None:
    if section is None:
        return
    if not isinstance(section, Mapping) or not set(section) <= {"repo", "ref"}:
        raise _invalid(source, "worktree must be a table of repo and ref")
    repo, ref = section.get("repo"), section.get("ref", "HEAD")
    if not isinstance(repo, str) or not repo.startswith("/") or "\0" in repo:
        raise _invalid(source, "worktree.repo must be an absolute path")
    if not isinstance(ref, str) or not is_ref(ref):
        raise _invalid(source, "worktree.ref must name a branch, tag or commit")


def _invalid(source: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"profile {source}: {reason}", code="invalid_profile")
