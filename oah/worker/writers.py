"""Who may type into a session's terminal: one at a time, as long as the connection lives; another one takes over only
when it says so, and both are told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from oah.core.model.ids import SessionId


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """A lease. Compared by identity: the same person may come twice."""

    by: str
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when somebody else has taken over."""
    taken_by: list[str] = field(default_factory=list)
    before: str | None = None
    """Whose place it took."""


class Writers:
    """Thread safe. ``version`` grows with every change of any session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_session: dict[SessionId, Writer] = {}
        self.version = 0

    def who(self, session_id: SessionId) -> str | None:
        """Who types now."""
        with self._lock:
            writer = self._by_session.get(session_id)
            return None if writer is None else writer.by

    def take(self, session_id: SessionId, by: str, *, takeover: bool) -> Writer | None:
        """None: somebody else has the lease."""
        with self._lock:
            before = self._by_session.get(session_id)
            if before is not None and not takeover:
                return None
            writer = self._by_session[session_id] = Writer(by, before=None if before is None else before.by)
            self.version += 1
            if before is not None:
                before.taken_by.append(by)
                before.lost.set()
            return writer

    def release(self, session_id: SessionId, writer: Writer) -> bool:
        """Whether it still had the lease. Repeatable."""
        with self._lock:
            if self._by_session.get(session_id) is not writer:
                return False
            del self._by_session[session_id]
            self.version += 1
            return True

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_session)
