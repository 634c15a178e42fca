"""Whose fault it was: the link first, until evidence says which of its ends."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from meshnet_protocol.ids import NodeId
from meshnet_protocol.messages import Exactness
from meshnet_protocol.routes import Route
from meshnet_tracker.blame import Blame
from meshnet_tracker.errors import AttemptFailedError
from meshnet_tracker.fleet import Fleet, NodeFaulted, NodeRegistered, NodeSuspected
from meshnet_tracker.link_faults import LinkFaults
from meshnet_tracker.outcomes import Outcome
from meshnet_tracker.policies.adaptive import AdaptivePolicy
from meshnet_tracker.reputation import COOLDOWN_S_FIRST, COOLDOWN_S_MAX, NO_FAULTS
from meshnet_tracker.route_policy import RoutePolicy
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore, RoutingConfig
from meshnet_tracker.testing import make_registration

SHARDS = {"head": "0-19", "other": "0-19", "tail": "20-39", "twin": "20-39"}


def fleet_of(**shards: str) -> tuple[Fleet, dict[str, NodeId]]:
    fleet, ids = Fleet(), {}
    for index, (name, layers) in enumerate(shards.items()):
        registration = make_registration(name, layers, layer_tokens_per_s=1000.0 - index)
        fleet.handle(NodeRegistered(registration), now=0.0)
        ids[name] = registration.node_id
    return fleet, ids


def router_of(fleet: Fleet, blame: Blame, policy: RoutePolicy | None = None) -> Router:
    config = RoutingConfig()
    stats = RouteStatsStore(config)
    return Router(fleet=fleet, stats=stats, config=config, rng=Random(1), links=blame.links, policy=policy)


def route_over(router: Router, fleet: Fleet, now: float) -> Route:
    decision = router.choose(fleet.models()[0], now=now)
    router.release(decision, now)
    return decision.route


def broken_link(reporter: NodeId, culprit: NodeId) -> AttemptFailedError:
    return AttemptFailedError("link broke", culprit=culprit, reporter=reporter)


def test_a_broken_link_makes_a_suspect_and_no_culprit() -> None:
    fleet, ids = fleet_of(**SHARDS)
    blame = Blame()
    route = route_over(router_of(fleet, blame), fleet, 0.0)

    suspects, events = blame.judge(route, broken_link(*route.node_ids), now=1.0)

    assert list(suspects) == [ids["head"], ids["tail"]]
    assert list(events) == [NodeSuspected(ids["tail"])]


def test_routes_over_a_broken_link_are_left_out_for_a_while_and_the_nodes_serve_on_with_others() -> None:
    fleet, ids = fleet_of(**SHARDS)
    blame = Blame()
    router = router_of(fleet, blame)
    route = route_over(router, fleet, 0.0)
    assert route.node_ids == (ids["head"], ids["tail"])

    blame.judge(route, broken_link(ids["head"], ids["tail"]), now=1.0)

    assert route_over(router, fleet, 2.0).node_ids in {(ids["head"], ids["twin"]), (ids["other"], ids["tail"])}
    assert route_over(router, fleet, 2.0 + COOLDOWN_S_FIRST).node_ids == route.node_ids


def test_when_the_tracker_cannot_reach_the_suspect_either_it_is_the_culprit() -> None:
    fleet, ids = fleet_of(**SHARDS)
    blame = Blame()
    route = route_over(router_of(fleet, blame), fleet, 0.0)
    blame.judge(route, broken_link(ids["head"], ids["tail"]), now=1.0)

    assert list(blame.condemned(ids["tail"])) == [NodeFaulted(ids["tail"])]
    assert not blame.links.is_cooling(route, 1.0)
    assert list(blame.condemned(ids["tail"])) == [], "once"


def test_two_witnesses_are_evidence_against_a_node_and_two_accusations_against_the_accuser() -> None:
    a, b, c = NodeId("a"), NodeId("b"), NodeId("c")
    links = LinkFaults()
    assert links.report(a, c, 0.0) is None
    assert links.report(b, c, 1.0) == c

    links = LinkFaults()
    assert links.report(a, b, 0.0) is None
    assert links.report(a, c, 1.0) == a

    links = LinkFaults()
    assert links.report(a, c, 0.0) is None
    assert links.report(b, c, 10_000.0) is None, "what is forgiven is no evidence"


def test_a_head_that_the_tracker_lost_is_at_fault_and_suspected() -> None:
    fleet, ids = fleet_of(whole="0-39")
    blame = Blame()
    route = route_over(router_of(fleet, blame), fleet, 0.0)
    failure = AttemptFailedError("reset", culprit=ids["whole"], wants_probe=True)

    assert list(blame.judge(route, failure, now=1.0)[1]) == [NodeFaulted(ids["whole"]), NodeSuspected(ids["whole"])]


def test_a_name_that_is_not_on_the_route_blames_nobody_but_the_head_who_said_it() -> None:
    fleet, ids = fleet_of(**SHARDS)
    blame = Blame()
    route = route_over(router_of(fleet, blame), fleet, 0.0)

    for failure in (
        broken_link(ids["head"], ids["twin"]),
        AttemptFailedError("decode", culprit=NodeId("innocent")),
        broken_link(NodeId("nobody"), ids["head"]),
    ):
        assert list(blame.judge(route, failure, now=1.0)[1]) == [NodeFaulted(ids["head"])]


@pytest.mark.parametrize(
    "failure",
    [AttemptFailedError("full", outcome=Outcome.OVERLOAD), AttemptFailedError("cannot resume", is_blameless=True)],
)
def test_a_full_route_is_nobodys_fault(failure: AttemptFailedError) -> None:
    fleet, _ = fleet_of(**SHARDS)
    blame = Blame()
    route = route_over(router_of(fleet, blame), fleet, 0.0)

    assert blame.judge(route, failure, now=1.0) == ((), ())


def test_a_cooldown_grows_with_every_fault_and_ends() -> None:
    record, now, lengths = NO_FAULTS, 0.0, []
    for _ in range(8):
        record = record.with_fault(now)
        lengths.append(record.cooling_until - now)
        now = record.cooling_until
        assert record.is_cooling(now - 0.01)
        assert not record.is_cooling(now)

    assert lengths[0] == COOLDOWN_S_FIRST
    assert lengths[:4] == sorted(lengths[:4])
    assert max(lengths) <= COOLDOWN_S_MAX


def test_a_node_that_failed_is_left_out_while_it_cools_and_taken_up_again() -> None:
    fleet, ids = fleet_of(good="0-39", bad="0-39")
    router = router_of(fleet, Blame())
    assert route_over(router, fleet, 0.0).head.node_id == ids["good"]

    fleet.handle(NodeFaulted(ids["good"]), now=1.0)
    taken = {route_over(router, fleet, 1.0 + seconds).head.node_id for seconds in range(int(COOLDOWN_S_FIRST))}

    assert taken == {ids["bad"]}


def test_where_all_have_failed_lately_they_are_tried_all_the_same() -> None:
    fleet, ids = fleet_of(only="0-39")
    router = router_of(fleet, Blame())
    for _ in range(20):
        fleet.handle(NodeFaulted(ids["only"]), now=1.0)

    assert route_over(router, fleet, 1.0).head.node_id == ids["only"]


def test_a_policy_that_learns_from_failures_is_not_made_to_punish_twice() -> None:
    """The fleet's cooldown is for policies without a ledger of their own."""
    fleet, _ = fleet_of(fast="0-39", slow="0-39")
    router = router_of(fleet, Blame(), AdaptivePolicy(config=RoutingConfig()))
    before = route_over(router, fleet, 0.0).head.node_id
    for _ in range(20):
        fleet.handle(NodeFaulted(before), now=1.0)

    assert before in {route_over(router, fleet, 1.0 + second).head.node_id for second in range(3)}


def exact_fleet(**classes: str | None) -> Fleet:
    """Whole-model nodes, the first with the best prior; None: not exact."""
    fleet = Fleet()
    for index, (name, class_id) in enumerate(classes.items()):
        exactness = Exactness(is_exact=class_id is not None, class_id=class_id or "other")
        registration = make_registration(name, "0-39", layer_tokens_per_s=1000.0 - index)
        fleet.handle(NodeRegistered(msgspec.structs.replace(registration, exactness=exactness)), now=0.0)
    return fleet


def taken_by(router: Router, fleet: Fleet, exact_class: str | None) -> str:
    decision = router.choose(fleet.models()[0], now=1.0, exact_class=exact_class)
    router.release(decision, 1.0)
    return decision.route.head.node_id.split(".")[0]


@pytest.mark.parametrize("make_policy", [None, lambda: AdaptivePolicy(config=RoutingConfig())])
def test_a_chat_that_moves_prefers_nodes_whose_bits_are_those_of_its_text(
    make_policy: Callable[[], RoutePolicy] | None,
) -> None:
    fleet = exact_fleet(fast="avx", inexact=None, slow="neon")
    router = router_of(fleet, Blame(), make_policy() if make_policy else None)

    assert taken_by(router, fleet, "neon") == "slow"
    assert taken_by(router, fleet, "avx") == "fast"
    for no_wish in (None, "sve"):
        assert taken_by(router, fleet, no_wish) in {"fast", "inexact", "slow"}, (
            "a valid continuation is better than none"
        )


def test_a_promise_outweighs_a_cooldown() -> None:
    fleet = exact_fleet(fast="avx", slow="neon")
    slow = next(node.node_id for node in fleet.nodes() if node.registration.instance == "slow")
    fleet.handle(NodeFaulted(slow), now=1.0)

    assert taken_by(router_of(fleet, Blame()), fleet, "neon") == "slow"
