"""Tables of docs/reference/ that come from the code: metrics, routes, agents, Redis keys, scripts.

``python -m tests.support.reference_pages`` writes them; a test compares. (Commands: ``commands_page``.)
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from oah.adapters.prometheus.table import METRICS
from oah.adapters.pty.profiles import load_profiles
from oah.adapters.redis.keys import KEYS
from oah.adapters.redis.scripts import load
from oah.api.app import ROUTERS
from oah.core.dialogue.profile import Kind
from tests.support.source import PACKAGE, ROOT

REFERENCE = ROOT / "docs" / "reference"


def _table(head: str, rows: list[list[str]]) -> str:
    columns = head.split(" | ")
    lines = [f"| {head} |", "|" + "---|" * len(columns)]
    return (
        "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)]) + "\n"
    )


def metrics() -> str:
    """Every metric, in the order of the one table."""
    rows = []
    for metric in METRICS:
        labels = [
            f"*{label}*" if values is None else f"{label}: {', '.join(sorted(values))}"
            for label, values in metric.labels.items()
        ]
        rows.append([f"`{metric.name}`", str(metric.kind), "; ".join(labels) or "-", metric.help])
    return _table("metric | type | labels | meaning", rows)


def routes() -> str:
    """Every route of the OpenAPI document."""
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router)
    rows = [
        [f"`{method.upper()} {path}`", " ".join(operation.get("description", "").split("\n\n")[0].split())]
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    return _table("method and path | does", rows)


def keys() -> str:
    """Every key of the key file."""
    rows = [[f"`{key.pattern}`", key.kind, key.meaning, key.healer] for key in KEYS]
    return _table("key | type | meaning | made right by", rows)


def scripts() -> str:
    """Every script, from its header."""
    rows = []
    for path in sorted((PACKAGE / "adapters" / "redis" / "lua").glob("*.lua")):
        script = load(path.stem)
        arguments = [" ".join(argument.name for argument in script.args)] if script.args else []
        arguments += [f"each {group}: {' '.join(one.name for one in each)}" for group, each in script.groups.items()]
        header = script.header
        over = "yes" if script.over_maxmemory else "no"
        words = [header["purpose"], header["repeatable"], header["returns"]]
        rows.append([f"`{path.stem}`", over, ", ".join(arguments) or "-", *words])
    return _table("script | over maxmemory | arguments | does | repeated | answers", rows)


def _named(resume: Mapping[str, Any]) -> str:
    if not resume:
        return "-"
    return "at the start" if resume.get("new") else "when it says so"


def agents() -> str:
    """Every profile that ships."""
    rows = []
    for name, profile in sorted(load_profiles().items()):
        version = profile.tables.get("version", {})
        resume = profile.tables.get("resume", {})
        named = "with its reply" if profile.kind is Kind.HEADLESS else _named(resume)
        known = ", ".join(f"{each}…" for each in version.get("known", ())) or "-"
        program = profile.argv[0] if profile.argv and not profile.argv[0].startswith("{") else "-"
        rows.append([f"`{name}`", str(profile.kind), f"`{program}`" if program != "-" else "-", known, named])
    return _table("agent | kind | program | known | conversation gets its name", rows)


TABLES: dict[str, tuple[Path, Callable[[], str]]] = {
    "metrics": (REFERENCE / "metrics.md", metrics),
    "routes": (REFERENCE / "http.md", routes),
    "agents": (REFERENCE / "agents.md", agents),
    "keys": (REFERENCE / "protocol.md", keys),
    "scripts": (REFERENCE / "protocol.md", scripts),
}


def fresh(name: str) -> str:
    """The page of a table with that table made anew. Raises ValueError when its marks are missing."""
    page, table = TABLES[name]
    text, found = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- end -->\n)",
        lambda match: match[1] + table() + match[2],
        page.read_text(),
        flags=re.DOTALL,
    )
    if found != 1:
        raise ValueError(f"{page} has no table {name}")
    return text


if __name__ == "__main__":
    for each in TABLES:
        TABLES[each][0].write_text(fresh(each))
