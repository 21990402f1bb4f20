"""The vocabulary of docs/glossary.md is binding wherever users, tables, keys and figures meet it."""

import ast
import re

from oah.adapters.prometheus.table import METRICS
from tests.support.source import PACKAGE, calls, dotted, files, name, python, tree, words

# Words that have a better one in the glossary. Jobs are maintenance (rq), never agents' work: `/jobs/{id}` may stay.
OUTSIDE = {
    *("tenant", "tenants", "project", "projects", "namespace", "namespaces", "chat", "chats", "conversation"),
    *("conversations", "task", "tasks", "execution", "executions", "consumer", "consumers", "seat", "seats", "bot"),
    *("bots", "harness", "ping", "rescue", "reap", "reaper", "replay", "blacklist", "whitelist", "resurrect"),
}
THREADS = {"thread", "threads"}  # a session is no thread; our own code has real ones, so only names users see count

# In code the operating system's and libraries' words are ours too (a host reaps its children), so the list is shorter.
INSIDE = {"tenant", "tenants", "chat", "chats", "consumer", "consumers", "blacklist", "whitelist", "rescue"}
INSIDE |= {"resurrect", "seat", "bot", "bots", "harness"}


def _strings_of_calls(folder: str, *functions: str) -> set[tuple[str, str]]:
    """First string argument of each call whose last name is one of these."""
    found = set()
    for path in python(PACKAGE / folder):
        for call in calls(path):
            called = dotted(call.func).split(".")[-1]
            if called in functions and call.args and isinstance(first := call.args[0], ast.Constant):
                found.add((name(path), str(first.value)))
    return found


def _check(found: set[tuple[str, str]], banned: set[str]) -> None:
    wrong = {(where, text) for where, text in found if words(text) & banned}
    assert not wrong, "see docs/glossary.md for the word to use"


def test_tables_and_columns() -> None:
    found = _strings_of_calls("adapters/sql", "Table", "Column", "Index", "create_table", "add_column")
    assert {"sessions", "runs", "session_owners"} <= {text for _, text in found}, "the tables were not found"
    _check(found, OUTSIDE | THREADS)


def test_http_paths() -> None:
    methods = ("get", "post", "put", "patch", "delete", "websocket", "add_api_route", "api_route", "APIRouter")
    found = {(where, text) for where, text in _strings_of_calls("api", *methods) if text.startswith("/")}
    assert any("sessions" in text or "runs" in text for _, text in found), "no routes were found"
    _check(found, OUTSIDE | THREADS)


def test_metrics() -> None:
    texts = {(metric.name, word) for metric in METRICS for word in (metric.name, *metric.labels)}
    texts |= {(metric.name, value) for metric in METRICS for values in metric.labels.values() for value in values or ()}
    _check(texts, OUTSIDE | THREADS)


def test_redis_keys() -> None:
    keys = PACKAGE / "adapters" / "redis" / "keys.py"
    texts = {
        (name(keys), node.value)
        for node in ast.walk(tree(keys))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
    }
    for script in files(".lua", under=PACKAGE):
        body = re.sub(r"--.*", "", script.read_text())
        texts |= {(name(script), text) for text in re.findall(r"""['"]([^'" ]+)['"]""", body)}
    assert any("ready" in text for _, text in texts), "no keys were found"
    _check(texts, OUTSIDE | THREADS)


def test_commands() -> None:
    found = _strings_of_calls("cli", "command", "group", "Command", "Group", "option", "argument")
    for path in python(PACKAGE / "cli"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and any(
                dotted(one.func if isinstance(one, ast.Call) else one).split(".")[-1] in ("command", "group")
                for one in node.decorator_list
            ):
                found.add((name(path), node.name))
    assert any("session" in text for _, text in found), "no commands were found"
    _check(found, OUTSIDE | THREADS)


def test_names_in_code() -> None:
    wrong = set()
    for path in python():
        for node in ast.walk(tree(path)):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    found = node.name
                case ast.arg():
                    found = node.arg
                case ast.AnnAssign(target=ast.Name(id=found)):
                    pass
                case _:
                    continue
            if words(found) & INSIDE:
                wrong.add(f"{name(path)}:{node.lineno} {found}")
    assert not wrong, "see docs/glossary.md for the word to use"
