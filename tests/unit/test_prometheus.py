"""The telemetry adapter keeps to its table, and the table to its rules."""

import re
import threading

import pytest

from oah.adapters.prometheus.metric import Kind, Metric
from oah.adapters.prometheus.table import METRICS, OPEN_VALUES, TABLE, exposed_names
from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.errors import Broken
from oah.ports.telemetry import NullTelemetry, Telemetry


@pytest.fixture
def telemetry() -> PrometheusTelemetry:
    return PrometheusTelemetry(process="test", version="0.0.0")


def test_both_satisfy_the_port(telemetry: PrometheusTelemetry) -> None:
    ports: list[Telemetry] = [telemetry, NullTelemetry()]
    for port in ports:
        port.count("oah_claims_total", answer="ok")
        port.gauge("oah_leader", 1)
        port.observe("oah_script_seconds", 0.001, script="claim")
        port.forget("oah_leader")
    assert telemetry.value("oah_claims_total", answer="ok") == 1


def test_a_counter_with_closed_labels_starts_at_zero(telemetry: PrometheusTelemetry) -> None:
    assert telemetry.value("oah_runs_settled_total", status="failed", class_="background") == 0
    telemetry.count("oah_runs_settled_total", 3, status="failed", class_="background")
    assert telemetry.value("oah_runs_settled_total", status="failed", class_="background") == 3
    assert telemetry.value("oah_relay_enqueued_total") == 0


def test_a_gauge_is_shown_only_between_set_and_forget(telemetry: PrometheusTelemetry) -> None:
    assert b"oah_deferred_runs" not in telemetry.exposition()[0]
    telemetry.gauge("oah_deferred_runs", 7)
    assert telemetry.value("oah_deferred_runs") == 7
    telemetry.forget("oah_deferred_runs")
    telemetry.forget("oah_deferred_runs")
    assert b"oah_deferred_runs" not in telemetry.exposition()[0]
    telemetry.gauge("oah_deferred_runs", 1)
    assert telemetry.value("oah_deferred_runs") == 1


def test_one_series_of_a_gauge_can_be_forgotten(telemetry: PrometheusTelemetry) -> None:
    for lane in ("default/shell", "default/python"):
        telemetry.gauge("oah_ready_sessions", 2, lane=lane, class_="interactive")
    telemetry.forget("oah_ready_sessions", lane="default/shell", class_="interactive")
    telemetry.forget("oah_ready_sessions", lane="never/seen", class_="interactive")
    assert telemetry.value("oah_ready_sessions", lane="default/shell", class_="interactive") is None
    assert telemetry.value("oah_ready_sessions", lane="default/python", class_="interactive") == 2
    telemetry.forget("oah_ready_sessions")
    assert telemetry.value("oah_ready_sessions", lane="default/python", class_="interactive") is None


@pytest.mark.parametrize(
    ("call", "name", "labels"),
    [
        ("count", "oah_unknown_total", {}),
        ("count", "oah_leader", {}),
        ("gauge", "oah_claims_total", {"answer": "ok"}),
        ("count", "oah_claims_total", {}),
        ("count", "oah_claims_total", {"answer": "fine"}),
        ("count", "oah_claims_total", {"answer": "ok", "session": "ses_1"}),
        ("observe", "oah_run_wait_seconds", {}),
    ],
)
def test_what_the_table_does_not_know_is_broken(
    telemetry: PrometheusTelemetry, call: str, name: str, labels: dict[str, str]
) -> None:
    before = telemetry.exposition()[0].count(b"\n")
    with pytest.raises(Broken):
        getattr(telemetry, call)(name, 1, **labels)
    assert telemetry.exposition()[0].count(b"\n") == before


@pytest.mark.parametrize("value", [-1, float("nan")])
def test_a_counter_only_grows(telemetry: PrometheusTelemetry, value: float) -> None:
    with pytest.raises(Broken):
        telemetry.count("oah_relay_enqueued_total", value)


def test_an_open_label_is_bounded(telemetry: PrometheusTelemetry) -> None:
    for number in range(OPEN_VALUES + 50):
        telemetry.count("oah_loop_passes_total", loop=f"made.up.{number}")
    assert telemetry.value("oah_loop_passes_total", loop="other") == 50
    assert telemetry.value("oah_loop_passes_total", loop="made.up.0") == 1
    assert telemetry.value("oah_loop_passes_total", loop=f"made.up.{OPEN_VALUES}") is None


def test_exposition_has_help_type_and_process_figures(telemetry: PrometheusTelemetry) -> None:
    body, content_type = telemetry.exposition()
    assert content_type.startswith("text/plain")
    assert b"# HELP oah_claims_total " in body
    assert b"# TYPE oah_run_wait_seconds histogram" in body
    assert b'oah_build_info{process="test",version="0.0.0"} 1.0' in body
    assert b"process_resident_memory_bytes" in body


def test_registries_do_not_share(telemetry: PrometheusTelemetry) -> None:
    other = PrometheusTelemetry(process="test", version="0.0.0")
    telemetry.count("oah_relay_enqueued_total")
    assert other.value("oah_relay_enqueued_total") == 0


def test_threads_lose_nothing(telemetry: PrometheusTelemetry) -> None:
    def work() -> None:
        for _ in range(500):
            telemetry.count("oah_claims_total", answer="ok")
            telemetry.gauge("oah_witness_age_seconds", 1, witness="renew")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert telemetry.value("oah_claims_total", answer="ok") == 2000


def test_a_name_stands_once() -> None:
    row = Metric("oah_twice_total", Kind.COUNTER, "x")
    with pytest.raises(Broken):
        PrometheusTelemetry(process="test", version="0", metrics=[row, row])


def test_every_row_keeps_the_conventions() -> None:
    assert len(TABLE) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"oah_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM), metric.name
        assert metric.help and not metric.help.endswith("."), metric.name
        assert not {label for label in metric.labels if label == "id" or label.endswith("_id")}, metric.name
        assert not {"session", "run", "worker", "workspace", "host"} & metric.labels.keys(), metric.name
        if "_seconds" not in metric.name and metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith(("_bytes", "_size")), metric.name


def test_exposed_names_are_what_is_exposed(telemetry: PrometheusTelemetry) -> None:
    telemetry.observe("oah_script_seconds", 0.1, script="claim")
    telemetry.gauge("oah_leader", 1)
    names = {
        line.split(b"{")[0].split(b" ")[0].decode()
        for line in telemetry.exposition()[0].splitlines()
        if line[:1] != b"#"
    }
    assert {name for name in names if not name.endswith("_created")} <= exposed_names()
    assert {"oah_script_seconds_bucket", "oah_leader", "oah_claims_total"} <= names


def test_every_gauge_can_be_shown_beside_every_counter(telemetry: PrometheusTelemetry) -> None:
    """A counter claims its name without ``_total``, too: a gauge of that name would end the process that sets it."""
    for metric in METRICS:
        if metric.kind is Kind.GAUGE:
            telemetry.gauge(metric.name, 1, **{label: min(values or {"x"}) for label, values in metric.labels.items()})
    assert telemetry.value("oah_leader") == 1


def test_no_gauge_is_a_counter_without_its_total() -> None:
    """The client library takes them for one series and refuses the second when it is first set."""
    assert not [metric.name for metric in METRICS if metric.kind is Kind.GAUGE and f"{metric.name}_total" in TABLE]
