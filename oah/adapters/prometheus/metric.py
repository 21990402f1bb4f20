"""What a row of the table of metrics is, and short words to write one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a figure is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row: `labels` maps a label to its closed set of values, or to None when it is open."""

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()


def of(*values: str) -> frozenset[str]:
    """A closed set of values of a label."""
    return frozenset(values)


def counter(name: str, help_: str, /, **labels: frozenset[str] | None) -> Metric:
    """A figure that only grows. A trailing underscore of a label is dropped."""
    return Metric(name, Kind.COUNTER, help_, {key.rstrip("_"): values for key, values in labels.items()})


def gauge(name: str, help_: str, /, **labels: frozenset[str] | None) -> Metric:
    """A level. A trailing underscore of a label is dropped."""
    return Metric(name, Kind.GAUGE, help_, {key.rstrip("_"): values for key, values in labels.items()})


def histogram(name: str, help_: str, buckets: tuple[float, ...], /, **labels: frozenset[str] | None) -> Metric:
    """A distribution over these upper edges. A trailing underscore of a label is dropped."""
    return Metric(name, Kind.HISTOGRAM, help_, {key.rstrip("_"): values for key, values in labels.items()}, buckets)
