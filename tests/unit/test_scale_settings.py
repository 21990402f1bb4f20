"""What the settings of scaling mean to those who scale."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from oah.adapters.processes.target import ProcessTarget
from oah.bootstrap.scaling import scale_rules, scale_target, scaled_pools
from oah.core.model.drain import AtDeadline, Drain
from oah.errors import InvalidRequest
from oah.settings import PoolScaleSettings, Settings

SAME = PoolScaleSettings()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_unit_carries_what_a_worker_has_slots_for() -> None:
    rules = scale_rules(Settings(worker={"slots": 4}), "default", SAME)
    assert (rules.scaling.per_unit, rules.scaling.slots_per_unit) == (4, 4)
    rules = scale_rules(Settings(worker={"slots": 4}, scale={"per_worker": 2}), "default", SAME)
    assert (rules.scaling.per_unit, rules.scaling.slots_per_unit) == (2, 4)
    rules = scale_rules(Settings(worker={"slots": 4}), "gpu", PoolScaleSettings(slots=1))
    assert (rules.scaling.per_unit, rules.scaling.slots_per_unit) == (1, 1)
    assert (rules.scaling.minimum, rules.scaling.maximum, rules.scaling.target_wait) == (1, 10, None)


def test_those_that_go_may_take_as_long_as_they_need_unless_it_is_bounded() -> None:
    assert scale_rules(Settings(scale={"drain_then": "fail"}), "p", SAME).drain == Drain(then=AtDeadline.WAIT)
    bounded = scale_rules(Settings(scale={"drain_seconds": 60, "drain_then": "requeue"}), "p", SAME).drain
    assert bounded == Drain(timedelta(minutes=1), AtDeadline.REQUEUE)


def test_a_pool_says_what_is_different_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_SCALE__POOLS", '{"gpu": {"maximum": 3, "target_wait_seconds": 5}, "cpu": {}}')
    settings = Settings(scale={"pools": {"gpu": {"maximum": 3, "target_wait_seconds": 5}, "cpu": {}}})
    pools = scaled_pools(settings)
    assert list(pools) == ["gpu", "cpu"]
    gpu, cpu = (scale_rules(settings, name, own) for name, own in pools.items())
    assert (gpu.pool, gpu.scaling.maximum, gpu.scaling.target_wait) == ("gpu", 3, timedelta(seconds=5))
    assert (cpu.scaling.maximum, cpu.scaling.target_wait) == (10, None)
    assert list(Settings().scale.pools) == ["gpu", "cpu"]


def test_bounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="of pool default the minimum, 3, is more than the maximum, 2"):
        Settings(scale={"minimum": 3, "maximum": 2})
    with pytest.raises(ValidationError, match="of pool gpu"):
        Settings(scale={"pools": {"gpu": {"minimum": 11}}})


@pytest.mark.parametrize(
    "said", [{"worker": {"pool": "a b"}}, {"scale": {"pool": ""}}, {"scale": {"pools": {"A": {}}}}]
)
def test_a_pool_that_no_session_can_name_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is no pool name: lower-case letters"):
        Settings(**said)


def test_each_target(tmp_path: Path) -> None:
    assert scale_target(Settings(), "default", SAME) is None
    assert isinstance(scale_target(Settings(scale={"target": "processes"}), "default", SAME), ProcessTarget)
    with pytest.raises(InvalidRequest, match="which workload"):
        scale_target(
            Settings(scale={"target": "kubernetes"}, kubernetes={"api_url": "http://127.0.0.1:1"}), "default", SAME
        )


def test_several_pools_of_a_cluster_need_workloads_of_their_own() -> None:
    with pytest.raises(InvalidRequest, match="not each with a workload"):
        scaled_pools(Settings(scale={"target": "kubernetes", "pools": {"a": {"workload": "w"}, "b": {}}}))
    both = {"a": {"workload": "w"}, "b": {"selector": "app=b"}}
    assert len(scaled_pools(Settings(scale={"target": "kubernetes", "pools": both}))) == 2
    with pytest.raises(InvalidRequest, match="two pools have one workload"):
        scaled_pools(
            Settings(scale={"target": "kubernetes", "pools": {"a": {"workload": "w"}, "b": {"workload": "w"}}})
        )
