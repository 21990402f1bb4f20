"""Election by a Lease, against an API server that is strict; clocks are the test's."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from oah.adapters.kubernetes.cluster import Cluster, ClusterOptions
from oah.adapters.kubernetes.lease import LeaseElection, micro_time
from oah.errors import Broken, OahError, Unavailable
from oah.runtime.election import Announced
from oah.runtime.leadership import Leadership
from tests.support import eventually
from tests.support.clock import StillClock
from tests.support.kube_api import Drip, KubeApi

LEASE = timedelta(seconds=15)
ELECTION = {"get leases.coordination.k8s.io", "create leases.coordination.k8s.io", "update leases.coordination.k8s.io"}


@pytest.fixture
def kube() -> Iterator[KubeApi]:
    with KubeApi().serving() as api:
        yield api


class Machine:
    """A process with clocks of its own: `skew` seconds beside everybody else's wall clock."""

    def __init__(self, kube: KubeApi, *, skew: float = 0, timeout: float = 5, token_file: Path | None = None) -> None:
        self.clock = Skewed(skew)
        options = ClusterOptions(
            api_url=kube.url, namespace="fleet", timeout=timedelta(seconds=timeout), token_file=token_file
        )
        self.cluster = Cluster(options, monotonic=self.clock.monotonic)
        self.election = LeaseElection(self.cluster, name="oah-controller", clock=self.clock)

    def lead(self, holder: str) -> bool:
        return self.election.lead(holder, lease=LEASE)

    def waits_in_vain(self) -> None:
        """As long as a request may take."""
        self.clock.seconds += 5


class Skewed(StillClock):
    def __init__(self, skew: float) -> None:
        super().__init__()
        self.skew = skew

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds + self.skew, UTC)


Make = Callable[..., Machine]


@pytest.fixture
def machine(kube: KubeApi) -> Iterator[Make]:
    made: list[Machine] = []

    def make(**how: object) -> Machine:
        made.append(Machine(kube, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.election.close()


@pytest.mark.parametrize(
    ("microsecond", "shown"), [(0, "12:00:00.000000Z"), (7, "12:00:00.000007Z"), (120_000, "12:00:00.120000Z")]
)
def test_a_micro_time_has_six_digits_whatever_they_are(microsecond: int, shown: str) -> None:
    moment = datetime(2026, 5, 1, 14, microsecond=microsecond, tzinfo=timezone(timedelta(hours=2)))
    assert micro_time(moment) == f"2026-05-01T{shown}"


def test_the_record_is_the_one_of_kubernetes(kube: KubeApi, machine: Make) -> None:
    first = machine()
    assert first.lead("a")
    spec = kube.get("leases", "oah-controller")["spec"]
    assert spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "1970-01-01T00:16:40.000000Z",
        "renewTime": "1970-01-01T00:16:40.000000Z",
        "leaseTransitions": 0,
    }
    first.clock.seconds += 5
    assert first.lead("a")
    renewed = kube.get("leases", "oah-controller")["spec"]
    assert renewed == spec | {"renewTime": "1970-01-01T00:16:45.000000Z"}
    assert first.election.leader() == "a"


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_server_that_answers_byte_by_byte_holds_nobody_for_longer_than_the_time_out(
    kube: KubeApi, machine: Make, where: str
) -> None:
    """A second for each byte, by the leader's clock: each wait is short, and the answer would be whole in the end."""
    slow = machine(timeout=5)

    def second() -> None:
        slow.clock.seconds += 1

    kube.on("GET .*/leases/", times=2)(lambda: Drip(where, 4, second))
    assert slow.cluster.lease("x")["metadata"]["name"] == ("" if where == "head" else "xxxx"), "slow, and in time"
    kube.tricks.clear()
    kube.on("GET .*/leases/")(lambda: Drip(where, 400, second))
    with pytest.raises(Unavailable) as caught:
        slow.lead("a")
    assert caught.value.code == "kubernetes_timeout"
    assert slow.lead("a"), "the next request has its own time, and another connection"


@pytest.mark.parametrize("skew", [-7200, 0, 7200])
def test_a_standby_takes_over_when_the_record_rests_for_its_duration_by_its_own_clock(
    machine: Make, skew: float
) -> None:
    first, second = machine(), machine(skew=skew)
    assert first.lead("a")
    assert not second.lead("b")
    second.clock.seconds += 14.9
    assert not second.lead("b")
    assert first.lead("a")
    second.clock.seconds += 0.2
    assert not second.lead("b"), "it was renewed"
    second.clock.seconds += 15.1
    assert second.lead("b")
    assert not first.lead("a")
    assert first.election.leader() == "b"


def test_a_takeover_is_counted(kube: KubeApi, machine: Make) -> None:
    first, second = machine(), machine(skew=60)
    first.lead("a")
    second.lead("b")
    second.clock.seconds += 15
    assert second.lead("b")
    spec = kube.get("leases", "oah-controller")["spec"]
    assert (spec["leaseTransitions"], spec["holderIdentity"]) == (1, "b")
    assert spec["acquireTime"] == spec["renewTime"] == "1970-01-01T00:17:55.000000Z"


def test_who_resigns_is_followed_at_once(kube: KubeApi, machine: Make) -> None:
    first, second = machine(), machine()
    first.lead("a")
    assert not second.lead("b")
    second.election.resign("b")
    assert first.election.leader() == "a", "only its holder gives it up"
    first.election.resign("a")
    assert kube.get("leases", "oah-controller")["spec"]["holderIdentity"] == ""
    assert first.election.leader() is None
    assert second.lead("b")


def test_of_two_that_take_over_at_once_one_gets_it(kube: KubeApi, machine: Make) -> None:
    first, second, third = machine(), machine(), machine()
    first.lead("a")
    for each, name in ((second, "b"), (third, "c")):
        each.lead(name)
        each.clock.seconds += 15
    kube.on("PUT .*leases")(lambda: third.lead("c") and None)
    assert not second.lead("b")
    assert kube.get("leases", "oah-controller")["spec"]["holderIdentity"] == "c"


def test_of_two_that_create_it_at_once_one_gets_it(kube: KubeApi, machine: Make) -> None:
    first, second = machine(), machine()
    kube.on("POST .*leases")(lambda: second.lead("b") and None)
    assert not first.lead("a")
    assert second.lead("b")


def test_a_record_that_somebody_labels_meanwhile_is_renewed_nevertheless(kube: KubeApi, machine: Make) -> None:
    first = machine()
    first.lead("a")

    def label() -> None:
        lease = kube.get("leases", "oah-controller")
        kube.put("leases", {**lease, "metadata": {**lease["metadata"], "labels": {"team": "x"}}})

    kube.on("PUT .*leases")(label)
    first.clock.seconds += 5
    assert first.lead("a")
    lease = kube.get("leases", "oah-controller")
    assert (lease["metadata"]["labels"], lease["spec"]["renewTime"]) == ({"team": "x"}, "1970-01-01T00:16:45.000000Z")
    kube.on("PUT .*leases", times=2)(label)
    with pytest.raises(Unavailable, match="faster"):
        first.lead("a")


def test_a_record_that_somebody_deletes_meanwhile_is_made_again(kube: KubeApi, machine: Make) -> None:
    first = machine()
    first.lead("a")
    kube.on("PUT .*leases")(lambda: kube.objects.pop(("leases", "oah-controller")) and None)
    assert first.lead("a")
    assert kube.get("leases", "oah-controller")["spec"]["holderIdentity"] == "a"
    kube.on("PUT .*leases")(lambda: kube.objects.pop(("leases", "oah-controller")) and None)
    first.election.resign("a")


def test_a_namespace_that_is_not_there_is_an_absence(kube: KubeApi, machine: Make) -> None:
    first = machine()
    kube.refuse("POST .*leases", 404)
    with pytest.raises(Unavailable) as caught:
        first.lead("a")
    assert (caught.value.code, caught.value.hint) == ("election_absent", "is there such a namespace?")
    assert first.lead("a")


@pytest.mark.parametrize(
    ("code", "headers", "retry_after"),
    [(429, {"Retry-After": "3"}, 3), (429, {}, 1), (500, {}, 1), (503, {"Retry-After": "86400"}, 4)],
)
def test_a_busy_server_is_an_absence(
    kube: KubeApi, machine: Make, code: int, headers: dict[str, str], retry_after: int
) -> None:
    first = machine()
    kube.refuse("leases", code, headers=headers)
    with pytest.raises(Unavailable) as caught:
        first.lead("a")
    assert caught.value.retry_after == timedelta(seconds=retry_after)
    asked = len(kube.requests)
    if headers:
        first.clock.seconds += retry_after - 0.5
        with pytest.raises(Unavailable, match="not asked yet"):
            first.lead("a")
        assert len(kube.requests) == asked, "it asked to be left alone"
        first.clock.seconds += 1
    assert first.lead("a")


def test_an_error_page_of_something_between_is_an_absence(kube: KubeApi, machine: Make) -> None:
    first = machine()
    pages = [
        (502, {"Content-Type": "text/html"}, b"<html>bad gateway</html>"),
        (503, {}, b""),
        (200, {"Content-Type": "text/html"}, b"<html>log in</html>"),
        (200, {"Content-Type": "application/json"}, b"[]"),
        (200, {"Content-Type": "application/json"}, b'{"metadata": null}'),
    ]
    for page in pages:
        kube.on("leases")(lambda page=page: page)
        with pytest.raises(Unavailable):
            first.lead("a")
    assert first.lead("a")


def test_a_server_that_hangs_costs_a_timeout_and_no_leadership_before_the_lease_ends(
    kube: KubeApi, machine: Make
) -> None:
    first = machine(timeout=5)
    leadership = Leadership(first.election, "a", clock=first.clock, lease=LEASE)
    leadership.campaign()
    assert leadership.leads()
    first.clock.seconds += 5
    kube.hang("PUT .*leases", passes=first.waits_in_vain)
    with pytest.raises(Unavailable, match="in time"):
        leadership.campaign()
    assert leadership.leads()
    kube.hang("GET .*leases", passes=first.waits_in_vain)
    with pytest.raises(Unavailable, match="in time"):
        leadership.campaign()
    assert not leadership.leads()


def test_a_renewal_whose_answer_was_lost_is_one(kube: KubeApi, machine: Make) -> None:
    first = machine(timeout=5)
    first.lead("a")

    def written_but_not_answered() -> Drip:
        first.clock.seconds += 1
        other = LeaseElection(first.cluster, name="oah-controller", clock=first.clock)
        assert other.lead("a", lease=LEASE)
        return Drip("head", 1, first.waits_in_vain, ends=False)

    kube.on("PUT .*leases")(written_but_not_answered)
    with pytest.raises(Unavailable):
        first.lead("a")
    assert first.lead("a")
    assert kube.get("leases", "oah-controller")["spec"]["leaseTransitions"] == 0


def test_a_role_that_was_forgotten_is_said_and_asked_for_again(kube: KubeApi, machine: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("controller")
    kube.rights = {"controller": {"get leases.coordination.k8s.io"}}
    first = machine(token_file=token)
    with pytest.raises(Unavailable, match="cannot create leases") as caught:
        first.lead("a")
    assert caught.value.hint
    kube.rights = {"controller": ELECTION}
    assert first.lead("a")


def test_a_token_that_was_rotated_is_read_again(kube: KubeApi, machine: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    kube.rights = {"old": ELECTION}
    first = machine(token_file=token)
    assert first.lead("a")
    kube.rights = {"new": ELECTION}
    with pytest.raises(Unavailable, match="401"):
        first.lead("a")
    token.write_text("new\n")
    assert first.lead("a")
    token.unlink()
    kube.rights = {"newest": ELECTION}
    with pytest.raises(Unavailable):
        first.lead("a")


def test_two_leaderships_hand_over(kube: KubeApi, machine: Make) -> None:
    """Loops and all: who stops gives it up, and the standby has it at its next look."""
    first, second = machine(), machine()
    leader = Leadership(first.election, "a", clock=first.clock, lease=LEASE)
    leader.start()
    eventually(leader.leads)
    standby = Leadership(second.election, "b", clock=second.clock, lease=LEASE)
    standby.campaign()
    assert not standby.leads()
    leader.stop(timedelta(0))
    assert leader.join(timedelta(seconds=10))
    standby.campaign()
    assert standby.leads()


def test_a_leader_that_is_asked_to_wait_for_long_keeps_its_lease(kube: KubeApi, machine: Make) -> None:
    first = machine()
    leadership = Leadership(first.election, "a", clock=first.clock, lease=LEASE)
    leadership.campaign()
    first.clock.seconds += 5
    kube.refuse("leases", 429, headers={"Retry-After": "3600"})
    for _ in range(8):
        with contextlib.suppress(Unavailable):
            leadership.campaign()
        first.clock.seconds += 1
    assert leadership.leads()
    first.clock.seconds += 5
    assert leadership.leads(), "it was renewed meanwhile"


def test_who_won_without_hearing_of_it_gives_it_up_when_it_stops(kube: KubeApi, machine: Make) -> None:
    first, second = machine(timeout=5), machine()
    leader = Leadership(first.election, "a", clock=first.clock, lease=LEASE)

    def written_but_not_answered() -> Drip:
        second.lead("a")
        return Drip("head", 1, first.waits_in_vain, ends=False)

    kube.on("POST .*leases")(written_but_not_answered)
    leader.start()
    eventually(lambda: kube.objects.get(("leases", "oah-controller")))
    leader.stop(timedelta(0))
    assert leader.join(timedelta(seconds=10))
    assert kube.get("leases", "oah-controller")["spec"]["holderIdentity"] == ""


class Board:
    """Where the leader's name is read by others."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.error: OahError | None = None

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        if self.error:
            raise self.error
        self.holder = self.holder or holder
        return self.holder == holder

    def resign(self, holder: str) -> None:
        if self.error:
            raise self.error
        self.holder = None if self.holder == holder else self.holder

    def leader(self) -> str | None:
        return self.holder


def test_the_winner_is_announced_and_the_board_decides_nothing(machine: Make) -> None:
    first, second = machine(), machine()
    board = Board()
    a, b = Announced(first.election, board), Announced(second.election, board)
    assert a.lead("a", lease=LEASE)
    assert not b.lead("b", lease=LEASE)
    assert board.holder == a.leader() == "a"
    a.resign("a")
    assert board.holder is None
    board.holder = "somebody of yesterday"
    assert b.lead("b", lease=LEASE)
    board.error = Unavailable("away")
    assert b.lead("b", lease=LEASE)
    b.resign("b")
    board.error = Broken("it is another program's")
    assert a.lead("a", lease=LEASE)
    a.resign("a")
    assert b.lead("b", lease=LEASE)
