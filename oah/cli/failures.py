"""How a command fails: one line on stderr with a hint, and an exit code that a script can act on.

Exit codes are part of the outside interface: 0 done, 1 the asked-for thing failed, 2 usage or bad input, 3 not found,
4 conflict or refused, 5 server unavailable. An interrupted command exits 130, as shells expect.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import click

from oah.errors import (
    Conflict,
    Forbidden,
    LeaseError,
    LimitReached,
    NotFound,
    OahError,
    RequestError,
    Unauthorized,
    Unavailable,
)


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130


_BY_ERROR: tuple[tuple[tuple[type[OahError], ...], Exit], ...] = (
    ((NotFound,), Exit.NOT_FOUND),
    ((Conflict, Forbidden, Unauthorized, LimitReached), Exit.REFUSED),
    ((RequestError,), Exit.USAGE),
    ((Unavailable, LeaseError), Exit.UNAVAILABLE),
)


def exit_code(error: OahError) -> Exit:
    """The exit code for an error of ours; what nobody foresaw is 1."""
    for kinds, code in _BY_ERROR:
        if isinstance(error, kinds):
            return code
    return Exit.FAILED


def one_line(text: str) -> str:
    """Text fit for one line of a terminal: no line breaks, no control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def complain(message: str, *, hint: str | None = None) -> None:
    """Say on stderr, in one line, what is wrong and what to do."""
    line = f"error: {one_line(message)}"
    if hint:
        line += f" (hint: {one_line(hint)})"
    click.echo(line, err=True)


def _usage(error: click.ClickException) -> None:
    ctx = getattr(error, "ctx", None)
    complain(error.format_message(), hint=f"{ctx.command_path} --help" if ctx is not None else None)


class ReaderLeft(Exception):
    """Whoever reads our output (`head`, a pager) has seen enough."""


class OneLineErrors(click.Command):
    """Mixed into the top command of each entry point: turns exceptions into a line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A closed pipe is hidden from click, which would exit 1 for it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  # click's signature
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> Any:
        """Run the command; with ``standalone_mode`` (the default) leave by ``sys.exit``."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        sys.exit(self._guarded(args, prog_name, complete_var, **extra))

    def _guarded(
        self, args: Sequence[str] | None, prog_name: str | None, complete_var: str | None, **extra: Any
    ) -> int:
        try:
            answer = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return Exit.USAGE
        except click.ClickException as error:
            _usage(error)
            return Exit.USAGE
        except OahError as error:
            complain(error.message, hint=error.hint)
            return exit_code(error)
        except (click.Abort, KeyboardInterrupt):
            return Exit.INTERRUPTED
        except (BrokenPipeError, ReaderLeft):
            # Keep the interpreter from complaining when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.DONE
        except OSError as error:
            complain(str(error))
            return Exit.FAILED
        return answer if isinstance(answer, int) else Exit.DONE
