"""Which chains are tried, in which order, and what is remembered between two requests."""

from meshnet_protocol.messages import Heartbeat
from meshnet_tracker.candidates import CandidateCache, covering_chains, enumerate_routes
from meshnet_tracker.fleet import Fleet, HeartbeatReceived, NodeRegistered, ServedModel
from meshnet_tracker.testing import make_card, make_registration

CARD = make_card(layer_count=10)


def make_model(*nodes: tuple[str, str, float]) -> tuple[Fleet, ServedModel]:
    """Nodes as (instance, layers, layer-tokens/s), enterable at every layer they hold."""
    fleet = Fleet()
    for instance, layers, speed in nodes:
        first, last = map(int, layers.split("-"))
        registration = make_registration(
            instance, layers, model=CARD, layer_tokens_per_s=speed, entry_layers=tuple(range(first, last + 1))
        )
        fleet.handle(NodeRegistered(registration), now=0.0)
    return fleet, fleet.models()[0]


def instances(node_ids: tuple[str, ...]) -> list[str]:
    return [node_id.split(".")[0] for node_id in node_ids]


def test_the_longest_advancing_hop_comes_next_and_not_the_fastest() -> None:
    _, model = make_model(("head", "0-3", 9.0), ("short", "4-6", 1e6), ("rest", "7-9", 1e6), ("long", "4-9", 1.0))

    (candidate,) = enumerate_routes(model)

    assert instances(candidate.route.node_ids) == ["head", "long"]


def test_of_equally_long_hops_the_faster_comes_next_and_then_the_lower_id() -> None:
    _, model = make_model(("head", "0-3", 9.0), ("b", "4-9", 5.0), ("a", "4-9", 5.0), ("slow", "2-9", 4.0))
    (candidate,) = enumerate_routes(model)
    assert instances(candidate.route.node_ids) == ["head", "a"]

    _, model = make_model(("head", "0-3", 9.0), ("a", "4-9", 5.0), ("wide", "2-9", 6.0))
    (candidate,) = enumerate_routes(model)
    assert instances(candidate.route.node_ids) == ["head", "wide"]


def test_a_long_hop_into_a_dead_end_is_passed_by() -> None:
    _, model = make_model(("head", "0-3", 9.0), ("dead", "4-8", 9.0), ("good", "4-6", 1.0), ("rest", "7-9", 1.0))
    fleet_node = next(node for node in model.nodes.values() if node.shard.first == 7)
    fleet_node.entry_layers = frozenset({7})

    (candidate,) = enumerate_routes(model)

    assert instances(candidate.route.node_ids) == ["head", "good", "rest"]


def test_all_chains_come_in_greedy_order() -> None:
    _, model = make_model(("h", "0-3", 1.0), ("whole", "0-9", 1.0), ("fast", "4-9", 3.0), ("slow", "4-9", 2.0))

    chains = covering_chains(model_key=model.model_key, layer_count=10, nodes=model.ready_nodes())

    assert [instances(route.node_ids) for route in chains] == [["whole"], ["h", "fast"], ["h", "slow"], ["h", "whole"]]


def test_a_new_queue_depth_is_priced_at_the_next_request_and_the_routes_are_kept() -> None:
    fleet, model = make_model(("head", "0-3", 40.0), ("tail", "4-9", 600.0))
    cache = CandidateCache()
    (idle,) = cache.candidates(model)
    assert cache.candidates(model)[0] is idle

    (head, _) = fleet.nodes()
    beat = Heartbeat(
        node_id=head.node_id,
        incarnation=head.registration.incarnation,
        queue_depth=4,
        entry_layers=head.registration.entry_layers,
    )
    fleet.handle(HeartbeatReceived(beat), now=1.0)
    (loaded,) = cache.candidates(model)

    assert (idle.prior_tps, loaded.prior_tps) == (10.0, 2.0)
    assert loaded.route is idle.route


def test_reputation_is_a_factor_on_the_prior() -> None:
    _, model = make_model(("whole", "0-9", 100.0))
    next(iter(model.nodes.values())).reputation = 0.5
    assert enumerate_routes(model)[0].prior_tps == 5.0


def test_a_model_that_comes_back_under_its_old_version_number_has_only_its_new_nodes() -> None:
    cache = CandidateCache()
    _, before = make_model(("old", "0-9", 1.0))
    _, after = make_model(("new", "0-9", 1.0))
    assert (before.model_key, before.structure_version) == (after.model_key, after.structure_version)

    cache.candidates(before)
    (candidate,) = cache.candidates(after)

    assert instances(candidate.route.node_ids) == ["new"]
