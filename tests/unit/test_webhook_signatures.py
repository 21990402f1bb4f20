"""Signatures against the vector that the Standard Webhooks project publishes, and what a receiver refuses."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.client import verify_webhook
from oah.core.policy.signatures import fits, key_of, secret_of, sign
from oah.errors import InvalidRequest, Unauthorized

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER = secret_of(b"0" * 32)


def headers(**changed: str) -> dict[str, str]:
    return {"Webhook-Id": ID, "Webhook-Timestamp": str(AT), "Webhook-Signature": SIGNATURE} | {
        name.replace("_", "-"): value for name, value in changed.items()
    }


def test_the_published_vector() -> None:
    assert sign(SECRET, message_id=ID, timestamp=AT, body=BODY) == SIGNATURE
    assert sign(SECRET.removeprefix("whsec_"), message_id=ID, timestamp=AT, body=BODY) == SIGNATURE
    assert verify_webhook(BODY, headers(), SECRET, now=AT) == {"test": 2432232314}
    assert verify_webhook(BODY.decode(), headers(), SECRET, now=AT + 299) == {"test": 2432232314}


@given(st.binary(min_size=24, max_size=64), st.binary(), st.integers(min_value=0, max_value=2**33))
def test_only_what_was_signed_fits(key: bytes, body: bytes, at: int) -> None:
    secret = secret_of(key)
    assert key_of(secret) == key
    header = sign(secret, message_id="whd_1", timestamp=at, body=body)
    asked = {"message_id": "whd_1", "timestamp": at, "body": body}
    assert fits(header, [secret], **asked)
    assert fits(f"v1a,xyz {header}", [OTHER, secret], **asked), "several signatures, several secrets"
    assert not fits(header, [OTHER], **asked) or key == b"0" * 32
    for changed in ({"message_id": "whd_2"}, {"timestamp": at + 1}, {"body": body + b" "}):
        assert not fits(header, [secret], **{**asked, **changed})


@pytest.mark.parametrize(
    ("changed", "now"),
    [
        ({}, AT + 301),
        ({}, AT - 301),
        ({"Webhook_Id": "msg_other"}, AT),
        ({"Webhook_Timestamp": str(AT + 1)}, AT),
        ({"Webhook_Timestamp": ""}, AT),
        ({"Webhook_Timestamp": "soon"}, AT),
        ({"Webhook_Timestamp": "9" * 400}, AT),
        ({"Webhook_Signature": ""}, AT),
        ({"Webhook_Signature": SIGNATURE.replace("v1,", "v2,")}, AT),
        ({"Webhook_Signature": "v1,ünïcode"}, AT),
        ({"Webhook_Id": ""}, AT),
    ],
)
def test_what_is_not_genuine_is_refused(changed: dict[str, str], now: int) -> None:
    with pytest.raises(Unauthorized) as refused:
        verify_webhook(BODY, headers(**changed), SECRET, now=now)
    assert refused.value.code == "invalid_signature"


def test_a_body_that_was_parsed_and_written_again_is_refused() -> None:
    with pytest.raises(Unauthorized):
        verify_webhook(b'{"test":2432232314}', headers(), SECRET, now=AT)
    with pytest.raises(Unauthorized):
        verify_webhook(BODY, {}, SECRET, now=AT)


def test_a_secret_may_be_changed_without_a_gap() -> None:
    assert verify_webhook(BODY, headers(), [OTHER, SECRET], now=AT)


@pytest.mark.parametrize("secret", ["", "whsec_", "short", "whsec_" + base64.b64encode(b"x" * 23).decode(), "ü" * 40])
def test_what_is_no_secret_is_refused(secret: str) -> None:
    with pytest.raises(InvalidRequest):
        key_of(secret)
    with pytest.raises(InvalidRequest):
        key_of("whsec_" + base64.b64encode(b"x" * 65).decode())
