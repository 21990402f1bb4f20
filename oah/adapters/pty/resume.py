"""Going on with a conversation: which one, whether its record is sound, and what it is called now.

The program's files belong to an agent that is not trusted: nothing is followed out of its home, and a file is only
written where it is a regular one of the agent's user.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from oah.adapters.pty.matching import compiled
from oah.core.dialogue.recorded_reply import RecordedRules, reply_in
from oah.core.dialogue.records import Judgement, State, judge
from oah.core.dialogue.resuming import REF, ResumeRules, is_ref, ref_in, resume_rules
from oah.errors import AgentError
from oah.ports.agent import AgentSpec
from oah.ports.opening import REFUSED, AgentKind, Opening

TAIL_BYTES = 8 * 1024 * 1024
"""So much of the end of a record is judged: damage is at the end."""
NAMELESS = "last"
"""The name of the last conversation, for a program that has no names for them."""
_KEPT = ".oah-kept"
_RECORDS = 10_000
_LATEST = 5
"""Records of conversations without a name yet in which a reply is looked for."""


class Conversation:
    """One agent's. `begin` first; `opening` is what came of it, and may still change with a refusal."""

    def __init__(self, spec: AgentSpec, tables: Mapping[str, Any], *, source: str) -> None:
        found = tables.get("resume")
        self.rules: ResumeRules | None = None if found is None else resume_rules(found, compiled, source=source)
        self._spec = spec
        self._home = Path(spec.home)
        self._old: frozenset[str] = frozenset()
        self._turns = 0
        self._sizes: dict[Path, int] = {}
        """Of records, when the turn began."""
        self.opening = Opening(reason=spec.fresh_because, resumable=self.rules is not None)

    @property
    def going_on(self) -> bool:
        """Whether the program was asked to go on with a conversation."""
        return self.opening.kind is not AgentKind.FRESH

    def begin(self) -> tuple[str, ...]:
        """The arguments to add to the command. Repairs the record where that is to be done."""
        rules = self.rules
        if rules is None:
            return ()
        records = self._records()
        self._old = frozenset(records)
        if self._spec.fresh_because is not None:
            return self._fresh(self._spec.fresh_because, before=self._spec.session_ref)
        ref = self._spec.session_ref or _newest(records)
        if ref is None or not is_ref(ref):
            return self._fresh("first" if ref is None else "refused", before=None)
        if rules.record:
            path = records.get(ref)
            if path is None:
                return self._fresh("no_record", before=ref)
            judgement = self._judged(path)
            if judgement.state is State.BROKEN:
                return self._fresh("transcript_broken", before=ref)
            if judgement.state is State.CUT:
                self._go_on(AgentKind.REPAIRED, ref, "record_cut")
                return rules.arguments(ref, new=False)
        self._go_on(AgentKind.RESUMED, ref, None)
        return rules.arguments(ref, new=False)

    def refuse(self, text: str) -> None:
        """The program ended before it was ready. Raises AgentError `resume_refused` where it says, or may be taken to
        say, that it cannot go on."""
        rules = self.rules
        if rules is not None and self.going_on and (not rules.refused or rules.refuses(text)):
            raise AgentError(f"the program does not go on with {self.opening.session_ref}", code=REFUSED)

    def refused(self) -> None:
        """It did not go on; the same agent has begun anew."""
        self._fresh("refused", before=self.opening.session_ref)

    def unnamed(self) -> None:
        """A new conversation is not begun under the name of our choice."""
        self.opening = replace(self.opening, session_ref=None)

    def current(self, shown: Callable[[], str] = str, *, told: str | None = None) -> str | None:
        """What the conversation is called now. `shown`: text that may show it; `told`: what the program says."""
        rules, known = self.rules, self.opening.session_ref
        if rules is None:
            return told
        found = told or (rules.captured(shown()) if rules.capture is not None else None) or self._latest(known)
        if found is None and known is None and not any(REF in part for part in rules.argv):
            found = NAMELESS
        reason = None if self.opening.reason == "forked" else self.opening.reason
        if found is not None and found != known and is_ref(found):
            forked = (self.going_on or self._turns > 0) and known not in (None, NAMELESS)
            before = known if forked else self.opening.before
            reason = "forked" if forked else reason
            self.opening = replace(self.opening, session_ref=found, before=before)
        self._turns += 1
        self.opening = replace(self.opening, reason=reason)
        return self.opening.session_ref

    # -- which one --------------------------------------------------------------------------------------------------

    def _fresh(self, reason: str, *, before: str | None) -> tuple[str, ...]:
        assert self.rules is not None
        ref = str(uuid.uuid4()) if self.rules.new else None
        self.opening = Opening(kind=AgentKind.FRESH, reason=reason, session_ref=ref, before=before, resumable=True)
        return () if ref is None else self.rules.arguments(ref, new=True)

    def _go_on(self, kind: AgentKind, ref: str, reason: str | None) -> None:
        self.opening = Opening(kind=kind, reason=reason, session_ref=ref, resumable=True)

    def _records(self, record: str = "") -> dict[str, Path]:
        """Records by their names, the newest last; of two of one moment (the clock of files is coarse) the one that is
        not ours, for it was begun later."""
        rules = self.rules
        if rules is None or not (record or rules.record):
            return {}
        found: list[tuple[int, bool, str, Path]] = []
        try:
            base, record = self._base(rules, record or rules.record)
            for path in base.glob(record.replace(REF, "*")):
                ref = ref_in(record, path.relative_to(base).as_posix())
                status = path.lstat()
                if ref is not None and stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, ref != self.opening.session_ref, ref, path))
                if len(found) >= _RECORDS:
                    break
        except OSError:
            pass  # what cannot be read is no record
        return {ref: path for _, _, ref, path in sorted(found)}

    def _base(self, rules: ResumeRules, record: str) -> tuple[Path, str]:
        """Where records lie: below HOME, or where the session's environment has put them."""
        name, beginning = rules.root
        moved = self._spec.env.get(name) if name else None
        if not moved or not os.path.isabs(moved):
            return self._home, record
        return Path(moved), record.removeprefix(beginning + "/")

    def _latest(self, known: str | None) -> str | None:
        """The newest record's name, unless it was there before and is not ours."""
        newest = _newest(self._records())
        return None if newest is None or (newest in self._old and newest != known) else newest

    # -- what it says -----------------------------------------------------------------------------------------------

    def turns(self, rules: RecordedRules) -> None:
        """A turn begins: what is recorded by now is none of it."""
        self._sizes.clear()
        for path in self._records(rules.file).values():
            with suppress(OSError):
                self._sizes[path] = path.lstat().st_size

    def said(self, text: str, shown: str, rules: RecordedRules) -> str | None:
        """All that the program has said to this text in this turn, by its record; None where there is none, or where
        what is `shown` is not its end. A conversation that has no name yet is looked for among the records that are
        new."""
        records = self._records(rules.file)
        known = self.opening.session_ref
        ours = [path for ref, path in records.items() if ref == known]
        found = [reply for path in ours if (reply := self._said(path, text, shown, rules)) is not None]
        if not found:
            new = [path for ref, path in records.items() if ref not in self._old and ref != known][-_LATEST:]
            found = [reply for path in new if (reply := self._said(path, text, shown, rules)) is not None]
        return found[0] if len(found) == 1 else None

    def _said(self, path: Path, text: str, shown: str, rules: RecordedRules) -> str | None:
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not self._ours(path, status):
                    return None
                begin = max(status.st_size - TAIL_BYTES, self._sizes.get(path, 0))
                file.seek(max(begin - 1, 0))  # a line that ends there is none of it
                return reply_in(file.read(TAIL_BYTES + 1), text, shown, rules, partial=begin > 0)
        except OSError:
            return None  # what cannot be read is no record

    # -- its record -------------------------------------------------------------------------------------------------

    def _judged(self, path: Path) -> Judgement:
        """The record, cut back to what is sound where it has to be; the original stays beside it."""
        assert self.rules is not None
        if path.suffix != ".jsonl":
            return Judgement(State.SOUND, 0)
        try:
            with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "r+b") as file:
                status = os.fstat(file.fileno())
                if not self._ours(path, status):
                    return Judgement(State.BROKEN, 0, "it is no file of the agent's own")
                begin = max(status.st_size - TAIL_BYTES, 0)
                file.seek(begin)
                tail = file.read()
                found = judge(tail, self.rules.records, partial=begin > 0)
                if found.state is State.CUT:
                    self._keep(path, file, begin + found.keep, status)
                    file.truncate(begin + found.keep)
                    if found.newline:
                        file.seek(0, os.SEEK_END)
                        file.write(b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                return found
        except OSError as error:
            return Judgement(State.BROKEN, 0, f"it cannot be read: {error.strerror}")

    def _ours(self, path: Path, status: os.stat_result) -> bool:
        assert self.rules is not None
        base, _ = self._base(self.rules, self.rules.record)
        below = os.path.realpath(path.parent).startswith(os.path.realpath(base) + os.sep)
        own = self._spec.uid is None or status.st_uid == self._spec.uid
        return below and own and stat.S_ISREG(status.st_mode) and status.st_nlink == 1

    def _keep(self, path: Path, file: Any, begin: int, status: os.stat_result) -> None:
        """What is cut off, in a file beside the record that no program takes for one."""
        file.seek(begin)
        rest = file.read()
        for number in range(1, 100):
            try:
                name = path.with_name(f"{path.name}{_KEPT}-{number}")
                kept = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            with open(kept, "wb") as beside:
                beside.write(rest)
                if self._spec.uid is not None:
                    os.fchown(beside.fileno(), status.st_uid, status.st_gid)
            return


def _newest(records: dict[str, Path]) -> str | None:
    return next(reversed(records), None)
