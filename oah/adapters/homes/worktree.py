"""Working directories that are git worktrees: made once for a session, on a branch of its own, and removed only where
nothing is lost by it.

Git runs as the user of agents, who can write what it reads: with a clean environment, no hooks, and a deadline. Beside
the directory lies a note: without it a directory is none of ours, and while it says so one is only half made.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from oah.core.model.home import Worktree
from oah.errors import AgentError

log = logging.getLogger(__name__)
BRANCH = "oah/{session}"
GONE = ".gone-"
"""Begins the names of directories that are to be cleared."""
_SAID = 600
_OPTIONS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*")


class _GitFailed(Exception):
    """What git said."""


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of a worktree. `made`: it was given to an agent, or could have been."""

    repo: str
    branch: str
    made: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GitWorktrees:
    """`allowed`: directories of which the repositories may be used. `timeout`: of one call of git."""

    allowed: tuple[Path, ...] = ()
    path: str = os.defpath
    timeout: timedelta = timedelta(minutes=2)
    uid: int | None = None
    gid: int | None = None

    def ready(self, at: Path, session_id: str, worktree: Worktree) -> None:
        """Make it, unless it is there. Whatever fails, nothing half-made is used, and no work is thrown away.

        Raises AgentError `repository_not_allowed`, `repository_missing`, `not_a_repository`, `ref_missing`,
        `worktree_occupied` (something else is in its place), `worktree_failed` (git did not do it)."""
        repo = self._repository(worktree.repo)
        common = self._common(repo)
        note, branch = noted(at), BRANCH.format(session=session_id)
        if note is not None and note.made and at.is_dir() and any(at.iterdir()):
            if self._common(at, code="worktree_occupied") != common:
                raise AgentError(f"{at} is a worktree of another repository", code="worktree_occupied")
            return
        if note is None and at.is_dir() and any(at.iterdir()):
            raise AgentError(f"{at} is no worktree, and not empty", code="worktree_occupied")
        there = self._commit(repo, f"refs/heads/{branch}") is not None  # of an earlier attempt, maybe elsewhere
        base = None if there else self._commit(repo, worktree.ref or "HEAD")
        if not there and base is None:
            raise AgentError(f"{repo} has no commit {worktree.ref or 'HEAD'}", code="ref_missing")
        try:
            shutil.rmtree(at, ignore_errors=True)  # half made, or empty
            _write(at, Note(str(repo), branch, made=False))
            self._make(at, repo, branch, base)
            _write(at, Note(str(repo), branch, made=True))
        except OSError as error:
            raise AgentError(f"no worktree: {error}", code="worktree_failed") from error

    def remove(self, at: Path) -> str | None:
        """Remove a worktree in which nothing is that is nowhere else; its branch goes if another has its commits.
        Returns why it stays, None: it is gone. Files that git ignores are no work."""
        note = noted(at)
        if note is None or not note.made:
            return self._remove_half_made(at, note)
        try:
            why = self._work_in(at) if at.is_dir() else None
            if why is not None:
                return why
            self._give_up(at, Path(note.repo))
            self._drop_branch(Path(note.repo), note.branch)
        except (_GitFailed, OSError) as error:
            return f"git says: {error}"
        _note_path(at).unlink(missing_ok=True)
        return None

    def _give_up(self, at: Path, repo: Path) -> None:
        """Set aside, for whoever clears it, then forgotten by git: as the user of agents it could empty the directory,
        and not remove it."""
        gone = set_aside(at)
        try:
            self._git(repo, "worktree", "remove", "-f", "-f", str(at))
        except _GitFailed:
            if gone is not None:
                gone.rename(at)
                raise
            log.info("%s is not known to %s", at, repo)

    # -- making -----------------------------------------------------------------------------------------------------

    def _repository(self, text: str) -> Path:
        repo = Path(os.path.realpath(text))
        if not self._is_allowed(repo):
            raise AgentError(
                f"no worktrees are made of {text} here",
                code="repository_not_allowed",
                hint="OAH_WORKER__REPOSITORIES names the directories of which repositories may be used",
            )
        if not repo.is_dir():
            raise AgentError(f"there is no {text}", code="repository_missing")
        return repo

    def _is_allowed(self, path: Path) -> bool:
        return any(path.is_relative_to(os.path.realpath(root)) for root in self.allowed)

    def _common(self, at: Path, *, code: str = "not_a_repository") -> Path:
        """The repository proper: of this directory, not of one above it."""
        try:
            said = self._git(at, "rev-parse", "--path-format=absolute", "--git-common-dir")
        except _GitFailed as error:
            raise AgentError(f"{at} is no git repository: {error}", code=code) from error
        common = Path(os.path.realpath(said))
        if not self._is_allowed(common):
            raise AgentError(f"{at} belongs to {common}, which is not allowed", code="repository_not_allowed")
        return common

    def _make(self, at: Path, repo: Path, branch: str, base: str | None) -> None:
        """`base` None: the branch is there."""
        at.mkdir(parents=True)
        if self.uid is not None:
            os.chown(at, self.uid, -1 if self.gid is None else self.gid)
        # Locked: where the repository is shared, another host's git would take a directory that it does not see for
        # one that is gone. Forced: of what an earlier attempt had, its entry may be left.
        add = ["worktree", "add", "--quiet", "--lock", "-f", "-f"]
        add += [str(at), branch] if base is None else ["--no-track", "-b", branch, str(at), base]
        try:
            self._git(repo, *add)
        except _GitFailed as error:
            self._undo(at, repo, None if base is None else (branch, base))
            raise AgentError(f"no worktree of {repo}: {error}", code="worktree_failed") from error

    def _undo(self, at: Path, repo: Path, made: tuple[str, str] | None) -> None:
        shutil.rmtree(at, ignore_errors=True)
        with contextlib.suppress(_GitFailed):
            self._git(repo, "worktree", "remove", "-f", "-f", str(at))
        if made is not None:
            with contextlib.suppress(_GitFailed):
                self._git(repo, "update-ref", "-d", f"refs/heads/{made[0]}", made[1])
        _note_path(at).unlink(missing_ok=True)

    def _commit(self, repo: Path, ref: str) -> str | None:
        with contextlib.suppress(_GitFailed):
            return self._git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        return None

    # -- removing ---------------------------------------------------------------------------------------------------

    def _remove_half_made(self, at: Path, note: Note | None) -> str | None:
        if note is None:
            return "it is no worktree"
        shutil.rmtree(at, ignore_errors=True)
        with contextlib.suppress(_GitFailed, OSError):
            self._git(Path(note.repo), "worktree", "remove", "-f", "-f", str(at))
        _note_path(at).unlink(missing_ok=True)
        return None

    def _work_in(self, at: Path) -> str | None:
        if self._git(at, "status", "--porcelain=v1", "--untracked-files=normal"):
            return "there are changes that are not committed"
        if not self._git(at, "for-each-ref", "--count=1", "--contains", "HEAD"):
            return "there are commits on no branch"
        own = Path(self._git(at, "rev-parse", "--path-format=absolute", "--git-path", "modules"))
        if own.is_dir() and any(own.iterdir()):
            return "there are submodules, which may have commits of their own"
        return None

    def _drop_branch(self, repo: Path, branch: str) -> None:
        """If its commits are in another branch, or in a tag; else it stays, and with it the work."""
        ref = f"refs/heads/{branch}"
        tip = self._commit(repo, ref)
        if tip is None:
            return
        others = self._git(repo, "for-each-ref", "--count=2", "--contains", tip, "--format=%(refname)").split()
        if [each for each in others if each != ref]:
            self._git(repo, "update-ref", "-d", ref, tip)
        else:
            log.info("%s of %s stays: its commits are on no other branch", branch, repo)

    # -- git --------------------------------------------------------------------------------------------------------

    def _git(self, at: Path, *words: str) -> str:
        """What it said. Raises _GitFailed, also when it takes too long."""
        env = {
            "PATH": self.path,
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CEILING_DIRECTORIES": str(at.parent),
        }
        try:
            return _call(("git", *_OPTIONS, *words), at, env, self.timeout, uid=self.uid, gid=self.gid)
        except OSError as error:
            raise _GitFailed(f"git cannot be run in {at}: {error.strerror}") from error


def _call(
    argv: Sequence[str], at: Path, env: dict[str, str], timeout: timedelta, *, uid: int | None, gid: int | None
) -> str:
    groups: tuple[int, ...] | None = () if uid is not None and os.getuid() == 0 else None
    with subprocess.Popen(
        argv,
        cwd=at,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        user=uid,
        group=gid,
        extra_groups=groups,
        umask=0o022,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout.total_seconds())
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise _GitFailed(f"{argv[0]} took more than {timeout.total_seconds():g} s") from None
    if process.returncode:
        said = err.decode("utf-8", "replace").strip()
        raise _GitFailed(said[-_SAID:] or f"exit status {process.returncode}")
    return out.decode("utf-8", "surrogateescape").strip()


def set_aside(path: Path) -> Path | None:
    """At once for everybody, beside it and so on the same disk; it is cleared later. None: there is no directory.
    Raises OSError."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return None
    except FileNotFoundError:
        return None
    gone = path.with_name(f"{GONE}{path.name}-{secrets.token_hex(4)}")
    path.rename(gone)
    return gone


# -- notes ------------------------------------------------------------------------------------------------------------


def _note_path(at: Path) -> Path:
    return at.with_name(f".{at.name}.worktree")


def noted(at: Path) -> Note | None:
    """What lies beside it."""
    try:
        found = json.loads(_note_path(at).read_text(encoding="utf-8"))
        return Note(str(found["repo"]), str(found["branch"]), bool(found["made"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(at: Path, note: Note) -> None:
    path = _note_path(at)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump({"repo": note.repo, "branch": note.branch, "made": note.made}, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
