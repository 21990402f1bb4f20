"""Foretelling who goes: against the order of a ReplicaSet's controller, with chance where it has the choice."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oah.adapters.kubernetes.pods import FIRST_TO_GO, endangered, pods_of

COST = "controller.kubernetes.io/pod-deletion-cost"


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {
                "name": f"w-7c9f-{number}",
                "annotations": draw(st.sampled_from([{}, {COST: "-5"}, {COST: "7"}, {COST: FIRST_TO_GO}, {COST: "x"}])),
                "ownerReferences": [{"kind": "ReplicaSet", "name": "w-7c9f", "controller": True}],
            },
            "spec": draw(st.sampled_from([{}, {"nodeName": "n"}, {"nodeName": "n"}])),
            "status": {
                "phase": draw(st.sampled_from(["Pending", "Running", "Running", "Unknown"])),
                "conditions": [{"type": "Ready", "status": draw(st.sampled_from(["True", "True", "False"]))}],
            },
        }
        for number in range(draw(st.integers(1, 7)))
    ]


def by_the_controller(found: list[dict[str, Any]], keep: int, chance: list[int]) -> set[str]:
    """Whom it ends: kubernetes/pkg/controller, ActivePodsWithRanks, up to the deletion cost."""

    def order(pair: tuple[dict[str, Any], int]) -> tuple[Any, ...]:
        pod, luck = pair
        cost = (pod["metadata"]["annotations"] or {}).get(COST, "0")
        phase = {"Pending": 0, "Unknown": 1, "Running": 2}[pod["status"]["phase"]]
        ready = pod["status"]["conditions"][0]["status"] == "True"
        return "nodeName" in pod["spec"], phase, ready, int(cost) if cost != "x" else 0, luck

    ordered = sorted(zip(found, chance, strict=True), key=order)
    return {pod["metadata"]["name"] for pod, _ in ordered[: max(len(found) - keep, 0)]}


@given(st.data())
def test_nobody_goes_who_was_not_foretold(data: st.DataObject) -> None:
    found = data.draw(documents())
    names = [each["metadata"]["name"] for each in found]
    victims = frozenset(data.draw(st.sets(st.sampled_from(names))))
    keep = data.draw(st.integers(0, len(found) + 1))
    pods = pods_of(found, kind="Deployment", name="w")
    in_danger = {pod.name for pod in endangered(pods, keep=keep, victims=victims)}
    for each in found:
        if each["metadata"]["name"] in victims:
            each["metadata"]["annotations"] = {COST: FIRST_TO_GO}
        elif each["metadata"]["annotations"] == {COST: FIRST_TO_GO}:
            each["metadata"]["annotations"] = {}
    gone = by_the_controller(found, keep, data.draw(st.permutations(range(len(found)))))
    assert gone <= victims | in_danger
    if len(victims) == len(found) or keep >= len(found):
        assert not in_danger


@given(documents())
def test_victims_that_are_ready_among_ready_ones_endanger_nobody(found: list[dict[str, Any]]) -> None:
    for each in found:
        each["spec"] = {"nodeName": "n"}
        each["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        each["metadata"]["annotations"] = {}
    pods = pods_of(found, kind="Deployment", name="w")
    victims = frozenset(pod.name for pod in pods[::2])
    assert not endangered(pods, keep=len(pods) - len(victims), victims=victims)
    assert bool(endangered(pods, keep=len(pods) - len(victims) - 1, victims=victims)) == (len(pods) > len(victims))
