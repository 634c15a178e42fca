"""Groups of decode steps: how sessions are dealt into them, and for whom a group is held."""

from meshnet_node.engine.groups import HOLD_SHARE, DecodeGroups

DECODE_S = 0.02
HOLD_S = HOLD_SHARE * DECODE_S


def drawing(*slots: int, hop_count: int) -> DecodeGroups:
    groups = DecodeGroups()
    groups.decoded(DECODE_S)
    for slot in slots:
        groups.stepped(slot, hop_count=hop_count)
    return groups


def test_there_are_as_many_groups_of_neighbours_as_the_route_has_hops() -> None:
    groups = drawing(7, 1, 0, 4, 2, 3, 5, hop_count=2)

    assert groups.group_of(2) == {0, 1, 2, 3}
    assert groups.group_of(5) == {4, 5, 7}


def test_a_route_of_one_hop_has_one_group() -> None:
    assert drawing(3, 0, 9, hop_count=1).group_of(9) == {0, 3, 9}


def test_a_session_that_has_drawn_nothing_yet_goes_alone() -> None:
    assert drawing(0, 1, hop_count=1).group_of(5) == {5}


def test_those_who_are_left_are_dealt_anew() -> None:
    groups = drawing(0, 1, 2, 3, hop_count=2)

    groups.left(0)
    groups.left(1)

    assert groups.group_of(2) == {2}
    assert groups.group_of(0) == {0}


def test_a_group_is_held_for_a_share_of_a_decode_and_not_when_all_are_there() -> None:
    groups = drawing(0, 1, 2, 3, hop_count=2)

    held = groups.held_until({0: 100.0, 2: 100.0, 3: 100.001}, now=100.001)

    assert held == {0: 100.0 + HOLD_S}


def test_who_does_not_come_in_time_is_not_waited_for_until_it_has_caught_up() -> None:
    groups = drawing(0, 1, hop_count=1)

    assert groups.held_until({0: 100.0}, now=100.0 + HOLD_S) == {}
    assert groups.held_until({0: 101.0}, now=101.0) == {}
    groups.stepped(1, hop_count=1)
    assert groups.held_until({0: 102.0}, now=102.0) == {0: 102.0 + HOLD_S}


def test_nobody_waits_for_a_session_that_has_ended() -> None:
    groups = drawing(0, 1, hop_count=1)

    groups.left(1)

    assert groups.held_until({0: 100.0}, now=100.0) == {}
