"""Where profiles come from: the package, then `agents.d/*.toml`, then sections of `oah.toml`; a later one replaces an
earlier."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from oah.core.dialogue import profiles as builtin
from oah.core.dialogue.profile import Profile, headless, parse_profile, profile_from


def load_profiles(*directories: Path, sections: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Profile]:
    """All profiles by name, and those of their programs without a screen. Raises InvalidRequest `invalid_profile` for
    the first bad one."""
    found = _read(*directories, sections=sections or {})
    without = [each for profile in found.values() if (each := headless(profile)) is not None]
    return {**{profile.name: profile for profile in without}, **found}


def _read(*directories: Path, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Profile]:
    found: dict[str, Profile] = {}
    for entry in sorted(resources.files(builtin).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            profile = parse_profile(entry.read_text(encoding="utf-8"), source=entry.name)
            found[profile.name] = profile
    for directory in directories:
        for path in sorted(directory.glob("*.toml")):
            profile = parse_profile(path.read_text(encoding="utf-8"), source=str(path))
            found[profile.name] = profile
    for name, section in sections.items():
        profile = profile_from({"name": name, **section}, source=f"agents.{name}")
        found[profile.name] = profile
    return found
