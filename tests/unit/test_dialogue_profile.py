"""Profiles: what is accepted, what is refused with which words, what ships."""

from datetime import timedelta
from pathlib import Path

import pytest

from oah.adapters.pty.profiles import load_profiles
from oah.core.dialogue.profile import Kind, parse_profile
from oah.core.model.retry import RetryWish
from oah.core.model.run import RecoveryStrategy
from oah.errors import InvalidRequest
from tests.support.terminals import TESTING_AGENTS

GOOD = 'name = "x"\nkind = "marker"\nargv = ["x"]\ninject = "{turn}"\n'


def test_a_profile_is_what_its_file_says() -> None:
    profile = parse_profile(GOOD + 'ready_seconds = 1.5\nrows = 10\n[env]\nA = "b"\n', source="x.toml")
    assert (profile.kind, profile.argv, profile.rows, dict(profile.env)) == (Kind.MARKER, ("x",), 10, {"A": "b"})
    assert profile.ready == timedelta(seconds=1.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "x.toml"),
        ('name = "X"\nkind = "noop"', "lower case"),
        ('name = "x"\nkind = "magic"', "one of marker, command, noop"),
        ('name = "x"\nkind = "command"', "argv is missing"),
        ('name = "x"\nkind = "command"\nargv = "ls"', "list of strings"),
        ('name = "x"\nkind = "marker"\nargv = ["x"]\ninject = "go"', "{turn}"),
        (GOOD + "rows = -1", "rows must be a number"),
        (GOOD + "colour = 1", "unknown key 'colour'"),
        (GOOD + "[env]\nA = 1", "table of strings"),
        (GOOD + "recovery = 1", "recovery must be a table"),
        (GOOD + '[recovery]\nstrategy = "pray"', "one of fail, requeue_running, requeue_all"),
        (GOOD + "[recovery]\nmax_attempts = -1", "a whole number"),
        (GOOD + "[recovery]\nattempts = 1", "unknown key 'recovery.attempts'"),
        (GOOD + "retry = 3", "retry must be a table"),
        (GOOD + "[retry]\nmax_retries = -1", "max_retries must be 0 to 100"),
        (GOOD + '[retry]\non = ["cancelled"]', "cancelled is never retried"),
    ],
)
def test_a_bad_profile_is_refused_with_file_and_reason(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_profile(text, source="x.toml")
    assert caught.value.code == "invalid_profile"
    assert "x.toml" in str(caught.value)
    assert words in str(caught.value)


def test_a_profile_may_say_what_becomes_of_runs_whose_worker_is_lost() -> None:
    text = GOOD + '[recovery]\nstrategy = "requeue_all"\nmax_attempts = 0\n'
    profile = parse_profile(text, source="x.toml")
    assert (profile.recovery_strategy, profile.recovery_max_attempts) == (RecoveryStrategy.REQUEUE_ALL, 0)
    silent = parse_profile(GOOD, source="x.toml")
    assert (silent.recovery_strategy, silent.recovery_max_attempts) == (None, None)


def test_a_profile_may_say_what_is_tried_again() -> None:
    text = GOOD + '[retry]\nmax_retries = 2\ninitial_seconds = 0.5\non = ["exit_nonzero"]\n'
    wish = RetryWish(max_retries=2, initial=timedelta(seconds=0.5), on=frozenset({"exit_nonzero"}))
    assert parse_profile(text, source="x.toml").retry == wish
    assert parse_profile(GOOD, source="x.toml").retry == RetryWish()


def test_the_built_in_agents_ship() -> None:
    assert {"shell", "python", "exec", "noop"} <= set(load_profiles())


def test_a_later_profile_replaces_an_earlier(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "shell"\nkind = "command"\nargv = ["zsh", "-c", "{input}"]\n')
    profiles = load_profiles(TESTING_AGENTS, tmp_path, sections={"exec": {"kind": "noop"}})
    assert profiles["shell"].argv[0] == "zsh"
    assert profiles["exec"].kind is Kind.NOOP
    assert {"scripted", "ledger"} <= set(profiles)
