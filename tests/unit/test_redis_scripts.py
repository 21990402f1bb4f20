"""The typed loader: headers, names instead of positions, libraries, two kinds of server."""

from __future__ import annotations

import pytest

from oah.adapters.redis import keys, scripts
from oah.adapters.redis.scripts import Argument, load
from oah.errors import Broken


@pytest.mark.parametrize("name", scripts.names())
def test_every_script_loads_for_both_kinds_of_server(name: str) -> None:
    script = load(name)
    assert script.text(shebang=False) in script.text(shebang=True)
    assert not script.plain.startswith("#!")
    flags = "#!lua flags=allow-oom\n" if script.over_maxmemory else "#!lua\n"
    assert script.real.startswith(flags)
    assert script.sha(shebang=True) != script.sha(shebang=False)
    for banned in ("cmsgpack", "bit.", "struct.", "'INFO'", "cjson"):
        assert banned not in script.plain
    assert "KEYS[2]" not in script.plain
    assert script.key == ("oah:{g}:workers" if script.shared else "oah:{0}:epoch")


def test_names_become_locals_and_groups_become_iterators() -> None:
    text = load("claim").plain
    assert "local epoch = ARGV[1]" in text
    assert "local worker = ARGV[2]" in text
    assert "local lease_ms = tonumber(ARGV[4])" in text
    assert "local suspect_place = (ARGV[7] == '1')" in text
    assert "local function each_pick()" in text
    assert "ARGV[2]" not in text.split("local believed", 1)[1]
    assert "key_" not in text


def test_arguments_on_the_wire() -> None:
    script = load("renew")
    assert script.argv(
        "e", ["w", 6000, 7], {"pending": [("p",)], "held": [("s", "t"), ("u", "v")], "agentless": []}
    ) == ["e", "w", "6000", "7", "1", "p", "2", "s", "t", "u", "v", "0"]


@pytest.mark.parametrize(
    ("epoch", "args", "groups"),
    [
        (None, ["w", 1, 1], {"pending": [], "held": [], "agentless": []}),
        ("e", ["w", 1], {"pending": [], "held": [], "agentless": []}),
        ("e", ["w", 1, 1], {"pending": [], "held": []}),
        ("e", ["w", "1", 1], {"pending": [], "held": [], "agentless": []}),
        ("e", ["w", True, 1], {"pending": [], "held": [], "agentless": []}),
        ("e", ["w", 1.5, 1], {"pending": [], "held": [], "agentless": []}),
        ("e", [None, 1, 1], {"pending": [], "held": [], "agentless": []}),
        ("e", ["w", 1, 1], {"pending": [("a", "b")], "held": [], "agentless": []}),
    ],
)
def test_arguments_that_do_not_fit_are_a_bug(epoch, args, groups) -> None:
    with pytest.raises((Broken, ValueError)):
        load("renew").argv(epoch, args, groups)


def test_types() -> None:
    assert Argument("x", "text?").encode(None) == ""
    assert Argument("x", "int?").encode(None) == ""
    assert Argument("x", "int?").encode(-3) == "-3"
    assert Argument("x", "flag").encode(False) == "0"
    assert Argument("x", "text").encode("") == ""
    for kind, value in (("text?", ""), ("flag", 1), ("text", 1), ("int", None)):
        with pytest.raises(Broken):
            Argument("x", kind).encode(value)


GOOD = "-- purpose: p\n-- repeatable: yes\n-- over maxmemory: yes\n-- returns: OK\n"


@pytest.mark.parametrize(
    "text",
    [
        "return 1",
        GOOD.replace("-- returns: OK\n", ""),
        GOOD.replace("yes\n-- ret", "perhaps\n-- ret"),
        GOOD + "-- colour: red\n",
        GOOD + "-- args: a:float\n",
        GOOD + "-- uses: nothing_there\n",
        GOOD + "\nreturn key_ghost('x')\n",
        GOOD + "-- keys: global\n\nreturn key_session('x')\n",
        "-- no header word\n" + GOOD,
    ],
)
def test_a_bad_file_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    read = scripts._read
    monkeypatch.setattr(scripts, "_read", lambda path: text if path == "planted.lua" else read(path))
    with pytest.raises(Broken):
        load.__wrapped__("planted")


def test_a_good_file_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    read = scripts._read
    text = GOOD + "-- args: ws until_ms:int?\n-- each one: sid\n-- uses: places\n\nreturn key_session(ws)\n"
    monkeypatch.setattr(scripts, "_read", lambda path: text if path == "planted.lua" else read(path))
    script = load.__wrapped__("planted")
    assert script.argv("e", ["w", None], {"one": [("a",)]}) == ["e", "w", "", "1", "a"]
    # Libraries come before what uses them.
    order = [script.plain.index(f"local function {name}") for name in ("load_session", "enter_ring", "to_ready")]
    assert order == sorted(order)


def test_libraries_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    read = scripts._read
    planted = {
        "planted.lua": GOOD + "-- uses: one\n",
        "lib/one.lua": "-- one\n-- uses: two\n",
        "lib/two.lua": "-- two\n-- uses: one\n",
    }
    monkeypatch.setattr(scripts, "_read", lambda path: planted.get(path) or read(path))
    with pytest.raises(Broken, match="circle"):
        load.__wrapped__("planted")


def test_keys() -> None:
    assert keys.READY.at("pool/shell", "interactive", "ws") == "oah:{0}:ready:pool/shell:interactive:ws"
    assert keys.READY.at("l", "c", "w", shard=3) == "oah:{3}:ready:l:c:w"
    assert keys.CONTROL.at("w.1") == "oah:{g}:control:w.1"
    assert keys.POISON.at(shard=None) == "oah:{g}:poison"
    assert {key.name for key in keys.KEYS} >= {"epoch", "session", "ready", "ring", "leases", "affinity", "leader"}
    assert len({key.name for key in keys.KEYS}) == len(keys.KEYS)
    assert keys.in_lua("call('ZADD', key_ready(s.lane, class, ws), 1)", shared=False) == (
        "call('ZADD', (PREFIX .. 'ready:' .. s.lane .. ':' .. class .. ':' .. ws), 1)"
    )
    assert keys.in_lua("key_leader()", shared=True) == "(PREFIX .. 'leader')"
    for text in ("key_leader()", "key_session()", "key_session(a, b)", "key_ghost(a)"):
        with pytest.raises(LookupError):
            keys.in_lua(text, shared=False)
