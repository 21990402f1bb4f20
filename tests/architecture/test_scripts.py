"""Lua scripts and Redis keys: headers, what may run over maxmemory, what never runs on the hot path."""

import re

import pytest

from oah.adapters.redis.keys import KEYS
from oah.adapters.redis.scripts import load
from tests.support.source import PACKAGE, files, name

LUA = PACKAGE / "adapters" / "redis" / "lua"
SCRIPTS = [path for path in files(".lua", under=LUA) if path.parent == LUA]
LIBRARIES = files(".lua", under=LUA / "lib")

# What ends work must never be refused because Redis is full; what begins work may be.
OVER_MAXMEMORY = ("renew", "hold", "restore", "free", "release", "recover", "expire", "cancel", "ensure", "tick")
REFUSED_WHEN_FULL = ("enqueue", "claim")

NEVER = re.compile(r"'(KEYS|SCAN|SSCAN|HSCAN|ZSCAN|LREM|LPOS|LINSERT)'")
WHOLE = re.compile(
    r"'(?:SMEMBERS|HGETALL|HKEYS|HVALS)', (key_\w+)|'(?:LRANGE|Z(?:REV)?RANGE)', (key_\w+)\([^)]*\), 0, -1"
)

# Collections that a script may read as a whole: none of them grows with the backlog.
BOUNDED = {
    "key_owned": "sessions of one worker: its slots and parked sessions",
    "key_lanes": "lanes: pools and profiles that are configured",
    "key_capped_rings": "rings of one workspace: lanes and classes",
    "key_capped": "workspaces at their cap; read for people and for scaling, not on the hot path",
    "key_caps": "caps of profiles and pools that somebody has set",
    "key_full": "lanes, like key_lanes",
    "key_workers": "workers of the fleet; read for people, not on the hot path",
}


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_every_script_has_a_header_that_the_loader_reads(path) -> None:
    script = load(path.stem)
    for field in ("purpose", "repeatable", "over maxmemory", "returns"):
        assert len(script.header[field]) >= 2, f"{field} says nothing"
    assert path.read_text().startswith("-- purpose: ")


@pytest.mark.parametrize("path", LIBRARIES, ids=name)
def test_every_library_says_what_it_is_for(path) -> None:
    assert path.read_text().startswith("-- ")


def test_what_ends_work_runs_over_maxmemory_what_begins_it_does_not() -> None:
    assert [script for script in OVER_MAXMEMORY if not load(script).over_maxmemory] == []
    assert [script for script in REFUSED_WHEN_FULL if load(script).over_maxmemory] == []


@pytest.mark.parametrize("path", [*SCRIPTS, *LIBRARIES], ids=name)
def test_no_script_walks_a_backlog(path) -> None:
    text = path.read_text()
    assert not NEVER.findall(text)
    whole = {first or second for first, second in WHOLE.findall(text)}
    assert whole <= BOUNDED.keys(), "reads a whole collection that may grow with the backlog"


def test_every_key_has_one_healer() -> None:
    assert all(key.healer and key.meaning for key in KEYS)
    assert len({key.pattern for key in KEYS}) == len(KEYS)
