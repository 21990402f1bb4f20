"""What commands print: one JSON document, or plain columns that survive a pipe.

Text that came from outside (titles, inputs, names) loses its control characters here, so that nobody's session title
writes escape sequences into an operator's terminal.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

Document = Mapping[str, Any]

STATUS_COLOURS: Mapping[str, str] = {
    "completed": "green",
    "running": "cyan",
    "waiting_tool": "cyan",
    "queued": "yellow",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "magenta",
    "ok": "green",
    "warning": "yellow",
    "error": "red",
    "idle": "green",
    "busy": "cyan",
    "stopping": "yellow",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")


def plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses become objects, moments RFC 3339, durations seconds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    return value


def emit_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one document. A lone surrogate becomes its JSON escape, whatever the terminal's encoding is."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    write_text(text + "\n", errors="backslashreplace")


def write_text(text: str, *, errors: str = "replace") -> None:
    """Write text to stdout as UTF-8; what cannot be encoded is replaced, never an exception."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    sys.stdout.flush()
    stream.write(text.encode("utf-8", errors))
    stream.flush()


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def cell(value: Any, *, width: int | None = None) -> str:
    """One printable line for a table; ``width`` cuts it with an ellipsis."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        value = ",".join(f"{k}={v}" for k, v in value.items()) or "-"
    elif isinstance(value, (list, tuple)):
        value = ",".join(str(v) for v in value) or "-"
    text = "".join(c if c.isprintable() else " " for c in str(value))
    if width is not None and len(text) > width:
        return text[: width - 1] + "…"
    return text


def age(moment: Any, *, now: datetime | None = None) -> str:
    """How long ago an RFC 3339 moment was: ``12s``, ``3m``, ``5h``, ``2d``."""
    if not moment:
        return "-"
    then = moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment).replace("Z", "+00:00"))
    return span(((now or datetime.now(UTC)) - then).total_seconds())


def span(seconds: float) -> str:
    """A duration in its largest unit."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size * 2:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


Column = tuple[str, Callable[[Document], Any]]


def version_cell(worker: Document) -> str:
    """Of another release than the API's: the upgrade is not over."""
    return f"{worker.get('version')} (not the API's)" if worker.get("version_skew") else str(worker.get("version"))


def slots_cell(worker: Document) -> str:
    """Slots in use of those open, and how many it may open: ``3/4 of 8``; in brackets what its runs weigh."""
    busy, slots, most = worker.get("busy") or 0, worker.get("slots") or 0, worker.get("slots_max") or 0
    weight = worker.get("weight") or busy
    taken = f"{busy}" if weight == busy else f"{busy} ({weight})"
    return f"{taken}/{slots} of {most}" if most > slots else f"{taken}/{slots}"


def pressure_cell(worker: Document) -> str:
    """Which resources are under pressure."""
    return ",".join(str(each) for each in worker.get("pressure") or ()) or "-"


def seconds_cell(name: str) -> Callable[[Document], Any]:
    """Reads a duration of a document, in a unit that shows something of it."""

    def pick(item: Document) -> str | None:
        seconds = item.get(name)
        if seconds is None:
            return None
        return f"{float(seconds) * 1000:.0f}ms" if 0 < float(seconds) < 1 else span(float(seconds))

    return pick


def field(name: str) -> Callable[[Document], Any]:
    """Reads one name of a document."""
    return lambda item: item.get(name)


def table(items: Iterable[Document], columns: Sequence[Column]) -> None:
    """Aligned columns with a head line. States are coloured on a terminal."""
    rows = [[cell(pick(item), width=60) for _, pick in columns] for item in items]
    heads = [title for title, _ in columns]
    widths = [max(len(heads[i]), *(len(row[i]) for row in rows)) if rows else len(heads[i]) for i in range(len(heads))]
    click.secho("  ".join(h.ljust(w) for h, w in zip(heads, widths, strict=True)).rstrip(), bold=True)
    for row in rows:
        click.echo("  ".join(_coloured(v, w) for v, w in zip(row, widths, strict=True)).rstrip())


def _coloured(value: str, width: int) -> str:
    colour = STATUS_COLOURS.get(value)
    padded = value.ljust(width)
    return click.style(padded, fg=colour) if colour else padded


def facts(item: Document, *, skip: Sequence[str] = ()) -> None:
    """One name and value a line; nested documents are flattened with dots, absent values left out."""
    lines = [(name, value) for name, value in _flat(item) if name not in skip and value is not None]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        shown = cell(value)
        colour = STATUS_COLOURS.get(shown)
        click.echo(f"{name.ljust(width)}  {click.style(shown, fg=colour) if colour else shown}")


def _flat(item: Document, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in item.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def listing(items: Sequence[Document], columns: Sequence[Column], *, as_json: bool, limit: int | None = None) -> None:
    """A list: as ``{items, more}``, or as columns. A caller with a ``limit`` asks for one item more than that, which
    is how we know that there are more."""
    more = limit is not None and len(items) > limit
    shown = items[:limit] if more else items
    if as_json:
        emit_json({"items": shown, "more": more})
        return
    table(shown, columns)
    if more:
        click.echo(f"only the first {limit} are shown; --limit shows more", err=True)


def showing(item: Document, *, as_json: bool, skip: Sequence[str] = ()) -> None:
    """One thing: as JSON, or as lines."""
    if as_json:
        emit_json(item)
    else:
        facts(item, skip=skip)
