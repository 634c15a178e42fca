"""Which chains fill the candidates up, and how an adaptive tracker uses the whole mesh, over real HTTP."""

from collections import Counter
from random import Random

import aiohttp
import pytest

from meshnet_protocol.ids import Incarnation, NodeId
from meshnet_protocol.messages import Leave
from meshnet_tracker.candidates import CandidateCache
from meshnet_tracker.chain_fill import FilledCandidates
from meshnet_tracker.errors import SettingsError
from meshnet_tracker.fleet import Fleet, NodeLeft, NodeRegistered, ServedModel
from meshnet_tracker.policies.adaptive import AdaptivePolicy
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore, RoutingConfig
from meshnet_tracker.routing_table import routing_table
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.testing import make_card, make_registration, running_head, running_tracker

CARD = make_card(layer_count=12)


def make_model(*nodes: tuple[str, str, float]) -> tuple[Fleet, ServedModel]:
    fleet = Fleet()
    for instance, layers, speed in nodes:
        registration = make_registration(instance, layers, model=CARD, layer_tokens_per_s=speed)
        fleet.handle(NodeRegistered(registration), now=0.0)
    return fleet, fleet.models()[0]


def ten_tails() -> tuple[Fleet, ServedModel]:
    return make_model(("head", "0-3", 4000.0), *((f"t{n}", "4-11", 800.0) for n in range(10)))


def test_ten_equal_tails_are_ten_candidates_if_the_cap_allows() -> None:
    _, model = ten_tails()
    candidates = FilledCandidates(limit=10).candidates(model)

    assert len({candidate.route.node_ids[1] for candidate in candidates}) == 10
    assert len(FilledCandidates(limit=8).candidates(model)) == 8


def test_the_greedy_candidate_of_each_head_stays_and_all_chains_are_listed_if_they_fit() -> None:
    _, model = make_model(("h1", "0-3", 900.0), ("h2", "0-3", 90.0), ("t1", "4-11", 800.0), ("t2", "4-11", 8.0))
    greedy = {c.signature for c in CandidateCache().candidates(model)}
    filled = FilledCandidates(limit=8).candidates(model)

    assert greedy < {c.signature for c in filled}
    assert len({c.signature for c in filled}) == 4
    assert [c.prior_tps for c in filled] == sorted((c.prior_tps for c in filled), reverse=True)
    assert FilledCandidates(limit=2).candidates(model)[0].signature in greedy


def test_ten_equal_tails_all_get_work_from_the_adaptive_policy() -> None:
    fleet, model = ten_tails()
    config = RoutingConfig()
    router = Router(
        fleet=fleet, stats=RouteStatsStore(config), config=config, rng=Random(1), policy=AdaptivePolicy(config=config)
    )
    decisions = [router.choose(model, now=1.0) for _ in range(40)]

    assert set(Counter(decision.route.node_ids[1] for decision in decisions).values()) == {4}


def test_routes_that_are_taken_beside_the_candidates_stand_in_the_table_too() -> None:
    fleet, model = ten_tails()
    config = RoutingConfig()
    stats = RouteStatsStore(config)
    router = Router(
        fleet=fleet,
        stats=stats,
        config=config,
        rng=Random(1),
        enumerate_routes=FilledCandidates(limit=2).candidates,
        policy=AdaptivePolicy(config=config),
    )
    assert len(routing_table(router, stats, [model], 1.0)["models"][0]["candidates"]) == 2
    for _ in range(40):
        router.choose(model, now=1.0)
    rows = routing_table(router, stats, [model], 1.0)["models"][0]["candidates"]

    assert len(rows) == 10
    assert sum(row["actual_share"] for row in rows) == pytest.approx(1.0)
    assert all(row["in_flight"] == 4 and row["prior_tps"] > 0 for row in rows)

    gone = rows[-1]["hops"][1]["node_id"]
    fleet.handle(NodeLeft(Leave(node_id=gone, incarnation=run_of(fleet, gone))), 2.0)
    rows = routing_table(router, stats, [model], 2.0)["models"][0]["candidates"]
    assert gone not in {hop["node_id"] for row in rows for hop in row["hops"]}


def run_of(fleet: Fleet, node_id: NodeId) -> Incarnation:
    node = fleet.node(node_id)
    assert node is not None
    return node.registration.incarnation


async def test_an_adaptive_tracker_serves_and_explains_itself() -> None:
    async with running_tracker(route_policy="adaptive") as tracker, running_head() as head:
        for name in ("a", "b"):
            tracker.register(name, "0-39", url=head.url)
        async with aiohttp.ClientSession() as http:
            for _ in range(6):
                chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
                async with http.post(f"{tracker.url}/v1/chat/completions", json=chat) as response:
                    assert response.status == 200
            async with http.get(f"{tracker.url}/v1/routing") as response:
                table = await response.json()

    (entry,) = table["models"]
    assert table["config"]["policy"] == "adaptive"
    assert sum(arm["expected_share"] for arm in entry["candidates"]) == pytest.approx(1.0)
    explained = entry["explanations"][entry["candidates"][0]["signature"]]
    assert set(explained) == {"probability", "expected_tps", "interval_tps", "age_s", "in_flight", "reason"}
    proven = [entry["explanations"][arm["signature"]] for arm in entry["candidates"] if arm["status"] == "proven"]
    assert proven
    assert all(low < arm["expected_tps"] < high for arm in proven for low, high in [arm["interval_tps"]])


@pytest.mark.parametrize(
    "knob", [{"route_policy": "best"}, {"route_candidates_max": 0}, {"route_candidates_max": 10**6}]
)
def test_a_wrong_policy_or_cap_is_refused_by_name(knob: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"--route-(policy|candidates-max)"):
        TrackerSettings(**knob)  # type: ignore[arg-type]
