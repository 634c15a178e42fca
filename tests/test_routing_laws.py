"""Laws of routing that hold for every input: tested on inputs nobody thought of."""

import json
import math
import re
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet_protocol.ids import NodeId, Signature
from meshnet_protocol.messages import Heartbeat, Leave
from meshnet_tracker.candidates import CandidateCache, covering_chains, enumerate_routes, explain_no_route
from meshnet_tracker.errors import NoRouteError
from meshnet_tracker.fleet import (
    Fleet,
    HeartbeatReceived,
    NodeLeft,
    NodeRegistered,
    NodeSuspected,
    ServedModel,
    Tick,
)
from meshnet_tracker.router import RouteDecision, Router
from meshnet_tracker.routing_stats import (
    DecayedMean,
    RouteSample,
    RouteStatsStore,
    RoutingConfig,
    choose_route,
    expected_shares,
)
from meshnet_tracker.routing_table import routing_table
from meshnet_tracker.testing import make_card, make_registration

# On a busy machine an example may take long without anything being wrong.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

LAYERS = 12
HALF_LIFE_S = 600.0
CARD = make_card(layer_count=LAYERS)

speeds = st.floats(1e-3, 1e6)
times = st.floats(0, 1e6)
any_float = st.floats(allow_nan=True, allow_infinity=True)
means = st.builds(DecayedMean, value=speeds, mass=st.floats(0, 1e4), timestamp=times)


@st.composite
def served_models(draw: st.DrawFn) -> tuple[Fleet, ServedModel]:
    """Up to ten nodes with any shards, entry layers, speeds and loads; some suspected, some draining."""
    fleet = Fleet()
    for index in range(draw(st.integers(1, 10))):
        first = draw(st.sampled_from([0, 0, *range(LAYERS)]))
        last = draw(st.integers(first, LAYERS - 1))
        entries = draw(st.lists(st.integers(first, last), max_size=4))
        registration = make_registration(
            f"n{index}", f"{first}-{last}", model=CARD, layer_tokens_per_s=draw(speeds), entry_layers=tuple(entries)
        )
        fleet.handle(NodeRegistered(registration), now=0.0)
        beat = Heartbeat(
            node_id=registration.node_id,
            incarnation=registration.incarnation,
            queue_depth=draw(st.integers(-1, 10**30)),
            entry_layers=registration.entry_layers,
            is_draining=draw(st.integers(0, 5)) == 0,
        )
        fleet.handle(HeartbeatReceived(beat), now=0.0)
        if draw(st.integers(0, 5)) == 0:
            fleet.handle(NodeSuspected(registration.node_id), now=0.0)
    model = fleet.model(CARD.model_key)
    assert model is not None
    return fleet, model


def close(mine: DecayedMean, theirs: DecayedMean) -> bool:
    return (
        mine.timestamp == theirs.timestamp
        and math.isclose(mine.mass, theirs.mass, rel_tol=1e-9, abs_tol=1e-300)
        and math.isclose(mine.value, theirs.value, rel_tol=1e-6)
    )


@given(means, means)
def test_merging_two_means_does_not_depend_on_their_order(one: DecayedMean, other: DecayedMean) -> None:
    assert close(one.merge(other, half_life_s=HALF_LIFE_S), other.merge(one, half_life_s=HALF_LIFE_S))


@given(st.floats(1, 1e3), st.tuples(means, means, means))
def test_merging_three_means_does_not_depend_on_the_grouping(
    half_life_s: float, three: tuple[DecayedMean, DecayedMean, DecayedMean]
) -> None:
    a, b, c = three
    left = a.merge(b, half_life_s=half_life_s).merge(c, half_life_s=half_life_s)
    right = a.merge(b.merge(c, half_life_s=half_life_s), half_life_s=half_life_s)

    assert math.isclose(left.mass, right.mass, rel_tol=1e-9, abs_tol=1e-12)
    if left.mass > 1e-6:
        assert math.isclose(left.value, right.value, rel_tol=1e-6)


@given(means, any_float)
def test_mass_is_never_negative_and_never_grows_by_itself(mean: DecayedMean, now: float) -> None:
    assert 0 <= mean.at(now, half_life_s=HALF_LIFE_S).mass <= mean.mass


@given(st.lists(st.tuples(st.integers(-5, 10**400), any_float, any_float), max_size=20))
def test_no_sample_and_no_clock_can_make_the_statistics_raise_or_lie(
    observations: list[tuple[int, float, float]],
) -> None:
    stats = RouteStatsStore(RoutingConfig())
    arm = Signature("an arm")
    for tokens, seconds, now in observations:
        is_taken = stats.observe(RouteSample(CARD.model_key, arm, tokens, seconds, 0), now)
        assert not is_taken or (tokens >= 8 and 0 < seconds < math.inf and math.isfinite(now))
        view = stats.view(CARD.model_key, arm, now)
        assert view.mass >= 0
        assert view.tps is None or 0 < view.tps < math.inf
        stats.prune(now)


@given(served_models())
def test_every_candidate_covers_all_layers_exactly_once_through_real_entries(
    fleet_and_model: tuple[Fleet, ServedModel],
) -> None:
    fleet, model = fleet_and_model
    candidates = CandidateCache().candidates(model)
    if not candidates:
        with pytest.raises(NoRouteError, match=re.escape(explain_no_route(model))):
            enumerate_routes(model)
    assert len({candidate.route.head.node_id for candidate in candidates}) == len(candidates) <= 8
    assert [c.prior_tps for c in candidates] == sorted((c.prior_tps for c in candidates), reverse=True)
    for candidate in candidates:
        layers = [n for hop in candidate.route.hops for n in range(hop.start_layer, hop.end_layer + 1)]
        assert layers == list(range(LAYERS))
        for hop in candidate.route.hops:
            node = fleet.node(hop.node_id)
            assert node is not None
            assert node.is_ready
            assert hop.start_layer in node.entry_layers
            assert hop.end_layer == node.shard.last


@given(served_models())
def test_a_candidate_exists_if_and_only_if_some_chain_does(fleet_and_model: tuple[Fleet, ServedModel]) -> None:
    _, model = fleet_and_model
    chains = covering_chains(model_key=model.model_key, layer_count=LAYERS, nodes=model.ready_nodes())

    assert bool(CandidateCache().candidates(model)) == (next(chains, None) is not None)


@given(served_models(), st.lists(st.tuples(st.integers(0, 9), st.floats(1e-300, 1e300)), max_size=20))
def test_a_cached_enumeration_equals_a_fresh_one(
    fleet_and_model: tuple[Fleet, ServedModel], changes: list[tuple[int, float]]
) -> None:
    fleet, model = fleet_and_model
    cache = CandidateCache()
    for index, depth in changes:
        nodes = list(fleet.nodes())
        node = nodes[index % len(nodes)]
        beat = Heartbeat(
            node_id=node.node_id,
            incarnation=node.registration.incarnation,
            queue_depth=int(min(depth, 100)),
            entry_layers=(node.shard.first, node.shard.last) if depth > 1 else (node.shard.first,),
        )
        fleet.handle(HeartbeatReceived(beat), now=0.0)
        cached = cache.candidates(model)
        assert cached == CandidateCache().candidates(model)


@given(
    served_models(),
    st.lists(st.one_of(st.none(), speeds), min_size=8, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1e6),
    st.integers(0, 2**32),
)
def test_shares_sum_to_one_and_predict_the_choice(
    fleet_and_model: tuple[Fleet, ServedModel],
    learnt: list[float | None],
    explore_share: float,
    alpha: float,
    seed: int,
) -> None:
    _, model = fleet_and_model
    candidates = CandidateCache().candidates(model)
    config = RoutingConfig(explore_share=explore_share, weight_alpha=alpha)
    stats = RouteStatsStore(config)
    for candidate, tps in zip(candidates, learnt, strict=False):
        if tps is not None:
            stats.observe(RouteSample(model.model_key, candidate.signature, 100, 100 / tps, 0), now=0.0)

    shares = expected_shares(candidates, stats, config, now=1.0)

    assert all(0 <= share <= 1 + 1e-9 for share in shares.values())
    if candidates:
        assert sum(shares.values()) == pytest.approx(1.0)
        choice = choose_route(candidates, stats, config, Random(seed), 1.0)
        assert shares[choice.candidate.signature] > 0


@settings(max_examples=50)
@given(served_models(), st.lists(st.sampled_from(["choose", "release", "observe", "bump"]), max_size=30), times)
def test_every_reservation_meets_one_release_and_the_table_is_strict_json(
    fleet_and_model: tuple[Fleet, ServedModel], actions: list[str], now: float
) -> None:
    fleet, model = fleet_and_model
    config = RoutingConfig()
    stats = RouteStatsStore(config)
    router = Router(fleet=fleet, stats=stats, config=config, rng=Random(1))
    held: list[RouteDecision] = []
    for action in actions:
        if action == "choose":
            try:
                held.append(router.choose(model, now=now))
            except NoRouteError:
                continue
        elif action == "release" and held:
            router.release(held.pop())
        elif action == "observe" and held:
            router.observe(held[-1], completion_tokens=20, seconds=now, now=now)
        elif action == "bump":
            stats.bump_epoch(model.model_key)
        table = routing_table(router, stats, [model], now)
        json.loads(msgspec.json.encode(table), parse_constant=pytest.fail)
        in_flight = [arm["in_flight"] for arm in table["models"][0]["candidates"]]
        assert all(0 <= count <= len(held) for count in in_flight)
        assert router.in_flight_total == len(held)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "beat", "drain", "leave", "suspect", "tick"]),
            st.integers(0, 3),
            st.integers(0, 5),
            st.floats(-5, 5),
        ),
        max_size=40,
    )
)
def test_the_fleet_agrees_with_itself_after_any_history(history: list[tuple[str, int, int, float]]) -> None:
    fleet = Fleet()
    now = 0.0
    for action, index, first, step_s in history:
        now += step_s
        registration = make_registration(f"n{index}", f"{first}-{LAYERS - 1}", model=CARD)
        known = [node for node in fleet.nodes() if node.registration.instance == f"n{index}"]
        node_id = known[0].node_id if known else NodeId("nobody")
        incarnation = registration.incarnation
        match action:
            case "join":
                fleet.handle(NodeRegistered(registration), now)
            case "leave":
                fleet.handle(NodeLeft(Leave(node_id=node_id, incarnation=incarnation)), now)
            case "suspect":
                fleet.handle(NodeSuspected(node_id), now)
            case "tick":
                fleet.handle(Tick(), now)
            case _:
                beat = Heartbeat(
                    node_id=node_id,
                    incarnation=incarnation,
                    queue_depth=first,
                    entry_layers=(first,),
                    is_draining=action == "drain",
                )
                fleet.handle(HeartbeatReceived(beat), now)
        check_fleet(fleet)


def check_fleet(fleet: Fleet) -> None:
    nodes = list(fleet.nodes())
    machines = [(node.registration.wallet, node.registration.instance) for node in nodes]
    assert len(set(machines)) == len(machines), "a machine is one node"
    for model in fleet.models():
        assert set(model.nodes) == {node.node_id for node in nodes if node.model_key == model.model_key}
        ends = [node.shard.last for node in model.nodes.values() if not node.is_draining]
        assert sum(model.shard_ends.values()) == len(ends)
    for node in nodes:
        assert fleet.node(node.node_id) is node
        assert not fleet.has_departed(node.node_id)
        assert all(node.shard.first < layer <= node.shard.last for layer in fleet.wanted_entry_layers(node.node_id))
