"""What `oah up` makes of children that end before anything was ready."""

import pytest

from oah.cli.failures import Exit
from oah.cli.fleet import Death
from oah.cli.up import hopeless


@pytest.mark.parametrize(
    ("exit_code", "in_a_row", "ends"),
    [
        (2, 1, Exit.USAGE),
        (1, 1, None),
        (1, 2, None),
        (-9, 2, None),
        (1, 3, Exit.UNAVAILABLE),
        (-9, 3, Exit.UNAVAILABLE),
    ],
)
def test_refused_settings_and_the_third_death_in_a_row_are_the_end(
    exit_code: int, in_a_row: int, ends: Exit | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hopeless(Death("api", exit_code, in_a_row, 0.5, ())) is ends
    assert ("error: api" in capsys.readouterr().err) is (ends is not None)
