"""Which slots are free, and what the free ones remember.

    free, empty ──take──> in use ──give back──> free, remembering ──take──> in use ...

A slot that remembers keeps its rows until somebody needs it: a session whose prompt begins with the same blocks
takes it and goes on behind them; others take it when no empty slot is left, the one that ended longest ago first.

Pure bookkeeping: nothing here calls llama.cpp, and the engine's lock guards it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet_node.errors import NoFreeSlotError
from meshnet_protocol.prefix import shared_tokens


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slot's rows lie: they mean nothing to a session that enters elsewhere, or after a re-cut."""

    generation: int
    first_segment: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What a free slot remembers."""

    place: Place
    chain: tuple[bytes, ...]
    """Of the text whose rows it holds."""
    tokens: int
    """Rows it holds; the chain may name more."""


@dataclass(frozen=True, slots=True)
class TakenSlot:
    slot: int
    held_tokens: int
    """Of the prompt, from its beginning."""


class SlotTable:
    """Counts slots as sessions open and close."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._empty = set(range(slots))
        self._memories: dict[int, Memory] = {}
        """Of free slots; the one that was given back longest ago comes first."""

    @property
    def in_use(self) -> int:
        return self._slots - len(self._empty) - len(self._memories)

    @property
    def remembered_tokens(self) -> int:
        return sum(memory.tokens for memory in self._memories.values())

    def take(self, place: Place, prefix: Sequence[bytes]) -> TakenSlot:
        """The free slot that holds most of ``prefix``, else an empty one, else the longest forgotten.

        Raises NoFreeSlotError.
        """
        held = {slot: _held_tokens(memory, place, prefix) for slot, memory in self._memories.items()}
        best = max(held, key=lambda slot: held[slot], default=None)
        if best is not None and held[best]:
            del self._memories[best]
            return TakenSlot(best, held[best])
        if self._empty:
            # The lowest, because llama.cpp batches only slots with consecutive numbers.
            slot = min(self._empty)
            self._empty.remove(slot)
            return TakenSlot(slot, 0)
        if not self._memories:
            raise NoFreeSlotError(self._slots)
        oldest = next(iter(self._memories))
        del self._memories[oldest]
        return TakenSlot(oldest, 0)

    def give_back(self, slot: int, memory: Memory | None) -> None:
        assert slot not in self._empty
        assert slot not in self._memories
        if memory is None:
            self._empty.add(slot)
        else:
            self._memories[slot] = memory

    def forget_generation(self, generation: int) -> None:
        """Its contexts are freed, and what they held with them."""
        gone = [slot for slot, memory in self._memories.items() if memory.place.generation == generation]
        for slot in gone:
            del self._memories[slot]
            self._empty.add(slot)


def _held_tokens(memory: Memory, place: Place, prefix: Sequence[bytes]) -> int:
    if memory.place != place:
        return 0
    # A block counts only if all of its rows are there.
    return min(shared_tokens(memory.chain, prefix), memory.tokens)
