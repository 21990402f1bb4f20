"""Mailboxes as people and agents use them: the commands, and the lines of the how-to inside a shell agent.

One `oah-api` with its worker inside: real processes, `memory://`, SQLite.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oah.cli.main import oah
from oah.testing.fleet import Fleet
from tests.support import eventually
from tests.support.source import ROOT
from tests.support.warm import warm

pytestmark = pytest.mark.process

OAH = f'{sys.executable} -c "from oah.cli.main import main; main()"'
BYTES = bytes(range(256))


@pytest.fixture(scope="module")
def system() -> Iterator[Fleet]:
    directory = Path(tempfile.mkdtemp(prefix="oah-m-", dir="/tmp"))
    with Fleet(directory / "d", api_with_workers=True, redis_url="memory://", starter=warm()) as fleet:
        yield fleet
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def _here(system: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAH_API_URL", system.url)
    monkeypatch.setenv("OAH_DATA_DIR", str(system.data_dir))
    for name in ("OAH_API_KEY", "OAH_RUN_KEY"):
        monkeypatch.delenv(name, raising=False)


def call(*args: str, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(oah, list(args), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def good(*args: str, stdin: str | bytes | None = None) -> str:
    result = call(*args, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def document(*args: str) -> dict:
    return json.loads(good(*args, "--json"))


@pytest.fixture
def box() -> str:
    return good("mailbox", "create")


def test_make_list_and_show() -> None:
    assert good("mailbox", "create", "team.reviews", "--ttl", "1h", "--description", "work") == "team.reviews"
    again = call("mailbox", "create", "team.reviews", "--ttl", "2h")
    assert (again.exit_code, again.stdout) == (0, "team.reviews\n") and "there already" in again.stderr
    private = document("mailbox", "create")
    assert private["new"] and private["address"].startswith("m-")
    assert [one["address"] for one in document("mailbox", "list")["items"]] == ["team.reviews"]
    assert private["address"] in good("mailbox", "list", "--private")
    assert document("mailbox", "show", "team.reviews")["ttl_seconds"] == 3600
    assert "work" in good("mailbox", "list")
    assert document("mailbox", "delete", "team.reviews", "--yes") == {"deleted": True}
    assert call("mailbox", "show", "team.reviews").exit_code == 3


def test_bytes_go_through_pipes_and_files(box: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(BYTES)
    assert good("mailbox", "send", box, "-", stdin=BYTES).endswith(" 1")
    assert good("mailbox", "send", box, "--file", "in", "--priority", "urgent").endswith(" 2")
    assert call("mailbox", "read", box, "1").stdout_bytes == BYTES
    assert good("mailbox", "read", box, "2", "-o", "out") == ""
    assert (tmp_path / "out").read_bytes() == BYTES
    received = call("mailbox", "receive", box, "--ack")
    assert (received.exit_code, received.stdout_bytes) == (0, BYTES)
    assert "payload_base64" in document("mailbox", "read", box, "1")
    for wrong in (("x", "--file", "in"), (), ("--file", "nothing-there")):
        assert call("mailbox", "send", box, *wrong).exit_code == 2, wrong


def test_options_of_a_message_and_a_list(box: str) -> None:
    words = ("--key", "k", "--tag", "a", "--tag", "b", "--header", "X=1", "--header", "X=2", "--ttl", "1h")
    sent = json.loads(good("mailbox", "send", box, "hi", *words, "--idempotency-key", "i", "--json"))
    again = good("mailbox", "send", box, "hi", "--idempotency-key", "i")
    assert again == f"{sent['id']} 1 sent before"
    found = document("mailbox", "read", box, "1")
    assert (found["payload"], found["headers"], found["tags"]) == ("hi", {"X": ["1", "2"]}, ["a", "b"])
    assert good("mailbox", "send", box, "later", "--delay", "1h").endswith(" delayed")
    [listed] = document("mailbox", "read", box, "--tag", "b")["items"]
    assert listed["seq"] == 1 and "payload" not in listed
    assert document("mailbox", "read", box, "--tag", "c")["items"] == []
    assert good("message", "trace", sent["id"]).split()[1] == "sent"
    assert document("message", "trace", sent["id"])["mailbox"] == box
    assert call("message", "trace", "msg_nothing").exit_code == 3


def test_take_give_back_acknowledge(box: str) -> None:
    nothing = call("mailbox", "receive", box)
    assert (nothing.exit_code, nothing.stdout) == (1, "") and "there is no message" in nothing.stderr
    good("mailbox", "send", box, "work")
    taken = call("mailbox", "receive", box, "--wait", "5")
    assert taken.stdout == "work"
    lease = re.search(r"lease (\w+)", taken.stderr)[1]
    assert call("mailbox", "receive", box).exit_code == 1
    assert good("mailbox", "nack", lease) == f"{lease} given back"
    late = call("mailbox", "ack", lease)
    assert late.exit_code in (3, 4) and "error:" in late.stderr
    [again] = document("mailbox", "receive", box)["items"]
    assert again["attempt"] == 2
    assert document("mailbox", "ack", again["lease_id"])["settled"] == "ack"
    assert document("mailbox", "read", box)["items"] == []


def test_watch_shows_what_is_there_and_what_comes(box: str) -> None:
    good("mailbox", "send", box, "first\x1b[31m\nline")
    watch = [sys.executable, "-c", "from oah.cli.main import main; main()", "mailbox", "watch", box, "--json"]
    watching = subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    good("mailbox", "send", box, "second", "--priority", "critical")
    shown = call("mailbox", "watch", box, "--timeout", "1.5").stdout.splitlines()
    assert shown == ["2 critical: second", "1 normal: first [31m line"], "no control character reaches the terminal"
    assert call("mailbox", "watch", "nowhere", "--timeout", "1").exit_code == 3
    assert watching.stdout is not None
    seen = [watching.stdout.readline(), watching.stdout.readline()]
    good("mailbox", "delete", box, "--yes")
    out, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (0, "the mailbox is gone\n")
    assert sorted(json.loads(line)["payload"] for line in [*seen, *out.splitlines()]) == [
        "first\x1b[31m\nline",
        "second",
    ]


def test_delete_asks_before_it_takes_a_whole_mailbox(box: str) -> None:
    for text in "abc":
        good("mailbox", "send", box, text)
    assert call("mailbox", "delete", box, stdin="n\n").exit_code == 130
    assert good("mailbox", "delete", box, "2") == f"{box} 2 deleted"
    assert call("mailbox", "delete", box, "2").exit_code == 3
    assert call("mailbox", "purge", box, stdin="n\n").exit_code == 130
    assert call("mailbox", "purge", box, stdin="y\n").stdout == "2 message(s) deleted\n"


def test_refusals_have_exit_codes_and_one_line(box: str) -> None:
    for args, code in (
        (("mailbox", "send", "nowhere", "x"), 3),
        (("mailbox", "create", "Bad Name"), 2),
        (("mailbox", "send", box, "x", "--ttl", "400d"), 2),
        (("mailbox", "read", box, "7"), 3),
        (("mailbox", "read", box, "-o", "x"), 2),
        (("mailbox", "send", box, "x" * 1_048_577), 2),
    ):
        found = call(*args)
        assert (found.exit_code, found.stderr.count("\n")) == (code, 1), (args[:2], found.stderr)


# --- inside a run ----------------------------------------------------------------------------------------------------


def run_inside(system: Fleet, script: str, where: Path) -> str:
    """What a script prints that a shell agent runs."""
    path = where / "script.sh"
    path.write_text(f"set -eu\n{script}\n")
    client = system.client
    session = client.create_session("shell", cwd=str(where))["id"]
    done = client.wait(client.submit(session, f"bash {path}")["id"], timeout=90)
    output = client.output(done["id"])
    assert done["status"] == "completed" and done["exit_code"] == 0, (done["error"], output)
    return output


def test_the_lines_of_the_how_to_work_in_an_agent(system: Fleet, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "mailboxes.md").read_text()
    [lines] = re.findall(r"```sh\n(.*?)```", page, flags=re.S)
    output = run_inside(system, lines, tmp_path)
    assert output.count("etc/hostname") == 2, "read, and taken"
    assert '"settled":"ack"' in output
    assert output.rstrip().endswith('"group":"default","lease_seconds":30.0}')
    client = system.client
    left = [client.message("team.reviews", one["seq"]) for one in client.messages("team.reviews")]
    assert [one["payload"] for one in left] == [b"please look at the parser", b"which version?"]
    assert left[1]["headers"]["reply-to"][0].startswith("m-")
    assert all(one["sender"].startswith("run:") for one in left)
    client.delete_mailbox("team.reviews")


def test_two_agents_that_are_never_there_together(system: Fleet, tmp_path: Path) -> None:
    """One asks and ends; the other answers later, with the command and with Python."""
    client = system.client
    client.create_mailbox("questions")
    reply = client.create_mailbox()["address"]
    run_inside(system, f"printf 'six times seven' | {OAH} mailbox send questions - --header Reply-To={reply}", tmp_path)
    answer = """
from oah.client import OwnRun
with OwnRun() as run:
    [question] = run.mail.receive_messages("questions", wait=10)
    assert question["payload"] == b"six times seven", question
    run.mail.send_message(question["headers"]["Reply-To"][0], bytes([42, 0, 255]))
    run.mail.ack_message(question["lease_id"])
"""
    (tmp_path / "answer.py").write_text(answer)
    run_inside(system, f"{sys.executable} answer.py", tmp_path)
    client = system.client
    assert client.receive_messages(reply)[0]["payload"] == bytes([42, 0, 255])
    assert client.messages("questions") == []


def test_what_an_agent_may_not_is_refused_in_one_line(system: Fleet, tmp_path: Path) -> None:
    client = system.client
    box = client.create_mailbox()["address"]
    output = run_inside(system, f"{OAH} mailbox purge {box} --yes || echo exit $?", tmp_path)
    assert "error: the key has no scope 'run'" in output and "exit 4" in output


def test_messages_outlive_the_process() -> None:
    """kill -9 of the API: what was accepted is there afterwards, and the reader goes on where it was."""
    directory = Path(tempfile.mkdtemp(prefix="oah-m-", dir="/tmp"))
    env = {"OAH_MAIL__LEASE_SECONDS": "600"}
    with Fleet(directory / "d", api_with_workers=True, redis_url="memory://", env=env, starter=warm()) as fleet:
        client = fleet.client
        box = client.create_mailbox()["address"]
        for number in range(20):
            client.send_message(box, str(number))
        [held] = client.receive_messages(box)
        got: list[bytes] = []

        def read() -> None:
            for message in client.subscribe(box, timeout=90):
                got.append(message["payload"])
                if len(got) == 21:
                    return

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        eventually(lambda: len(got) == 20)
        fleet.kill("api")
        fleet.restart("api")
        fleet.wait_ready(within=60)
        client.ack_message(held["lease_id"])
        client.send_message(box, "20")
        reader.join(60)
        assert got == [str(number).encode() for number in range(21)], "nothing lost, nothing twice"
        assert [one["payload"] for one in client.receive_messages(box, limit=50)] == got[1:]
    shutil.rmtree(directory, ignore_errors=True)
