"""Subjects: what is read from those of the mailboxes, and who listens to the others."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.message import Priority
from oah.gateway import subjects
from oah.gateway.interest import Interest
from oah.gateway.subjects import Asked, Era, Reading, Refused, Verb

MSG = "$mq9.AI.MAILBOX.MSG."
ALL = tuple(Priority)


@pytest.mark.parametrize(
    ("rest", "address", "priorities"),
    [
        ("task", "task", ALL),
        ("task.*", "task", ALL),
        ("task.>", "task", ALL),
        ("task.urgent", "task", (Priority.URGENT,)),
        ("task.critical", "task", (Priority.CRITICAL,)),
        ("task.normal", "task", (Priority.NORMAL,)),
        ("task.queue", "task.queue", ALL),
        ("task.queue.*", "task.queue", ALL),
        ("task.urgent.*", "task.urgent", ALL),
        ("m-0f.>", "m-0f", ALL),
        ("urgent", "urgent", ALL),
        ("ses_01j", "ses_01j", ALL),
    ],
)
def test_a_subscription_names_one_mailbox(rest: str, address: str, priorities: tuple[Priority, ...]) -> None:
    assert subjects.read_subscription(MSG + rest) == Reading(address, priorities)


@pytest.mark.parametrize(
    "subject",
    [
        *(MSG + rest for rest in ("*", ">", "*.*", "*.>", "*.critical", "a*", "#", "a.#", "", ".", "a..b", ".a", "a.")),
        *(MSG + rest for rest in ("a.*.*", "*.a.*", "A", "a b", "$x", "x" * 129, "a.*.urgent", "task.>.x")),
        *("$mq9", "$mq9.>", "$mq9.*", "$mq9.AI.>", "$mq9.AI.MAILBOX.>", "$mq9.AI.*.MSG.a", "$mq9.AI.MAILBOX.MSG"),
        *("$mq9.AI.MAILBOX.LIST.a", "$mq9.AI.MAILBOX.CREATE", "$mq9.AI.MSG.SEND.a", "$mq9.AI.PUBLIC.LIST"),
    ],
)
def test_a_subscription_that_names_no_one_mailbox_is_refused(subject: str) -> None:
    assert subjects.is_ours(subject)
    assert isinstance(subjects.read_subscription(subject), Refused)


@pytest.mark.parametrize(
    ("rest", "asked"),
    [
        ("MAILBOX.CREATE", Asked(Verb.CREATE)),
        ("MAILBOX.MSG.a.b", Asked(Verb.SEND, Era.MAIL, "a.b")),
        ("MAILBOX.MSG.a.b.urgent", Asked(Verb.SEND, Era.MAIL, "a.b", Priority.URGENT)),
        ("MAILBOX.MSG.urgent", Asked(Verb.SEND, Era.MAIL, "urgent")),
        ("MAILBOX.LIST.a.b", Asked(Verb.LIST, Era.MAIL, "a.b")),
        ("MAILBOX.LIST.a.urgent", Asked(Verb.LIST, Era.MAIL, "a.urgent")),
        ("MAILBOX.DELETE.a.b.7", Asked(Verb.DELETE, Era.MAIL, "a.b", None, "7")),
        ("MSG.SEND.a.urgent", Asked(Verb.SEND, Era.PULL, "a.urgent")),
        ("MSG.FETCH.a", Asked(Verb.FETCH, Era.PULL, "a")),
        ("MSG.ACK.a", Asked(Verb.ACK, Era.PULL, "a")),
        ("MSG.QUERY.a", Asked(Verb.QUERY, Era.PULL, "a")),
        ("MSG.DELETE.a.7", Asked(Verb.DELETE, Era.PULL, "a", None, "7")),
        ("AGENT.REGISTER", Asked(Verb.REGISTER, Era.PULL)),
        ("AGENT.DISCOVER", Asked(Verb.DISCOVER, Era.PULL)),
    ],
)
def test_a_publish_is_a_request(rest: str, asked: Asked) -> None:
    assert subjects.read_publish(subjects.BASE + rest) == asked


@pytest.mark.parametrize(
    "rest",
    [
        *("", "MAILBOX", "MAILBOX.MSG", "MAILBOX.MSG.", "MAILBOX.MSG.*", "MAILBOX.MSG.a.*", "MAILBOX.MSG.>"),
        *("MAILBOX.DELETE.7", "MAILBOX.NOPE.a", "mailbox.msg.a", "MSG.SEND.A", "AGENT.NOPE", "MAILBOX.CREATE.x"),
    ],
)
def test_a_publish_that_asks_nothing_is_refused(rest: str) -> None:
    assert isinstance(subjects.read_publish(subjects.BASE + rest), Refused)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert isinstance(subjects.read_publish(subjects.BASE + text), Asked | Refused)
    found = subjects.read_subscription(MSG + text)
    assert isinstance(found, Reading | Refused)
    if isinstance(found, Reading):
        assert not set("*># \t$") & set(found.address)


def test_a_delivered_subject_is_one_that_could_be_published_to() -> None:
    for priority in Priority:
        asked = subjects.read_publish(subjects.message_subject("a.b", priority))
        assert isinstance(asked, Asked)
        assert (asked.address, asked.priority or Priority.NORMAL) == ("a.b", priority)


@dataclass(eq=False)
class Ear:
    subject: str
    queue: str | None = None


def _heard(pattern: str, subject: str) -> bool:
    interest: Interest[Ear] = Interest()
    interest.add(Ear(pattern))
    return bool(list(interest.matching(subject)))


@pytest.mark.parametrize(
    ("pattern", "subject", "heard"),
    [
        *(("a", "a", True), ("a", "b", False), ("a", "a.b", False), ("a.b", "a", False), ("*", "a", True)),
        *(("*", "a.b", False), ("a.*", "a.b", True), ("a.*", "a", False), ("a.*.c", "a.b.c", True), (">", "a.b", True)),
        *(("a.>", "a", False), ("a.>", "a.b", True), ("a.>", "a.b.c", True), ("*.>", "a", False), ("*.>", "a.b", True)),
        *(("a*", "ab", False), ("a*", "a*", True), ("_INBOX.x.*", "_INBOX.x.y", True)),
    ],
)
def test_patterns(pattern: str, subject: str, heard: bool) -> None:
    assert _heard(pattern, subject) is heard


TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)


def _matches(pattern: list[str], subject: list[str]) -> bool:
    if pattern and pattern[-1] == ">":
        return len(subject) >= len(pattern) and all(p in ("*", s) for p, s in zip(pattern[:-1], subject, strict=False))
    return len(pattern) == len(subject) and all(p in ("*", s) for p, s in zip(pattern, subject, strict=True))


@given(
    st.lists(st.tuples(TOKENS, st.booleans()), max_size=8),
    st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=5),
    st.sets(st.integers(0, 7)),
)
def test_the_tree_agrees_with_the_definition(
    patterns: list[tuple[list[str], bool]], subject: list[str], gone: set[int]
) -> None:
    whole = [[*tokens, ">"] if rest else tokens for tokens, rest in patterns]
    ears = [Ear(".".join(tokens)) for tokens in whole]
    interest: Interest[Ear] = Interest()
    for ear in ears:
        interest.add(ear)
        interest.add(ear)
    for at in gone & set(range(len(ears))):
        interest.remove(ears[at])
        interest.remove(ears[at])
    left = [ear for at, ear in enumerate(ears) if at not in gone]
    assert len(interest) == len(left)
    wanted = {id(ear) for ear in left if _matches(ear.subject.split("."), subject)}
    assert {id(ear) for ear in interest.matching(".".join(subject))} == wanted


def test_of_a_queue_group_one_is_chosen_and_all_others_get_it() -> None:
    interest: Interest[Ear] = Interest()
    plain, own = Ear("a"), Ear("a")
    workers = [Ear("a", "w"), Ear("*", "w"), Ear("a", "w")]
    for ear in (plain, own, *workers, Ear("a", "v")):
        interest.add(ear)
    for number in range(3):
        chosen = interest.chosen("a", lambda of, number=number: number % of, lambda ear: ear is own)
        assert plain in chosen
        assert own not in chosen
        assert len([ear for ear in chosen if ear.queue == "w"]) == 1
        assert len(chosen) == 3


def test_an_empty_tree_keeps_no_branches() -> None:
    interest: Interest[Ear] = Interest()
    ears = [Ear(f"_INBOX.{number}.*") for number in range(100)]
    for ear in ears:
        interest.add(ear)
    for ear in ears:
        interest.remove(ear)
    assert interest._root.next == {}
