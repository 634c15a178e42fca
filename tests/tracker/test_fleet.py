"""Membership: who is in, who is out, and what follows."""

from typing import Any

import msgspec
import pytest

from meshnet_protocol.ids import Incarnation
from meshnet_protocol.messages import Heartbeat, LayerSpan, Leave, Registration
from meshnet_tracker.errors import RegistrationConflictError, RegistrationRefusedError
from meshnet_tracker.fleet import (
    DEPARTED_MEMORY_S,
    Fleet,
    HeartbeatReceived,
    NodeFaulted,
    NodeLeft,
    NodeNoted,
    NodeProbed,
    NodeRegistered,
    NodeSuspected,
    Tick,
    TopologyChanged,
)
from meshnet_tracker.testing import make_card, make_registration

MODEL_KEY = make_card().model_key


def beat(registration: Registration, **fields: Any) -> HeartbeatReceived:
    values: dict[str, Any] = {"queue_depth": 0, "entry_layers": registration.entry_layers} | fields
    return HeartbeatReceived(Heartbeat(node_id=registration.node_id, incarnation=registration.incarnation, **values))


def joined(*registrations: Registration) -> Fleet:
    fleet = Fleet(heartbeat_period_s=1.0)
    for registration in registrations:
        fleet.handle(NodeRegistered(registration), now=0.0)
    return fleet


def test_a_silent_node_is_lost_after_three_missed_heartbeats() -> None:
    loud, silent = make_registration("loud", "0-39"), make_registration("silent", "0-39")
    fleet = joined(loud, silent)
    for second in (1, 2, 3):
        fleet.handle(beat(loud), now=float(second))
        assert fleet.handle(Tick(), now=float(second)) == []

    assert fleet.handle(Tick(), now=3.5) == [TopologyChanged(MODEL_KEY, "lost", silent.node_id)]
    assert fleet.node(silent.node_id) is None
    assert fleet.has_departed(silent.node_id)
    assert not fleet.is_known(silent.node_id, silent.incarnation)


def test_a_tracker_that_slept_blames_no_node() -> None:
    node = make_registration("n", "0-39")
    fleet = joined(node)
    fleet.handle(Tick(), now=0.0)

    assert fleet.handle(Tick(), now=3600.0) == []
    assert fleet.handle(Tick(), now=3602.0) == []
    assert fleet.handle(Tick(), now=3604.0) == [TopologyChanged(MODEL_KEY, "lost", node.node_id)]


def test_a_tracker_that_stood_still_for_seconds_does_not_count_them() -> None:
    node = make_registration("n", "0-39")
    fleet = joined(node)
    fleet.handle(Tick(), now=0.9)
    assert fleet.handle(Tick(), now=3.4) == [], "nobody could be heard for 2.5 of these 3.4 seconds"
    assert fleet.handle(Tick(), now=5.4) == []
    assert fleet.handle(Tick(), now=5.6) == [TopologyChanged(MODEL_KEY, "lost", node.node_id)]


def test_a_draining_node_takes_no_new_routes_and_departs_only_once() -> None:
    node = make_registration("n", "0-39")
    fleet = joined(node)

    assert fleet.handle(beat(node, is_draining=True), now=1.0) == [TopologyChanged(MODEL_KEY, "draining", node.node_id)]
    member = fleet.node(node.node_id)
    assert member is not None
    assert not member.is_ready
    leave = NodeLeft(Leave(node_id=node.node_id, incarnation=node.incarnation))
    assert fleet.handle(leave, now=2.0) == [NodeNoted(MODEL_KEY, "left", node.node_id)]
    assert fleet.handle(leave, now=2.0) == []


def test_a_suspected_node_is_out_until_the_tracker_has_reached_it_and_moves_no_epoch() -> None:
    node = make_registration("n", "0-39")
    fleet = joined(node)
    model = fleet.models()[0]

    assert fleet.handle(NodeSuspected(node.node_id), now=1.0) == [NodeNoted(MODEL_KEY, "suspected", node.node_id)]
    assert fleet.handle(NodeSuspected(node.node_id), now=1.0) == []
    assert fleet.handle(beat(node), now=2.0) == [], "it can reach the tracker, and not yet be reached"
    assert model.ready_nodes() == []
    ill, well = (NodeProbed(node.node_id, node.incarnation, is_well) for is_well in (False, True))
    assert fleet.handle(ill, now=3.0) == [NodeNoted(MODEL_KEY, "condemned", node.node_id)]
    assert fleet.handle(ill, now=3.0) == []
    assert fleet.handle(well, now=4.0) == [NodeNoted(MODEL_KEY, "cleared", node.node_id)]
    assert len(model.ready_nodes()) == 1


def test_a_new_process_takes_the_place_of_the_old_one_which_cannot_come_back() -> None:
    old = make_registration("n", "0-39", incarnation="old")
    new = make_registration("n", "0-39", incarnation="new")
    fleet = joined(old)

    assert fleet.handle(NodeRegistered(new), now=1.0) == [TopologyChanged(MODEL_KEY, "restarted", new.node_id)]
    assert fleet.handle(beat(old, queue_depth=9), now=1.0) == []
    assert not fleet.is_known(old.node_id, old.incarnation)
    assert fleet.is_known(new.node_id, new.incarnation)
    assert fleet.handle(NodeLeft(Leave(node_id=old.node_id, incarnation=old.incarnation)), now=1.0) == []
    with pytest.raises(RegistrationConflictError, match="newer process"):
        fleet.handle(NodeRegistered(old), now=2.0)


def test_another_shard_is_another_node_and_the_old_one_is_gone() -> None:
    before, after = make_registration("n", "0-21"), make_registration("n", "0-39")
    fleet = joined(before)

    assert fleet.handle(NodeRegistered(after), now=1.0) == [
        TopologyChanged(MODEL_KEY, "shard-change", before.node_id),
        TopologyChanged(MODEL_KEY, "shard-change", after.node_id),
    ]
    assert [node.node_id for node in fleet.nodes()] == [after.node_id]
    assert fleet.has_departed(before.node_id)


def test_two_machines_of_one_wallet_live_side_by_side() -> None:
    assert len(list(joined(make_registration("a", "0-39"), make_registration("b", "0-39")).nodes())) == 2


def test_the_same_registration_twice_changes_nothing() -> None:
    node = make_registration("n", "0-39")
    assert joined(node).handle(NodeRegistered(node), now=1.0) == []


def test_a_recut_changes_the_structure_but_not_the_epoch_and_a_queue_only_the_load() -> None:
    node = make_registration("n", "0-39")
    fleet = joined(node)
    model = fleet.models()[0]
    structure, load = model.structure_version, model.load_version

    assert fleet.handle(beat(node, queue_depth=2), now=1.0) == []
    assert (model.structure_version, model.load_version) == (structure, load + 1)
    assert fleet.handle(beat(node, queue_depth=2), now=1.5) == []
    assert model.load_version == load + 1
    recut = fleet.handle(beat(node, queue_depth=2, entry_layers=(0, 22, 99)), now=2.0)
    assert recut == [NodeNoted(MODEL_KEY, "recut", node.node_id)]
    assert model.structure_version == structure + 1
    member = fleet.node(node.node_id)
    assert member is not None
    assert member.entry_layers == {0, 22}


def test_entries_are_wanted_where_other_shards_end_the_most_frequent_four() -> None:
    whole = make_registration("whole", "0-39")
    ends = {21: 3, 5: 1, 9: 2, 14: 2, 30: 2, 39: 5}
    others = [make_registration(f"n{end}-{copy}", f"0-{end}") for end, count in ends.items() for copy in range(count)]
    fleet = joined(whole, *others)

    assert fleet.wanted_entry_layers(whole.node_id) == (10, 15, 22, 31)
    fleet.handle(beat(others[-6], is_draining=True), now=0.0)
    assert fleet.wanted_entry_layers(make_registration("n5-0", "0-5").node_id) == ()


def test_a_departed_node_is_remembered_for_an_hour() -> None:
    node = make_registration("n", "0-39")
    fleet = joined(node)
    fleet.handle(NodeLeft(Leave(node_id=node.node_id, incarnation=node.incarnation)), now=10.0)

    fleet.handle(Tick(), now=10.0 + DEPARTED_MEMORY_S)
    assert fleet.has_departed(node.node_id)
    assert [model.card.name for model in fleet.models()] == ["tiny"]
    fleet.handle(Tick(), now=10.1 + DEPARTED_MEMORY_S)
    assert not fleet.has_departed(node.node_id)
    assert fleet.models() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol_version": 99}, "update the older"),
        ({"shard": LayerSpan(first=0, last=40)}, "within the model's layers 0-39"),
        ({"shard": LayerSpan(first=-1, last=3)}, "within"),
        ({"shard": LayerSpan(first=5, last=3)}, "within"),
        ({"entry_layers": (0, 40)}, "entry layer 40"),
        ({"entry_layers": ()}, "first layer, 0"),
        ({"layer_tokens_per_s": 0.0}, "layer_tokens_per_s"),
        ({"layer_tokens_per_s": float("nan")}, "layer_tokens_per_s"),
        ({"layer_tokens_per_s": float("inf")}, "layer_tokens_per_s"),
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://host:99999"}, "url"),
        ({"slots": 0}, "slots"),
        ({"wallet": "a b"}, "wallet"),
        ({"wallet": ""}, "wallet"),
        ({"instance": "-x"}, "instance"),
        ({"incarnation": Incarnation("")}, "incarnation"),
        ({"model": make_card(name="two\nlines")}, "model name"),
        ({"model": make_card(layer_count=0)}, "layer_count"),
    ],
)
def test_a_registration_that_cannot_be_true_is_refused_and_changes_nothing(
    change: dict[str, Any], message: str
) -> None:
    fleet = joined()
    registration = msgspec.structs.replace(make_registration("n", "0-39"), **change)

    with pytest.raises(RegistrationRefusedError, match=message):
        fleet.handle(NodeRegistered(registration), now=0.0)
    assert list(fleet.nodes()) == []


def test_a_card_that_contradicts_the_known_one_is_a_conflict() -> None:
    fleet = joined(make_registration("a", "0-39"))
    other = make_registration("b", "0-9", model=make_card(layer_count=41))
    with pytest.raises(RegistrationConflictError, match="layer_count=41"):
        fleet.handle(NodeRegistered(other), now=0.0)


def test_a_node_id_of_another_wallet_is_a_conflict() -> None:
    fleet = joined(make_registration("a", "0-39", wallet="samestart123-one"))
    with pytest.raises(RegistrationConflictError, match="another wallet"):
        fleet.handle(NodeRegistered(make_registration("a", "0-39", wallet="samestart123-two")), now=0.0)


def test_a_fault_costs_reputation_and_time_gives_it_back() -> None:
    fleet = Fleet()
    registration = make_registration("a", "0-39")
    fleet.handle(NodeRegistered(registration), now=0.0)
    node = fleet.node(registration.node_id)
    assert node is not None

    fleet.handle(NodeFaulted(registration.node_id), now=0.0)
    assert node.reputation == pytest.approx(0.1)

    node.heard_at = 60.0
    fleet.handle(Tick(), now=60.0)
    assert node.reputation == pytest.approx(0.1**0.5)

    node.heard_at = 1200.0
    fleet.handle(Tick(), now=1200.0)
    assert node.reputation == 1.0
