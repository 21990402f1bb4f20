"""Plays recordings back: bytes → screens → readings → judgements, on the clock of the recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from oah.adapters.pty.matching import compiled
from oah.adapters.pty.profiles import load_profiles
from oah.adapters.pty.screen import ScreenModel
from oah.core.dialogue import turn
from oah.core.dialogue.reading import Condition, Reading, read
from oah.core.dialogue.reply import is_cut, reply
from oah.core.dialogue.screen_profile import ScreenProfile, screen_profile

RECORDINGS = Path(__file__).parent / "recordings"
TICK = 0.1
"""Seconds between two looks while nothing comes, as in the driver."""

Mutation = Callable[[str], str]


@cache
def rules_of(profile: str) -> ScreenProfile:
    """The rules of a profile."""
    found = load_profiles()[profile]
    return screen_profile(found.tables, compiled, source=found.source)


@dataclass(frozen=True)
class Recording:
    """A recording's header and events: (seconds, kind, text)."""

    path: Path
    profile: str
    version: str
    columns: int
    rows: int
    texts: tuple[str, ...]
    said: tuple[str, ...]
    events: tuple[tuple[float, str, str], ...]

    @property
    def rules(self) -> ScreenProfile:
        return rules_of(self.profile)


@cache
def recording(name: str) -> Recording:
    """By its file's name."""
    path = RECORDINGS / name
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    header = json.loads(first)
    own = header["oah"]
    return Recording(
        path=path,
        profile=own["profile"],
        version=own["version"],
        columns=header["width"],
        rows=header["height"],
        texts=tuple(own["texts"]),
        said=tuple(own["said"]),
        events=tuple((at, kind, text) for at, kind, text in map(json.loads, rest)),
    )


def names(what: str) -> list[str]:
    """Recordings of a kind: `talk`, `permission`."""
    return sorted(path.name for path in RECORDINGS.glob(f"*-{what}-*.cast"))


@dataclass
class Seen:
    """One turn as it was judged. `over_at`: when it was said to be over, with the reply of that moment; `ended_at`:
    when the recording's driver saw it."""

    number: int
    begun_at: float
    over_at: float | None = None
    reply: str = ""
    cut: bool = False
    ended_at: float = 0.0
    conditions: list[Condition] = field(default_factory=list)
    asked: list[turn.Asks] = field(default_factory=list)


class Replay:
    """The whole of a recording, judged as the driver would. `mutate`: what is drawn instead of what was."""

    def __init__(self, recorded: Recording, mutate: Mutation = lambda text: text) -> None:
        self.recorded = recorded
        self.model = ScreenModel(rows=recorded.rows, columns=recorded.columns)
        self.turns: list[Seen] = []
        self.start: list[Condition] = []
        """What was read before the first turn, without repetitions."""
        self.asking: list[Reading] = []
        """What was read where the driver was asked something."""
        self._mutate = mutate
        self._state: turn.Turn | None = None
        self._mark = 0
        self._before = ""
        self._play()

    def _play(self) -> None:
        looked = 0.0
        for at, kind, text in self.recorded.events:
            for moment in _ticks(looked, at):
                self._look(moment)
                looked = moment
            match kind:
                case "o":
                    self.model.feed(self._mutate(text).encode())
                    if self._state is not None:
                        self._state = turn.output(self._state, at)
                case "i":
                    self._typed(text, at)
                case "m":
                    self._marked(text, at)

    def _typed(self, text: str, at: float) -> None:
        submit = self.recorded.rules.injection.submit.decode()
        if self._state is not None:
            self._state = turn.key(self._state, at)
        elif text == submit and self.turns and self.turns[-1].over_at is None:
            self._state = turn.Turn(at)

    def _marked(self, text: str, at: float) -> None:
        word, _, rest = text.partition(" ")
        if word == "turn":
            screen = self.model.look()
            composer = read(screen, self.recorded.rules.screen).composer
            self._mark = screen.scrolled + (composer.first if composer is not None else screen.row)
            self.turns.append(Seen(int(rest), at))
            self._state = None
            self._before = self._reply()
        elif word == "over" and self.turns:
            self._look(at)
            self.turns[-1].ended_at = at
            self._state = None
        elif word == "asks":
            self.asking.append(read(self.model.look(), self.recorded.rules.screen))

    def _look(self, now: float) -> None:
        reading = read(self.model.look(), self.recorded.rules.screen)
        seen = self.turns[-1].conditions if self.turns else self.start
        if not seen or seen[-1] is not reading.condition:
            seen.append(reading.condition)
        if self._state is None or self.turns[-1].over_at is not None:
            return
        said = self._reply() if reading.condition is Condition.READY else self._before
        self._state, verdict = turn.judge(
            self._state, reading, answered=bool(said) and said != self._before, now=now, rules=self.recorded.rules.turn
        )
        if isinstance(verdict, turn.Over | turn.Unseen):
            self.turns[-1].over_at, self.turns[-1].reply = now, self._reply()
            rules, text = self.recorded.rules, self.recorded.texts[self.turns[-1].number - 1]
            screen = self.model.look()
            self.turns[-1].cut = is_cut(screen, text, rules.reply, rules.screen.composer, mark=self._mark)
        elif isinstance(verdict, turn.Asks):
            self.turns[-1].asked.append(verdict)

    def _reply(self) -> str:
        rules = self.recorded.rules
        text = self.recorded.texts[self.turns[-1].number - 1] if self.turns else ""
        return reply(self.model.look(), text, rules.reply, rules.screen.composer, mark=self._mark)


def _ticks(begin: float, end: float) -> Iterator[float]:
    moment = begin + TICK
    while moment < end:
        yield moment
        moment += TICK


def sizes(recordings: list[str]) -> dict[str, set[tuple[int, int]]]:
    """Profile → sizes recorded."""
    found: dict[str, set[tuple[int, int]]] = {}
    for each in map(recording, recordings):
        found.setdefault(each.profile, set()).add((each.columns, each.rows))
    return found


def foretold(text: str) -> tuple[str, ...]:
    """Words that the model's answer to this text contains, in their order."""
    import re

    plain = " ".join(re.sub(r"\[\[.*?\]\](?!\])", "", text, flags=re.DOTALL).split())
    rows = re.search(r"\[\[long:(\d+)\]\]", text)
    more = () if rows is None else tuple(f"row {row} of a long answer" for row in range(int(rows[1]) // 25))
    return (f"heard={plain}", *more)
