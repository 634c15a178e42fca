"""What looking around may cost: the limits within which ``AdaptivePolicy`` scouts, and what it has spent of them.

What a scout costs is what it takes above the quickest route. It is paid in seconds, out of a share of all the seconds
that requests took, so that scouting costs no more than that share however few requests, however many nodes and
however slow they are:

    first request   of a node never measured, as soon as it can be paid for. A node that joins a mesh at work has some
                    credit besides, which grows while it waits, and in the end, once, as much as it takes
    trial           of a node that failed: one request in ``REQUESTS_PER_TRIAL``
    second look     at a node that seemed slow: from a purse of its own, and of so many requests only a few

What a scout will cost is a belief when it is sent off; when it comes back, the purse pays what it did cost. A purse may
be overdrawn by that, and then nothing is bought from it until it has been filled again. Waiting is counted in requests
and not in time, so that what it leads to is a share of theirs.
"""

import math
from dataclasses import dataclass

FIRST_REQUESTS_SHARE = 0.005
SECOND_LOOKS_SHARE = 0.003
"""Of all seconds."""
SECOND_LOOKS_S_MAX_IN_REQUESTS = 8.0
SECOND_LOOK_PERIOD_S = 1.0
"""To look for one takes a while by itself."""
SECOND_LOOKS_PER_REQUEST = 0.03
SECOND_LOOKS_SAVED_MAX = 3.0
FIRST_CREDIT_IN_REQUESTS = 0.5
"""Of all nodes together that are there at the start."""
CREDIT_PER_REQUEST = 0.01
CREDIT_DUE_IN_FULL = 30
"""Requests, after which a node that has joined gets its first one at any price."""
DEBT_IN_REQUESTS_MAX = 4.0
"""With more than that to pay back, nobody gets credit."""
REQUESTS_PER_TRIAL = 200
SECONDS_GAIN = 0.02


@dataclass(slots=True)
class Purse:
    """Seconds, filled by a share of all that requests take, and emptied by what scouts take above the quickest way."""

    share: float
    seconds: float = 0.0

    def pay(self, seconds: float) -> None:
        self.seconds -= seconds


@dataclass(slots=True)
class Expense:
    """A scout under way: what it was believed to cost has been paid, and what it costs is settled when it is back."""

    purse: Purse
    quickest_s: float
    """What the quickest way was believed to take."""
    paid_s: float

    def settle(self, seconds: float, *, work: float) -> None:
        """It took ``seconds`` for ``work`` times what was expected to be done."""
        cost_s = max(0.0, seconds - self.quickest_s * work)
        self._correct(cost_s)

    def give_up(self, seconds: float) -> None:
        """Its client left after ``seconds``: nothing was learnt, so the rest is there for the next one."""
        if self.paid_s:
            self._correct(min(1.0, seconds / (self.quickest_s + self.paid_s)) * self.paid_s)

    def _correct(self, cost_s: float) -> None:
        self.purse.pay(cost_s - self.paid_s)
        self.paid_s = cost_s


class ScoutBudget:
    """Of one policy, for all its nodes. To ask changes nothing; ``decided``, ``completed`` and expenses do."""

    def __init__(self) -> None:
        self.requests = 0
        """Decided so far: the clock by which nodes wait."""
        self.request_s = 1.0
        """What a request takes, about."""
        self.first_requests = Purse(FIRST_REQUESTS_SHARE)
        self.second_looks = Purse(SECOND_LOOKS_SHARE)
        self._second_looks = SECOND_LOOKS_SAVED_MAX
        self._looked_at = -math.inf
        self._has_begun = False

    def completed(self, seconds: float) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.first_requests.seconds += FIRST_CREDIT_IN_REQUESTS * seconds
        self.request_s += SECONDS_GAIN * (seconds - self.request_s)
        for purse in (self.first_requests, self.second_looks):
            purse.seconds += purse.share * seconds
        self.second_looks.seconds = min(SECOND_LOOKS_S_MAX_IN_REQUESTS * self.request_s, self.second_looks.seconds)

    def can_pay_first_request(self, price_s: float, joined_at: int) -> bool:
        """To a node that came when there had been ``joined_at`` requests."""
        seconds = self.first_requests.seconds
        if max(0.0, price_s) <= seconds:
            return True
        if not joined_at or seconds < -DEBT_IN_REQUESTS_MAX * self.request_s:
            return False
        waited = self.requests - joined_at
        return (
            waited >= CREDIT_DUE_IN_FULL or price_s <= max(0.0, seconds) + CREDIT_PER_REQUEST * waited * self.request_s
        )

    def is_trial_due(self, tried_at: int) -> bool:
        return self.requests - tried_at >= REQUESTS_PER_TRIAL and self.first_requests.seconds >= 0

    def may_look(self, now: float) -> bool:
        return (
            self.second_looks.seconds > 0 and self._second_looks >= 1 and now - self._looked_at >= SECOND_LOOK_PERIOD_S
        )

    def decided(self, now: float, expense: Expense | None, *, has_looked: bool) -> None:
        """One request is on its way, and this is what it spends."""
        if has_looked:
            self._looked_at = now
        if expense is not None:
            expense.purse.pay(expense.paid_s)
            self._second_looks -= expense.purse is self.second_looks
        self._second_looks = min(SECOND_LOOKS_SAVED_MAX, self._second_looks + SECOND_LOOKS_PER_REQUEST)
        self.requests += 1
