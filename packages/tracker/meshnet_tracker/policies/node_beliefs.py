"""What ``AdaptivePolicy`` believes of one node: how fast it is, how sure that is, how far it can be trusted.

Speed is kept as the logarithm of the node's *pace*, the seconds it takes for one layer of one token when it is
not crowded: machines differ by factors, and errors of factors are what add up evenly. The mean's weight halves
with the configured half-life, and with it goes back to what the node advertises, so that no verdict is for ever.

    an odd sample       moves the mean by a bounded step: a heavy tail is not a change
    three odd ones of   a change: the mean jumps there and starts again with little weight, and the node
    the last five       counts as restless: doubt grows faster from now on, so that it is tried again soon

Failures are counted apart, because a node that fails is often the fastest of all. What they cost is counted in
whole requests, however small the node's part of a route is: a broken request has to be run again. And a node that
failed is *distrusted*: it gets a trial now and then and nothing else, until it has passed enough of them in a row,
has restarted, or its time is over. A failure is rare where all is well, and one in five is hard to tell from none.
"""

import math

from meshnet_protocol.ids import Incarnation

PRIOR_MASS = 0.25
MASS_MAX = 30.0
NOISE_SD = 0.3
SURPRISE_SDS_MAX = 2.0
JUMP = 0.5
RECENT_MAX, ODD_MIN = 5, 3
MASS_AFTER_JUMP = 1.5
DOUBT_PER_S = 0.16 / 600
RESTLESS_FACTOR = 6.0
RESTLESS_JUMP = 1.5
RESTLESS_HALF_LIFE_S = 900.0
DISPUTED_MASS = 0.5
MASS_AFTER_RESTART = 1.0
FAULT_HALF_LIFE_S = 300.0
FAULT_SHARE_PRIOR = 3.0
BLAME_TO_DISTRUST = 0.6
TRIALS_TO_PASS = 5
DISTRUSTED_S_MAX = 3600.0
PROMPT_SHARE_TYPICAL = 0.12
PROMPT_SHARE_MIN, PROMPT_SHARE_MAX = 0.002, 2.0
PROMPT_SHARE_GAIN = 0.15
ACCESS_GAIN = 0.2
BASE_KEPT_S = 0.5


class NodeBelief:
    """One node, as one incarnation after another; ``start`` says that another one has begun."""

    __slots__ = (
        "_at",
        "_base",
        "_base_until",
        "_faults",
        "_faults_at",
        "_mass",
        "_mean",
        "_oks",
        "_prior",
        "_recent",
        "_restless",
        "_trials_left",
        "access_s",
        "crowd_at",
        "crowd_clock",
        "distrusted_at",
        "distrusted_until",
        "in_flight",
        "incarnation",
        "prompt_share",
        "sampled_at",
        "scouts",
        "slots",
        "tried_at",
    )

    def __init__(self, now: float) -> None:
        self.incarnation = Incarnation("")
        self.slots = 1
        self.in_flight = 0
        self.scouts = 0
        self.crowd_clock = 0.0
        """The integral over time of how crowded the node was: two readings give a request's mean crowd."""
        self.crowd_at = now
        self.access_s = 0.0
        self.prompt_share = PROMPT_SHARE_TYPICAL
        self.distrusted_at = self.distrusted_until = -math.inf
        self.tried_at = 0
        """How many requests there had been when it started, last failed or was on trial."""
        self.sampled_at: float | None = None
        self._prior = 0.0
        self._mean = 0.0
        self._mass = 0.0
        self._at = now
        self._recent: tuple[float, ...] = ()
        self._restless = 0.0
        self._faults = 0.0
        self._oks = 0.0
        self._trials_left = 0
        self._faults_at = now
        self._base = 1.0
        self._base_until = -math.inf

    def start(
        self, incarnation: Incarnation, *, layer_tokens_per_s: float, slots: int, requests: int, now: float
    ) -> None:
        """A process has registered: nothing runs on it yet, and what is known of its predecessor is a hint."""
        self._base_until = -math.inf
        if self.incarnation != incarnation:
            self.tried_at = requests
        if self.incarnation not in ("", incarnation):
            self._mass = min(self._mass, MASS_AFTER_RESTART)
            self.distrusted_until = -math.inf
            self.in_flight = self.scouts = 0
        self.incarnation = incarnation
        self.slots = max(1, slots)
        self._prior = -math.log(min(1e9, max(1e-6, layer_tokens_per_s)))

    @property
    def is_unproven(self) -> bool:
        """Nothing has been measured of this process."""
        return self._mass <= DISPUTED_MASS

    def base_s(self, now: float, half_life_s: float) -> float:
        """Seconds per layer and token. Kept for a moment, because every decision asks for it."""
        if now < self._base_until:
            return self._base
        self._base = math.exp(self.log_pace(now, half_life_s))
        self._base_until = now + BASE_KEPT_S
        return self._base

    def mass(self, now: float, half_life_s: float) -> float:
        return self._mass * math.exp2(-max(0.0, now - self._at) / half_life_s)

    def log_pace(self, now: float, half_life_s: float) -> float:
        mass = self._mass * math.exp2(-max(0.0, now - self._at) / half_life_s)
        return (mass * self._mean + PRIOR_MASS * self._prior) / (mass + PRIOR_MASS)

    def deviation(self, now: float, half_life_s: float) -> float:
        """Of the logarithm of its pace: little when often measured, growing with silence."""
        # With nothing measured, what is advertised stands for PRIOR_MASS samples.
        return math.sqrt(NOISE_SD * NOISE_SD / (self.mass(now, half_life_s) + PRIOR_MASS) + self._drift(now))

    def _drift(self, now: float) -> float:
        """How far its pace may have wandered since it was last measured, as a variance."""
        if not self._mass:
            return 0.0
        age_s = max(0.0, now - self._at)
        restless = self._restless * math.exp2(-age_s / RESTLESS_HALF_LIFE_S)
        return DOUBT_PER_S * age_s * (1 + RESTLESS_FACTOR * restless)

    def observe(self, pace_s: float, now: float, half_life_s: float) -> None:
        """A finished request's seconds per layer and token here, its crowd taken out."""
        if not 0 < pace_s < math.inf:
            return
        self._base_until = -math.inf
        sample = math.log(pace_s)
        mass = self.mass(now, half_life_s)
        drift = self._drift(now)
        self._restless *= math.exp2(-max(0.0, now - self._at) / RESTLESS_HALF_LIFE_S)
        self._at = max(self._at, now)
        self.sampled_at = self._at
        is_first = mass <= DISPUTED_MASS
        changed = None if is_first else self._changed_to(sample)
        self._recent = (*self._recent[1 - RECENT_MAX :], sample)
        if is_first:
            self._mean, self._mass = sample, 1.0
        elif changed is not None:
            self._restless = min(1.0, abs(changed - self._mean) / RESTLESS_JUMP)
            self._mean, self._mass = changed, MASS_AFTER_JUMP
            self._recent = ()
        else:
            self._blend(sample, NOISE_SD * NOISE_SD / mass + drift)

    def _blend(self, sample: float, variance: float) -> None:
        """A Kalman filter's step, the surprise bounded: the surer the belief, the less one sample moves it."""
        noise = NOISE_SD * NOISE_SD
        gain = variance / (variance + noise)
        bound = SURPRISE_SDS_MAX * math.sqrt(variance + noise)
        self._mean += gain * max(-bound, min(bound, sample - self._mean))
        self._mass = min(MASS_MAX, noise / ((1 - gain) * variance))

    def _changed_to(self, sample: float) -> float | None:
        """Where the pace has gone, if enough of the last samples agree that it has gone somewhere."""
        recent = sorted((*self._recent, sample))
        if len(recent) < ODD_MIN:
            return None
        has_changed = recent[-ODD_MIN] - self._mean > JUMP or self._mean - recent[ODD_MIN - 1] > JUMP
        return recent[len(recent) // 2] if has_changed else None

    def succeed(self, taken_at: float, now: float) -> None:
        """A request that was sent here at ``taken_at``; what was under way when it failed is no trial."""
        self._oks = self._oks * self._fade(now) + 1
        self._faults_at = max(self._faults_at, now)
        if self.distrusted_until > now and taken_at > self.distrusted_at:
            self._trials_left -= 1
            if self._trials_left <= 0:
                self.distrusted_until = -math.inf

    def fail(self, blame: float, now: float) -> None:
        """``blame``: the part of one failure that is this node's, 0 to 1. ``set_faults`` has counted it already."""
        if blame > BLAME_TO_DISTRUST:
            self._trials_left = TRIALS_TO_PASS
            self.distrusted_at, self.distrusted_until = now, now + DISTRUSTED_S_MAX

    def clear(self) -> None:
        """It turned out to have been others."""
        self.distrusted_until = -math.inf

    def set_faults(self, count: float, now: float) -> None:
        """Failures that are this node's, as things look now; older ones count less."""
        self._oks *= self._fade(now)
        self._faults = count
        self._faults_at = max(self._faults_at, now)

    def fault_share(self, now: float) -> float:
        fade = self._fade(now)
        faults = self._faults * fade
        return faults / (faults + self._oks * fade + FAULT_SHARE_PRIOR)

    def fault_price(self, now: float) -> float:
        """What its failures cost, in requests' times, if each broken request is run again until it succeeds."""
        if not self._faults:  # Of most nodes, at every choice.
            return 0.0
        share = self.fault_share(now)
        return share / (1 - share)

    def _fade(self, now: float) -> float:
        return math.exp2(-max(0.0, now - self._faults_at) / FAULT_HALF_LIFE_S)

    def crowd(self, more: int = 0) -> float:
        """By what factor each of its requests slows down, with ``more`` than there are."""
        return max(1.0, (self.in_flight + more) / self.slots)

    def run_crowd_clock(self, now: float) -> float:
        elapsed_s = now - self.crowd_at
        if elapsed_s > 0:
            self.crowd_clock += elapsed_s * self.crowd()
            self.crowd_at = now
        return self.crowd_clock

    def learn_prompt_share(self, share: float) -> None:
        bounded = max(PROMPT_SHARE_MIN, min(PROMPT_SHARE_MAX, share))
        self.prompt_share *= math.exp(PROMPT_SHARE_GAIN * math.log(bounded / self.prompt_share))
