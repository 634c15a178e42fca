"""Whose fault was it? A failure accuses all its suspects; what else they did tells which of them it was.

Failures are kept for a while as they happened, and the guilt for all of them is divided anew whenever something
is learnt: in proportion to each node's share of failures, which is itself computed from the guilt (the EM
algorithm for a mixture of culprits, a few rounds at a time). A node that goes on to succeed in other company
clears itself, and what it was accused of falls on those who were there with it.
"""

from collections import deque
from dataclasses import dataclass

from meshnet_tracker.policies.node_beliefs import FAULT_HALF_LIFE_S, NodeBelief

FAILURES_KEPT_MAX = 128
FAILURES_KEPT_S = 2 * FAULT_HALF_LIFE_S
ROUNDS = 4
GUILT_MIN = 0.002
GUILT_TO_CLEAR = 0.2
ACCUSED_ODDS = 2.0
"""Of a link's two ends the far one, which is accused, is likelier to have broken it than the near one to lie."""
ESTIMATE_PERIOD_S = 0.5


@dataclass(slots=True)
class _Failed:
    at: float
    beliefs: tuple[NodeBelief, ...]
    """Those of the accused."""
    odds: list[float]
    """How likely each is to be guilty before anything else is known of it."""
    guilt: list[float]

    def divide_guilt(self, now: float) -> None:
        shares = [
            odds * (GUILT_MIN + belief.fault_share(now)) for odds, belief in zip(self.odds, self.beliefs, strict=True)
        ]
        self.guilt = [share / sum(shares) for share in shares]


class FaultLedger:
    """The latest failures, and who is to blame for them."""

    def __init__(self) -> None:
        self._failures: deque[_Failed] = deque(maxlen=FAILURES_KEPT_MAX)
        self._estimated_at = 0.0

    def succeeded(self, beliefs: tuple[NodeBelief, ...], taken_at: float, now: float) -> None:
        for belief in beliefs:
            belief.succeed(taken_at, now)
        if self._failures and now - self._estimated_at >= ESTIMATE_PERIOD_S:
            self._estimate(now)

    def failed(self, beliefs: tuple[NodeBelief, ...], suspected: list[bool], now: float) -> None:
        """``suspected``: those who may have broken it; if none is named, all may have."""
        accused = tuple(belief for belief, flag in zip(beliefs, suspected, strict=True) if flag) or beliefs
        odds = [1.0] * len(accused)
        if any(suspected):
            odds[-1] = ACCUSED_ODDS
        failure = _Failed(now, accused, odds, [part / sum(odds) for part in odds])
        self._failures.append(failure)
        self._estimate(now)
        for belief, part in zip(accused, failure.guilt, strict=True):
            belief.fail(part, now)

    def _estimate(self, now: float) -> None:
        self._estimated_at = now
        while self._failures and now - self._failures[0].at > FAILURES_KEPT_S:
            for belief in self._failures.popleft().beliefs:
                belief.set_faults(0.0, now)
        for _ in range(ROUNDS):
            self._count_faults(now)
            for failure in self._failures:
                failure.divide_guilt(now)
        worst: dict[NodeBelief, float] = {}
        for failure in self._failures:
            for belief, part in zip(failure.beliefs, failure.guilt, strict=True):
                worst[belief] = max(part, worst.get(belief, 0.0))
        for belief, part in worst.items():
            if part < GUILT_TO_CLEAR:
                belief.clear()

    def _count_faults(self, now: float) -> None:
        faults: dict[NodeBelief, float] = {}
        for failure in self._failures:
            weight = 2.0 ** (-(now - failure.at) / FAULT_HALF_LIFE_S)
            for belief, part in zip(failure.beliefs, failure.guilt, strict=True):
                faults[belief] = faults.get(belief, 0.0) + weight * part
        for belief, count in faults.items():
            belief.set_faults(count, now)
