"""Whose fault was it? A failed route accuses all its nodes; what else they did tells which of them it was.

Failures are kept for a while as they happened, and the guilt for all of them is divided anew whenever something
is learnt: in proportion to each node's share of failures, which is itself computed from the guilt (the EM
algorithm for a mixture of culprits, a few rounds at a time). A node that goes on to succeed in other company
clears itself, and what it was accused of falls on those who were there with it.
"""

from collections import deque
from dataclasses import dataclass

from meshnet_tracker.policies.node_beliefs import FAULT_HALF_LIFE_S, NodeBelief

FAILURES_KEPT_MAX = 64
FAILURES_KEPT_S = 2 * FAULT_HALF_LIFE_S
ROUNDS = 4
GUILT_MIN = 0.002
ESTIMATE_PERIOD_S = 0.5


@dataclass(slots=True)
class _Failed:
    at: float
    beliefs: tuple[NodeBelief, ...]
    guilt: list[float]
    is_settled: bool


class FaultLedger:
    """Failures of the last half hour, and who is to blame for them."""

    def __init__(self) -> None:
        self._failures: deque[_Failed] = deque(maxlen=FAILURES_KEPT_MAX)
        self._estimated_at = 0.0

    def succeeded(self, beliefs: tuple[NodeBelief, ...], taken_at: float, now: float) -> None:
        for belief in beliefs:
            belief.succeed(taken_at, now)
        if self._failures and now - self._estimated_at >= ESTIMATE_PERIOD_S:
            self._estimate(now)

    def failed(self, beliefs: tuple[NodeBelief, ...], suspected: list[bool], now: float) -> None:
        """``suspected``: those known to have broken; if none is, all may have."""
        suspects = sum(suspected)
        guilt = [flag / suspects if suspects else 1 / len(beliefs) for flag in suspected]
        if not suspects:
            guilt = [1 / len(beliefs)] * len(beliefs)
        failure = _Failed(now, beliefs, guilt, is_settled=suspects > 0)
        self._failures.append(failure)
        self._estimate(now)
        for belief, part in zip(beliefs, failure.guilt, strict=True):
            belief.fail(part, now)

    def _estimate(self, now: float) -> None:
        self._estimated_at = now
        while self._failures and now - self._failures[0].at > FAILURES_KEPT_S:
            for belief in self._failures.popleft().beliefs:
                belief.set_faults(0.0, now)
        for _ in range(ROUNDS):
            faults: dict[NodeBelief, float] = {}
            for failure in self._failures:
                weight = 2.0 ** (-(now - failure.at) / FAULT_HALF_LIFE_S)
                for belief, part in zip(failure.beliefs, failure.guilt, strict=True):
                    faults[belief] = faults.get(belief, 0.0) + weight * part
            for belief, count in faults.items():
                belief.set_faults(count, now)
            for failure in self._failures:
                if not failure.is_settled:
                    shares = [GUILT_MIN + belief.fault_share(now) for belief in failure.beliefs]
                    total = sum(shares)
                    failure.guilt = [share / total for share in shares]
