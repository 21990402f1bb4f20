"""Opens agents in terminals by profile."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from oah.adapters.pty.agents import Surroundings
from oah.adapters.pty.command_agent import CommandAgent
from oah.adapters.pty.headless_agent import HeadlessAgent
from oah.adapters.pty.marker_agent import MarkerAgent
from oah.adapters.pty.screen_agent import ScreenAgent
from oah.core.dialogue.profile import Kind, Profile
from oah.errors import NotFound
from oah.ports.agent import AgentSpec

Opened = MarkerAgent | CommandAgent | ScreenAgent | HeadlessAgent

_AGENTS: Mapping[Kind, type[Opened]] = {
    Kind.MARKER: MarkerAgent,
    Kind.COMMAND: CommandAgent,
    Kind.SCREEN: ScreenAgent,
    Kind.HEADLESS: HeadlessAgent,
}


class PtyAgents:
    """ports.agent.AgentFactory for the profiles of programs in terminals."""

    def __init__(self, profiles: Mapping[str, Profile], around: Surroundings) -> None:
        self._profiles = {name: profile for name, profile in profiles.items() if profile.kind is not Kind.NOOP}
        self._around = around

    def prepare(self) -> None:
        """Remove scratch directories of earlier incarnations. Under the worker name's lock."""
        shutil.rmtree(self._around.scratch_root, ignore_errors=True)
        self._around.scratch_root.mkdir(parents=True, mode=0o700)

    def profiles(self) -> tuple[str, ...]:
        """See ports.agent.AgentFactory."""
        return tuple(sorted(self._profiles))

    def open(self, spec: AgentSpec) -> Opened:
        """See ports.agent.AgentFactory."""
        profile = self._profiles.get(spec.profile)
        if profile is None:
            raise NotFound(
                f"no agent {spec.profile!r}", code="unknown_agent", hint=f"known: {', '.join(self.profiles())}"
            )
        agent = _AGENTS[profile.kind](spec, profile, self._around)
        agent.start()
        return agent
