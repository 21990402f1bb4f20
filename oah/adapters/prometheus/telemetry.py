"""The telemetry port on prometheus_client, with a registry of its own (two of them may live in one test process).

Counters whose labels are closed start at zero, so that a rate exists before the first event. Gauges are shown only once
they were set: a worker must not say that zero runs are queued.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from oah.adapters.prometheus.metric import Kind, Metric
from oah.adapters.prometheus.table import METRICS, OPEN_VALUES, OTHER
from oah.errors import Broken

CONTENT_TYPE = CONTENT_TYPE_LATEST

_PRESET = 128
"""Label combinations of one counter that are worth a zero from the start."""


class PrometheusTelemetry:
    """`Telemetry` over one registry; `exposition()` is what `/metrics` answers."""

    def __init__(self, *, process: str, version: str, metrics: Iterable[Metric] = METRICS) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._lock = threading.Lock()
        self._rows: dict[str, Metric] = {}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        # Several of these are fed with every run: a series is checked against the table once.
        self._count_into: dict[tuple[object, ...], Counter] = {}
        self._observe_into: dict[tuple[object, ...], Histogram] = {}
        self._shown: set[str] = set()
        self._seen: dict[tuple[str, str], set[str]] = {}
        for metric in metrics:
            self._add(metric)
        ProcessCollector(registry=self._registry)
        self.gauge("oah_build_info", 1, version=version, process=process)

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter. Raises Broken for what the table does not know, or a negative value."""
        if value < 0 or math.isnan(value):
            raise Broken(f"counter {name} cannot grow by {value}")
        series = (name, *labels.items())
        counter = self._count_into.get(series)
        if counter is None:
            row = self._row(name, Kind.COUNTER)
            checked = self._checked(row, labels)
            counter = self._counters[name].labels(**checked) if row.labels else self._counters[name]
            if _as_given(checked, labels):
                self._count_into[series] = counter
        counter.inc(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a level. Raises Broken for what the table does not know."""
        row = self._row(name, Kind.GAUGE)
        gauge = self._gauges[name]
        checked = self._checked(row, labels)
        with self._lock:
            if row.labels:
                gauge.labels(**checked).set(value)
            else:
                gauge.set(value)
            if name not in self._shown:
                self._shown.add(name)
                self._registry.register(gauge)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation. Raises Broken for what the table does not know."""
        series = (name, *labels.items())
        histogram = self._observe_into.get(series)
        if histogram is None:
            row = self._row(name, Kind.HISTOGRAM)
            checked = self._checked(row, labels)
            histogram = self._histograms[name].labels(**checked) if row.labels else self._histograms[name]
            if _as_given(checked, labels):
                self._observe_into[series] = histogram
        histogram.observe(value)

    def forget(self, name: str, **labels: str) -> None:
        """Drop a gauge: one of its series, or without labels the whole of it. Raises Broken for an unknown name."""
        row = self._row(name, Kind.GAUGE)
        gauge = self._gauges[name]
        with self._lock:
            if labels:
                checked = self._checked(row, labels)
                gauge.remove(*(checked[key] for key in row.labels))
                return
            if row.labels:
                gauge.clear()
            if name in self._shown:
                self._shown.discard(name)
                self._registry.unregister(gauge)

    def exposition(self) -> tuple[bytes, str]:
        """The figures as bytes, and their content type."""
        return generate_latest(self._registry), CONTENT_TYPE

    def value(self, name: str, **labels: str) -> float | None:
        """One figure as it would be exposed, for tests and `oah top`; None when it is not shown."""
        return self._registry.get_sample_value(name, {key.rstrip("_"): text for key, text in labels.items()})

    def _add(self, metric: Metric) -> None:
        if metric.name in self._rows:
            raise Broken(f"metric {metric.name} stands twice in the table")
        self._rows[metric.name] = metric
        labels = tuple(metric.labels)
        match metric.kind:
            case Kind.COUNTER:
                counter = Counter(metric.name, metric.help, labels, registry=self._registry)
                self._counters[metric.name] = counter
                self._preset(metric, counter)
            case Kind.GAUGE:
                self._gauges[metric.name] = Gauge(metric.name, metric.help, labels, registry=None)
            case Kind.HISTOGRAM:
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, labels, registry=self._registry, buckets=metric.buckets
                )

    @staticmethod
    def _preset(metric: Metric, counter: Counter) -> None:
        closed = [values for values in metric.labels.values() if values is not None]
        if not closed or len(closed) < len(metric.labels) or math.prod(map(len, closed)) > _PRESET:
            return
        for combination in itertools.product(*map(sorted, closed)):
            counter.labels(*combination)

    def _row(self, name: str, kind: Kind) -> Metric:
        row = self._rows.get(name)
        if row is None or row.kind is not kind:
            raise Broken(f"no {kind} {name} in the table of metrics")
        return row

    def _checked(self, row: Metric, labels: Mapping[str, str]) -> dict[str, str]:
        given = {key.rstrip("_"): str(value) for key, value in labels.items()}
        if given.keys() != row.labels.keys():
            raise Broken(f"metric {row.name} has the labels {sorted(row.labels)}, not {sorted(given)}")
        for key, value in given.items():
            closed = row.labels[key]
            if closed is None:
                given[key] = self._bounded(row.name, key, value)
            elif value not in closed:
                raise Broken(f"label {key} of {row.name} cannot be {value!r}")
        return given

    def _bounded(self, name: str, key: str, value: str) -> str:
        seen = self._seen.setdefault((name, key), set())
        if value in seen:
            return value
        if len(seen) >= OPEN_VALUES:
            return OTHER
        seen.add(value)
        return value


def _as_given(checked: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether no value was folded into `other`: only then the series are as many as the table allows."""
    return all(checked[key.rstrip("_")] == value for key, value in labels.items())
