"""Subjects: the grammar of ordinary ones, and that of ``$mq9``, which is never matched but read.

In the namespace of the mailboxes a subject is an instruction with an address in it. Wildcards there have one meaning:
``.*`` and ``.>`` behind a whole address say "every priority". Anything else that could match more than one mailbox is
refused. The address is what remains when the known words before and behind it are taken away, so names with dots are
read without guessing: their last part is never the name of a priority.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from oah.core.model.mailbox import LONGEST_ADDRESS
from oah.core.model.message import Priority

ROOT = "$mq9"
BASE = f"{ROOT}.AI."
MESSAGES = f"{BASE}MAILBOX.MSG."
LONGEST_SUBJECT = 1_024
LITERAL_TOKENS = 2
"""An answer of ours goes to a listener on another connection only where its pattern names so much of the subject."""
_ADDRESS = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\Z")
_PRIORITIES = {priority.word: priority for priority in Priority}


class Era(Enum):
    """Which generation of the protocol asks: they differ in words and in the types of answers."""

    MAIL = auto()
    """``MAILBOX.MSG``, ``LIST``, ``DELETE``: push, an error only where there is one, ``msg_id`` as text."""
    PULL = auto()
    """``MSG.*`` and ``AGENT.*``: request and reply, ``error`` always, ``msg_id`` as a number."""


class Verb(Enum):
    """What is asked of a mailbox, or of the register of agents."""

    CREATE = auto()
    SEND = auto()
    LIST = auto()
    DELETE = auto()
    FETCH = auto()
    ACK = auto()
    QUERY = auto()
    REGISTER = auto()
    UNREGISTER = auto()
    REPORT = auto()
    DISCOVER = auto()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. ``number``: the message's, as text. ``priority`` None: not said by the subject."""

    verb: Verb
    era: Era = Era.MAIL
    address: str = ""
    priority: Priority | None = None
    number: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A subscription of a mailbox."""

    address: str
    priorities: tuple[Priority, ...] = tuple(Priority)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a subject cannot be used: ``code`` as in the protocol's table of errors."""

    code: int
    text: str


NO_SUCH = Refused(400, "unknown subject")
WILDCARD = Refused(403, "wildcards over mailboxes are not allowed")
BAD_ADDRESS = Refused(400, "invalid mail_address")


def is_ours(subject: str) -> bool:
    """Whether it lies in the namespace of the mailboxes."""
    return subject == ROOT or subject.startswith(ROOT + ".")


def is_literal(subject: str) -> bool:
    """Whether something can be published there."""
    return bool(subject) and len(subject) <= LONGEST_SUBJECT and _tokens_are(subject.split("."), wild=False)


def is_pattern(subject: str) -> bool:
    """Whether something can be subscribed by that."""
    return bool(subject) and len(subject) <= LONGEST_SUBJECT and _tokens_are(subject.split("."), wild=True)


def names_much(pattern: str) -> bool:
    """Whether it begins like an inbox that somebody has chosen, not like everybody's."""
    tokens = pattern.split(".")
    return len(tokens) >= LITERAL_TOKENS and not {"*", ">"} & set(tokens[:LITERAL_TOKENS])


def _tokens_are(tokens: Sequence[str], *, wild: bool) -> bool:
    for at, token in enumerate(tokens):
        if not token or (token in ("*", ">") and not wild) or (token == ">" and at < len(tokens) - 1):
            return False
    return True


def message_subject(address: str, priority: Priority) -> str:
    """Where a message is published to, and therefore the subject that it is delivered with."""
    return MESSAGES + address if priority is Priority.NORMAL else f"{MESSAGES}{address}.{priority.word}"


def read_subscription(subject: str) -> Reading | Refused:
    """What a SUB in our namespace asks for."""
    if not subject.startswith(MESSAGES):
        return WILDCARD if _is_wild(subject) else NO_SUCH
    rest, _, last = subject[len(MESSAGES) :].rpartition(".")
    if rest and last in ("*", ">"):
        return _reading(rest, tuple(Priority))
    if rest and last in _PRIORITIES:
        return _reading(rest, (_PRIORITIES[last],))
    return _reading(subject[len(MESSAGES) :], tuple(Priority))


def _reading(address: str, priorities: tuple[Priority, ...]) -> Reading | Refused:
    wrong = _fault(address)
    return wrong or Reading(address, priorities)


def _fault(address: str) -> Refused | None:
    if _ADDRESS.match(address) and len(address) <= LONGEST_ADDRESS:
        return None
    return WILDCARD if _is_wild(address) else BAD_ADDRESS


def _is_wild(subject: str) -> bool:
    return any(token in ("*", ">") for token in subject.split("."))


_PLAIN = {
    "MAILBOX.CREATE": Asked(Verb.CREATE),
    "AGENT.REGISTER": Asked(Verb.REGISTER, Era.PULL),
    "AGENT.UNREGISTER": Asked(Verb.UNREGISTER, Era.PULL),
    "AGENT.REPORT": Asked(Verb.REPORT, Era.PULL),
    "AGENT.DISCOVER": Asked(Verb.DISCOVER, Era.PULL),
}
_WITH_ADDRESS = {
    "MAILBOX.MSG": (Verb.SEND, Era.MAIL),
    "MAILBOX.LIST": (Verb.LIST, Era.MAIL),
    "MAILBOX.DELETE": (Verb.DELETE, Era.MAIL),
    "MSG.SEND": (Verb.SEND, Era.PULL),
    "MSG.FETCH": (Verb.FETCH, Era.PULL),
    "MSG.ACK": (Verb.ACK, Era.PULL),
    "MSG.QUERY": (Verb.QUERY, Era.PULL),
    "MSG.DELETE": (Verb.DELETE, Era.PULL),
}


def read_publish(subject: str) -> Asked | Refused:
    """What a PUB in our namespace asks for."""
    if not subject.startswith(BASE):
        return NO_SUCH
    rest = subject[len(BASE) :]
    if rest in _PLAIN:
        return _PLAIN[rest]
    parts = rest.split(".", 2)
    known = _WITH_ADDRESS.get(".".join(parts[:2])) if len(parts) == 3 else None
    if known is None:
        return NO_SUCH
    verb, era = known
    address, number, priority = parts[2], "", None
    before, _, last = address.rpartition(".")
    if verb is Verb.DELETE:
        address, number = before, last
    elif verb is Verb.SEND and era is Era.MAIL and before and last in _PRIORITIES:
        address, priority = before, _PRIORITIES[last]
    return _fault(address) or Asked(verb, era, address, priority, number)
