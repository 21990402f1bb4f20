"""`python -m benchmarks.scaling_sim [--out DIR]`: the scaling policy over simulated loads, a plot and figures of each.

Nothing is measured: time is simulated and chance has a seed, so the figures are the same on every machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from benchmarks.scaling_world import Course, Fleet, Sample, Scene
from oah.core.policy.scaling import Rules

PODS = Rules(
    minimum=0,
    maximum=60,
    per_unit=4,
    slots_per_unit=4,
    up_cooldown=timedelta(seconds=15),
    down_window=60,
    down_cooldown=timedelta(minutes=2),
)
"""For units that take most of a minute to start: a shrink goes to the most of five minutes (a sample every 5 s)."""

HOUR = 3_600


def step(at: float) -> float:
    """0 → 100 → 0 → 100."""
    return 100.0 if 60 <= at < 660 or 1_260 <= at < 1_860 else 0.0


def ramp(at: float) -> float:
    return max(0.0, min(100.0, (at - 60) / 6, (1_860 - at) / 6))


def burst(at: float) -> float:
    return 100.0 if at % 900 < 60 else 5.0


def diurnal(at: float) -> float:
    """A day in four hours."""
    return 60 - 50 * math.cos(2 * math.pi * at / (4 * HOUR))


SCENES = {
    scene.name: scene
    for scene in (
        Scene(name="step", seconds=2_280, rules=PODS, sessions=step),
        Scene(name="ramp", seconds=2_280, rules=PODS, sessions=ramp),
        Scene(name="burst", seconds=2_700, rules=PODS, sessions=burst),
        Scene(name="diurnal", seconds=8 * HOUR, rules=PODS, sessions=diurnal, tick=10, step=5),
        Scene(name="arrivals", seconds=HOUR, rules=PODS, arrivals=lambda at: step(at) / 120, run_seconds=120),
        Scene(
            name="steady", seconds=2 * HOUR, rules=PODS, arrivals=lambda _: 50 / 120, run_seconds=120, random_gaps=True
        ),
        Scene(
            name="failover",
            seconds=2_280,
            rules=PODS,
            sessions=step,
            away=((70, 85), (300, 330), (640, 700)),
            blind=((200, 260), (900, 960), (1_280, 1_320)),
        ),
    )
}


def figures(course: Course, scene: Scene) -> dict[str, Any]:
    return {
        "actions": len(course.actions),
        "turns": course.turns,
        "runs": course.served,
        "wait_p95_seconds": round(course.wait_p95(), 1),
        "most_units": max(to for _, _, to, _ in course.actions) if course.actions else scene.rules.minimum,
        "busy_share": round(course.busy_seconds / course.slot_seconds, 2) if course.slot_seconds else None,
        "pods_ended": len(course.ended_with),
        "pods_ended_with_runs": sum(runs > 0 for runs in course.ended_with),
    }


WIDTH, HEIGHT, LEFT, TOP = 760, 250, 46, 34
LINES: Sequence[tuple[str, str, str, Callable[[Sample], float]]] = (
    ("load", "#9aa0a6", "5,3", lambda sample: sample.load),
    ("desired", "#d9480f", "", lambda sample: sample.desired),
    ("actual", "#1c7ed6", "", lambda sample: sample.actual),
)


def plot(course: Course, title: str) -> str:
    """An SVG: load in runs, desired and actual in slots, over minutes."""
    samples = course.samples
    end = samples[-1].at or 1.0
    top = max(1.0, *(max(s.load, s.desired, s.actual) for s in samples)) * 1.05

    def point(at: float, value: float) -> tuple[float, float]:
        return LEFT + at / end * (WIDTH - LEFT - 12), HEIGHT - 28 - value / top * (HEIGHT - 28 - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="13" fill="#212529">{title}</text>',
    ]
    for mark in range(5):
        x, _ = point(end * mark / 4, 0)
        _, y = point(0, top * mark / 4)
        minutes = round(end * mark / 240)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e9ecef"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end" fill="#495057">{top * mark / 4:.0f}</text>',
            f'<text x="{x:.0f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#495057">{minutes} min</text>',
        ]
    for number, (name, colour, dashes, value) in enumerate(LINES):
        path = _path([(s.at, round(value(s) / top * 250) * top / 250) for s in samples], point)
        x = WIDTH - 220 + number * 74
        parts += [
            f'<path d="{path} M{x},14 H{x + 16}" fill="none" stroke="{colour}" stroke-width="1.6"',
            f' stroke-dasharray="{dashes}"/>',
            f'<text x="{x + 20}" y="18" fill="#212529">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _path(points: Sequence[tuple[float, float]], place: Callable[[float, float], tuple[float, float]]) -> str:
    """Steps; samples between two that say the same are left out."""
    said, last = [], None
    for at, value in points:
        if value != last:
            if last is not None:
                said.append(place(at, last))
            said.append(place(at, value))
            last = value
    said.append(place(points[-1][0], points[-1][1]))
    return "M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in said)


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write the plots into this directory.")
@click.option("--seed", default=1, show_default=True)
@click.argument("names", nargs=-1, type=click.Choice(sorted(SCENES)))
def main(names: tuple[str, ...], *, out: Path | None, seed: int) -> None:
    """Simulate, and print one JSON document. Without NAME: every scene."""
    found = {}
    for name in names or tuple(SCENES):
        scene = replace(SCENES[name], seed=seed)
        course = Fleet(scene).play()
        found[name] = figures(course, scene)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            title = (
                f"{name}: {found[name]['actions']} changes of size, p95 wait {found[name]['wait_p95_seconds']:.0f} s"
            )
            (out / f"{name}.svg").write_text(plot(course, title), encoding="utf-8")
    click.echo(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
