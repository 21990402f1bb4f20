"""What a look asks the store for, and whom it tells: no reader of what has stayed as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.model.ids import MailboxId
from oah.ports.mailboxes import AGAIN, GONE, Head
from oah.runtime.mail_watch import MailWatch
from tests.support.clock import StillClock

A, B = MailboxId("mbx_a"), MailboxId("mbx_b")


@dataclass
class Boxes:
    """A store of heads, a broker without hints, and a reader of each name that remembers."""

    heads_: dict[MailboxId, Head] = field(default_factory=lambda: {A: Head(3, gone=False), B: Head(0, gone=False)})
    asked: list[dict[MailboxId, Head | None]] = field(default_factory=list)
    told: list[tuple[str, Head]] = field(default_factory=list)

    def heads(self, known: Mapping[MailboxId, Head | None]) -> dict[MailboxId, Head]:
        self.asked.append(dict(known))
        found = {name: self.heads_.get(name, Head(0, gone=True)) for name in known}
        return {name: head for name, head in found.items() if head != known[name] or head.gone}

    def mail_hints(self, *, timeout: timedelta) -> list[tuple[MailboxId, int]]:
        self.waited = timeout
        return []

    def reader(self, name: str):  # type: ignore[no-untyped-def]
        return lambda _box, head: self.told.append((name, head))


class Watched:
    def __init__(self) -> None:
        self.boxes, self.clock = Boxes(), StillClock()
        self.watch = MailWatch(self.boxes, self.boxes, self.clock)  # type: ignore[arg-type]

    def look(self) -> list[tuple[str, Head]]:
        """Who was told what, two seconds later."""
        before = len(self.boxes.told)
        self.clock.seconds += 2
        self.watch.step(timedelta(seconds=10))
        return self.boxes.told[before:]


def test_who_has_seen_it_is_told_of_nothing_but_changes() -> None:
    it = Watched()
    it.watch.watch(A, it.boxes.reader("saw"), seen=Head(3, gone=False))
    it.watch.watch(B, it.boxes.reader("blind"))
    assert it.look() == [("blind", Head(0, gone=False))]
    assert it.boxes.asked == [{A: None, B: None}]
    assert it.look() == []
    it.boxes.heads_[A] = Head(4, gone=False)
    assert it.look() == [("saw", Head(4, gone=False))]
    it.boxes.heads_[A] = Head(4, gone=False, turn=1)
    assert it.look() == [("saw", Head(4, gone=False, turn=1))]
    assert it.boxes.asked[-1] == {A: Head(4, gone=False), B: Head(0, gone=False)}, "the store answers with what changed"


def test_what_was_stored_between_its_look_and_its_watch_is_told() -> None:
    it = Watched()
    it.watch.watch(A, it.boxes.reader("saw"), seen=Head(2, gone=False))
    assert it.look() == [("saw", Head(3, gone=False))]
    it.watch.watch(B, it.boxes.reader("late"), seen=Head(0, gone=False))
    del it.boxes.heads_[B]
    assert it.look() == [("late", Head(0, gone=True))]


def test_a_further_reader_does_not_disturb_the_others() -> None:
    it = Watched()
    it.watch.watch(A, it.boxes.reader("first"))
    it.look()
    it.watch.watch(A, it.boxes.reader("second"))
    it.watch.watch(A, it.boxes.reader("third"), seen=Head(3, gone=False))
    assert it.look() == [("second", Head(3, gone=False))]
    assert it.look() == []


def test_a_hint_is_not_told_a_second_time_by_the_look() -> None:
    it = Watched()
    it.watch.watch(A, it.boxes.reader("r"), seen=Head(3, gone=False))
    it.look()
    it.watch.told([(A, 5), (A, 4), (A, AGAIN)])
    assert [head.last_seq for _, head in it.boxes.told] == [5, 5]
    it.boxes.heads_[A] = Head(4, gone=False)
    assert it.look() == [], "the look was slower than the hint"
    it.watch.told([(A, GONE), (A, GONE), (A, 6)])
    assert [head.gone for _, head in it.boxes.told] == [False, False, True]
    assert it.look() == [], "though the store did not know it yet"
    del it.boxes.heads_[A]
    assert it.look() == it.look() == [], "gone once"
    asked = len(it.boxes.asked)
    assert it.look() == []
    assert len(it.boxes.asked) == asked, "nothing is left to be asked for"


def test_who_comes_to_a_mailbox_that_is_gone_is_told() -> None:
    it = Watched()
    it.watch.watch(A, it.boxes.reader("first"), seen=Head(3, gone=False))
    del it.boxes.heads_[A]
    it.look()
    it.watch.watch(A, it.boxes.reader("second"), seen=Head(3, gone=False))
    assert it.look() == [("second", Head(0, gone=True))]


def test_an_end_that_is_put_off_is_asked_for_again_and_nobody_is_told() -> None:
    """The database's clock may be behind ours."""
    it = Watched()
    it.boxes.heads_[A] = Head(3, gone=False, expires_in=timedelta(seconds=30))
    it.watch.watch(A, it.boxes.reader("r"), seen=Head(3, gone=False))
    it.look()
    it.clock.seconds += 30
    it.boxes.heads_[A] = Head(3, gone=False, expires_in=timedelta(seconds=1))
    assert it.look() == []
    assert it.boxes.asked[-1] == {A: None}
    it.watch.step(timedelta(seconds=10))
    assert it.boxes.waited == timedelta(seconds=1), "it is looked at when it ends"
    it.clock.seconds += 1
    it.boxes.heads_[A] = Head(3, gone=True)
    it.watch.step(timedelta(seconds=10))
    assert it.boxes.told == [("r", Head(3, gone=True))]
