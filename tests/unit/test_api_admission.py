"""What is let in."""

from datetime import UTC, datetime, timedelta

import pytest

from oah.core.policy import admission
from oah.core.policy.admission import Rules
from oah.errors import InvalidRequest, PayloadTooLarge

RULES = Rules(input_bytes=100, document_bytes=200)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["ls", "a" * 100, "naïve ☃ 𝄞", "tab\tand\nnewline", "\x1b[31m"])
def test_text_that_can_be_carried(text):
    assert admission.run_input(text, RULES) == text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty_input"),
        (" \n\t", "empty_input"),
        ("a\0b", "invalid_text"),
        ("a\ud800b", "invalid_text"),
        ("\udcff", "invalid_text"),
    ],
)
def test_text_that_cannot(text, code):
    with pytest.raises(InvalidRequest) as caught:
        admission.run_input(text, RULES)
    assert caught.value.code == code


@pytest.mark.parametrize("text", ["a" * 101, "é" * 51, "𝄞" * 26])
def test_size_is_counted_in_bytes(text):
    with pytest.raises(PayloadTooLarge):
        admission.run_input(text, RULES)


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [{"a": "b\0"}, {"\ud800": 1}, {"a": [float("nan")]}, {"a": float("inf")}, {"a": 2**63}, {"a": {1, 2}}, nested(18)],
)
def test_documents_that_no_store_could_keep(value):
    with pytest.raises(InvalidRequest):
        admission.document(value, what="metadata", rules=RULES)


def test_a_document_has_a_bound():
    assert admission.document({"a": ["b", 1, None, True, 1.5, {"c": "d"}]}, what="metadata", rules=RULES)
    with pytest.raises(PayloadTooLarge):
        admission.document({"a": ["x" * 50] * 5}, what="metadata", rules=RULES)


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "Ä", "A" * 200])
def test_names_of_environment_variables(name):
    with pytest.raises(InvalidRequest):
        admission.environment({name: "x"}, RULES)


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\n", "x" * 256])
def test_idempotency_keys(key):
    assert admission.idempotency_key(None) is None
    assert admission.idempotency_key("k-1") == "k-1"
    with pytest.raises(InvalidRequest):
        admission.idempotency_key(key)


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf"), 1e300])
def test_durations(seconds):
    with pytest.raises(InvalidRequest):
        admission.duration(seconds, what="timeout", rules=RULES)


def test_no_delay_is_a_delay_of_zero():
    assert admission.duration(0, what="delay", rules=RULES, zero=True) == timedelta(0)
    assert admission.duration(1.5, what="delay", rules=RULES) == timedelta(seconds=1.5)
    assert admission.duration(None, what="delay", rules=RULES) is None


@pytest.mark.parametrize(
    "value",
    [
        datetime(2030, 1, 1),
        datetime(2099, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ],
)
def test_moments(value):
    assert admission.moment(NOW, what="run_at", now=NOW, rules=RULES) == NOW
    with pytest.raises(InvalidRequest):
        admission.moment(value, what="run_at", now=NOW, rules=RULES)
