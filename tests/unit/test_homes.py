"""Homes as directories: which copy is the conversation, what is packed, and what is never followed."""

from __future__ import annotations

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.homes.directory import DirectoryHomes, HomeDirectories
from oah.adapters.homes.leftovers import DirectoryLeftovers
from oah.adapters.homes.packing import TooLarge, packed, unpack
from oah.core.model.home import HomeMode, HomeRules, SessionHome, session_home
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.session import Session, SessionState
from oah.errors import AgentError, Unavailable

ARCHIVED = HomeRules(mode=HomeMode.ARCHIVED)
LOCAL = HomeRules(mode=HomeMode.LOCAL)
SHARED = HomeRules(mode=HomeMode.SHARED)


def session(home: SessionHome | None = None, cwd: str | None = "/w") -> Session:
    return Session(
        SessionId("ses_1"),
        WorkspaceId("ws_1"),
        Lane("default", "diary"),
        SessionState.OPEN,
        datetime(2030, 1, 1, tzinfo=UTC),
        home=home,
        cwd=cwd,
    )


class Hosts:
    """Workers with disks of their own, and one store of blobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = DirectoryBlobs(root / "blobs")

    def host(self, name: str, *, limit: int = 1 << 20, shared: bool = True) -> DirectoryHomes:
        at = self.root / name
        directories = HomeDirectories(
            own=at / "homes", work=at / "work", shared=self.root / "shared" if shared else None, limit=limit
        )
        return DirectoryHomes(directories, self.blobs, host=name)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def write(home: str, text: str) -> None:
    Path(home).mkdir(parents=True, exist_ok=True)
    (Path(home) / "record").write_text(text)


def read(home: str) -> str:
    return (Path(home) / "record").read_text()


def test_a_local_home_is_found_on_its_host_alone(hosts: Hosts) -> None:
    first = hosts.host("a").place(session(), LOCAL)
    assert (first.lost, first.state.host, first.cwd, first.own_cwd) == (None, "a", "/w", False)
    write(first.home, "x")
    state = hosts.host("a").keep(first, session(), LOCAL)
    assert state == first.state
    assert hosts.host("a").place(session(state), LOCAL).lost is None, "another incarnation, the same disk"
    elsewhere = hosts.host("b").place(session(state), LOCAL)
    assert (elsewhere.lost, elsewhere.state.host) == ("home_lost", "b")
    assert elsewhere.state.place != state.place


def test_a_host_that_lost_its_disk_has_lost_its_homes(hosts: Hosts) -> None:
    state = hosts.host("a").place(session(), LOCAL).state
    (hosts.root / "a").rename(hosts.root / "gone")
    assert hosts.host("a").place(session(state), LOCAL).lost == "home_lost"


def test_workers_that_start_together_agree_on_the_mark(hosts: Hosts) -> None:
    with ThreadPoolExecutor(8) as pool:
        marks = set(pool.map(lambda _: hosts.host("a").mark(), range(32)))
    assert len(marks) == 1 and "" not in marks
    assert [path.name for path in (hosts.root / "a" / "homes").iterdir()] == [".mark"]


def test_a_shared_home_is_found_by_all_who_mount_it(hosts: Hosts) -> None:
    first = hosts.host("a").place(session(), SHARED)
    write(first.home, "x")
    other = hosts.host("b").place(session(first.state), SHARED)
    assert (other.home, other.lost, read(other.home)) == (first.home, None, "x")
    with pytest.raises(AgentError) as error:
        hosts.host("c", shared=False).place(session(first.state), SHARED)
    assert error.value.code == "home_unavailable" and "OAH_HOMES_DIR" in (error.value.hint or "")


def test_an_archived_home_follows_the_session_and_the_newer_one_wins(hosts: Hosts) -> None:
    a, b = hosts.host("a"), hosts.host("b")
    place = a.place(session(), ARCHIVED)
    write(place.home, "one")
    first = a.keep(place, session(), ARCHIVED)
    assert (first.generation, first.archive is not None) == (1, True)
    there = b.place(session(first), ARCHIVED)
    assert (there.lost, read(there.home)) == (None, "one")
    write(there.home, "two")
    second = b.keep(there, session(first), ARCHIVED)
    assert second.generation == 2
    back = a.place(session(second), ARCHIVED)
    assert (back.lost, read(back.home)) == (None, "two"), "its own copy is older"


def test_its_own_copy_of_the_last_archive_is_not_unpacked_over(hosts: Hosts) -> None:
    """What an attempt did that was lost in the middle is part of the conversation."""
    a = hosts.host("a")
    place = a.place(session(), ARCHIVED)
    write(place.home, "one")
    state = a.keep(place, session(), ARCHIVED)
    write(place.home, "one and a half")
    assert read(hosts.host("a").place(session(state), ARCHIVED).home) == "one and a half"


def test_a_crash_between_upload_and_settle_leaves_the_older_archive(hosts: Hosts) -> None:
    a = hosts.host("a")
    place = a.place(session(), ARCHIVED)
    write(place.home, "one")
    named = a.keep(place, session(), ARCHIVED)
    write(place.home, "never settled")
    a.keep(a.place(session(named), ARCHIVED), session(named), ARCHIVED)
    assert read(hosts.host("b").place(session(named), ARCHIVED).home) == "one"
    assert read(hosts.host("a").place(session(named), ARCHIVED).home) == "one", "here as well: it is what SQL names"


def test_archives_before_the_named_one_go(hosts: Hosts) -> None:
    a, state = hosts.host("a"), None
    for number in range(5):
        place = a.place(session(state), ARCHIVED)
        write(place.home, str(number))
        state = a.keep(place, session(state), ARCHIVED)
    assert len(list(hosts.blobs.keys("homes/ses_1/"))) == 2


def test_whoever_packs_late_takes_no_archive_of_its_successor(hosts: Hosts) -> None:
    a, b = hosts.host("a"), hosts.host("b")
    place = a.place(session(), ARCHIVED)
    write(place.home, "one")
    first = a.keep(place, session(), ARCHIVED)
    late = a.place(session(first), ARCHIVED)
    there = b.place(session(first), ARCHIVED)
    write(there.home, "two")
    second = b.keep(there, session(first), ARCHIVED)
    a.keep(late, session(first), ARCHIVED)  # it has lost the session meanwhile, and nobody could tell it
    assert read(hosts.host("c").place(session(second), ARCHIVED).home) == "two"


def test_a_home_that_nests_without_end_ends_no_worker(hosts: Hosts) -> None:
    a = hosts.host("a")
    place = a.place(session(), ARCHIVED)
    write(place.home, "x")
    at = os.open(place.home, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    try:
        state = a.keep(place, session(), ARCHIVED)
        assert (state.archive, state.generation) == (None, 1)
        other = hosts.host("b")
        there = other.place(session(), ARCHIVED)
        write(there.home, "another")
        newer = other.keep(there, session(), ARCHIVED)
        assert read(a.place(session(newer), ARCHIVED).home) == "another", "put in its place all the same"
    finally:
        leftovers = DirectoryLeftovers(hosts.root / "a" / "homes", hosts.root / "a" / "work")
        for _ in range(50):  # each pass takes so many levels
            leftovers.clear()
    assert [path.name for path in (hosts.root / "a" / "homes" / "ws_1").glob("[!.]*")] == ["ses_1"]
    assert list((hosts.root / "a" / "homes" / "ws_1").glob(".gone-*")) == []


def test_a_home_that_is_too_large_is_bound_to_its_host(hosts: Hosts) -> None:
    a = hosts.host("a", limit=10_000)
    place = a.place(session(), ARCHIVED)
    write(place.home, "x" * 20_000)
    state = a.keep(place, session(), ARCHIVED)
    assert state.archive is None
    assert hosts.host("b").place(session(state), ARCHIVED).lost == "home_lost"
    assert hosts.host("a").place(session(state), ARCHIVED).lost is None
    write(place.home, "small again")
    smaller = a.keep(a.place(session(state), ARCHIVED), session(state), ARCHIVED)
    assert smaller.archive is not None and smaller.generation == 2


def test_an_archive_that_is_gone_is_a_lost_home_and_one_out_of_reach_is_no_answer(hosts: Hosts) -> None:
    a = hosts.host("a")
    place = a.place(session(), ARCHIVED)
    write(place.home, "one")
    state = a.keep(place, session(), ARCHIVED)
    assert state.archive is not None
    hosts.blobs.delete(state.archive)
    assert hosts.host("b").place(session(state), ARCHIVED).lost == "home_lost"

    class Away(DirectoryBlobs):
        def get(self, key: str, *, limit: int | None = None) -> bytes | None:
            raise Unavailable("away", code="blobs_unavailable")

    directories = HomeDirectories(own=hosts.root / "c" / "homes", work=hosts.root / "c" / "work")
    with pytest.raises(AgentError) as error:
        DirectoryHomes(directories, Away(hosts.root / "blobs")).place(session(state), ARCHIVED)
    assert error.value.code == "home_unavailable"


def test_a_conversation_is_bound_to_its_directory_unless_the_program_does_not_mind(hosts: Hosts) -> None:
    a = hosts.host("a")
    place = a.place(session(), LOCAL)
    write(place.home, "x")
    state = place.state
    assert a.place(session(state, cwd="/other"), LOCAL).lost == "cwd_changed"
    assert a.place(session(state, cwd="/other"), replace(LOCAL, same_cwd=False)).lost is None
    own = a.place(session(None, cwd=None), LOCAL)
    assert (own.own_cwd, own.cwd) == (True, str(hosts.root / "a" / "work" / "ses_1"))
    assert a.place(session(None, cwd=None), SHARED).cwd.startswith(str(hosts.root / "shared"))


def test_what_is_stored_of_a_home_is_read_again() -> None:
    state = SessionHome(mode=HomeMode.ARCHIVED, host="h", place="p", cwd="/w", archive="k", generation=3)
    assert session_home(state.document()) == state
    for document in (None, {}, {"mode": "other"}, {"mode": "local"}):
        assert session_home(document) is None


# --- packing ---


def test_files_directories_and_links_of_a_home_are_packed_and_nothing_that_can_be_done_without(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in (".cache/x", "node_modules/y", "sub/deep/z", "skip.me", "tmp/passing", ".agent/tmp/talk"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "sub" / "tool").write_text("#!")
    (home / "sub" / "tool").chmod(0o755)
    (home / "link").symlink_to("sub/deep/z")
    os.mkfifo(home / "pipe")
    data = packed(home, limit=1 << 20, exclude=("*.me",), uid=None)
    target = tmp_path / "target"
    write(str(target), "what was there before")
    unpack(data, target, uid=None, gid=None)
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    kept = [".agent", ".agent/tmp", ".agent/tmp/talk"]
    assert found == [*kept, "link", "sub", "sub/deep", "sub/deep/z", "sub/tool"]
    assert (target / "link").read_text() == "sub/deep/z"
    assert os.access(target / "sub" / "tool", os.X_OK)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".target")]


def test_a_link_is_packed_as_a_link_and_unpacked_only_where_it_stays_inside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the worker")
    home = tmp_path / "home"
    home.mkdir()
    (home / "out").symlink_to(secret)
    (home / "up").symlink_to("../secret")
    data = packed(home, limit=1 << 20, exclude=(), uid=None)
    assert b"of the worker" not in data
    unpack(data, tmp_path / "target", uid=None, gid=None)
    assert list((tmp_path / "target").iterdir()) == []


def test_what_belongs_to_somebody_else_is_not_packed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(str(home), "mine")
    assert b"mine" in packed(home, limit=1 << 20, exclude=(), uid=os.getuid())
    assert b"mine" not in packed(home, limit=1 << 20, exclude=(), uid=os.getuid() + 1)


def test_an_archive_that_leads_out_changes_nothing_outside(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("../evil", "/tmp/oah-evil", "good"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    unpack(buffer.getvalue(), tmp_path / "a" / "home", uid=None, gid=None)
    assert not (tmp_path / "a" / "evil").exists()
    assert (tmp_path / "a" / "home" / "good").exists()


def test_nothing_is_unpacked_through_a_link(tmp_path: Path) -> None:
    """Also where the links are judged to stay inside: on some versions of Python that judgement can be misled."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, target in (("dir", None), ("link", "dir"), ("link/file", None), ("link/more", "x")):
            info = tarfile.TarInfo(name)
            if target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, target
            elif name == "dir":
                info.type = tarfile.DIRTYPE
            tar.addfile(info)
    unpack(buffer.getvalue(), tmp_path / "home", uid=None, gid=None)
    assert list((tmp_path / "home" / "dir").iterdir()) == []
    assert (tmp_path / "home" / "link").is_dir() and not (tmp_path / "home" / "link").is_symlink()


def test_a_moment_that_no_clock_has_is_packed_as_one_that_can_be_unpacked(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(str(home), "x")
    os.utime(home / "record", (2**33 - 1, 2**33 - 1))
    unpack(packed(home, limit=1 << 20, exclude=(), uid=None), tmp_path / "target", uid=None, gid=None)
    assert read(str(tmp_path / "target")) == "x"


def test_a_home_beyond_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with (home / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TooLarge):
        packed(home, limit=1 << 20, exclude=(), uid=None)
