"""Layer arithmetic, and the law that a route runs every layer exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_protocol.ids import ModelKey, NodeId, WalletId, make_model_key, make_node_id
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.routes import Hop, Route, chain_hops

MODEL = ModelKey("m@1")
GPU, CPU = NodeId("gpu.w@0-21"), NodeId("cpu.w@0-39")


@pytest.mark.parametrize("text", ["", "7", "5-3", "-1-4", "a-b", "0-16-20", "0..16"])
def test_layers_that_make_no_sense_are_refused_with_an_example_or_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"0-16|first <= last"):
        LayerRange.parse(text)


@given(st.integers(0, 500), st.integers(0, 500), st.sets(st.integers(0, 1200)))
def test_pieces_of_a_range_join_end_to_end_over_all_of_it(first: int, more: int, entries: set[int]) -> None:
    whole = LayerRange(first, first + more)

    pieces = whole.cut_at(entries)

    layers = [layer for piece in pieces for layer in range(piece.first, piece.next_layer)]
    assert layers == list(range(whole.first, whole.next_layer))
    assert {piece.first for piece in pieces} <= entries | {first}


def test_a_range_survives_being_written_and_read() -> None:
    assert LayerRange.parse(str(LayerRange(17, 29))) == LayerRange(17, 29)


def test_the_second_hop_starts_right_after_the_shard_of_the_first() -> None:
    hops = chain_hops([(GPU, LayerRange(0, 21)), (CPU, LayerRange(0, 39))])

    assert [(hop.start_layer, hop.end_layer) for hop in hops] == [(0, 21), (22, 39)]
    assert [hop.work_units(10) for hop in hops] == [220, 180]


def test_a_chain_with_a_gap_names_the_node_that_cannot_go_on() -> None:
    with pytest.raises(ValueError, match=r"tail\.w@25-39 holds layers 25-39 and cannot start at layer 22"):
        chain_hops([(GPU, LayerRange(0, 21)), (NodeId("tail.w@25-39"), LayerRange(25, 39))])


def test_a_route_is_known_by_model_nodes_and_shards() -> None:
    route = Route(MODEL, chain_hops([(GPU, LayerRange(0, 21)), (CPU, LayerRange(0, 39))]))

    assert route.signature == "m@1 | gpu.w@0-21[0-21] -> cpu.w@0-39[0-39]"
    assert route.head.node_id == GPU


def test_hops_that_overlap_are_no_route() -> None:
    first = Hop(GPU, LayerRange(0, 21), LayerRange(0, 21))
    second = Hop(CPU, LayerRange(0, 39), LayerRange(20, 39))
    with pytest.raises(ValueError, match="starts at layer 20, not at 22"):
        Route(MODEL, (first, second))


def test_a_hop_cannot_run_layers_it_does_not_hold() -> None:
    with pytest.raises(ValueError, match="cannot run"):
        Hop(GPU, LayerRange(0, 21), LayerRange(20, 22))


def test_another_shard_is_another_node_and_two_machines_of_one_owner_are_two() -> None:
    wallet = WalletId("a" * 64)

    ids = {
        make_node_id(wallet=wallet, instance="box", shard=LayerRange(0, 16)),
        make_node_id(wallet=wallet, instance="box", shard=LayerRange(0, 29)),
        make_node_id(wallet=wallet, instance="other", shard=LayerRange(0, 16)),
        make_node_id(wallet=WalletId("b" * 64), instance="box", shard=LayerRange(0, 16)),
    }

    assert len(ids) == 4


@pytest.mark.parametrize("instance", ["", "Box", "-box", "a b", "x" * 33])
def test_an_instance_name_that_would_not_fit_an_id_is_refused(instance: str) -> None:
    with pytest.raises(ValueError, match="instance name"):
        make_node_id(wallet=WalletId("a" * 64), instance=instance, shard=LayerRange(0, 1))


def test_shards_of_different_files_never_share_a_model_key() -> None:
    assert make_model_key(name="m", fingerprint="1" * 64) != make_model_key(name="m", fingerprint="2" * 64)
