"""Which slots are free, what is in them, and which one a session gets.

    free, empty ──take──> in use ──give back──> free, remembering ──take──> in use ...

A slot that remembers keeps its rows until somebody needs it. A session whose prompt goes on from there takes the slot
as it is. Any other takes an empty one, or else the one that ended longest ago; and if some slot, free or in use, holds
the beginning of its prompt (a system prompt that many share), that is copied over.

Pure bookkeeping: nothing here calls llama.cpp, and the engine's lock guards it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshnet_node.errors import NoFreeSlotError
from meshnet_protocol.prefix import shared_tokens


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slot's rows lie: they mean nothing to a session that enters elsewhere, or after a re-cut."""

    generation: int
    first_segment: int


@dataclass(frozen=True, slots=True)
class HeldRows:
    """What is in a slot."""

    place: Place
    chain: tuple[bytes, ...]
    """Of the text whose rows it holds."""
    tokens: int
    """Rows it holds; the chain may name more."""

    def of(self, place: Place, prefix: Sequence[bytes]) -> int:
        """Tokens of a prompt's beginning that are here. A block counts only if all of its rows are."""
        return min(shared_tokens(self.chain, prefix), self.tokens) if self.place == place else 0


@dataclass(frozen=True, slots=True)
class TakenSlot:
    slot: int
    held_tokens: int
    """Of the prompt, from its beginning, once they are copied."""
    copy_from: int | None = None
    """The slot that has them; None if they are here already."""


class SlotTable:
    """Counts slots as sessions open and close."""

    def __init__(self, slots: int, *, copy_tokens_min: int = 1) -> None:
        """``copy_tokens_min``: with fewer tokens in common, computing them is cheaper than copying a slot."""
        self._slots = slots
        self._copy_tokens_min = copy_tokens_min
        self._empty = set(range(slots))
        self._remembered: dict[int, HeldRows] = {}
        """Of free slots; the one that was given back longest ago comes first."""

    @property
    def in_use(self) -> int:
        return self._slots - len(self._empty) - len(self._remembered)

    @property
    def remembered_tokens(self) -> int:
        return sum(rows.tokens for rows in self._remembered.values())

    def take(self, place: Place, prefix: Sequence[bytes], in_use: Mapping[int, HeldRows]) -> TakenSlot:
        """A slot for a session at ``place`` whose prompt has this chain.

        ``in_use``: what slots of open sessions hold, as far as it is computed. Raises NoFreeSlotError.
        """
        held = {slot: rows.of(place, prefix) for slot, rows in (self._remembered | dict(in_use)).items()}
        best = max(held, key=held.__getitem__, default=None)
        if best is not None and held[best] and self._goes_on_in(best, held[best]):
            return self._taken(best, held[best])
        slot = self._free_slot()
        held_here = held.get(slot, 0)
        if best is not None and held[best] - held_here >= self._copy_tokens_min:
            return self._taken(slot, held[best], copy_from=best)
        return self._taken(slot, held_here)

    def give_back(self, slot: int, rows: HeldRows | None) -> None:
        """``rows``: what it goes on holding."""
        assert slot not in self._empty
        assert slot not in self._remembered
        if rows is None:
            self._empty.add(slot)
        else:
            self._remembered[slot] = rows

    def forget_generation(self, generation: int) -> None:
        """Its contexts are freed, and what they held with them."""
        gone = [slot for slot, rows in self._remembered.items() if rows.place.generation == generation]
        for slot in gone:
            del self._remembered[slot]
            self._empty.add(slot)

    def _goes_on_in(self, slot: int, held_tokens: int) -> bool:
        """Little of what the slot remembers is lost to a prompt that has so much of it."""
        rows = self._remembered.get(slot)
        return rows is not None and 2 * held_tokens >= rows.tokens

    def _free_slot(self) -> int:
        if self._empty:
            return min(self._empty)  # because llama.cpp batches only slots with consecutive numbers
        if not self._remembered:
            raise NoFreeSlotError(self._slots)
        return next(iter(self._remembered))

    def _taken(self, slot: int, held_tokens: int, *, copy_from: int | None = None) -> TakenSlot:
        self._empty.discard(slot)
        self._remembered.pop(slot, None)
        return TakenSlot(slot, held_tokens, copy_from)
