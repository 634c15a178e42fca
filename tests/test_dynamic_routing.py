"""The decision this project exists for (docs/adr, dynamic statistical routing), behaviour by behaviour.

Most of it is decided by plain code that is told the time and handed its dice; what the decision promises
over HTTP is tested over HTTP, on a real server with heads that have no model.
"""

import asyncio
import itertools
import json
from collections import Counter
from random import Random
from typing import Any

import aiohttp
import pytest

from meshnet_protocol.ids import NodeId, Signature
from meshnet_protocol.messages import Heartbeat, Leave
from meshnet_tracker.candidates import Candidate, enumerate_routes
from meshnet_tracker.errors import InvalidRouteError, NoRouteError, RouteUnavailableError, SettingsError
from meshnet_tracker.fleet import (
    Fleet,
    HeartbeatReceived,
    NodeLeft,
    NodeRegistered,
    NodeSuspected,
    ServedModel,
    TopologyChanged,
)
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import (
    ArmStatus,
    DecisionMode,
    RouteSample,
    RouteStatsStore,
    RoutingConfig,
    choose_route,
    expected_shares,
)
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.testing import PROMPT_TOKENS, make_card, make_registration, running_head, running_tracker

MODEL_KEY = make_card().model_key
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def make_fleet(*nodes: tuple[str, str, float, tuple[int, ...]]) -> tuple[Fleet, ServedModel]:
    """Nodes as (instance, layers, layer-tokens/s, entry layers), all of one model with 40 layers."""
    fleet = Fleet()
    for instance, layers, speed, entry_layers in nodes:
        registration = make_registration(instance, layers, layer_tokens_per_s=speed, entry_layers=entry_layers)
        fleet.handle(NodeRegistered(registration), now=0.0)
    model = fleet.model(MODEL_KEY)
    assert model is not None
    return fleet, model


def mixed_fleet() -> tuple[Fleet, ServedModel]:
    """A fast node with layers 0-21 beside a slow one with all 40, enterable at 22."""
    return make_fleet(("gpu", "0-21", 2200.0, ()), ("cpu", "0-39", 400.0, (22,)))


def make_router(fleet: Fleet, *, config: RoutingConfig | None = None, seed: int = 1) -> Router:
    config = config or RoutingConfig()
    return Router(fleet=fleet, stats=RouteStatsStore(config), config=config, rng=Random(seed))


def sample(candidate: Candidate, tps: float, *, tokens: int = 100, epoch: int = 0) -> RouteSample:
    return RouteSample(candidate.model_key, candidate.signature, tokens, tokens / tps, epoch)


def test_an_arm_learns_a_mean_whose_old_samples_weigh_less() -> None:
    stats = RouteStatsStore(RoutingConfig(stats_half_life_s=600))
    candidate = enumerate_routes(mixed_fleet()[1])[0]
    assert stats.observe(sample(candidate, 10.0), now=0.0)
    assert stats.observe(sample(candidate, 40.0), now=600.0)

    view = stats.view(MODEL_KEY, candidate.signature, now=600.0)

    assert view.mass == pytest.approx(1.5)
    assert view.tps == pytest.approx((10.0 * 0.5 + 40.0) / 1.5)
    assert view.sample_count == 2


def test_an_arm_decays_below_half_a_sample_and_is_proven_again_by_the_next_one() -> None:
    stats = RouteStatsStore(RoutingConfig(stats_half_life_s=600))
    candidate = enumerate_routes(mixed_fleet()[1])[0]
    stats.observe(sample(candidate, 10.0), now=0.0)

    assert stats.view(MODEL_KEY, candidate.signature, now=600.0).status is ArmStatus.PROVEN
    assert stats.view(MODEL_KEY, candidate.signature, now=601.0).status is ArmStatus.DECAYED
    stats.observe(sample(candidate, 10.0), now=602.0)
    assert stats.view(MODEL_KEY, candidate.signature, now=602.0).status is ArmStatus.PROVEN


def test_an_epoch_bump_makes_every_arm_stale_but_keeps_its_speed_until_it_is_measured_again() -> None:
    stats = RouteStatsStore(RoutingConfig())
    candidate = enumerate_routes(mixed_fleet()[1])[0]
    stats.observe(sample(candidate, 10.0), now=0.0)
    epoch = stats.bump_epoch(MODEL_KEY)

    stale = stats.view(MODEL_KEY, candidate.signature, now=0.0)
    assert stale.status is ArmStatus.STALE
    assert stale.tps == pytest.approx(10.0)

    stats.observe(sample(candidate, 10.0, epoch=epoch), now=1.0)
    assert stats.view(MODEL_KEY, candidate.signature, now=1.0).status is ArmStatus.PROVEN


def test_a_request_that_ran_across_a_change_of_topology_does_not_vouch_for_the_new_one() -> None:
    stats = RouteStatsStore(RoutingConfig())
    candidate = enumerate_routes(mixed_fleet()[1])[0]
    stats.bump_epoch(MODEL_KEY)

    assert stats.observe(sample(candidate, 10.0, epoch=0), now=1.0)

    assert stats.view(MODEL_KEY, candidate.signature, now=1.0).status is ArmStatus.STALE


def test_nearly_empty_answers_are_no_samples() -> None:
    stats = RouteStatsStore(RoutingConfig(min_sample_tokens=8))
    candidate = enumerate_routes(mixed_fleet()[1])[0]

    assert not stats.observe(sample(candidate, 1000.0, tokens=7), now=0.0)
    assert stats.view(MODEL_KEY, candidate.signature, now=0.0).status is ArmStatus.UNSAMPLED
    assert stats.observe(sample(candidate, 1000.0, tokens=8), now=0.0)


def test_an_arm_without_a_sample_for_a_day_is_forgotten() -> None:
    stats = RouteStatsStore(RoutingConfig())
    candidate = enumerate_routes(mixed_fleet()[1])[0]
    stats.observe(sample(candidate, 10.0), now=0.0)

    assert stats.prune(now=24 * 3600.0) == 0
    assert stats.prune(now=24 * 3600.0 + 1) == 1
    assert stats.view(MODEL_KEY, candidate.signature, now=24 * 3600.0 + 1).status is ArmStatus.UNSAMPLED


def proven_mixed(config: RoutingConfig) -> tuple[tuple[Candidate, ...], RouteStatsStore]:
    """The two arms of the mixed fleet, proven at 30 and 20 tokens/s."""
    candidates = enumerate_routes(mixed_fleet()[1])
    stats = RouteStatsStore(config)
    for candidate, tps in zip(candidates, (30.0, 20.0), strict=True):
        stats.observe(sample(candidate, tps), now=0.0)
    return candidates, stats


def test_traffic_splits_in_the_ratio_of_the_speeds_at_alpha_1() -> None:
    config = RoutingConfig(weight_alpha=1.0)
    candidates, stats = proven_mixed(config)
    rng = Random(20240)

    taken = Counter(choose_route(candidates, stats, config, rng, 0.0).candidate.signature for _ in range(4000))

    assert taken[candidates[0].signature] / 4000 == pytest.approx(0.6, abs=0.03)
    assert taken[candidates[1].signature] / 4000 == pytest.approx(0.4, abs=0.03)


def test_a_large_alpha_gives_the_fastest_arm_everything_without_overflow() -> None:
    config = RoutingConfig(weight_alpha=1e6)
    candidates, stats = proven_mixed(config)

    choices = {choose_route(candidates, stats, config, Random(n), 0.0).candidate.signature for n in range(50)}

    assert choices == {candidates[0].signature}
    assert expected_shares(candidates, stats, config, 0.0)[candidates[0].signature] == 1.0


def test_scouts_take_the_explore_share_of_the_traffic() -> None:
    config = RoutingConfig(explore_share=0.3)
    candidates = enumerate_routes(mixed_fleet()[1])
    stats = RouteStatsStore(config)
    stats.observe(sample(candidates[0], 30.0), now=0.0)
    rng = Random(7)

    choices = [choose_route(candidates, stats, config, rng, 0.0) for _ in range(4000)]

    scouts = [choice for choice in choices if choice.mode is DecisionMode.SCOUT]
    assert len(scouts) / 4000 == pytest.approx(0.3, abs=0.03)
    assert {choice.candidate.signature for choice in scouts} == {candidates[1].signature}
    assert {choice.reason for choice in scouts} == {"unsampled"}


def test_the_least_measured_arm_is_scouted_first_and_the_better_prior_breaks_ties() -> None:
    config = RoutingConfig(explore_share=1.0)
    _, model = make_fleet(*[(f"n{n}", "0-39", 400.0 + n, ()) for n in range(4)])
    candidates = enumerate_routes(model)
    stats = RouteStatsStore(config)
    stats.observe(sample(candidates[1], 10.0), now=0.0)
    stats.bump_epoch(MODEL_KEY)
    stats.observe(sample(candidates[0], 10.0, epoch=1), now=0.0)

    first = choose_route(candidates, stats, config, Random(1), 0.0).candidate
    assert first is candidates[2], "unsampled, and of a better prior than the other unsampled arm"

    for candidate in candidates[2:]:
        stats.observe(sample(candidate, 10.0, epoch=1), now=0.0)
    last = choose_route(candidates, stats, config, Random(1), 0.0)
    assert (last.candidate, last.reason) == (candidates[1], "stale")


def test_a_cold_start_takes_the_best_prior_every_time_and_rolls_no_dice() -> None:
    candidates = enumerate_routes(mixed_fleet()[1])
    rng = Random(1)
    before = rng.getstate()

    choices = [choose_route(candidates, RouteStatsStore(RoutingConfig()), RoutingConfig(), rng, 0.0) for _ in range(20)]

    assert {choice.candidate.signature for choice in choices} == {candidates[0].signature}
    assert {(choice.mode, choice.reason) for choice in choices} == {(DecisionMode.SCOUT, "cold-start")}
    assert rng.getstate() == before


def test_the_mixed_topology_has_two_routes_and_the_hybrid_is_as_slow_as_its_slowest_hop() -> None:
    candidates = {c.route.head.node_id.split(".")[0]: c for c in enumerate_routes(mixed_fleet()[1])}

    assert candidates["gpu"].prior_tps == pytest.approx(min(2200 / 22, 400 / 18))
    assert candidates["cpu"].prior_tps == pytest.approx(400 / 40)
    assert [str(hop.layers) for hop in candidates["gpu"].route.hops] == ["0-21", "22-39"]
    assert [str(hop.layers) for hop in candidates["cpu"].route.hops] == ["0-39"]


def test_a_queue_lowers_the_prior_of_every_route_through_it() -> None:
    fleet, model = mixed_fleet()
    cpu = next(node for node in fleet.nodes() if node.shard.last == 39)
    beat = Heartbeat(node_id=cpu.node_id, incarnation=cpu.registration.incarnation, queue_depth=3, entry_layers=(0, 22))
    fleet.handle(HeartbeatReceived(beat), now=0.5)

    assert {c.prior_tps for c in enumerate_routes(model)} == {400 / 18 / 4, 400 / 40 / 4}


def test_a_signature_names_model_nodes_and_shards() -> None:
    hybrid = enumerate_routes(mixed_fleet()[1])[0]
    gpu, cpu = hybrid.route.node_ids

    assert hybrid.signature == f"{MODEL_KEY} | {gpu}[0-21] -> {cpu}[0-39]"


def test_a_node_is_entered_only_where_it_says_it_is_cut() -> None:
    _, model = make_fleet(("gpu", "0-21", 2200.0, ()), ("cpu", "0-39", 400.0, ()))

    assert [c.route.head.node_id.split(".")[0] for c in enumerate_routes(model)] == ["cpu"]


def test_one_candidate_per_head_and_at_most_eight_by_prior() -> None:
    _, model = make_fleet(
        *[(f"h{n}", "0-21", 1000.0 + n, ()) for n in range(12)], ("tail", "22-39", 1e6, ()), ("tail2", "22-39", 1e5, ())
    )

    candidates = enumerate_routes(model)

    heads = [candidate.route.head.node_id.split(".")[0] for candidate in candidates]
    assert heads == [f"h{n}" for n in range(11, 3, -1)]
    assert {candidate.route.node_ids[1].split(".")[0] for candidate in candidates} == {"tail"}


def test_missing_layers_are_named() -> None:
    fleet, model = make_fleet(("a", "0-16", 400.0, ()), ("b", "30-39", 400.0, ()))
    with pytest.raises(NoRouteError, match=r"model tiny: layers 17-29 are held by no ready node"):
        enumerate_routes(model)
    with pytest.raises(NoRouteError, match="layers 17-29"):
        make_router(fleet).choose(model, now=0.0)

    _, headless = make_fleet(("b", "17-39", 400.0, ()))
    with pytest.raises(NoRouteError, match=r"no head: no ready node holds layer 0; layers 0-16 are held by no"):
        enumerate_routes(headless)

    _, uncut = make_fleet(("a", "0-16", 400.0, ()), ("b", "10-39", 400.0, ()))
    with pytest.raises(NoRouteError, match=r"layer 17 is held, but cannot be entered there yet: b\.\S+ \(enterable"):
        enumerate_routes(uncut)


def test_any_join_leave_or_shard_change_moves_the_epoch_and_a_heartbeat_does_not() -> None:
    fleet = Fleet()
    tail = make_registration("tail", "22-39")

    def reasons(*events: Any) -> list[str]:
        """Of the changes of topology that the events led to."""
        effects = [effect for event in events for effect in fleet.handle(event, now=0.0)]
        return [effect.reason for effect in effects if isinstance(effect, TopologyChanged)]

    beat = Heartbeat(node_id=tail.node_id, incarnation=tail.incarnation, queue_depth=1, entry_layers=(22,))
    moved = make_registration("tail", "20-39")
    assert reasons(NodeRegistered(tail)) == ["joined"]
    assert reasons(HeartbeatReceived(beat)) == []
    assert reasons(NodeRegistered(moved)) == ["shard-change", "shard-change"]
    assert reasons(NodeLeft(Leave(node_id=moved.node_id, incarnation=moved.incarnation))) == ["left"]


def test_a_pinned_route_bypasses_the_bandit_and_is_planned_hop_by_hop() -> None:
    fleet, model = mixed_fleet()
    gpu, cpu = (node.node_id for node in fleet.nodes())
    decision = make_router(fleet).choose(model, pinned=[gpu, cpu], now=0.0)

    assert decision.mode is DecisionMode.PINNED
    assert [(hop.start_layer, hop.end_layer) for hop in decision.planned_hops] == [(0, 21), (22, 39)]


@pytest.mark.parametrize(
    ("instances", "error", "message"),
    [
        (["cpu", "gpu"], InvalidRouteError, "cannot start at layer 40"),
        (["gpu"], InvalidRouteError, "ends at layer 21"),
        (["tail"], InvalidRouteError, "cannot start at layer 0"),
        (["gpu", "whole"], RouteUnavailableError, "cannot be entered at layer 22 yet"),
        (["gpu", "stranger"], InvalidRouteError, "never here"),
        (["gpu", "gone"], RouteUnavailableError, "has left"),
        (["gpu", "shy"], RouteUnavailableError, "not answering"),
        (["gpu", "flappy"], RouteUnavailableError, "settling"),
    ],
)
def test_a_pinned_route_that_cannot_run_is_refused(instances: list[str], error: type[Exception], message: str) -> None:
    fleet, model = make_fleet(
        ("gpu", "0-21", 2200.0, ()),
        ("cpu", "0-39", 400.0, (22,)),
        ("whole", "0-39", 1.0, ()),
        ("tail", "22-39", 1.0, ()),
        ("gone", "22-39", 1.0, ()),
        ("shy", "22-39", 1.0, ()),
        ("flappy", "22-39", 1.0, ()),
    )
    ids = {node.node_id.split(".")[0]: node.node_id for node in fleet.nodes()}
    gone = make_registration("gone", "22-39")
    fleet.handle(NodeLeft(Leave(node_id=gone.node_id, incarnation=gone.incarnation)), now=0.0)
    fleet.handle(NodeSuspected(ids["shy"]), now=0.0)
    model.nodes[ids["flappy"]].is_settling = True

    with pytest.raises(error, match=message):
        make_router(fleet).choose(model, pinned=[ids.get(name, NodeId(name)) for name in instances], now=0.0)


def test_a_twin_that_the_enumeration_passes_over_serves_as_greedy_fallback() -> None:
    fleet, model = make_fleet(("head", "0-21", 400.0, ()), ("tail", "22-39", 900.0, ()), ("twin", "22-39", 400.0, ()))
    router = make_router(fleet)
    (candidate,) = router.candidates(model)

    decision = router.choose(model, exclude={candidate.signature}, now=0.0)

    assert (decision.mode, decision.reason) == (DecisionMode.GREEDY_FALLBACK, "passed-over chain")
    assert [node_id.split(".")[0] for node_id in decision.route.node_ids] == ["head", "twin"]


def test_a_node_under_suspicion_serves_as_greedy_fallback_when_nothing_else_can() -> None:
    fleet, model = make_fleet(("only", "0-39", 400.0, ()))
    fleet.handle(NodeSuspected(next(fleet.nodes()).node_id), now=0.0)
    router = make_router(fleet)

    decision = router.choose(model, now=0.0)

    assert (decision.mode, decision.reason) == (DecisionMode.GREEDY_FALLBACK, "suspected node")
    with pytest.raises(NoRouteError):
        router.choose(model, exclude={decision.signature}, now=0.0)


def test_failing_statistics_cost_no_chat() -> None:
    class BrokenStats(RouteStatsStore):
        def view(self, *_: Any) -> Any:
            raise ArithmeticError("learnt nonsense")

    fleet, model = mixed_fleet()
    router = Router(fleet=fleet, stats=BrokenStats(RoutingConfig()), config=RoutingConfig(), rng=Random(1))

    decision = router.choose(model, now=0.0)

    assert decision.mode is DecisionMode.GREEDY_FALLBACK
    assert decision.reason == "statistics unavailable: ArithmeticError"
    assert decision.signature == router.candidates(model)[0].signature


def test_each_hop_earns_the_layers_it_really_runs() -> None:
    hybrid = enumerate_routes(mixed_fleet()[1])[0].route

    assert [hop.work_units(10) for hop in hybrid.hops] == [22 * 10, 18 * 10]


def test_the_knobs_have_exactly_the_documented_defaults() -> None:
    config = TrackerSettings().routing

    assert config == RoutingConfig(explore_share=0.3, weight_alpha=1.0, stats_half_life_s=600.0, min_sample_tokens=8)
    assert TrackerSettings().route_candidates_max == 8


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("route_explore_share", 1.5),
        ("route_explore_share", float("nan")),
        ("route_weight_alpha", -1.0),
        ("route_stats_half_life_s", 0.0),
        ("route_min_sample_tokens", 0),
        ("port", 70000),
        ("heartbeat_period_s", 0.0),
    ],
)
def test_a_wrong_knob_is_refused_by_name(knob: str, value: float) -> None:
    settings: dict[str, Any] = {knob: value}
    with pytest.raises(SettingsError, match=rf".*{value}"):
        TrackerSettings(**settings)


# What follows runs over real HTTP.


async def post_chat(url: str, **fields: Any) -> tuple[dict[str, Any], aiohttp.ClientResponse]:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=CHAT | fields) as response:
        return await response.json(), response


async def get_json(url: str) -> Any:
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return json.loads(await response.text(), parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


async def wait_for_event(url: str, name: str) -> dict[str, Any]:
    """The latest event of that name, as soon as there is one."""
    async with asyncio.timeout(5):
        while True:
            found = [e for e in (await get_json(f"{url}/v1/events"))["events"] if e["event"] == name]
            if found:
                return dict(found[-1])


async def test_the_chat_goes_to_the_routes_own_head_and_the_slow_node_starts_at_layer_22() -> None:
    async with running_tracker() as tracker, running_head() as gpu, running_head() as cpu:
        gpu_id = tracker.register("gpu", "0-21", url=gpu.url, layer_tokens_per_s=2200.0)
        cpu_id = tracker.register("cpu", "0-39", url=cpu.url, layer_tokens_per_s=400.0, entry_layers=(22,))

        _, response = await post_chat(tracker.url)

        assert response.status == 200
        assert (len(gpu.requests), len(cpu.requests)) == (1, 0)
        plan = gpu.requests[0].meshnet
        assert plan is not None
        spans = [(hop.node_id, hop.url, hop.start_layer, hop.end_layer) for hop in plan.hops]
        assert spans == [(gpu_id, gpu.url, 0, 21), (cpu_id, cpu.url, 22, 39)]
        assert response.headers["x-meshnet-route"] == f"{MODEL_KEY} | {gpu_id}[0-21] -> {cpu_id}[0-39]"


async def test_both_routes_get_measured_and_the_table_shows_them() -> None:
    async with (
        running_tracker(route_rng=Random(3), route_explore_share=0.5) as tracker,
        running_head() as gpu,
        running_head() as cpu,
    ):
        tracker.register("gpu", "0-21", url=gpu.url, layer_tokens_per_s=2200.0)
        tracker.register("cpu", "0-39", url=cpu.url, layer_tokens_per_s=400.0, entry_layers=(22,))
        before = await get_json(f"{tracker.url}/v1/routing")
        for _ in itertools.takewhile(lambda _: not (gpu.requests and cpu.requests), range(100)):
            await post_chat(tracker.url)
        after = await get_json(f"{tracker.url}/v1/routing?model=tiny")

        assert set(before) == {"config", "models"}
        assert before["config"] == {
            "policy": "proportional",
            "explore_share": 0.5,
            "weight_alpha": 1.0,
            "stats_half_life_s": 600.0,
            "min_sample_tokens": 8,
        }
        (entry,) = before["models"]
        assert (entry["model"], entry["epoch"]) == (MODEL_KEY, 2)
        assert [arm["expected_share"] for arm in entry["candidates"]] == [1.0, 0.0]
        assert {arm["status"] for arm in entry["candidates"]} == {"unsampled"}
        assert entry["candidates"][0] | {"signature": "", "hops": [], "prior_tps": 0} == {
            "signature": "",
            "hops": [],
            "status": "unsampled",
            "tps": None,
            "coefficient": None,
            "expected_share": 1.0,
            "actual_share": None,
            "samples": 0,
            "weight": 0.0,
            "prior_tps": 0,
            "in_flight": 0,
            "last_sample_age_s": None,
        }
        assert [(hop["shard"], hop["start_layer"], hop["end_layer"]) for hop in entry["candidates"][0]["hops"]] == [
            ("0-21", 0, 21),
            ("0-39", 22, 39),
        ]
        arms = after["models"][0]["candidates"]
        assert {arm["status"] for arm in arms} == {"proven"}
        assert max(arm["coefficient"] for arm in arms) == 1.0
        assert sum(arm["expected_share"] for arm in arms) == pytest.approx(1.0)
        assert sum(arm["actual_share"] for arm in arms) == pytest.approx(1.0)
        assert sum(arm["samples"] for arm in arms) == len(gpu.requests) + len(cpu.requests)


async def test_the_decision_and_each_hops_span_stand_in_the_events() -> None:
    async with running_tracker() as tracker, running_head() as gpu:
        gpu_id = tracker.register("gpu", "0-21", url=gpu.url, layer_tokens_per_s=2200.0)
        cpu_id = tracker.register("cpu", "0-39", layer_tokens_per_s=400.0, entry_layers=(22,))
        _, response = await post_chat(tracker.url)

        selected = await wait_for_event(tracker.url, "proxy route selected")
        finished = await wait_for_event(tracker.url, "chat finished")

    assert (selected["mode"], selected["reason"]) == ("scout", "cold-start")
    assert selected["signature"] == response.headers["x-meshnet-route"]
    assert selected["hops"] == [
        {"node_id": gpu_id, "start_layer": 0, "end_layer": 21},
        {"node_id": cpu_id, "start_layer": 22, "end_layer": 39},
    ]
    assert selected["request_id"] == finished["request_id"] == response.headers["x-request-id"]
    assert [hop["work_units"] for hop in finished["hops"]] == [22 * (PROMPT_TOKENS + 10), 18 * (PROMPT_TOKENS + 10)]
    assert [hop["timing"]["compute_s"] for hop in finished["hops"]] == [0.5, 0.5]
    assert (finished["outcome"], finished["is_sampled"]) == ("completed", True)
    assert "hi" not in json.dumps([selected, finished]).replace("this", "")


async def test_a_pinned_chat_is_recorded_as_a_sample_and_not_as_traffic() -> None:
    async with running_tracker() as tracker, running_head() as slow:
        tracker.register("fast", "0-39", layer_tokens_per_s=9000.0)
        slow_id = tracker.register("slow", "0-39", url=slow.url, layer_tokens_per_s=10.0)

        answer, response = await post_chat(tracker.url, route=[slow_id])
        table = await get_json(f"{tracker.url}/v1/routing")
        selected = await wait_for_event(tracker.url, "proxy route selected")

    assert response.status == 200, answer
    arms = {Signature(arm["signature"]): arm for arm in table["models"][0]["candidates"]}
    pinned = arms[Signature(response.headers["x-meshnet-route"])]
    assert (pinned["status"], pinned["samples"], pinned["actual_share"]) == ("proven", 1, None)
    assert selected["mode"] == "pinned"


async def test_a_bad_pinned_route_is_400_and_a_departed_node_503() -> None:
    async with running_tracker() as tracker, running_head() as head:
        kept = tracker.register("kept", "0-39", url=head.url)
        old = tracker.register("moved", "0-39", url=head.url)
        tracker.register("moved", "0-21", url=head.url)

        answers = [
            await post_chat(tracker.url, route=route) for route in ([], "x", [kept, kept], ["nobody"], [old], [1])
        ]

    codes = [(response.status, answer["error"]["code"]) for answer, response in answers]
    assert codes == [(400, "invalid_route")] * 4 + [(503, "route_unavailable"), (400, "invalid_route")]
