"""An agent program that keeps its conversations in its home, a file of JSON lines each. Standard library only; stands
for the real ones in tests of resuming.

    diary_agent.py [--session-id UUID | --resume UUID | --continue]

The file is `~/.diary/<directory it runs in>/<uuid>.jsonl`: an unknown name, or one that is in use already, is refused,
and so is a conversation with damage: a line that is not whole, or a call of a tool that was never answered. Lines are
written in pieces, as programs do that are killed in the middle. It answers with how many texts it was ever given and
the first of them. Directives in a text: `[[tools N S]]` (N calls of a tool, S seconds each), `[[first N S]]` (the same
in the first attempt of a run alone), `[[fork]]` (goes on under a new name), `[[env NAME]]`, `[[pid]]`.

With `OAH_SCRATCH` set it speaks the marker protocol, else each line of its input is a text.
"""

import json
import os
import re
import resource
import sys
import time
import uuid
from typing import Any, NoReturn

PIECE = 7


def refuse(reason: str) -> NoReturn:
    print(reason, flush=True)
    sys.exit(1)


class Diary:
    """One conversation's file."""

    def __init__(self, arguments: list[str]) -> None:
        place = re.sub(r"[^A-Za-z0-9]", "-", os.getcwd())
        self.directory = os.path.join(os.environ["HOME"], ".diary", place)
        os.makedirs(self.directory, exist_ok=True)
        self.lines: list[dict[str, Any]] = []
        match arguments:
            case ["--resume", name]:
                self.name = name
                self.read()
            case ["--continue"]:
                self.name = self.last()
                self.read()
            case ["--session-id", name]:
                self.name = name
                if os.path.exists(self.path):
                    refuse(f"Session {name} is already in use")
            case _:
                self.name = str(uuid.uuid4())
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def path(self) -> str:
        return os.path.join(self.directory, f"{self.name}.jsonl")

    def last(self) -> str:
        names = [name for name in os.listdir(self.directory) if name.endswith(".jsonl")]
        if not names:
            refuse("No conversation found")
        return max(names, key=lambda name: os.stat(os.path.join(self.directory, name)).st_mtime)[: -len(".jsonl")]

    def read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except OSError:
            refuse(f"No conversation found: {self.name}")
        open_calls: set[str] = set()
        for line in data.splitlines():
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                refuse("API error 400: the transcript is damaged")
            entry = self.lines[-1]
            if entry["type"] == "call":
                open_calls.add(entry["id"])
            elif entry["type"] == "result":
                open_calls.discard(entry["of"])
        if open_calls or not data.endswith(b"\n"):
            refuse("API error 400: tool_use without tool_result")

    def add(self, **entry: Any) -> None:
        self.lines.append(entry)
        data = json.dumps(entry).encode() + b"\n"
        for begin in range(0, len(data), PIECE):
            os.write(self.file, data[begin : begin + PIECE])

    def fork(self) -> None:
        self.name = str(uuid.uuid4())
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        old, self.lines = self.lines, []
        for entry in old:
            self.add(**entry)

    def use_tools(self, count: str, seconds: str) -> None:
        for _ in range(int(count)):
            name = uuid.uuid4().hex
            self.add(type="call", id=name, tool="wait")
            time.sleep(float(seconds))
            self.add(type="result", of=name)

    def answer(self, text: str, attempt: str = "1") -> str:
        self.add(type="user", text=text)
        more = ""
        for directive, argument in re.findall(r"\[\[(\w+) ?([^\]]*)\]\]", text):
            match directive:
                case "tools":
                    self.use_tools(*argument.split())
                case "first" if attempt == "1":
                    self.use_tools(*argument.split())
                case "fork":
                    self.fork()
                case "env":
                    more += f" {argument}={os.environ.get(argument, '-')}"
                case "pid":
                    more += f" pid={os.getpid()} files={resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
                case _:
                    pass
        texts = [entry["text"] for entry in self.lines if entry["type"] == "user"]
        said = f"turns={len(texts)} first={texts[0]!r} name={self.name}{more}"
        self.add(type="assistant", text=said)
        return said


def serve(diary: Diary) -> None:
    """The marker protocol."""
    nonce, scratch = os.environ.pop("OAH_NONCE", ""), os.environ["OAH_SCRATCH"]
    print(f"\x1b]7337;{nonce};0;0\x07", end="", flush=True)
    while True:
        words = sys.stdin.readline().split()
        if not words or words == ["quit"]:
            return
        print(f"\x1b]7337;{nonce};{words[0]};begin\x07", end="", flush=True)
        with open(os.path.join(scratch, "input"), encoding="utf-8") as file:
            print(diary.answer(file.read().strip(), words[2]), flush=True)
        print(f"\x1b]7337;{nonce};{words[0]};0\x07", end="", flush=True)


def main() -> None:
    diary = Diary(sys.argv[1:])
    if "OAH_SCRATCH" in os.environ:
        serve(diary)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        print(diary.answer(line.strip()), flush=True)


if __name__ == "__main__":
    main()
