"""Laws of what is learnt: failures never help, nothing is infinite, long answers and long prompts are told apart."""

import math
from typing import Any

import pytest

from meshnet_tracker.bench.contenders import CONTENDERS
from meshnet_tracker.bench.simulator import Simulation
from meshnet_tracker.bench.traffic import make_requests
from meshnet_tracker.bench.worlds import Change, World, make_world
from meshnet_tracker.errors import NoRouteError
from meshnet_tracker.policies.adaptive import AdaptivePolicy
from meshnet_tracker.policies.node_beliefs import NodeBelief
from meshnet_tracker.policies.sharing_out import _learn_prompt_shares
from meshnet_tracker.route_policy import Completion
from meshnet_tracker.routing_table import routing_table
from routing.policy_mesh import Mesh, every_policy, instances, learns_from_failures, whole_mesh


def explanations(mesh: Mesh) -> dict[str, dict[str, Any]]:
    """By the instance of the route's only node."""
    (entry,) = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)["models"]
    return {
        arm["hops"][0]["node_id"].split(".")[0]: entry["explanations"][arm["signature"]] for arm in entry["candidates"]
    }


def rows(mesh: Mesh) -> list[dict[str, Any]]:
    (entry,) = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)["models"]
    candidates: list[dict[str, Any]] = entry["candidates"]
    return candidates


@every_policy
@pytest.mark.parametrize("times", [1, 5])
def test_a_failure_never_improves_an_arm(policy: str, times: int) -> None:
    mesh = whole_mesh(policy, "a", "b")
    mesh.run({"a": 1.0, "b": 2.0}, 60)
    before = explanations(mesh)["b"]
    b = next(node.node_id for node in mesh.fleet.nodes() if node.registration.instance == "b")
    for _ in range(times):
        mesh.end(mesh.choose(pinned=[b]), fails=True)
    after = explanations(mesh)["b"]

    assert after["expected_tps"] <= before["expected_tps"]
    assert after["probability"] <= before["probability"]


@every_policy
def test_what_was_never_measured_is_believed_by_a_finite_prior(policy: str) -> None:
    mesh = whole_mesh(policy, "known", speed=500.0)
    mesh.run({"known": 1.0}, 20)
    mesh.join("new", "0-11", 1e6)
    arms = {arm["hops"][0]["node_id"].split(".")[0]: arm for arm in rows(mesh)}

    assert 0 < arms["new"]["prior_tps"] < math.inf
    assert arms["new"]["tps"] is None, "a prior is no measurement"
    expected = explanations(mesh)["new"]["expected_tps"]
    assert expected is None or 0 < expected < math.inf


@every_policy
def test_every_attempt_is_credited_to_its_own_arm(policy: str) -> None:
    mesh = whole_mesh(policy, "a", "b")
    first = mesh.choose()
    second = mesh.choose(exclude={first.signature})
    mesh.end(first, fails=True)
    mesh.end(second, seconds=1.0)
    samples = {arm["signature"]: arm["samples"] for arm in rows(mesh)}

    assert samples == {first.signature: 0, second.signature: 1}


@pytest.mark.parametrize("output_tokens", [20, 200, 2000])
def test_the_length_of_an_answer_says_nothing_about_the_time_to_its_first_token(output_tokens: int) -> None:
    """A prompt token costs a tenth of a drawn one here, however many are drawn."""
    belief = NodeBelief(0.0)
    step_s, prompt_tokens = 0.05, 300
    ttft_s = 0.1 * step_s * prompt_tokens
    for _ in range(200):
        done = Completion(output_tokens, ttft_s + step_s * output_tokens, prompt_tokens, ttft_s)
        _learn_prompt_shares((belief,), done)
    assert belief.prompt_share == pytest.approx(0.1, rel=0.01)


@learns_from_failures
def test_who_is_slow_pays_and_who_is_dead_is_left(policy: str) -> None:
    slow = whole_mesh(policy, "good", "other")
    slow.run({"good": 1.0, "other": 1.0}, 20)
    slow.run({"good": 1.0, "other": 8.0}, 60)
    dead = whole_mesh(policy, "good", "other")
    dead.run({"good": 1.0, "other": 1.0}, 20)
    dead.run({"good": 1.0, "other": 1.0}, 60, fails=("other",))
    taken = [instances(slow.choose())[0] for _ in range(24)]
    left = [instances(dead.choose())[0] for _ in range(24)]

    assert "other" in taken, "slow is better than a crowd of 24"
    assert "other" not in left, "and what is dead is not"


NASTY = (
    Change(2.0, "slow", "s0n1", 6.0),
    Change(4.0, "truncate", "s1n0"),
    Change(6.0, "down", "s2n1"),
    Change(8.0, "fail-fast", "s0n2"),
    Change(9.0, "clock", factor=-3600.0),
    Change(10.0, "up", "s2n1"),
    Change(12.0, "leave", "s0n0"),
    Change(14.0, "clock", factor=7200.0),
    Change(16.0, "down", "s1n1"),
    Change(16.0, "down", "s1n2"),
    Change(19.0, "up", "s1n1"),
)


@pytest.mark.parametrize("name", CONTENDERS)
def test_no_policy_of_the_bench_loses_a_request_or_a_reservation_or_takes_who_is_gone(name: str) -> None:
    world = make_world("B", "stationary", seed=2, duration_s=30)
    world = World("B", "nasty", world.nodes, NASTY, load=0.6)
    requests = make_requests(world, seed=2, duration_s=30)
    simulation = Simulation(world, requests, CONTENDERS[name], seed=2)
    router, choose = simulation.router, simulation.router.choose
    retried: list[bool] = []

    def watched(*args: object, **how: object) -> object:
        decision = choose(*args, **how)  # type: ignore[arg-type]
        assert all(node_id in simulation.model.nodes for node_id in decision.route.node_ids)
        if exclude := how.get("exclude"):
            retried.append(decision.signature in exclude)  # type: ignore[operator]
        return decision

    router.choose = watched  # type: ignore[method-assign, assignment]
    record = simulation.run(3000.0)

    assert {asked.outcome for asked in record.asked} <= {"completed", "aborted", "failed"}
    assert any(asked.outcome == "completed" for asked in record.asked)
    assert router.in_flight_total == 0
    assert retried
    assert not any(retried), "a retry never takes an arm that failed it"
    if isinstance(router.policy, AdaptivePolicy):
        assert router.policy.in_flight() == 0


@every_policy
def test_with_nobody_left_there_is_an_error_and_no_leak(policy: str) -> None:
    mesh = whole_mesh(policy, "a")
    decision = mesh.choose()
    with pytest.raises(NoRouteError):
        mesh.choose(exclude={decision.signature})
    mesh.end(decision)
    assert mesh.router.in_flight_total == 0
