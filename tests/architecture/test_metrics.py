"""Figures: what code reports, what dashboards and alerts ask for, and the one table between them."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oah.adapters.prometheus.metric import Kind
from oah.adapters.prometheus.table import TABLE, exposed_names
from tests.support.source import PACKAGE, ROOT, calls, files, name, python

KINDS = {"count": Kind.COUNTER, "gauge": Kind.GAUGE, "observe": Kind.HISTOGRAM, "forget": Kind.GAUGE}
SERIES = re.compile(r"\b((?:oah|process)_[a-z0-9_]+|up)\b(?=\s*[{\[)]|\s*$|\s*[-+*/<>=!])")
FUNCTIONS_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
MATCHERS = re.compile(r"\b((?:oah|process)_[a-z0-9_]+)\s*\{([^}]*)\}")
SCRAPE_LABELS = {"le", "job", "instance", "pod", "namespace", "quantile"}


def _reports() -> Iterator[tuple[Path, ast.Call, str, str]]:
    for path in python():
        for call in calls(path):
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            first = call.args[0] if call.args else None
            if method in KINDS and isinstance(first, ast.Constant) and str(first.value).startswith("oah_"):
                yield path, call, method, str(first.value)


def test_code_reports_only_what_the_table_knows() -> None:
    for path, call, method, metric in _reports():
        where = f"{name(path)}:{call.lineno} {metric}"
        assert metric in TABLE, where
        row = TABLE[metric]
        assert row.kind is KINDS[method], where
        given = {one.arg.rstrip("_"): one.value for one in call.keywords if one.arg and one.arg != "value"}
        dynamic = any(one.arg is None for one in call.keywords)
        if not dynamic and not (method == "forget" and not given):
            assert given.keys() == row.labels.keys(), where
        for label, value in given.items():
            closed = row.labels[label]
            if closed is not None and isinstance(value, ast.Constant):
                assert value.value in closed, f"{where} {label}={value.value}"


def test_everything_in_the_table_is_reported_by_somebody() -> None:
    """A figure that nobody reports is a promise; it comes into the table with the code that reports it."""
    text = "".join(
        path.read_text() for path in python() if path.name not in ("table.py", "pool_table.py", "scale_table.py")
    )
    assert not {metric for metric in TABLE if f'"{metric}"' not in text}


def _expressions(document: object) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "expr" and isinstance(value, str):
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(document, list):
        for value in document:
            yield from _expressions(value)


def _check(where: str, expression: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare_of_groups = FUNCTIONS_LABELS.sub(" ", bare)
    used = set(SERIES.findall(re.sub(r"\{[^}]*\}", "{}", bare_of_groups)))
    assert used, f"{where}: no series in {expression!r}"
    assert used <= exposed_names(), f"{where}: {used - exposed_names()}"
    labels = {label for series in used for label in _labels(series)} | SCRAPE_LABELS
    for group in FUNCTIONS_LABELS.findall(bare):
        asked = {one.strip() for one in group.split(",") if one.strip()}
        assert asked <= labels, f"{where}: {asked - labels} in {expression!r}"
    for series, matchers in MATCHERS.findall(expression):
        for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers):
            assert label in set(_labels(series)) | SCRAPE_LABELS, f"{where}: {series} has no label {label}"
            closed = _row(series).labels.get(label) if _row(series) else None
            if closed is not None and "$" not in value:
                assert set(value.split("|")) <= closed, f"{where}: {label}={value!r}"


def _row(series: str):
    return TABLE.get(series) or TABLE.get(re.sub(r"_(bucket|sum|count)$", "", series))


def _labels(series: str) -> Iterator[str]:
    row = _row(series)
    yield from row.labels if row else ()


DASHBOARDS = files(".json", under=ROOT / "grafana") if (ROOT / "grafana").exists() else []
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"


@pytest.mark.parametrize("path", DASHBOARDS, ids=name)
def test_dashboards_ask_for_what_exists(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["title"]
    assert dashboard["uid"]
    found = list(_expressions(dashboard))
    assert found
    for expression in found:
        _check(name(path), expression)


def test_the_dashboard_of_mail_shows_every_figure_of_mail() -> None:
    dashboard = json.loads((ROOT / "grafana" / "dashboards" / "mail.json").read_text())
    shown = {series for expression in _expressions(dashboard) for series in SERIES.findall(expression)}
    shown |= {re.sub(r"_(bucket|sum|count)$", "", series) for series in shown}
    of_mail = {
        metric
        for metric in TABLE
        if re.match(r"oah_(mail|messages?|agent_messages|wakes|gateway)_|oah_mailbox", metric)
    }
    assert len(of_mail) > 20
    assert of_mail <= shown


def test_there_are_dashboards_with_ids_of_their_own() -> None:
    uids = [json.loads(path.read_text())["uid"] for path in DASHBOARDS]
    assert uids
    assert len(set(uids)) == len(uids)


def test_alerts_ask_for_what_exists() -> None:
    expressions = re.findall(r"^\s+expr:\s*(?:[|>]-?\n((?:\s{10,}.*\n)+)|(.*)$)", RULES.read_text(), flags=re.M)
    alerts = re.findall(r"^\s+- alert: (\w+)$", RULES.read_text(), flags=re.M)
    assert len(expressions) == len(alerts) > 5
    for block, line in expressions:
        _check(name(RULES), (block or line).strip())


def test_no_code_but_the_adapter_knows_the_client_library() -> None:
    users = {name(path) for path in python() if "prometheus_client" in path.read_text()}
    assert users == {name(PACKAGE / "adapters" / "prometheus" / "telemetry.py")}
