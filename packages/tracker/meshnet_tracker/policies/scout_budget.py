"""What looking around may cost: the limits within which ``AdaptivePolicy`` scouts, and what it has spent of them.

    first request   of a node never measured: what it may cost grows with how long the node has waited, from next to
                    nothing to any price; one at any price after the other
    trial           of a node that failed: one request in ``REQUESTS_PER_TRIAL``
    second look     at a node that seemed slow: a share of all the seconds that requests took, and of all requests

Second looks are limited in seconds, which are believed, and in number, which is certain: what is thought to cost next
to nothing is often wrong by more than that. Waiting is counted in requests and not in time, so that its cost is a
share of theirs however few they are.
"""

import math

SCOUT_SHARE_OF_SECONDS = 0.002
BUDGET_S_MAX_IN_REQUESTS = 8.0
SECOND_LOOK_PERIOD_S = 1.0
"""To look for one takes a while by itself."""
SECOND_LOOKS_PER_REQUEST = 0.03
SECOND_LOOKS_SAVED_MAX = 3.0
FIRST_REQUEST_WAIT_MAX = 30
FIRST_REQUEST_PATIENCE = 0.01
REQUESTS_PER_TRIAL = 200
SECONDS_GAIN = 0.02


class ScoutBudget:
    """Of one policy, for all its nodes. To ask changes nothing; ``decided`` does."""

    def __init__(self) -> None:
        self.requests = 0
        """Decided so far: the clock by which nodes wait."""
        self.request_s = 1.0
        """What a request takes, about."""
        self.seconds = 0.0
        self._second_looks = SECOND_LOOKS_SAVED_MAX
        self._looked_at = -math.inf
        self._first_request_at = 0

    def completed(self, seconds: float) -> None:
        self.request_s += SECONDS_GAIN * (seconds - self.request_s)
        ceiling_s = BUDGET_S_MAX_IN_REQUESTS * self.request_s
        self.seconds = min(ceiling_s, self.seconds + SCOUT_SHARE_OF_SECONDS * seconds)

    def first_request_s_max(self, tried_at: int) -> float:
        """What the first request to a node may cost that waits since ``tried_at``, in requests."""
        if self.requests - max(tried_at, self._first_request_at) >= FIRST_REQUEST_WAIT_MAX:
            return math.inf
        waited_s = (self.requests - tried_at) * self.request_s
        return max(0.0, self.seconds) + waited_s * FIRST_REQUEST_PATIENCE

    def is_trial_due(self, tried_at: int) -> bool:
        return self.requests - tried_at >= REQUESTS_PER_TRIAL

    def may_look(self, now: float) -> bool:
        return self.seconds > 0 and self._second_looks >= 1 and now - self._looked_at >= SECOND_LOOK_PERIOD_S

    def decided(
        self, now: float, *, detour_s: float, is_first_request: bool, has_looked: bool, is_second_look: bool
    ) -> None:
        """One request is on its way, and this is what it spends."""
        if is_first_request:
            self._first_request_at = self.requests
        if has_looked:
            self._looked_at = now
        self.seconds -= detour_s
        self._second_looks -= is_second_look
        self._second_looks = min(SECOND_LOOKS_SAVED_MAX, self._second_looks + SECOND_LOOKS_PER_REQUEST)
        self.requests += 1
