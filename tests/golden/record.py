"""Records what real programs draw, for the golden tests: ``python -m tests.golden.record NAME [COLUMNSxROWS]``.

A recording is an asciicast (`asciinema play FILE`): what the program wrote (``o``), what was typed (``i``), and marks
(``m``): ``ready``, ``turn N`` when its text has been taken, ``asks``, ``over N`` when it was. The header says program,
version and the texts; the model's answers are foretold by them.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from oah.adapters.pty import screen_agent
from oah.adapters.pty.programs import Programs
from oah.adapters.pty.screen import ScreenModel
from oah.ports.agent import TurnRequest, TurnStatus
from oah.testing.turns import HeldTurn
from tests.support.mock_llm import mock_model
from tests.support.real_agents import PROGRAMS, environment
from tests.support.terminals import QUICK_LADDER, Bench, bench

RECORDINGS = Path(__file__).parent / "recordings"
SIZES = ((80, 24), (100, 40), (132, 50))
TALK = ("hello there", "[[wait:2]]first line\nsecond line\nthird line", "[[long:1200]]say more")
TALK_LINE = ("hello there", "[[wait:2]]one line", "[[long:1200]]say more")


class _Tape:
    """Everything that passes the screen, with its time."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str]] = []
        self._begun = time.monotonic()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def note(self, kind: str, text: str) -> None:
        if text:
            self.events.append((round(time.monotonic() - self._begun, 3), kind, text))

    def model(self) -> type[ScreenModel]:
        tape = self

        class Taped(ScreenModel):
            def feed(self, data: bytes, **more: Any) -> bytes:
                tape.note("o", tape._decoder.decode(data))
                return super().feed(data, **more)

        return Taped


def _talk(desk: Bench, tape: _Tape, name: str, texts: tuple[str, ...], env: dict[str, str], where: Path) -> list[str]:
    (where / "home").mkdir()
    (where / "work").mkdir()
    agent: Any = desk.open(name, env=env, home=str(where / "home"), cwd=str(where / "work"))
    press, write = agent.screen.press, agent.screen.write
    agent.screen.press = lambda key: (tape.note("i", key.decode()), press(key))[1]

    def written(data: bytes, *arguments: Any, **more: Any) -> None:
        tape.note("i", data.decode())
        write(data, *arguments, **more)

    agent.screen.write = written
    tape.note("m", "ready")
    said = []
    for number, text in enumerate(texts, 1):
        agent.bind(run_id=f"run_{number}", attempt=1)
        request = TurnRequest(
            run_id=f"run_{number}", attempt=1, input=text, timeout=timedelta(seconds=90), ladder=QUICK_LADDER
        )
        tape.note("m", f"turn {number}")
        result = agent.turn(request, HeldTurn())
        while result.status is TurnStatus.WAITING:
            tape.note("m", f"asks {result.question.name}")
            print("  asks", result.question.name, [(c.key, c.words) for c in result.question.choices])
            if not result.question.choices:
                print(agent.model.look().text)
                break
            result = agent.resume(request, result.question.choices[0].key, HeldTurn())
        tape.note("m", f"over {number}")
        print(f"  {result.status} {result.error_code} {result.error_message} {result.output[:70]!r}")
        if result.status is not TurnStatus.COMPLETED:
            print(agent.model.look().text)
        said.append(result.output)
        if not result.keep_warm:
            break
    tape.note("m", "quit")
    agent.close(timedelta(seconds=5))
    print(agent.model.look().text[-300:])
    return said


def record(name: str, columns: int, rows: int, *, permission: bool = False) -> Path:
    """One recording of this program at this size; its file."""
    program, tape = PROGRAMS[name], _Tape()
    texts = (f"{program.tool}make a file",) if permission else TALK_LINE if name == "llm" else TALK
    directory = Path(tempfile.mkdtemp(prefix="oah-g-", dir="/tmp"))
    screen_agent.ScreenModel = tape.model()  # type: ignore[misc]
    with mock_model() as model, bench(directory) as desk:
        profile = desk.agents._profiles[name]
        desk.agents._profiles[name] = replace(profile, rows=rows, cols=columns)
        env = environment(name, model.url, directory / "settings")
        said = _talk(desk, tape, name, texts, env, directory)
        version = Programs(env["PATH"]).look(profile).version
    what = "permission" if permission else "talk"
    header = {
        "version": 2,
        "width": columns,
        "height": rows,
        "title": f"{name} {version}: {what}",
        "oah": {"profile": name, "version": version, "texts": texts, "said": said},
    }
    path = RECORDINGS / f"{name}-{what}-{columns}x{rows}.cast"
    lines = [header, *tape.events]
    text = "".join(json.dumps(line, ensure_ascii=False).replace("\x7f", "\\u007f") + "\n" for line in lines)
    path.write_text(text.replace(str(directory), "/tmp/oah-g"), encoding="utf-8")
    return path


if __name__ == "__main__":
    sizes = [tuple(map(int, size.split("x"))) for size in sys.argv[2:] if "x" in size] or list(SIZES)
    for columns, rows in sizes:
        print(sys.argv[1], columns, rows)
        path = record(sys.argv[1], columns, rows, permission="permission" in sys.argv)
        print("  ", path.name, os.path.getsize(path))
