"""Laws that every policy keeps, whatever happens; where the default's own decision differs, it is exempt by name."""

import json
import math
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_protocol.messages import Heartbeat, HopTiming
from meshnet_tracker.errors import NoRouteError, RouteUnavailableError
from meshnet_tracker.fleet import HeartbeatReceived, NodeSuspected
from meshnet_tracker.policies.adaptive import AdaptivePolicy
from meshnet_tracker.policies.node_beliefs import DISTRUSTED_S_MAX, NodeBelief
from meshnet_tracker.routing_stats import DecisionMode
from meshnet_tracker.routing_table import routing_table
from routing.policy_mesh import Mesh, every_policy, instances, learns_from_failures, whole_mesh

any_seconds = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0.01, 100))
any_tokens = st.integers(-2, 10**12)
actions = st.lists(
    st.tuples(
        st.sampled_from(["choose", "choose", "complete", "fail", "abort", "join", "leave", "beat", "suspect", "step"]),
        st.integers(0, 5),
        any_seconds,
        any_tokens,
    ),
    max_size=60,
)
SHARDS = ("0-11", "0-5", "6-11", "6-11", "0-5", "0-11")


@every_policy
@settings(max_examples=60)
@given(actions)
def test_no_history_raises_leaks_a_reservation_or_shows_what_is_no_json(
    policy: str, history: list[tuple[str, int, float, int]]
) -> None:
    mesh = Mesh(policy)
    mesh.join("n0", SHARDS[0])
    for action, index, seconds, tokens in history:
        act(mesh, action, index, seconds, tokens)
        live = {node.node_id for node in mesh.fleet.nodes()}
        table = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)
        json.loads(msgspec.json.encode(table), parse_constant=pytest.fail)
        assert mesh.router.in_flight_total == len(mesh.held)
        for arm in table["models"][0]["candidates"]:
            assert {hop["node_id"] for hop in arm["hops"]} <= live, "a departed node is no candidate"
    for decision in list(mesh.held):
        mesh.end(decision)
    table = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)
    assert [arm["in_flight"] for arm in table["models"][0]["candidates"]] == [0] * len(table["models"][0]["candidates"])
    if isinstance(mesh.router.policy, AdaptivePolicy):
        assert mesh.router.policy.in_flight() == 0


def act(mesh: Mesh, action: str, index: int, seconds: float, tokens: int) -> None:  # noqa: C901 - a list of cases
    decision = mesh.held[index % len(mesh.held)] if mesh.held else None
    match action:
        case "choose":
            try:
                chosen = mesh.choose(prompt_tokens=tokens if tokens > 0 else None)
            except NoRouteError:
                return
            assert all(mesh.fleet.node(node_id) is not None for node_id in chosen.route.node_ids)
        case "complete" if decision is not None:
            timing = HopTiming(node_id=decision.route.node_ids[0], compute_s=seconds, link_s=-seconds)
            mesh.router.observe(
                decision,
                completion_tokens=tokens,
                seconds=seconds,
                now=mesh.now,
                prompt_tokens=max(0, tokens),
                ttft_s=seconds,
                timings=[timing] * (index % 2),
            )
            mesh.end(decision)
        case "fail" if decision is not None:
            mesh.end(decision, fails=True)
        case "abort" if decision is not None:
            mesh.end(decision)
        case "join":
            mesh.join(f"n{index}", SHARDS[index], min(1e6, max(1e-3, abs(seconds))) if math.isfinite(seconds) else 1.0)
        case "leave" if index > 0:
            mesh.leave(f"n{index}")
        case "beat":
            for node in mesh.fleet.nodes():
                beat = Heartbeat(
                    node_id=node.node_id,
                    incarnation=node.registration.incarnation,
                    queue_depth=index,
                    entry_layers=node.registration.entry_layers,
                )
                mesh.fleet.handle(HeartbeatReceived(beat), mesh.now)
        case "suspect":
            for node in list(mesh.fleet.nodes())[:index]:
                mesh.fleet.handle(NodeSuspected(node.node_id), mesh.now)
        case "step":
            mesh.now = max(0.0, mesh.now + (seconds if math.isfinite(seconds) and abs(seconds) < 1e7 else -50.0))


@every_policy
def test_a_departed_node_is_never_chosen_not_even_pinned(policy: str) -> None:
    mesh = whole_mesh(policy, "stays", "goes")
    mesh.run({"stays": 2.0, "goes": 1.0}, 20)
    gone = next(node.node_id for node in mesh.fleet.nodes() if node.registration.instance == "goes")
    mesh.leave("goes")

    assert set(mesh.run({"stays": 2.0}, 20)) == {"stays"}
    with pytest.raises(RouteUnavailableError):
        mesh.choose(pinned=[gone])


@every_policy
def test_a_retry_takes_a_route_that_was_not_tried(policy: str) -> None:
    mesh = Mesh(policy)
    for name, layers in (("h1", "0-5"), ("h2", "0-5"), ("t1", "6-11"), ("t2", "6-11")):
        mesh.join(name, layers)
    first = mesh.choose()
    second = mesh.choose(exclude={first.signature})
    third = mesh.choose(exclude={first.signature, second.signature})

    assert len({first.signature, second.signature, third.signature}) == 3


@learns_from_failures
def test_a_retry_avoids_every_node_that_may_have_failed_if_it_can(policy: str) -> None:
    mesh = Mesh(policy)
    for name, layers in (("h1", "0-5"), ("h2", "0-5"), ("t1", "6-11"), ("t2", "6-11")):
        mesh.join(name, layers)
    first = mesh.choose()
    mesh.end(first, fails=True)
    assert not set(instances(mesh.choose(exclude={first.signature}))) & set(instances(first))


@learns_from_failures
def test_a_node_that_fails_fast_gets_next_to_nothing_and_is_tried_again_when_its_time_is_over(policy: str) -> None:
    mesh = whole_mesh(policy, "good", "bad")
    taken = mesh.run({"good": 1.0, "bad": 0.05}, 400, fails=("bad",))
    assert taken[20:].count("bad") <= 4

    mesh.now += DISTRUSTED_S_MAX
    healed = mesh.run({"good": 1.0, "bad": 0.2}, 200)
    assert healed[-20:].count("bad") >= 15, "every penalty ends with time"


@learns_from_failures
def test_with_every_node_put_aside_the_least_bad_serves_and_says_so(policy: str) -> None:
    mesh = whole_mesh(policy, "only")
    mesh.run({"only": 1.0}, 5, fails=("only",))

    decision = mesh.choose()

    assert instances(decision) == ["only"]
    assert decision.reason.startswith("least bad")


@learns_from_failures
def test_an_unproven_node_gets_its_first_request_soon_and_only_one_at_a_time(policy: str) -> None:
    mesh = whole_mesh(policy, "old")
    mesh.run({"old": 1.0}, 30)
    mesh.join("new", "0-11", 1.0)
    scouts: list[float] = []
    for _ in range(90):
        mesh.now += 1.0
        decision = mesh.choose()
        if instances(decision) == ["new"]:
            scouts.append(mesh.now)
            assert decision.mode is DecisionMode.SCOUT
        else:
            mesh.end(decision, seconds=1.0)
    assert len(scouts) == 1, "the first one is still out"
    assert scouts[0] < 100 + 30 + 60


@learns_from_failures
def test_a_first_request_whose_client_left_is_repeated_soon(policy: str) -> None:
    mesh = whole_mesh(policy, "old")
    mesh.run({"old": 1.0}, 30)
    mesh.join("new", "0-11", 1.0)
    firsts: list[int] = []
    for number in range(60):
        mesh.now += 1.0
        decision = mesh.choose()
        is_first = instances(decision) == ["new"]
        firsts += [number] * is_first
        mesh.end(decision, seconds=None if is_first else 1.0)
    assert len(firsts) >= 2
    assert firsts[1] - firsts[0] <= 5


@learns_from_failures
def test_the_table_says_of_every_arm_why_it_is_taken_or_not(policy: str) -> None:
    mesh = whole_mesh(policy, "fast", "slow", "bad")
    mesh.run({"fast": 1.0, "slow": 3.0, "bad": 0.1}, 150, fails=("bad",))
    mesh.join("new", "0-11", 1.0)
    (entry,) = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)["models"]
    reasons = {signature.split("| ")[1].split(".")[0]: e["reason"] for signature, e in entry["explanations"].items()}

    assert reasons["fast"] == "quickest"
    assert reasons["slow"] == "another route is quicker now"
    assert "failed lately: only trials for" in reasons["bad"]
    assert reasons["new"].endswith("waits for its first request")


@learns_from_failures
def test_a_join_leaves_what_is_known_of_others_alone(policy: str) -> None:
    mesh = whole_mesh(policy, "a", "b")
    mesh.run({"a": 1.0, "b": 2.0}, 40)
    mesh.join("c", "0-11")
    (entry,) = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)["models"]
    statuses = {arm["hops"][0]["node_id"].split(".")[0]: arm["status"] for arm in entry["candidates"]}

    assert statuses == {"a": "proven", "b": "proven", "c": "unsampled"}


@every_policy
def test_a_client_that_leaves_changes_nothing_but_the_count(policy: str) -> None:
    mesh = whole_mesh(policy, "a")
    mesh.run({"a": 1.0}, 10)
    before = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)

    mesh.end(mesh.choose())

    after = routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)
    assert after["models"][0]["explanations"] == before["models"][0]["explanations"]


@every_policy
def test_to_look_at_the_table_changes_no_decision(policy: str) -> None:
    """A dashboard asks every few seconds, and must not use up the trials and first requests that are due."""
    unseen, seen = whole_mesh(policy, "good", "bad"), whole_mesh(policy, "good", "bad")
    taken: list[list[str]] = []
    for mesh in (unseen, seen):
        names = []
        for number in range(500):
            if number == 250:
                mesh.join("slow", "0-11", 10.0)
            if mesh is seen:
                routing_table(mesh.router, mesh.stats, [mesh.model], mesh.now)
            names += mesh.run({"good": 1.0, "bad": 0.05, "slow": 9.0}, 1, fails=("bad",))
        taken.append(names)
    assert taken[0] == taken[1]
    if policy != "proportional":  # which goes to the fastest, and to one that fails it is the fastest
        assert taken[0][250:].count("slow") > 0


@learns_from_failures
def test_equal_nodes_are_taken_in_no_fixed_order(policy: str) -> None:
    first = set()
    for seed in range(12):
        mesh = whole_mesh(policy, "a", "b", "c", "d")
        mesh.router.rng = Random(seed)
        first.add(instances(mesh.choose())[0])
    assert len(first) > 1


def test_a_heartbeat_leaves_the_count_of_a_node_alone_and_a_restart_begins_at_nothing() -> None:
    mesh = whole_mesh("adaptive", "a")
    policy = mesh.router.policy
    assert isinstance(policy, AdaptivePolicy)
    late = mesh.choose()
    act(mesh, "beat", 5, 0.0, 0)
    assert policy.in_flight() == 1

    mesh.join("a", "0-11")
    fresh = mesh.choose()
    assert policy.in_flight() == 1, "what runs on the old process does not count for the new one"
    mesh.end(late)
    assert policy.in_flight() == 1
    mesh.end(fresh)
    assert policy.in_flight() == 0


@given(st.lists(st.tuples(st.floats(1e-9, 1e9), st.floats(-10, 1e5)), max_size=40))
def test_a_belief_is_always_a_number(samples: list[tuple[float, float]]) -> None:
    belief = NodeBelief(0.0)
    now = 0.0
    for pace_s, step_s in samples:
        now += step_s
        belief.observe(pace_s, now, 600.0)
        assert math.isfinite(belief.log_pace(now, 600.0))
        assert 0 < belief.deviation(now, 600.0) < math.inf
        assert 0 < belief.base_s(now, 600.0) < math.inf


def test_an_odd_sample_moves_a_belief_little_and_three_are_believed() -> None:
    belief = NodeBelief(0.0)
    for second in range(20):
        belief.observe(1.0, float(second), 600.0)
    belief.observe(5.0, 21.0, 600.0)
    assert math.exp(belief.log_pace(21.0, 600.0)) < 1.1

    belief.observe(5.0, 22.0, 600.0)
    belief.observe(5.0, 23.0, 600.0)
    assert math.exp(belief.log_pace(23.0, 600.0)) > 3.5
