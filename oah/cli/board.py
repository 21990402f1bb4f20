"""What the demo shows: a live table on a terminal, plain lines elsewhere, and the summary at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from oah.cli.story import Story

_MARKS = {
    "queued": ("·", "yellow"),
    "running": ("▶", "cyan"),
    "waiting_tool": ("…", "cyan"),
    "completed": ("✔", "green"),
    "failed": ("✘", "red"),
    "cancelled": ("⊘", "magenta"),
    "timed_out": ("⌛", "red"),
}
_PLAIN_EVERY = 2.0
_NEWS_KEPT = 6
_NOW_WIDTH = 34


class Board:
    """Shows a story while it happens. A context manager: the live table is taken down at the end."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=out)
        self._live: Any = None
        self._news: list[str] = []
        self._began = time.monotonic()
        self._last_plain = 0.0
        self._last_counts = ""

    def __enter__(self) -> Board:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*exc)

    def show(self, story: Story, news: str | None) -> None:
        """The story as it is now; ``news`` is a line worth keeping."""
        moment = time.monotonic() - self._began
        if news is not None:
            self._news = [*self._news, f"{moment:5.1f} s  {news}"][-_NEWS_KEPT:]
        if self._live is not None:
            self._live.update(self._render(story))
        else:
            self._plain(story, news, moment)

    def _plain(self, story: Story, news: str | None, moment: float) -> None:
        if news is not None:
            click.echo(f"{moment:5.1f} s  {news}")
            return
        counts = ", ".join(f"{number} {status}" for status, number in sorted(story.counts().items()))
        if counts != self._last_counts and moment - self._last_plain >= _PLAIN_EVERY:
            self._last_counts, self._last_plain = counts, moment
            click.echo(f"{moment:5.1f} s  {counts}")

    def _render(self, story: Story) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title="sessions and their queues", title_justify="left", expand=False)
        for head, width in (("session", 8), ("agent", 6), ("runs", 12), ("now", _NOW_WIDTH), ("worker", 8)):
            table.add_column(head, no_wrap=True, min_width=width)
        for session, agent in story.sessions.items():
            runs = sorted((r for r in story.seen.values() if r["session_id"] == session), key=lambda r: r["position"])
            marks = Text()
            for run in runs:
                mark, colour = _MARKS.get(run["status"], ("?", "white"))
                marks.append(f"{mark}{run['attempt'] if run['attempt'] > 1 else ''} ", style=colour)
            active = next((r for r in runs if r["status"] == "running"), None)
            now = str(active["input"])[:_NOW_WIDTH] if active else ""
            worker = str((active or {}).get("worker_id") or "").rpartition(".")[0]
            table.add_row(session[-8:], agent, marks, Text(now), worker)
        return Group(table, Text("\n".join(self._news)))


def summary(story: Story, *, took: float) -> Iterator[str]:
    """Counts, waits, and where the recordings lie."""
    counts = story.counts()
    yield ""
    yield f"{len(story.runs)} runs in {len(story.sessions)} sessions: " + (
        ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "nothing was seen"
    )
    waits = sorted(_seconds(run) for run in story.seen.values() if run.get("started_at"))
    if waits:
        yield f"waited for their start: median {median(waits):.2f} s, longest {waits[-1]:.2f} s"
    recovered = [run for run in story.seen.values() if run["attempt"] > 1]
    if story.killed_worker is not None:
        after = f"{story.recovered_after:.1f} s" if story.recovered_after is not None else "never"
        yield f"{story.killed_worker} was killed; {len(recovered)} run(s) recovered, the watched one after {after}"
    casts = sorted(story.data_dir.rglob("*.cast"))
    yield f"recordings: {len(casts)} below {story.data_dir}"
    best = [cast for cast in casts if story.victim in str(cast)] or casts
    if best:
        yield f"play one:   asciinema play {best[-1]}"
    yield f"kept:       {story.data_dir}"
    yield f"took {took:.0f} s"


def _seconds(run: Any) -> float:
    """From the run's creation to its (last) start."""
    return max(0.0, (_moment(run["started_at"]) - _moment(run["created_at"])).total_seconds())


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
