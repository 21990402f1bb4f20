"""The settings that users read about are the settings there are."""

import os
import re
from datetime import timedelta
from enum import Enum
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from oah.ports.agent import MAX_RESULT_BYTES
from oah.settings import Settings
from tests.support.source import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"
ROW = re.compile(r"^\| `(OAH_[A-Z0-9_]+)` \| (.*?) \|", flags=re.M)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for variable in [one for one in os.environ if one.startswith("OAH_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    return Settings()


def _flat(section: BaseModel, prefix: str = "OAH_") -> dict[str, object]:
    found: dict[str, object] = {}
    for field in type(section).model_fields:
        value = getattr(section, field)
        if isinstance(value, BaseModel):
            found |= _flat(value, f"{prefix}{field.upper()}__")
        else:
            found[prefix + field.upper()] = value
    return found


def _shown(value: object) -> str:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Enum():
            return str(value.value)
        case Path():
            return value.name
        case float() if value.is_integer():
            return str(int(value))
        case None:
            return "none"
        case _:
            return str(value)


def test_the_page_lists_every_setting_with_its_default(settings: Settings) -> None:
    listed = {variable: default.strip().strip("`") for variable, default in ROW.findall(PAGE.read_text())}
    there = {variable: _shown(value) for variable, value in _flat(settings).items()}
    assert listed == there


def test_the_defaults_of_the_protocol(settings: Settings) -> None:
    lease = timedelta(seconds=30)
    assert (settings.lease, settings.period, settings.margin) == (lease, lease / 6, lease / 6)
    assert (settings.controller.leader_lease_seconds, settings.controller.leader_renew_seconds) == (15, 5)
    assert settings.worker.slots == 8
    assert settings.worker.warm_idle_seconds == 600
    assert settings.worker.affinity_seconds == 2
    assert settings.worker.drain_grace_seconds == 60
    assert settings.stale_run_recovery_max_attempts == 3
    assert (settings.redis.connect_timeout_seconds, settings.redis.answer_timeout_seconds) == (2, 5)
    assert settings.redis.submit_timeout_seconds == 0.05
    assert settings.limits.input_bytes == MAX_RESULT_BYTES == 1024 * 1024
    assert settings.limits.recording_head_bytes == 64 * 1024 * 1024
    assert settings.limits.recording_tail_bytes == 16 * 1024 * 1024
    assert (settings.limits.queued_per_session, settings.limits.queued_per_workspace) == (1_000, 100_000)
    assert (settings.api_port, settings.controller.port, settings.worker.port) == (8787, 8788, 8789)


def test_the_recovery_strategy_follows_the_broker(settings: Settings) -> None:
    assert settings.recovery_strategy == "fail"
    split = Settings(redis_url=SecretStr("redis://localhost:6379/0"))
    assert split.recovery_strategy == "requeue_running"


def test_a_lease_shorter_than_its_minimum_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 6"):
        Settings(lease_seconds=5)
