"""Where homes and working directories of sessions lie, and who takes away what is left of them."""

from __future__ import annotations

from datetime import timedelta

from oah.adapters.homes.directory import HomeDirectories
from oah.adapters.homes.leftovers import DirectoryLeftovers
from oah.adapters.homes.worktree import GitWorktrees
from oah.adapters.pty.agents import DEFAULT_PATH
from oah.bootstrap.kit import Kit
from oah.controller.rules import retention_rules
from oah.core.policy.retention import homes_age
from oah.services.tidy import Tidy
from oah.settings import Settings


def home_directories(settings: Settings) -> HomeDirectories:
    """As every process of a deployment has them, each on its own host."""
    section = settings.worker
    return HomeDirectories(
        own=settings.data_dir / "homes",
        work=settings.work_dir or settings.data_dir / "work",
        shared=settings.homes_dir,
        limit=settings.limits.home_bytes,
        uid=section.agent_uid,
        gid=section.agent_gid,
        worktrees=GitWorktrees(
            allowed=section.repositories,
            path=section.path or DEFAULT_PATH,
            timeout=timedelta(seconds=section.git_seconds),
            uid=section.agent_uid,
            gid=section.agent_gid,
        ),
    )


def tidy_here(kit: Kit) -> Tidy:
    """What is this host's own: for its workers."""
    at = home_directories(kit.settings)
    leftovers = DirectoryLeftovers(at.own, at.work, at.worktrees)
    return Tidy(kit.store, leftovers, kit.telemetry, homes_age(retention_rules(kit.settings)))


def tidy_shared(kit: Kit) -> Tidy | None:
    """What all hosts have: for the leader, if it has it as well."""
    at = home_directories(kit.settings)
    if at.shared is None or at.shared_work is None:
        return None
    leftovers = DirectoryLeftovers(at.shared, at.shared_work, at.worktrees)
    return Tidy(kit.store, leftovers, kit.telemetry, homes_age(retention_rules(kit.settings)))
