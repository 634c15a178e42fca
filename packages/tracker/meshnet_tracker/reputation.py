"""What a node's failures cost it: a factor on its prior that falls with each fault and comes back with time.

    reputation = 0.1 ** mass        mass: faults, each halved every 60 s

A tenfold fall makes a node that fails fast lose to any that works, whatever speed it claims for itself; the
half-life gives it another chance within minutes, without traffic. Success does not repair it sooner: a node
that fails every other chat is no good node.
"""

import math
from dataclasses import dataclass

FAULT_FACTOR = 0.1
FAULT_HALF_LIFE_S = 60.0
FAULT_MASS_MAX = 12.0
"""A node that has failed a thousand times is back in 4 minutes all the same."""
FORGIVEN_MASS = 0.01


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Faults that still count, at a time of the tracker's monotonic clock, in seconds."""

    mass: float = 0.0
    at: float = 0.0

    def with_fault(self, now: float) -> "FaultRecord":
        return FaultRecord(min(self.seen(now).mass + 1.0, FAULT_MASS_MAX), now)

    def seen(self, now: float) -> "FaultRecord":
        """The record at ``now``; a clock that stepped back forgives nothing."""
        mass = self.mass * math.exp2(-max(0.0, now - self.at) / FAULT_HALF_LIFE_S)
        return FaultRecord(mass if mass > FORGIVEN_MASS else 0.0, now)

    @property
    def reputation(self) -> float:
        """In (0, 1]; 1 for a node without faults."""
        return math.pow(FAULT_FACTOR, self.mass) if self.mass else 1.0


NO_FAULTS = FaultRecord()
