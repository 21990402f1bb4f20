"""A language model that is none: answers that a test can foretell, in the four dialects that agent programs speak.

``POST …/chat/completions`` and ``…/responses`` (OpenAI), ``…/messages`` (Anthropic), ``…:generateContent`` and
``…:streamGenerateContent`` (Gemini), each whole or streamed. The answer to a request is made of the request alone::

    ANSWER turns=<texts of the user so far> heard=<end of the last one>

so that ``turns`` tells whether a conversation went on. What the last text contains changes it: ``[[say:TEXT]]``,
``[[long:CHARACTERS]]``, ``[[wait:SECONDS]]`` before it begins, ``[[fail:STATUS]]``, and
``[[use:NAME {json}]]``: first a
call of that tool, the answer once its result came. Every question is kept in ``asked``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "mock-model"
_WISH = re.compile(r"\[\[(say|long|wait|fail|use):(.*?)\]\](?!\])", re.DOTALL)
_CONTEXT = re.compile(r"<([A-Za-z_-]+)>.*?</\1>", re.DOTALL)
"""Programs put what they add themselves into tags."""

_numbers = itertools.count(1)
Json = dict[str, Any]
Event = tuple[str | None, Json | str]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: the path, the user's texts in it, and its whole body."""

    path: str
    texts: tuple[str, ...]
    body: Json

    @property
    def last(self) -> str:
        """The user's last text."""
        return self.texts[-1] if self.texts else ""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    wait: float = 0.0
    status: int = 200
    tool: str = ""
    arguments: Json = field(default_factory=dict)

    @property
    def pieces(self) -> list[str]:
        step = max(12, len(self.text) // 8)
        return [self.text[at : at + step] for at in range(0, len(self.text), step)]


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_words, content)))
    return str(content.get("text") or "") if isinstance(content, dict) else ""


def _is_result(item: Json) -> bool:
    parts = item.get("content", item.get("parts"))
    inside = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return (
        item.get("role") == "tool"
        or item.get("type") == "function_call_output"
        or any(part.get("type") == "tool_result" or "functionResponse" in part for part in inside)
    )


def _items(body: Json) -> list[Json]:
    found = body.get("messages") or body.get("input") or body.get("contents") or []
    return [{"role": "user", "content": found}] if isinstance(found, str) else [i for i in found if isinstance(i, dict)]


def _texts(items: list[Json]) -> tuple[str, ...]:
    said = (
        _CONTEXT.sub("", _words(item.get("content", item.get("parts")))).strip()
        for item in items
        if item.get("role") == "user" and not _is_result(item)
    )
    return tuple(text for text in said if text)


def _answer(items: list[Json], texts: tuple[str, ...]) -> _Answer:
    last = texts[-1] if texts else ""
    wishes = dict(_WISH.findall(last))
    heard = " ".join(_WISH.sub("", last).split())[-80:]
    text = wishes.get("say") or f"ANSWER turns={len(texts)} heard={heard}"
    if "long" in wishes:
        count = int(wishes["long"])
        text += "\n" + "".join(f"row {row} of a long answer\n" for row in range(count // 20))[:count]
    name, _, arguments = wishes.get("use", "").partition(" ")
    if items and _is_result(items[-1]):
        name = ""
    return _Answer(
        text,
        wait=float(wishes.get("wait", 0)),
        status=int(wishes.get("fail", 200)),
        tool=name,
        arguments=json.loads(arguments) if name else {},
    )


# --- dialects: the whole answer, and the events of a streamed one ---


def _chat(answer: _Answer, number: int) -> tuple[Json, list[Event]]:
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    head = {"id": f"chat-{number}", "created": 1, "model": MODEL}
    if answer.tool:
        function = {"name": answer.tool, "arguments": json.dumps(answer.arguments)}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        message: Json = {"role": "assistant", "content": None, "tool_calls": [call]}
        deltas: list[Json] = [{"role": "assistant", "tool_calls": [{"index": 0, **call}]}]
        reason = "tool_calls"
    else:
        message = {"role": "assistant", "content": answer.text}
        deltas = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in answer.pieces)]
        reason = "stop"

    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**head, "object": "chat.completion.chunk", "choices": [choice], **({"usage": usage} if finish else {})}

    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return whole, [*((None, chunk(delta)) for delta in deltas), (None, chunk({}, reason)), (None, "[DONE]")]


def _responses(answer: _Answer, number: int) -> tuple[Json, list[Event]]:
    part = {"type": "output_text", "text": answer.text, "annotations": []}
    if answer.tool:
        item: Json = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": answer.tool}
        item |= {"arguments": json.dumps(answer.arguments), "status": "completed"}
    else:
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # type: ignore[dict-item]
    head = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": MODEL}
    whole = {**head, "status": "completed", "output": [item], "usage": usage}
    where = {"item_id": item["id"], "output_index": 0}
    events: list[Json] = [
        {"type": "response.created", "response": {**head, "status": "in_progress", "output": [], "usage": None}}
    ]
    if answer.tool:
        events += [
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
            {"type": "response.function_call_arguments.done", **where, "arguments": item["arguments"]},
        ]
    else:
        where["content_index"] = 0
        opened = {**item, "status": "in_progress", "content": []}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": opened})
        events.append({"type": "response.content_part.added", **where, "part": {**part, "text": ""}})
        events += ({"type": "response.output_text.delta", **where, "delta": piece} for piece in answer.pieces)
        events.append({"type": "response.output_text.done", **where, "text": answer.text})
        events.append({"type": "response.content_part.done", **where, "part": part})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return whole, [(str(each["type"]), {**each, "sequence_number": at}) for at, each in enumerate(events)]


def _messages(answer: _Answer, number: int) -> tuple[Json, list[Event]]:
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
    if answer.tool:
        block: Json = {"type": "tool_use", "id": f"toolu_{number}", "name": answer.tool, "input": answer.arguments}
        empty = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}]
        reason = "tool_use"
    else:
        block, empty = {"type": "text", "text": answer.text}, {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in answer.pieces]
        reason = "end_turn"
    usage = {"input_tokens": 9, "output_tokens": 9}
    whole = {**head, "content": [block], "stop_reason": reason, "usage": usage}
    events: list[Json] = [
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return whole, [(str(each["type"]), each) for each in events]


def _gemini(answer: _Answer, number: int) -> tuple[Json, list[Event]]:
    def candidate(part: Json, *, last: bool) -> Json:
        found: Json = {"index": 0, "content": {"role": "model", "parts": [part]}}
        if last:
            found["finishReason"] = "STOP"
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
        return {"candidates": [found], "usageMetadata": usage, "modelVersion": MODEL, "responseId": f"r{number}"}

    if answer.tool:
        whole = candidate({"functionCall": {"name": answer.tool, "args": answer.arguments}}, last=True)
        return whole, [(None, whole)]
    count = len(answer.pieces)
    events: list[Event] = [
        (None, candidate({"text": piece}, last=at == count)) for at, piece in enumerate(answer.pieces, 1)
    ]
    return candidate({"text": answer.text}, last=True), events


_DIALECTS = {
    "/chat/completions": _chat,
    "/responses": _responses,
    "/messages": _messages,
    ":generateContent": _gemini,
    ":streamGenerateContent": _gemini,
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *said: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def do_GET(self) -> None:
        listed = {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL, "created": 1, "owned_by": "x"}
        known = self.path.split("?")[0].endswith("/models")
        self._whole(200 if known else 404, {"object": "list", "has_more": False, "data": [listed]} if known else {})

    def do_HEAD(self) -> None:
        self._whole(200, {})

    def do_POST(self) -> None:
        body = self._body()
        path = self.path.split("?")[0].rstrip("/")
        if path.endswith(("/count_tokens", ":countTokens")):
            return self._whole(200, {"input_tokens": 9, "totalTokens": 9})
        speak = next((speak for end, speak in _DIALECTS.items() if path.endswith(end)), None)
        if speak is None:
            return self._whole(404, {"error": {"type": "not_found_error", "message": f"no {path}"}})
        items = _items(body)
        asked = Asked(path, _texts(items), body)
        answer = _answer(items, asked.texts)
        self.server.model.asked.append(asked)
        self.server.model.closing.wait(answer.wait)
        self.server.model.pass_gates(asked)
        if answer.status != 200:
            return self._whole(answer.status, {"type": "error", "error": {"type": "mock", "message": "as you wish"}})
        whole, events = speak(answer, next(_numbers))
        if body.get("stream") or path.endswith(":streamGenerateContent"):
            return self._stream(events)
        return self._whole(200, whole)

    def _body(self) -> Json:
        if (self.headers.get("Transfer-Encoding") or "").lower() == "chunked":
            raw = b""
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = json.loads(raw or b"{}")
        return found if isinstance(found, dict) else {}

    def _whole(self, status: int, value: Json) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: list[Event]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for name, value in events:
            data = value if isinstance(value, str) else json.dumps(value)
            head = f"event: {name}\n" if name else ""
            self.wfile.write(f"{head}data: {data}\n\n".encode())
            self.wfile.flush()
            self.server.model.closing.wait(0.01)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    model: MockModel


class MockModel:
    """The server, listening. `url` without a path; `asked`: every question so far."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._gates: dict[str, threading.Event] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="mock-llm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer what waits, and nothing more."""
        self.closing.set()
        self.let_go()
        self._server.shutdown()
        self._server.server_close()

    def hold(self, *words: str) -> None:
        """Questions with these in a text of the user are answered when they are let go."""
        self._gates.update((word, threading.Event()) for word in words)

    def let_go(self) -> None:
        """Answer what is held, and what else comes."""
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.set()

    def pass_gates(self, asked: Asked) -> None:
        """Wait as long as a question is held."""
        for word, gate in self._gates.items():
            if any(word in text for text in asked.texts):
                gate.wait()

    def heard(self, text: str) -> list[Asked]:
        """The questions whose last text contains this."""
        return [each for each in list(self.asked) if text in each.last]


@contextlib.contextmanager
def mock_model() -> Iterator[MockModel]:
    """For one test or session."""
    model = MockModel()
    try:
        yield model
    finally:
        model.close()
