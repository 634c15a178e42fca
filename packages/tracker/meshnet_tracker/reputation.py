"""What failures cost a node, or the link between two: one count of faults, from which everything else follows.

    mass         faults, each halved every 60 s
    reputation   0.1 ** mass: a factor on a node's prior
    cooldown     5 s * 2 ** (mass - 1), a minute at most: it is left out of choices for so long after a fault

A tenfold fall makes a node that fails fast lose to any that works, whatever speed it claims for itself; the
cooldown keeps it out where priors do not matter any more, because its routes are measured. Both grow with every
further fault and end by themselves, without traffic. Success does not repair them sooner: a node that fails every
other chat is no good node. Where nothing but cooling nodes can serve, they are tried all the same, by one chat at
a time (``trials.py``).
"""

import math
from dataclasses import dataclass

FAULT_FACTOR = 0.1
FAULT_HALF_LIFE_S = 60.0
FAULT_MASS_MAX = 12.0
"""A node that has failed a thousand times is back in 4 minutes all the same."""
FORGIVEN_MASS = 0.01
COOLDOWN_S_FIRST = 5.0
COOLDOWN_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Faults that still count, at a time of the tracker's monotonic clock, in seconds."""

    mass: float = 0.0
    at: float = 0.0
    cooling_until: float = -math.inf

    def with_fault(self, now: float) -> "FaultRecord":
        mass = min(self.seen(now).mass + 1.0, FAULT_MASS_MAX)
        return FaultRecord(mass, now, now + min(COOLDOWN_S_MAX, COOLDOWN_S_FIRST * math.exp2(mass - 1.0)))

    def seen(self, now: float) -> "FaultRecord":
        """The record at ``now``; a clock that stepped back forgives nothing."""
        mass = self.mass * math.exp2(-max(0.0, now - self.at) / FAULT_HALF_LIFE_S)
        return FaultRecord(mass if mass > FORGIVEN_MASS else 0.0, now, self.cooling_until)

    def is_cooling(self, now: float) -> bool:
        return now < self.cooling_until

    @property
    def reputation(self) -> float:
        """In (0, 1]; 1 for a node without faults."""
        return math.pow(FAULT_FACTOR, self.mass) if self.mass else 1.0


NO_FAULTS = FaultRecord()
