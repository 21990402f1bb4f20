"""Worktrees: made once, on a branch of their own, never half, and never removed with work in them; with a real git."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.homes.directory import DirectoryHomes, HomeDirectories
from oah.adapters.homes.leftovers import DirectoryLeftovers
from oah.adapters.homes.worktree import GitWorktrees, noted
from oah.core.model.home import HomeRules, Worktree, is_ref
from oah.core.model.ids import SessionId
from oah.errors import AgentError
from tests.unit.test_homes import session

BRANCH = "oah/ses_1"
# Only root can give agents another user; everybody else takes the same path with his own.
UID, GID = (65534, 65534) if os.getuid() == 0 else (os.getuid(), os.getgid())


def git(at: Path, *words: str) -> str:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    done = subprocess.run(["git", *words], cwd=at, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(at: Path, name: str) -> str:
    (at / name).write_text(name)
    git(at, "add", name)
    git(at, "commit", "-q", "-m", name)
    return git(at, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    at = tmp_path / "repos" / "one"
    at.mkdir(parents=True)
    git(at, "init", "-q", "-b", "main")
    commit(at, "first")
    return at


@pytest.fixture
def trees(tmp_path: Path) -> GitWorktrees:
    return GitWorktrees(allowed=(tmp_path / "repos",), path=os.environ["PATH"], timeout=timedelta(seconds=20))


def code(trees: GitWorktrees, at: Path, worktree: Worktree) -> str:
    with pytest.raises(AgentError) as error:
        trees.ready(at, "ses_1", worktree)
    assert not at.exists() or list(at.iterdir()), "nothing half-made"
    return error.value.code


def test_a_worktree_is_made_on_its_own_branch_and_used_again(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    at = tmp_path / "work" / "ses_1"
    git(repo, "branch", "other")
    second = commit(repo, "second")
    trees.ready(at, "ses_1", Worktree(repo=str(repo)))
    assert (git(at, "branch", "--show-current"), git(at, "rev-parse", "HEAD")) == (BRANCH, second)
    (at / "draft").write_text("not committed")
    trees.ready(at, "ses_1", Worktree(repo=str(repo)))
    assert (at / "draft").read_text() == "not committed"
    another = tmp_path / "work" / "ses_2"
    trees.ready(another, "ses_2", Worktree(repo=str(repo), ref="other"))
    assert not (another / "second").exists() and (another / "first").exists()


def test_hooks_of_the_repository_are_not_run(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    trees.ready(tmp_path / "ses_1", "ses_1", Worktree(repo=str(repo)))
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_made_is_refused_by_name(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    at = tmp_path / "work" / "ses_1"
    (repo.parent / "plain").mkdir()
    (repo.parent / "out").symlink_to(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    git(outside, "init", "-q")
    (repo.parent / "borrowed").mkdir()
    (repo.parent / "borrowed" / ".git").write_text(f"gitdir: {outside}/.git\n")
    assert code(trees, at, Worktree(repo=str(repo.parent / "none"))) == "repository_missing"
    assert code(trees, at, Worktree(repo=str(repo.parent / "plain"))) == "not_a_repository"
    assert code(trees, at, Worktree(repo=str(outside))) == "repository_not_allowed"
    assert code(trees, at, Worktree(repo=str(repo.parent / "out" / "outside"))) == "repository_not_allowed"
    assert code(trees, at, Worktree(repo=str(repo.parent / "borrowed"))) == "repository_not_allowed"
    assert code(trees, at, Worktree(repo=str(repo), ref="nowhere")) == "ref_missing"
    at.mkdir(parents=True, exist_ok=True)
    (at / "somebody's").write_text("x")
    assert code(trees, at, Worktree(repo=str(repo))) == "worktree_occupied"
    assert git(repo, "branch", "--list", "oah/*") == ""


def test_a_directory_below_a_repository_is_no_repository(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    (repo / "below").mkdir()
    assert code(trees, tmp_path / "ses_1", Worktree(repo=str(repo / "below"))) == "not_a_repository"


def test_a_git_that_fails_or_hangs_leaves_nothing(repo: Path, tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    script = fake / "git"
    real = git(repo, "--exec-path") + "/git"
    script.write_text(f'#!/bin/sh\ncase "$*" in *"worktree add"*) sleep 30;; esac\nexec {real} "$@"\n')
    script.chmod(0o755)
    path = f"{fake}:{os.environ['PATH']}"
    trees = GitWorktrees(allowed=(repo.parent,), path=path, timeout=timedelta(seconds=0.5))
    assert code(trees, tmp_path / "ses_1", Worktree(repo=str(repo))) == "worktree_failed"
    assert git(repo, "branch", "--list", "oah/*") == ""


def test_a_half_made_one_is_made_anew(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    """The worker was killed while git wrote the files."""
    at = tmp_path / "ses_1"
    trees.ready(at, "ses_1", Worktree(repo=str(repo)))
    note = tmp_path / ".ses_1.worktree"
    note.write_text(note.read_text().replace("true", "false"))
    (at / "first").unlink()
    trees.ready(at, "ses_1", Worktree(repo=str(repo)))
    assert (at / "first").exists() and git(at, "status", "--porcelain") == ""


def test_work_is_never_removed(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    at = tmp_path / "ses_1"
    trees.ready(at, "ses_1", Worktree(repo=str(repo)))
    (at / "draft").write_text("x")
    assert trees.remove(at) == "there are changes that are not committed"
    (at / "draft").unlink()
    done = commit(at, "done")
    assert trees.remove(at) is None and not at.exists()
    assert git(repo, "rev-parse", BRANCH) == done, "its branch is where the work is"

    trees.ready(at, "ses_1", Worktree(repo=str(repo)))
    assert (at / "done").exists(), "and is gone on with"
    git(at, "checkout", "-q", "--detach")
    commit(at, "lost?")
    assert trees.remove(at) == "there are commits on no branch"
    git(at, "checkout", "-q", BRANCH)
    git(repo, "merge", "-q", BRANCH)
    assert trees.remove(at) is None
    assert git(repo, "branch", "--list", "oah/*") == "", "its work is in another branch"
    assert git(repo, "worktree", "list", "--porcelain").count("worktree ") == 1


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory that every user may pass through."""
    at = Path(tempfile.mkdtemp(dir="/tmp"))
    at.chmod(0o711)
    yield at
    shutil.rmtree(at)


def test_git_works_as_the_user_of_agents(passable: Path) -> None:
    repo, work = passable / "repos" / "one", passable / "work"
    for made in (repo.parent, repo, work):  # whatever umask the process has by now
        made.mkdir()
        made.chmod(0o755)
    git(repo, "init", "-q", "-b", "main")
    commit(repo, "first")
    for path in (repo, *repo.rglob("*")):
        os.chown(path, UID, GID)
    trees = GitWorktrees(allowed=(repo.parent,), path=os.environ["PATH"], uid=UID, gid=GID)
    trees.ready(work / "ses_1", "ses_1", Worktree(repo=str(repo)))
    assert (work / "ses_1" / "first").stat().st_uid == UID
    left = DirectoryLeftovers(passable / "homes", work, trees)
    assert lap(left) == {"ses_1"} and left.remove(SessionId("ses_1"))
    left.clear()
    assert os.listdir(work) == []
    assert not list((repo / ".git" / "worktrees").glob("*")) and not list((repo / ".git").rglob("oah/*"))
    if os.getuid() != UID:
        for path in (repo, *repo.rglob("*")):
            os.chown(path, 0, 0)
        assert code(trees, work / "ses_2", Worktree(repo=str(repo))) == "worktree_failed", "it may not write there"
        assert os.listdir(work) == []


def test_submodules_are_work(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    at = tmp_path / "ses_1"
    trees.ready(at, "ses_1", Worktree(repo=str(repo)))
    git(at, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo), "inner")
    git(at, "commit", "-q", "-m", "inner")
    assert "submodules" in (trees.remove(at) or "")
    assert (at / "inner" / "first").exists()


def test_a_home_gives_a_worktree_as_working_directory(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    directories = HomeDirectories(own=tmp_path / "homes", work=tmp_path / "work", worktrees=trees)
    homes = DirectoryHomes(directories, DirectoryBlobs(tmp_path / "b"), host="a")
    by_profile = HomeRules(worktree=Worktree(repo=str(repo)))
    place = homes.place(session(cwd=None), by_profile)
    assert (place.cwd, place.own_cwd) == (str(tmp_path / "work" / "ses_1"), False)
    assert git(Path(place.cwd), "branch", "--show-current") == BRANCH
    assert homes.place(session(cwd="/w"), by_profile).cwd == "/w"
    moved = HomeRules(worktree=Worktree(repo="/nowhere"))
    assert homes.place(session(cwd=None), moved).cwd == place.cwd, "it stays what it was"


def test_refs_are_names() -> None:
    assert all(map(is_ref, ("main", "origin/main", "v1.0", "a" * 40)))
    assert not any(map(is_ref, ("", "-b", "a..b", "HEAD@{1}", "a b", "a:b", "HEAD^", "x\n", "--all")))


# -- leftovers --------------------------------------------------------------------------------------------------------


def lap(at: DirectoryLeftovers) -> set[str]:
    return {each.session_id for each in at.window(100)}


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    homes, work, elsewhere = tmp_path / "homes", tmp_path / "work", tmp_path / "elsewhere"
    for path in (homes / "ws" / "ses_1" / "deep", homes / "ws" / "ses_2", work / "ses_1", elsewhere / "ses_3"):
        path.mkdir(parents=True)
        (path / "file").write_text("x")
    (work / "project").mkdir()
    (work / "ses_3").symlink_to(elsewhere / "ses_3")
    (homes / "other").symlink_to(elsewhere)
    (work / "ses_1" / "out").symlink_to(elsewhere)
    cache = homes / "ws" / "ses_1" / "cache"
    cache.mkdir()
    (cache / "x").write_text("x")
    cache.chmod(0o500)
    (homes / "ws" / "ses_1" / "closed").mkdir(mode=0o000)
    at = DirectoryLeftovers(homes, work)
    assert lap(at) == {"ses_1", "ses_2"}
    assert at.remove(SessionId("ses_1"))
    assert not at.remove(SessionId("ses_3")) and not at.remove(SessionId("../elsewhere"))
    at.clear()
    assert sorted(os.listdir(homes / "ws")) == ["ses_2"]
    assert sorted(os.listdir(work)) == ["project", "ses_3"]
    assert (elsewhere / "ses_3" / "file").exists()


def test_a_deep_and_a_large_tree_go_in_bounded_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.adapters.homes.leftovers.AT_ONCE", 100)
    home = tmp_path / "homes" / "ws" / "ses_1"
    home.mkdir(parents=True)
    before = os.getcwd()
    try:
        os.chdir(home)
        for _ in range(150):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    for number in range(300):
        (home / str(number)).write_text("")
    at = DirectoryLeftovers(tmp_path / "homes", tmp_path / "work")
    lap(at)
    assert at.remove(SessionId("ses_1"))
    at.clear()
    assert os.listdir(tmp_path / "homes" / "ws"), "bounded"
    for _ in range(10):
        at.clear()
    assert os.listdir(tmp_path / "homes" / "ws") == []


def test_a_worktree_with_work_stays_and_its_home_too(trees: GitWorktrees, repo: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    trees.ready(work / "ses_1", "ses_1", Worktree(repo=str(repo)))
    (work / "ses_1" / "draft").write_text("x")
    at = DirectoryLeftovers(tmp_path / "homes", work, trees)
    assert lap(at) == {"ses_1"}
    assert not at.remove(SessionId("ses_1"))
    assert (work / "ses_1" / "draft").exists() and noted(work / "ses_1") is not None
    (work / "ses_1" / "draft").unlink()
    assert at.remove(SessionId("ses_1"))
    at.clear()
    assert os.listdir(work) == []


def test_the_age_of_leftovers_is_that_of_the_younger(tmp_path: Path) -> None:
    for path in (tmp_path / "homes" / "ws" / "ses_1", tmp_path / "work" / "ses_1"):
        path.mkdir(parents=True)
    os.utime(tmp_path / "work" / "ses_1", (0, time.time() - 5_000))
    at = DirectoryLeftovers(tmp_path / "homes", tmp_path / "work")
    assert at.window(9)[0].age < timedelta(seconds=600)
    os.utime(tmp_path / "homes" / "ws" / "ses_1", (0, time.time() - 4_000))
    assert timedelta(seconds=3_900) < at.window(9)[0].age < timedelta(seconds=4_600)
