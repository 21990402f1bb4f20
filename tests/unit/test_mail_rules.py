"""Settings of mail reach the post that every process sends by."""

from __future__ import annotations

from dataclasses import fields

from oah.bootstrap.mail import mail_rules
from oah.services.post import MailRules
from oah.settings import MailSettings, Settings

CHANGED = MailSettings(
    default_ttl_seconds=7,
    max_ttl_seconds=8,
    max_payload_bytes=9,
    max_messages=10,
    max_mailboxes=11,
    session_messages=12,
    message_ttl_seconds=13,
    dedup_seconds=14,
    lease_seconds=15,
    max_attempts=16,
    wake_pause_seconds=17,
)


def test_every_rule_follows_its_setting() -> None:
    plain, changed = mail_rules(Settings()), mail_rules(Settings(mail=CHANGED))
    same = [each.name for each in fields(MailRules) if getattr(plain, each.name) == getattr(changed, each.name)]
    assert same == ["max_header_bytes"], "the only one that nobody sets"
    assert plain == MailRules(), "defaults are said once more in the rules: they are the same"
