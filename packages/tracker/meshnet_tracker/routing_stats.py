"""What the tracker believes about routes, and how it acts on the belief: a multi-armed bandit.

An arm is a route's signature. ``RouteStatsStore`` is the only writer of beliefs: it takes finished
requests in through ``observe`` and keeps, per arm, a mean of end-to-end tokens/s whose weight halves
every ``stats_half_life_s``. ``choose_route`` turns beliefs into a choice and keeps no state at all.

An arm's standing, and what moves it:

    unsampled ──sample──> proven ──mass < 0.5──> decayed
                            │ ^                     │
               epoch bump   │ └───────sample────────┤
                            └──> stale ──sample─────┘

Only proven arms are exploited; all others wait to be scouted. Samples come unevenly in time, so they are
weighed by elapsed time and not by count. Rejected: forgetting an arm at an epoch bump, because its old
speed is still the best thing to show a person; and one global epoch, because models do not share nodes' layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Generic, Protocol, TypeVar

from meshnet_protocol.ids import ModelKey, Signature
from meshnet_tracker.errors import SettingsError

PROVEN_MASS_MIN = 0.5
PRUNE_AFTER_S = 24 * 3600.0
ARMS_PER_MODEL_MAX = 10_000
DEVIATION_SAMPLES = 16


class ArmStatus(StrEnum):
    PROVEN = "proven"
    UNSAMPLED = "unsampled"
    STALE = "stale"
    DECAYED = "decayed"


class DecisionMode(StrEnum):
    SCOUT = "scout"
    EXPLOIT = "exploit"
    PINNED = "pinned"
    GREEDY_FALLBACK = "greedy-fallback"


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """The policy's four knobs. Raises SettingsError, naming knob and value, if one is out of its range."""

    explore_share: float = 0.3
    weight_alpha: float = 1.0
    stats_half_life_s: float = 600.0
    min_sample_tokens: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.explore_share <= 1:
            raise SettingsError(f"--route-explore-share must be between 0 and 1, not {self.explore_share}")
        if not 0 <= self.weight_alpha < math.inf:
            raise SettingsError(f"--route-weight-alpha must be a number of at least 0, not {self.weight_alpha}")
        if not 0 < self.stats_half_life_s < math.inf:
            raise SettingsError(f"--route-stats-half-life must be more than 0 seconds, not {self.stats_half_life_s}")
        if self.min_sample_tokens < 1:
            raise SettingsError(f"MESHNET_ROUTE_MIN_SAMPLE_TOKENS must be at least 1, not {self.min_sample_tokens}")


@dataclass(frozen=True, slots=True)
class DecayedMean:
    """A mean whose weight halves over time: the form in which trackers could exchange what they learnt.

    ``value`` is tokens/s, ``mass`` counts samples (each worth 1 when new), ``timestamp`` is when mass was true.
    """

    value: float
    mass: float
    timestamp: float

    def at(self, now: float, *, half_life_s: float) -> "DecayedMean":
        """The same mean seen at ``now``. Never gains mass, not even if the clock stepped backwards."""
        elapsed_s = max(0.0, now - self.timestamp)
        if not elapsed_s:
            return self
        return DecayedMean(self.value, self.mass * math.exp2(-elapsed_s / half_life_s), now)

    def merge(self, other: "DecayedMean", *, half_life_s: float) -> "DecayedMean":
        """Both together, at the later of the two times; the order of merging does not matter (within rounding)."""
        now = max(self.timestamp, other.timestamp)
        mine, theirs = self.at(now, half_life_s=half_life_s), other.at(now, half_life_s=half_life_s)
        mass = mine.mass + theirs.mass
        if not mass:
            return max(mine, theirs, key=lambda mean: mean.value)
        # Weights of at most 1 cannot overflow, and a sum of positive parts cannot cancel to nothing.
        return DecayedMean(mine.value * (mine.mass / mass) + theirs.value * (theirs.mass / mass), mass, now)


@dataclass(frozen=True, slots=True)
class RouteSample:
    """One finished request on one arm: tokens produced, and seconds from dispatch to the head's last byte.

    ``epoch`` is the topology epoch at dispatch, so that a request which ran across a change of topology
    does not vouch for the new one.
    """

    model_key: ModelKey
    signature: Signature
    completion_tokens: int
    seconds: float
    epoch: int

    @property
    def tps(self) -> float:
        """Tokens per second; NaN where that makes no sense."""
        try:
            return self.completion_tokens / self.seconds
        except (ZeroDivisionError, OverflowError):
            return math.nan


@dataclass(frozen=True, slots=True)
class ArmView:
    """A snapshot of one arm. ``tps`` and ``last_sample_age_s`` are None for an arm without samples.

    ``tps_deviation`` is how far single samples lie from their mean; None below two samples.
    """

    status: ArmStatus
    tps: float | None
    mass: float
    sample_count: int
    last_sample_age_s: float | None
    tps_deviation: float | None = None


_NEVER_SAMPLED = ArmView(ArmStatus.UNSAMPLED, None, 0.0, 0, None)


@dataclass(frozen=True, slots=True)
class _Arm:
    mean: DecayedMean
    sample_count: int
    epoch: int
    deviation: float = 0.0
    """Mean distance of new samples from the mean they met: only for showing how sure the mean is."""


class RouteStatsStore:
    """Beliefs about every arm of every model, and each model's topology epoch."""

    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self._arms: dict[ModelKey, dict[Signature, _Arm]] = {}
        self._epochs: dict[ModelKey, int] = {}

    def epoch(self, model_key: ModelKey) -> int:
        return self._epochs.get(model_key, 0)

    def bump_epoch(self, model_key: ModelKey) -> int:
        """The topology changed: every arm of the model is stale until measured again."""
        self._epochs[model_key] = self.epoch(model_key) + 1
        return self._epochs[model_key]

    def observe(self, sample: RouteSample, now: float) -> bool:
        """Learn from a finished request; False if the sample says nothing about the route's speed.

        Nearly empty answers are refused: their time is all overhead, and a broken route is the fastest of all.
        """
        if sample.completion_tokens < self._config.min_sample_tokens or not math.isfinite(now):
            return False
        if not (0 < sample.seconds < math.inf and 0 < sample.tps < math.inf):
            return False
        arms = self._arms.setdefault(sample.model_key, {})
        arms[sample.signature] = self._updated(arms.get(sample.signature), sample, now)
        if len(arms) > ARMS_PER_MODEL_MAX:
            del arms[min(arms, key=lambda signature: arms[signature].mean.timestamp)]
        return True

    def _updated(self, arm: _Arm | None, sample: RouteSample, now: float) -> _Arm:
        news = DecayedMean(sample.tps, 1.0, now)
        if arm is None:
            return _Arm(news, 1, sample.epoch)
        mean = arm.mean.merge(replace(news, timestamp=max(now, arm.mean.timestamp)), half_life_s=self._half_life_s)
        distance = abs(sample.tps - arm.mean.value)
        deviation = distance + (arm.deviation - distance) * (1 - 1 / min(arm.sample_count, DEVIATION_SAMPLES))
        return _Arm(mean, arm.sample_count + 1, max(arm.epoch, sample.epoch), deviation)

    def view(self, model_key: ModelKey, signature: Signature, now: float) -> ArmView:
        arm = self._arms.get(model_key, {}).get(signature)
        if arm is None:
            return _NEVER_SAMPLED
        mass = arm.mean.at(now, half_life_s=self._half_life_s).mass
        status = ArmStatus.PROVEN
        if arm.epoch < self.epoch(model_key):
            status = ArmStatus.STALE
        elif mass < PROVEN_MASS_MIN:
            status = ArmStatus.DECAYED
        age_s = max(0.0, now - arm.mean.timestamp)
        deviation = arm.deviation if arm.sample_count > 1 else None
        return ArmView(status, arm.mean.value, mass, arm.sample_count, age_s, deviation)

    def mean(self, model_key: ModelKey, signature: Signature) -> DecayedMean | None:
        """What another tracker would merge into its own."""
        arm = self._arms.get(model_key, {}).get(signature)
        return arm.mean if arm else None

    def prune(self, now: float) -> int:
        """Forget arms without a sample for 24 h; how many were forgotten."""
        forgotten = 0
        for arms in self._arms.values():
            old = [s for s, arm in arms.items() if now - arm.mean.timestamp > PRUNE_AFTER_S]
            for signature in old:
                del arms[signature]
            forgotten += len(old)
        return forgotten

    @property
    def _half_life_s(self) -> float:
        return self._config.stats_half_life_s


class Arm(Protocol):
    """What ``choose_route`` must know of a candidate."""

    @property
    def model_key(self) -> ModelKey: ...
    @property
    def signature(self) -> Signature: ...
    @property
    def prior_tps(self) -> float: ...


A = TypeVar("A", bound=Arm)


@dataclass(frozen=True, slots=True)
class ArmOdds:
    """A candidate's chance of taking the request, at the moment of the choice; ``tps`` as learnt by then."""

    signature: Signature
    share: float
    tps: float | None


@dataclass(frozen=True, slots=True)
class RouteChoice(Generic[A]):
    candidate: A
    mode: DecisionMode
    reason: str
    """``cold-start``; for a scout, the status that made the arm worth scouting; for an exploit, ``proven``."""
    odds: tuple[ArmOdds, ...] = ()
    """What it was chosen among, where chance had a say."""


@dataclass(frozen=True, slots=True)
class _Believed(Generic[A]):
    """A candidate beside what is believed of it."""

    candidate: A
    view: ArmView

    @property
    def scouting_rank(self) -> tuple[float, float, Signature]:
        """Least measured first, then the better prior; the signature makes equal arms stand in a fixed order."""
        return (self.view.mass, -self.candidate.prior_tps, self.candidate.signature)


def choose_route(
    candidates: Sequence[A], stats: RouteStatsStore, config: RoutingConfig, rng: Random, now: float
) -> RouteChoice[A]:
    """Which of ``candidates`` (at least one, all of one model) the next request takes.

    Nothing proven: the best prior, without touching the dice. Otherwise, with probability
    ``explore_share``, the least measured arm that is not proven, if there is one; else a proven arm with
    P(arm) proportional to tps**alpha.
    """
    believed = _believed(candidates, stats, now)
    proven, scout = _split(believed)
    if not proven:
        chosen, mode, reason = best_prior(candidates), DecisionMode.SCOUT, "cold-start"
    elif scout is not None and rng.random() < config.explore_share:
        chosen, mode, reason = scout.candidate, DecisionMode.SCOUT, scout.view.status.value
    else:
        weights = _exploit_weights(proven, config.weight_alpha)
        (exploited,) = rng.choices(proven, weights)
        chosen, mode, reason = exploited.candidate, DecisionMode.EXPLOIT, exploited.view.status.value
    shares = _shares(believed, proven, scout, config)
    odds = tuple(
        ArmOdds(arm.candidate.signature, share, arm.view.tps) for arm, share in zip(believed, shares, strict=True)
    )
    return RouteChoice(chosen, mode, reason, odds)


def expected_shares(
    candidates: Sequence[Arm], stats: RouteStatsStore, config: RoutingConfig, now: float
) -> dict[Signature, float]:
    """For each candidate, the probability that ``choose_route`` takes it now; they sum to 1 (empty: to nothing)."""
    believed = _believed(candidates, stats, now)
    shares = _shares(believed, *_split(believed), config)
    return {arm.candidate.signature: share for arm, share in zip(believed, shares, strict=True)}


def _shares(
    believed: "Sequence[_Believed[A]]",
    proven: "Sequence[_Believed[A]]",
    scout: "_Believed[A] | None",
    config: RoutingConfig,
) -> list[float]:
    if not proven:
        best = best_prior([arm.candidate for arm in believed]) if believed else None
        return [float(arm.candidate is best) for arm in believed]
    weights = _exploit_weights(proven, config.weight_alpha)
    exploited = (1.0 - config.explore_share if scout else 1.0) / sum(weights)
    share_of = {id(arm): exploited * weight for arm, weight in zip(proven, weights, strict=True)}
    if scout is not None:
        share_of[id(scout)] = config.explore_share
    return [share_of.get(id(arm), 0.0) for arm in believed]


def best_prior(candidates: Sequence[A]) -> A:
    return min(candidates, key=lambda candidate: (-candidate.prior_tps, candidate.signature))


def _believed(candidates: Sequence[A], stats: RouteStatsStore, now: float) -> list[_Believed[A]]:
    return [_Believed(c, stats.view(c.model_key, c.signature, now)) for c in candidates]


def _split(believed: Sequence[_Believed[A]]) -> tuple[list[_Believed[A]], _Believed[A] | None]:
    """The proven arms, and of the others the one to scout next."""
    proven = [arm for arm in believed if arm.view.status is ArmStatus.PROVEN]
    unproven = [arm for arm in believed if arm.view.status is not ArmStatus.PROVEN]
    return proven, min(unproven, key=lambda arm: arm.scouting_rank, default=None)


def _exploit_weights(proven: Sequence[_Believed[A]], alpha: float) -> list[float]:
    """tps**alpha of each arm relative to the fastest, which gets 1: no alpha overflows it or makes all of them 0."""
    logs = [math.log(arm.view.tps or math.ulp(0.0)) for arm in proven]
    fastest = max(logs)
    return [math.exp(alpha * (log - fastest)) for log in logs]
