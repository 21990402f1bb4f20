"""The judge over ledgers: it must be able to fail."""

from pathlib import Path

from oah.testing.ledger import LedgerRun, Line, judge, read_ledger


def lines(run: str, attempt: int, first: int, last: int, *, session: str = "s") -> list[Line]:
    return [
        Line(session, run, attempt, number, at * 1_000_000, 7)
        for number, at in enumerate(range(first, last + 1, 20), 1)
    ]


def run(name: str, position: int, attempt: int = 1, **more: object) -> LedgerRun:
    return LedgerRun(run=name, session="s", position=position, attempt=attempt, **more)  # type: ignore[arg-type]


def kinds(found: object) -> list[str]:
    return [violation.kind for violation in found]  # type: ignore[attr-defined]


def test_attempts_one_after_the_other_are_fine() -> None:
    ledger = lines("a", 1, 0, 100) + lines("a", 2, 120, 200) + lines("b", 1, 220, 300)
    assert judge(ledger, [run("a", 1, attempt=2), run("b", 2)]) == []


def test_a_line_after_the_first_line_of_the_next_attempt_is_seen_whatever_rows_say() -> None:
    ledger = lines("a", 1, 0, 200) + lines("a", 2, 180, 300)
    found = judge(ledger, [run("a", 1, attempt=2)])
    assert kinds(found) == ["overlap"]
    assert "20.0 ms" in found[0].detail


def test_an_agent_that_outlives_two_successors_is_seen_twice() -> None:
    ledger = lines("a", 1, 0, 500) + lines("a", 2, 100, 200) + lines("b", 1, 300, 400)
    assert kinds(judge(ledger, [run("a", 1, attempt=2), run("b", 2)])) == ["overlap", "overlap"]


def test_sessions_do_not_disturb_each_other() -> None:
    ledger = lines("a", 1, 0, 300) + lines("b", 1, 100, 200, session="other")
    other = LedgerRun(run="b", session="other", position=1, attempt=1)
    assert judge(ledger, [run("a", 1), other]) == []


def test_runs_out_of_order_are_seen_unless_the_run_may() -> None:
    ledger = lines("b", 1, 0, 100) + lines("a", 1, 200, 300)
    assert kinds(judge(ledger, [run("a", 1), run("b", 2)])) == ["order"]
    assert judge(ledger, [run("a", 1, ordered=False), run("b", 2)]) == []


def test_a_recovered_run_keeps_its_place() -> None:
    ledger = lines("a", 1, 0, 100) + lines("b", 1, 120, 200) + lines("a", 2, 300, 400)
    assert kinds(judge(ledger, [run("a", 1, attempt=2), run("b", 2)])) == ["order"]


def test_attempts_that_sql_does_not_know_are_seen() -> None:
    assert kinds(judge(lines("a", 2, 0, 100), [run("a", 1, attempt=1, completed=False)])) == ["stranger"]
    assert kinds(judge(lines("x", 1, 0, 100), [])) == ["stranger"]


def test_a_completed_run_must_have_lived() -> None:
    assert kinds(judge([], [run("a", 1)])) == ["no-trace"]
    assert judge([], [run("a", 1, completed=False)]) == []


def test_torn_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text('{"session":"s","run":"a","attempt":1,"number":1,"at":5,"pid":7}\n[]\n{"session":"s","ru')
    assert read_ledger(path) == [Line("s", "a", 1, 1, 5, 7)]
    assert read_ledger(tmp_path / "missing") == []
