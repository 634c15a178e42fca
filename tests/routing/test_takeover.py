"""The simulator hands a chat that breaks off to another route, as the proxy does, and books what that proxy would."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from meshnet_tracker.bench.contender import Record
from meshnet_tracker.bench.contenders import ADAPTIVE, CONTENDERS, DEFAULT
from meshnet_tracker.bench.simulator import Simulation
from meshnet_tracker.bench.traffic import Request
from meshnet_tracker.bench.worlds import Change, NodeSpec, World

every_router = pytest.mark.parametrize("policy", [DEFAULT, ADAPTIVE])


def node(name: str, tps: float, first: int = 0, last: int = 39) -> NodeSpec:
    layer_tps = tps * (last - first + 1)
    return NodeSpec(name, first, last, 1 / layer_tps, layer_tps, access_s=0.0, prompt_share=0.1)


def request(at_s: float = 1.0, *, output_tokens: int = 100, cut_at: float = 0.5) -> Request:
    return Request(
        at_s=at_s,
        prompt_tokens=100,
        output_tokens=output_tokens,
        noises=(1.0,),
        aborts_at=None,
        fault_draws=(0.0,),
        cut_at=cut_at,
    )


def run(policy: str, nodes: Sequence[NodeSpec], changes: Sequence[Change], requests: Sequence[Request]) -> Record:
    world = World("two", "test", tuple(nodes), tuple(changes))
    return Simulation(world, requests, CONTENDERS[policy], seed=1).run(60.0)


FAST, SLOW = node("fast", 20.0), node("slow", 10.0)


@every_router
def test_a_stream_that_is_cut_off_goes_on_elsewhere_with_what_it_has_drawn(policy: str) -> None:
    record = run(policy, [FAST, SLOW], [Change(0.5, "truncate", "fast")], [request()])
    (asked,) = record.asked

    assert (asked.outcome, asked.attempts, asked.drawn) == ("completed", 2, 50)
    assert asked.nodes == ("slow",)
    # Half of the answer and the whole prompt on the one; prompt, the half that is there, and the rest on the other.
    assert asked.seconds == pytest.approx((50 + 0.1 * 100) / 20 + (50 + 0.1 * 150) / 10)


@every_router
def test_what_goes_on_elsewhere_is_a_failure_of_the_one_and_no_sample_of_the_other(policy: str) -> None:
    record = run(policy, [FAST, SLOW], [Change(0.5, "truncate", "fast")], [request()])
    shares = record.router.actual_shares(record.model.model_key, 60.0)
    faults = {n.registration.instance: n.faults.mass for n in record.model.nodes.values()}

    assert len(shares) == 2
    assert faults["fast"] > 0
    assert faults["slow"] == 0
    assert record.router.in_flight_total == 0


@every_router
def test_a_node_that_goes_down_under_a_chat_costs_it_a_pause_and_no_token(policy: str) -> None:
    record = run(policy, [FAST, SLOW], [Change(3.0, "down", "fast")], [request()])
    (asked,) = record.asked

    assert asked.outcome == "completed"
    assert asked.drawn == 30, "two seconds at 20 tokens/s, the prompt's half second taken off"
    assert asked.seconds == pytest.approx(2.0 + (70 + 0.1 * 130) / 10)


@every_router
def test_a_chat_without_another_route_waits_for_the_one_that_broke_and_gives_up_in_the_end(policy: str) -> None:
    back = run(policy, [FAST], [Change(3.0, "down", "fast"), Change(5.2, "up", "fast")], [request()])
    gone = run(policy, [FAST], [Change(3.0, "down", "fast")], [request()])

    assert back.asked[0].outcome == "completed"
    assert back.asked[0].attempts == 2
    assert gone.asked[0].outcome == "failed"
    assert gone.asked[0].seconds == pytest.approx(2.0 + 10.0)


@every_router
def test_a_chat_that_gets_nowhere_is_given_up_after_three_attempts(policy: str) -> None:
    nodes = [node(f"n{number}", 10.0) for number in range(6)]
    record = run(policy, nodes, [Change(0.5, "fail-fast", one.name) for one in nodes], [request()])
    (asked,) = record.asked

    assert (asked.outcome, asked.attempts) == ("failed", 3)
    assert len(asked.touched) == 3, "never the same one twice"


@every_router
def test_a_hop_that_cuts_off_is_accused_by_the_one_before_it_and_not_condemned_by_one_word(policy: str) -> None:
    nodes = [node("head", 40.0, 0, 19), node("cutter", 40.0, 20, 39), node("other", 10.0, 20, 39)]
    record = run(policy, nodes, [Change(0.5, "truncate", "cutter")], [request()])
    (asked,) = record.asked

    assert asked.outcome == "completed"
    assert asked.nodes == ("head", "other")
    assert all(not n.faults.mass and not n.is_suspected for n in record.model.nodes.values()), "the probe cleared it"


@every_router
def test_a_client_that_leaves_does_so_at_the_token_it_would_have_left_at_anyway(policy: str) -> None:
    leaving = replace(request(), aborts_at=0.75)
    record = run(policy, [FAST, SLOW], [Change(0.5, "truncate", "fast")], [leaving])
    (asked,) = record.asked

    assert (asked.outcome, asked.drawn) == ("aborted", 50)
    assert asked.seconds == pytest.approx(3.0 + (25 + 0.1 * 150) / 10)
