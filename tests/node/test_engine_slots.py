"""Slots: who gets which, what free ones remember, and that none is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.engine.slots import Memory, Place, SlotTable
from meshnet_node.errors import NoFreeSlotError
from meshnet_protocol.prefix import PREFIX_BLOCK_TOKENS, prefix_chain

HERE, ELSEWHERE = Place(0, 0), Place(0, 1)
SHORT, LONG = PREFIX_BLOCK_TOKENS, 3 * PREFIX_BLOCK_TOKENS
CHAIN = prefix_chain(range(LONG))


def table_with(slots: int, *memories: Memory) -> SlotTable:
    """``memories`` of slots 0, 1, ..., given back in that order."""
    table = SlotTable(slots)
    taken = [table.take(HERE, ()).slot for _ in memories]
    for slot, memory in zip(taken, memories, strict=True):
        table.give_back(slot, memory)
    return table


def test_the_slot_that_holds_most_of_the_prompt_is_taken() -> None:
    table = table_with(3, Memory(HERE, CHAIN[:1], SHORT), Memory(HERE, CHAIN, LONG))

    taken = table.take(HERE, CHAIN)

    assert (taken.slot, taken.held_tokens) == (1, LONG)


def test_only_rows_that_are_there_count_whatever_the_chain_names() -> None:
    table = table_with(1, Memory(HERE, CHAIN, SHORT + 5))

    assert table.take(HERE, CHAIN).held_tokens == SHORT + 5


def test_a_session_that_enters_elsewhere_finds_nothing() -> None:
    table = table_with(2, Memory(HERE, CHAIN, LONG))

    taken = table.take(ELSEWHERE, CHAIN)

    assert (taken.slot, taken.held_tokens) == (1, 0)


def test_an_empty_slot_is_taken_before_one_that_remembers() -> None:
    table = table_with(2, Memory(HERE, CHAIN, LONG))

    assert table.take(HERE, ()).slot == 1
    assert table.take(HERE, ()).slot == 0
    with pytest.raises(NoFreeSlotError, match="all 2 slots"):
        table.take(HERE, CHAIN)


def test_the_oldest_memory_goes_first() -> None:
    other = prefix_chain([7] * LONG)
    table = table_with(2, Memory(HERE, CHAIN, LONG), Memory(HERE, other, LONG))

    assert table.take(HERE, ()).slot == 0
    assert table.take(HERE, other).held_tokens == LONG


def test_memories_go_with_the_contexts_that_held_them() -> None:
    table = table_with(2, Memory(HERE, CHAIN, LONG))

    table.forget_generation(0)

    assert table.remembered_tokens == 0
    assert table.take(HERE, CHAIN).held_tokens == 0


@given(st.lists(st.one_of(st.none(), st.booleans()), max_size=60))
def test_no_slot_is_lost_or_given_twice(moves: list[bool | None]) -> None:
    """None: take one; else give the oldest back, remembering or not."""
    table, in_use = SlotTable(3), list[int]()
    for move in moves:
        if move is None and len(in_use) < 3:
            slot = table.take(HERE, CHAIN).slot
            assert slot not in in_use
            in_use.append(slot)
        elif move is not None and in_use:
            table.give_back(in_use.pop(0), Memory(HERE, CHAIN, LONG) if move else None)
        assert table.in_use == len(in_use)
