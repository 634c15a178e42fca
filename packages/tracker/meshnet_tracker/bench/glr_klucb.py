"""GLR-klUCB: a bandit that starts afresh when an arm's rewards have changed (Besson, Kaufmann, Maillard, Seznec 2022).

Rewards are tokens/s over the most ever seen, so that they lie in 0 to 1, and are treated as if drawn by a coin.
The arm with the highest upper confidence bound is taken; one decision in some is given to the arms in turn, so that
a change of an arm nobody takes is noticed too. After each reward a generalised likelihood ratio test asks of every
split of the arm's rewards whether they look like two means rather than one; if so, all arms are forgotten.
Arms not tried yet come in order of their priors: with 48 or 756 of them that is what most of the time goes into.
"""

import math
from random import Random

from meshnet_protocol.ids import Signature
from meshnet_tracker.bench.baselines import Baseline
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.route_policy import Completion, Flight, RouteRequest

FORCED_SHARE = 0.01
FALSE_ALARM_RATE = 0.01
REWARDS_KEPT = 300
SPLITS_TESTED_MAX = 40
MEAN_MIN = 1e-6
BISECTIONS = 14


class GlrKlUcb(Baseline):
    name = "glr-klucb"

    def __init__(self) -> None:
        super().__init__()
        self._rewards: dict[Signature, list[float]] = {}
        self._best_tps = 1e-9
        self._decisions = 0

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        self._decisions += 1
        if rng.random() < FORCED_SHARE:
            return rng.choice(request.candidates)
        seen = sum(len(rewards) for rewards in self._rewards.values())
        bound = math.log(max(2.0, seen)) + 3 * math.log(max(1.0, math.log(max(2.0, seen))))

        def index(option: Candidate) -> tuple[float, float]:
            rewards = self._rewards.get(option.signature)
            if not rewards:
                # One request at a time is enough to try it; with one under way it waits behind what is known.
                return (0.0 if self.on_arm[option.signature] else 2.0, option.prior_tps)
            return upper_bound(sum(rewards) / len(rewards) / self._best_tps, bound / len(rewards)), rng.random()

        return max(request.candidates, key=index)

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        tps = completion.completion_tokens / completion.seconds
        self._best_tps = max(self._best_tps, tps)
        rewards = self._rewards.setdefault(flight.route.signature, [])
        rewards.append(tps)
        del rewards[:-REWARDS_KEPT]
        if has_changed([reward / self._best_tps for reward in rewards]):
            self._rewards.clear()


def upper_bound(mean: float, room: float) -> float:
    """The highest mean that is no further than ``room`` from the one that was seen."""
    low, high = mean, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if divergence(mean, middle) > room:
            high = middle
        else:
            low = middle
    return low


def has_changed(rewards: list[float]) -> bool:
    count, total = len(rewards), sum(rewards)
    if count < 2:
        return False
    threshold = math.log(3 * count * math.sqrt(count) / FALSE_ALARM_RATE)
    step = max(1, count // SPLITS_TESTED_MAX)
    before = 0.0
    for place, reward in enumerate(rewards[:-1], start=1):
        before += reward
        if place % step:
            continue
        mean = total / count
        early, late = before / place, (total - before) / (count - place)
        if place * divergence(early, mean) + (count - place) * divergence(late, mean) > threshold:
            return True
    return False


def divergence(mean: float, other: float) -> float:
    """Kullback and Leibler's, between two coins."""
    p, q = (min(1 - MEAN_MIN, max(MEAN_MIN, value)) for value in (mean, other))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
