"""The transition tables: what they promise about every machine."""

import re
from enum import StrEnum

import pytest

from oah.core.lifecycle import MESSAGE, PLACE, RUN, SESSION, WORKER, Table
from oah.core.model.run import RunStatus
from oah.core.model.session import Place
from oah.errors import Broken

TABLES = [RUN, WORKER, SESSION, PLACE, MESSAGE]


def _reachable(table: Table) -> set[StrEnum]:
    seen, edge = {table.first}, {table.first}
    while edge:
        edge = {target for source in edge for target in table.targets(source)} - seen
        seen |= edge
    return seen


@pytest.mark.parametrize("table", TABLES, ids=lambda each: each.name)
def test_every_state_can_be_reached(table: Table) -> None:
    assert _reachable(table) == set(type(table.first))


@pytest.mark.parametrize("table", TABLES, ids=lambda each: each.name)
def test_no_arrow_leads_back_to_itself_or_stands_twice(table: Table) -> None:
    arrows = [(step.by, step.source, step.target) for step in table.steps]
    assert len(set(arrows)) == len(arrows)
    assert all(step.source is not step.target for step in table.steps)


def test_a_terminal_run_only_moves_by_an_operator() -> None:
    for status in RunStatus:
        by = {step.by for step in RUN.steps if step.source is status}
        assert (by == {"requeue"}) == status.terminal


def test_a_run_becomes_active_only_by_start_and_resume() -> None:
    by = {step.by for step in RUN.steps if step.target is RunStatus.RUNNING}
    assert by == {"start", "resume"}


def test_a_session_is_leased_only_by_claim_and_restore() -> None:
    by = {step.by for step in PLACE.steps if step.target is Place.LEASED}
    assert by == {"claim", "restore"}


def test_a_refused_step_says_so() -> None:
    RUN.require(RunStatus.QUEUED, RunStatus.RUNNING)
    with pytest.raises(Broken, match="run cannot go from completed to running"):
        RUN.require(RunStatus.COMPLETED, RunStatus.RUNNING)


@pytest.mark.parametrize("table", TABLES, ids=lambda each: each.name)
def test_the_diagram_shows_every_arrow(table: Table) -> None:
    text = table.mermaid()
    drawn = set(re.findall(r"^    (\w+) --> (\w+): ", text, re.MULTILINE))
    assert drawn == {(str(step.source), str(step.target)) for step in table.steps}
    assert f"[*] --> {table.first}" in text
