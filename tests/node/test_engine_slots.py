"""Slots: who gets which, what free ones remember, and that none is lost."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.engine.slots import HeldRows, Place, SlotTable, TakenSlot
from meshnet_node.errors import NoFreeSlotError
from meshnet_protocol.prefix import SMALL_BLOCK_TOKENS, prefix_chain

HERE, ELSEWHERE = Place(0, 0), Place(0, 1)
SHORT, LONG = SMALL_BLOCK_TOKENS, 3 * SMALL_BLOCK_TOKENS
CHAIN = prefix_chain(range(LONG))


def take(
    table: SlotTable, place: Place, prefix: Sequence[bytes], in_use: Mapping[int, HeldRows] = MappingProxyType({})
) -> TakenSlot:
    return table.take(place, prefix, in_use)


def table_with(slots: int, *memories: HeldRows) -> SlotTable:
    """``memories`` of slots 0, 1, ..., given back in that order."""
    table = SlotTable(slots)
    taken = [take(table, HERE, ()).slot for _ in memories]
    for slot, memory in zip(taken, memories, strict=True):
        table.give_back(slot, memory)
    return table


def test_the_slot_that_holds_most_of_the_prompt_is_taken() -> None:
    table = table_with(3, HeldRows(HERE, CHAIN[:1], SHORT), HeldRows(HERE, CHAIN, LONG))

    taken = take(table, HERE, CHAIN)

    assert (taken.slot, taken.held_tokens) == (1, LONG)


def test_only_rows_that_are_there_count_whatever_the_chain_names() -> None:
    table = table_with(1, HeldRows(HERE, CHAIN, SHORT + 5))

    assert take(table, HERE, CHAIN).held_tokens == SHORT + 5


def test_a_session_that_enters_elsewhere_finds_nothing() -> None:
    table = table_with(2, HeldRows(HERE, CHAIN, LONG))

    taken = take(table, ELSEWHERE, CHAIN)

    assert (taken.slot, taken.held_tokens) == (1, 0)


def test_an_empty_slot_is_taken_before_one_that_remembers() -> None:
    table = table_with(2, HeldRows(HERE, CHAIN, LONG))

    assert take(table, HERE, ()).slot == 1
    assert take(table, HERE, ()).slot == 0
    with pytest.raises(NoFreeSlotError, match="all 2 slots"):
        take(table, HERE, CHAIN)


def test_the_oldest_memory_goes_first() -> None:
    other = prefix_chain([7] * LONG)
    table = table_with(2, HeldRows(HERE, CHAIN, LONG), HeldRows(HERE, other, LONG))

    assert take(table, HERE, ()).slot == 0
    assert take(table, HERE, other).held_tokens == LONG


def test_a_chat_that_goes_on_takes_its_own_slot_though_others_are_empty() -> None:
    table = table_with(3, HeldRows(HERE, CHAIN, LONG))

    assert take(table, HERE, CHAIN) == TakenSlot(0, LONG)


def test_a_beginning_that_others_share_is_copied_and_spares_what_they_remember() -> None:
    """Two thirds of what slot 0 remembers would be lost to somebody who shares the first third only."""
    table = table_with(3, HeldRows(HERE, CHAIN, LONG))

    assert take(table, HERE, CHAIN[:1]) == TakenSlot(1, SHORT, copy_from=0)
    assert take(table, HERE, CHAIN) == TakenSlot(0, LONG)


def test_a_beginning_is_copied_from_an_open_session_too() -> None:
    table = SlotTable(2)
    first = take(table, HERE, CHAIN).slot

    second = take(table, HERE, CHAIN, {first: HeldRows(HERE, CHAIN, SHORT + 3)})

    assert second == TakenSlot(1, SHORT + 3, copy_from=first)


def test_nothing_is_copied_to_the_oldest_if_it_holds_as_much_itself() -> None:
    table = table_with(2, HeldRows(HERE, CHAIN, LONG), HeldRows(HERE, CHAIN, LONG))

    assert take(table, HERE, CHAIN[:1]) == TakenSlot(0, SHORT)


def test_what_costs_less_to_compute_than_to_copy_is_not_copied() -> None:
    table = SlotTable(2, copy_tokens_min=SHORT + 1)
    table.give_back(take(table, HERE, ()).slot, HeldRows(HERE, CHAIN, LONG))

    assert take(table, HERE, CHAIN[:1]) == TakenSlot(1, 0)


def test_memories_go_with_the_contexts_that_held_them() -> None:
    table = table_with(2, HeldRows(HERE, CHAIN, LONG))

    table.forget_generation(0)

    assert table.remembered_tokens == 0
    assert take(table, HERE, CHAIN).held_tokens == 0


@given(st.lists(st.one_of(st.none(), st.booleans()), max_size=60))
def test_no_slot_is_lost_or_given_twice(moves: list[bool | None]) -> None:
    """None: take one; else give the oldest back, remembering or not."""
    table, in_use = SlotTable(3), list[int]()
    for move in moves:
        if move is None and len(in_use) < 3:
            slot = take(table, HERE, CHAIN).slot
            assert slot not in in_use
            in_use.append(slot)
        elif move is not None and in_use:
            table.give_back(in_use.pop(0), HeldRows(HERE, CHAIN, LONG) if move else None)
        assert table.in_use == len(in_use)
