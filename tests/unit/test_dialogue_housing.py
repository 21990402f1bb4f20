"""Homes and bounds as a profile has them."""

from __future__ import annotations

import pytest

from oah.core.dialogue.housing import home_rules, limits
from oah.core.dialogue.profile import parse_profile
from oah.core.model.home import HomeMode, HomeRules
from oah.errors import InvalidRequest

PLAIN = 'name = "x"\nkind = "command"\nargv = ["true"]\n'


def test_what_a_profile_does_not_say_is_as_the_deployment_says() -> None:
    tables = parse_profile(PLAIN, source="x").tables
    assert home_rules(tables, HomeMode.ARCHIVED) == HomeRules(mode=HomeMode.ARCHIVED, same_cwd=False)
    assert limits(tables) == {"core_bytes": 0}


def test_what_it_says_goes_before() -> None:
    text = PLAIN + '[home]\nmode = "shared"\nexclude = ["packages"]\n[limits]\nopen_files = 99\ncore_bytes = 1\n'
    tables = parse_profile(text + '[resume]\nargv = ["-c"]\n', source="x").tables
    assert home_rules(tables, HomeMode.LOCAL) == HomeRules(mode=HomeMode.SHARED, exclude=("packages",))
    assert limits(tables) == {"open_files": 99, "core_bytes": 1}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ('[home]\nmode = "elsewhere"\n', "home.mode"),
        ("[home]\nplace = 1\n", "home.place"),
        ("[home]\nexclude = [1]\n", "home.exclude"),
        ("[limits]\nopenfiles = 1\n", "limits.openfiles"),
        ("[limits]\nopen_files = -1\n", "limits.open_files"),
        ("[limits]\nopen_files = true\n", "limits.open_files"),
    ],
)
def test_a_mistake_is_named(more: str, word: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_profile(PLAIN + more, source="x.toml")
    assert (error.value.code, word in error.value.message) == ("invalid_profile", True)
