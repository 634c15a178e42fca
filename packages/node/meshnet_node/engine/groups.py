"""Which decode steps travel together: as many groups as the route has hops, so that every hop has one to work on.

All sessions in one batch would leave each hop idle while the others work; one batch for each session would give
away what a batch saves. So the sessions that are drawing tokens are dealt into groups, neighbours by slot, because
llama.cpp computes only neighbours together.

Steps of a group come back one by one, some thousandths of a second apart. Whoever takes the first of them at once
leaves the others for a second batch, and from then on the group is two. A group is therefore *held* for those who
are due, for a small share of a batch's time. Who does not come within that (a client that reads slowly, a node
that stumbles) is not waited for again until it has caught up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HOLD_SHARE = 0.25
"""Of the last decode's time: longest wait of a group's first step for the others."""


@dataclass(slots=True)
class _Member:
    hop_count: int
    is_due: bool = True
    """Its next step should arrive together with the others'."""


class DecodeGroups:
    """The sessions that are drawing tokens, by slot. Belongs to the engine thread; it is told the time."""

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}
        self._group_of: dict[int, frozenset[int]] = {}
        self._hold_s = 0.0

    def stepped(self, slot: int, *, hop_count: int) -> None:
        """A token was asked for in a step of this slot, and the step is done: the next one is due."""
        member = self._members.get(slot)
        if member is None or member.hop_count != hop_count:
            self._members[slot] = _Member(hop_count)
            self._deal()
        else:
            member.is_due = True

    def left(self, slot: int) -> None:
        """Its session has ended."""
        if self._members.pop(slot, None) is not None:
            self._deal()

    def decoded(self, seconds: float) -> None:
        """A batch of decode steps took so long."""
        self._hold_s = HOLD_SHARE * seconds

    def group_of(self, slot: int) -> frozenset[int]:
        """The slots whose steps go with this one's; just itself if it has not drawn a token yet."""
        return self._group_of.get(slot) or frozenset((slot,))

    def held_until(self, arrivals: Mapping[int, float], now: float) -> dict[int, float]:
        """Of these slots with a decode step at hand, those that should wait for others, and until when.

        ``arrivals``: when each step came. Slots that others have waited for in vain are due no more.
        """
        held: dict[int, float] = {}
        if len(self._members) < 2:
            return held
        for group in {self.group_of(slot) for slot in arrivals}:
            here = group & arrivals.keys()
            missing = [slot for slot in group - here if self._members[slot].is_due]
            if not missing:
                continue
            until = min(arrivals[slot] for slot in here) + self._hold_s
            if until > now:
                held |= dict.fromkeys(here, until)
            else:
                for slot in missing:
                    self._members[slot].is_due = False
        return held

    def _deal(self) -> None:
        """Deal the members into groups of neighbours, equally large but for the last."""
        slots = sorted(self._members)
        group_count = max((member.hop_count for member in self._members.values()), default=1)
        size = -(-len(slots) // group_count)
        self._group_of = {}
        for start in range(0, len(slots), size or 1):
            group = frozenset(slots[start : start + size])
            self._group_of |= dict.fromkeys(group, group)
