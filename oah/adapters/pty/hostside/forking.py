"""Start one program in a terminal of its own: openpty, fork, exec, with the exec error coming back through a pipe.

Only ever called in a single-threaded process: PDEATHSIG fires when the forking thread ends, and forking with threads
is unsafe. The order of the child's steps matters and each was measured: PDEATHSIG after setuid (which clears it), then
a look at the parent (it may have died before the prctl), every ignored signal back to its default (an ignored signal
survives exec and would leave the agent deaf to ^C).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
import resource
import signal
import struct
import termios

from oah.adapters.pty.hostside.tree import RLIMIT_LOCKS

TYPE_CHECKING = False  # the host starts faster without the module typing
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
IGNORED_BY_HOST = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
_ALSO_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGQUIT)
_TO_DEFAULT = (*IGNORED_BY_HOST, *_ALSO_RESET)
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """The system call. Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


class Forked:
    """A child on its way to exec: `errors` reads b'' when exec succeeded, else a marshalled (step, errno)."""

    __slots__ = ("errors", "master", "pid")

    def __init__(self, pid: int, master: int, errors: int) -> None:
        self.pid, self.master, self.errors = pid, master, errors


def fork_in_terminal(spec: dict[str, Any], tag: int) -> Forked:
    """Fork; does not wait for exec. Raises OSError when there is no terminal, descriptor or process left."""
    host = os.getpid()
    master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", spec["rows"], spec["cols"], 0, 0))
        if spec["uid"] is not None:
            os.fchown(slave, spec["uid"], spec["gid"] if spec["gid"] is not None else -1)
            os.fchmod(slave, 0o620)
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        os.close(master)
        os.close(slave)
        raise
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(spec, tag, host, slave, writer)
    except OSError:
        os.close(master)
        os.close(reader)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(slave)
        os.close(writer)
    return Forked(pid, master, reader)


def _become(spec: dict[str, Any], tag: int, host: int, slave: int, writer: int) -> None:
    """The child. Never returns."""
    step = "terminal"
    try:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for number in (0, 1, 2):
            os.dup2(slave, number, inheritable=True)
        for signum in _TO_DEFAULT:
            signal.signal(signum, signal.SIG_DFL)
        _carry(tag)
        os.umask(0o022)
        step = "limits"
        _bound(spec.get("limits") or {})
        step = "user"
        _change_user(spec["uid"], spec["gid"])
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != host:
            os._exit(127)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = "cwd"
        os.chdir(spec["cwd"])
        step = "exec"
        _execute(spec["argv"], spec["env"])
    except OSError as error:
        os.write(writer, marshal.dumps((step, error.errno or 0)))
    except BaseException:  # noqa: BLE001 - a forked child must never run on as a second host
        os.write(writer, marshal.dumps((step, 0)))
    finally:
        os._exit(127)


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Like os.execvpe, which imports a module on its way: another user may not be able to read our interpreter."""
    program = argv[0]
    if "/" in program:
        os.execve(program, argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, program)
    for directory in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(directory or ".", program), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure


def _carry(tag: int) -> None:
    """Put the tag on. Inside another agent that carries a lower one it cannot be raised: ancestry and environment must
    do."""
    if tag:
        try:
            resource.setrlimit(RLIMIT_LOCKS, (tag, tag))
        except (OSError, ValueError):
            pass


_LIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "cpu_seconds": resource.RLIMIT_CPU,
    "core_bytes": resource.RLIMIT_CORE,
}


def _bound(limits: dict[str, int]) -> None:
    """Soft and hard, never above what this process has itself: only root could raise it. Raises OSError, ValueError."""
    for name, value in limits.items():
        hard = resource.getrlimit(_LIMITS[name])[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(_LIMITS[name], (most, most))


def _change_user(uid: int | None, gid: int | None) -> None:
    if uid is None and gid is None:
        return
    if os.getuid() == 0:
        os.setgroups([])
    if gid is not None:
        os.setresgid(gid, gid, gid)
    if uid is not None:
        os.setresuid(uid, uid, uid)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
