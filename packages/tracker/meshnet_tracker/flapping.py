"""Nodes that come and go again and again: how often, and when that is too often.

Each departure is a penalty of 1 that halves every 5 minutes. Above 3 a machine that comes back has to *settle*: it is
known and watched, but no part of the topology, until its penalty has fallen to 2 because it stayed. So a flapping
node moves the topology's epoch a few times, and then once in some minutes at most (ADR 0005). It is the damping
that routers of the internet use for routes that flap (RFC 2439).
"""

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

PENALTY_HALF_LIFE_S = 300.0
PENALTY_TO_SETTLE = 3.0
PENALTY_SETTLED = 2.0
PENALTY_MAX = 8.0
"""The worst is taken in again 10 minutes after it has come to stay."""
PENALTY_FORGIVEN = 0.05

M = TypeVar("M", bound=Hashable)


class Flapping(Generic[M]):
    """Departures of machines, told the time. Remembers only what still counts."""

    def __init__(self) -> None:
        self._penalties: dict[M, tuple[float, float]] = {}

    def note_departure(self, machine: M, now: float) -> None:
        self._penalties[machine] = (min(PENALTY_MAX, self._penalty(machine, now) + 1.0), now)

    def must_settle(self, machine: M, now: float) -> bool:
        return self._penalty(machine, now) > PENALTY_TO_SETTLE

    def has_settled(self, machine: M, now: float) -> bool:
        return self._penalty(machine, now) <= PENALTY_SETTLED

    def forget_old(self, now: float) -> None:
        for machine in [machine for machine in self._penalties if self._penalty(machine, now) < PENALTY_FORGIVEN]:
            del self._penalties[machine]

    def _penalty(self, machine: M, now: float) -> float:
        penalty, at = self._penalties.get(machine, (0.0, now))
        return penalty * math.exp2(-max(0.0, now - at) / PENALTY_HALF_LIFE_S)
