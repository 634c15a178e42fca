"""Turning runs into numbers: what one run was like, and how sure a difference between policies is.

Differences are paired: the same seed gives both policies the same requests and the same luck, so the bootstrap
draws seeds and not requests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import NamedTuple

from meshnet_tracker.bench.contender import Asked, Record
from meshnet_tracker.bench.worlds import World

BOOTSTRAP_DRAWS = 1000
WINDOW_S = 30.0
WINDOW_STEP_S = 5.0
RECOVERED = 0.9
GRACE_S = 60.0


class Point(NamedTuple):
    """One request that ended, warm-up included."""

    at_s: float
    """When it was asked."""
    tps: float
    """0 if it failed."""
    seconds: float
    is_near_best: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy in one world with one seed, warm-up left out; seconds are of completed requests."""

    tps: float
    """Mean over requests of their tokens/s; one that failed counts as 0, one whose client left not at all."""
    token_s: float
    """All seconds over all tokens."""
    p50_s: float
    p95_s: float
    p99_s: float
    near_best: float
    scout_share: float
    scout_cost: float
    """Seconds that scouts took above the best way, over all seconds."""
    failed_share: float
    marked_share: float | None
    """Requests that touched a marked node, a minute after the event and later."""
    first_sample_s: float | None
    """From a marked node's arrival to the first completed request on it."""
    scouts_max: int
    warm_up_tps: float
    requests: int
    timeline: tuple["Point", ...]


def figures_of(record: Record, world: World, *, warm_up_s: float) -> Figures:
    measured = [asked for asked in record.asked if asked.request.at_s >= warm_up_s and asked.outcome != "open"]
    done = [asked for asked in measured if asked.outcome == "completed"]
    seconds = sorted(asked.seconds for asked in done) or [float("nan")]
    tokens = sum(asked.request.output_tokens for asked in done)
    early = [a for a in record.asked if a.request.at_s < warm_up_s and a.outcome == "completed"]
    return Figures(
        tps=_mean(_tps(asked) for asked in measured if asked.outcome != "aborted"),
        token_s=sum(seconds) / tokens if tokens else float("nan"),
        p50_s=_quantile(seconds, 0.5),
        p95_s=_quantile(seconds, 0.95),
        p99_s=_quantile(seconds, 0.99),
        near_best=_mean(asked.is_near_best for asked in measured),
        scout_share=_mean(asked.is_scout for asked in measured),
        scout_cost=sum(a.excess_s for a in measured if a.is_scout) / max(1e-9, sum(seconds)),
        failed_share=_mean(asked.outcome == "failed" for asked in measured),
        marked_share=_marked_share(measured, world),
        first_sample_s=_first_sample_s(record.asked, world),
        scouts_max=record.scouts_on_one_node_max,
        warm_up_tps=_mean(_tps(asked) for asked in early),
        requests=len(measured),
        timeline=tuple(
            Point(a.request.at_s, _tps(a), a.seconds, a.is_near_best)
            for a in record.asked
            if a.outcome in ("completed", "failed")
        ),
    )


def recovery_s(mine: Sequence[Figures], oracle: Sequence[Figures], event_at_s: float, until_s: float) -> float | None:
    """From the event until a window's mean stays, for three windows, at 90 % of the oracle's; over all seeds."""
    ours = [point for figures in mine for point in figures.timeline]
    best = [point for figures in oracle for point in figures.timeline]
    start_s, streak = event_at_s, 0
    while start_s + WINDOW_S <= until_s:
        here, there = _window(ours, start_s), _window(best, start_s)
        streak = streak + 1 if here is not None and there is not None and here >= RECOVERED * there else 0
        if streak == 3:
            return max(0.0, start_s - 2 * WINDOW_STEP_S - event_at_s)
        start_s += WINDOW_STEP_S
    return None


def paired_interval(
    mine: Sequence[float], other: Sequence[float], change: Callable[[float, float], float] = lambda a, b: a / b - 1
) -> tuple[float, float, float]:
    """The change of the means from ``other`` to ``mine``, with 95 % limits."""
    rng = Random("bootstrap")
    pairs = list(zip(mine, other, strict=True))
    draws: list[float] = []
    for _ in range(BOOTSTRAP_DRAWS):
        drawn = rng.choices(pairs, k=len(pairs))
        draws.append(change(fmean(a for a, _ in drawn), fmean(b for _, b in drawn)))
    draws.sort()
    return change(fmean(mine), fmean(other)), _quantile(draws, 0.025), _quantile(draws, 0.975)


def _tps(asked: Asked) -> float:
    if asked.outcome != "completed" or asked.seconds <= 0:
        return 0.0
    return asked.request.output_tokens / asked.seconds


def _mean(values: object) -> float:
    listed = [float(value) for value in values]  # type: ignore[attr-defined]
    return fmean(listed) if listed else float("nan")


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _window(points: Sequence[Point], start_s: float) -> float | None:
    inside = [point.tps for point in points if start_s <= point.at_s < start_s + WINDOW_S]
    return fmean(inside) if inside else None


def _marked_share(measured: Sequence[Asked], world: World) -> float | None:
    if not world.marked:
        return None
    from_s = (world.event_at_s or 0.0) + GRACE_S
    later = [asked for asked in measured if asked.request.at_s >= from_s]
    return _mean(bool(asked.touched & world.marked) for asked in later)


def _first_sample_s(asked: Sequence[Asked], world: World) -> float | None:
    if not world.scenario.startswith("join") or world.event_at_s is None:
        return None
    ended = [a.request.at_s + a.seconds for a in asked if a.outcome == "completed" and "joiner" in a.nodes]
    return min(ended) - world.event_at_s if ended else float("inf")
