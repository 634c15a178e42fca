"""Who asks what and when: the same requests, with the same luck, for every policy."""

import math
from dataclasses import dataclass
from random import Random

from meshnet_tracker.bench.worlds import LAYER_COUNT, World

PROMPT_TOKENS_MEAN, PROMPT_SIGMA = 200.0, 0.9
OUTPUT_TOKENS_MEAN, OUTPUT_SIGMA = 120.0, 0.7
SHORT_PROMPT_TOKENS, LONG_PROMPT_TOKENS = 40.0, 2000.0
OUTPUT_TOKENS_MIN, OUTPUT_TOKENS_MAX = 4, 1500
PROMPT_TOKENS_MAX = 8000
ABORT_SHARE = 0.05
NOISE_SIGMA = 0.15
TAIL_SHARE, TAIL_FACTOR, PARETO_SHAPE = 0.05, 5.0, 1.5
NOISES = 6
FAULT_DRAWS = 4
BURST_PERIOD_S = 60.0
BURST_FACTOR = 3.0
PROMPT_SHARE_TYPICAL = 0.12
ROOM_MIN = 1e-9


@dataclass(slots=True)
class Request:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    noises: tuple[float, ...]
    """A factor on each hop's time, by the hop's place in the route."""
    aborts_at: float | None
    """The share of its answer after which the client leaves."""
    fault_draws: tuple[float, ...]
    """One for each attempt: whether a truncating node cuts it off."""
    cut_at: float
    """The share of what is left of its answer after which it does."""


def make_requests(world: World, *, seed: int, duration_s: float) -> list[Request]:
    dice = {cause: Random(f"{seed} {cause}") for cause in ("arrival", "prompt", "output", "noise", "abort", "fault")}
    per_s = world.requests_per_s or world.load * capacity_tps(world) / mean_work_tokens(world)
    times = [0.0] * world.burst_at_start + _arrivals(per_s, duration_s, dice["arrival"], is_bursty=world.is_bursty)
    return [
        Request(
            at_s=at_s,
            prompt_tokens=_prompt_tokens(world, dice["prompt"]),
            output_tokens=_output_tokens(dice["output"]),
            noises=tuple(_noise(world.tail, dice["noise"]) for _ in range(NOISES)),
            aborts_at=dice["abort"].uniform(0.05, 0.9) if dice["abort"].random() < ABORT_SHARE else None,
            fault_draws=tuple(dice["fault"].random() for _ in range(FAULT_DRAWS)),
            cut_at=dice["fault"].uniform(0.1, 0.9),
        )
        for at_s in times
    ]


def mean_work_tokens(world: World) -> float:
    """What a request costs a layer, in drawn tokens."""
    prompt = (SHORT_PROMPT_TOKENS + LONG_PROMPT_TOKENS) / 2 if world.has_prompt_mix else PROMPT_TOKENS_MEAN
    return OUTPUT_TOKENS_MEAN + PROMPT_SHARE_TYPICAL * prompt


def capacity_tps(world: World) -> float:
    """Tokens/s with every node at its cap and none beyond: the quickest routes first, until no way is left.

    A request counts on all nodes of its route for as long as it runs, so one that takes t seconds per token
    on a route takes t of each node's cap per token/s.
    """
    left = {node.name: float(node.cap) for node in world.nodes}
    total = 0.0
    while (found := _quickest_with_room(world, left)) is not None:
        token_s, chain = found
        room = min(left[name] for name in chain)
        total += room / token_s
        for name in chain:
            left[name] -= room
    return total


def _quickest_with_room(world: World, left: dict[str, float]) -> tuple[float, tuple[str, ...]] | None:
    best: dict[int, tuple[float, tuple[str, ...]]] = {0: (0.0, ())}
    for layer in range(LAYER_COUNT):
        if layer not in best:
            continue
        for node in world.nodes:
            if left[node.name] > ROOM_MIN and (layer == node.first or layer in node.entry_layers):
                end = node.last + 1
                token_s = best[layer][0] + (end - layer) * node.layer_s
                if end not in best or token_s < best[end][0]:
                    best[end] = (token_s, (*best[layer][1], node.name))
    return best.get(LAYER_COUNT)


def _arrivals(per_s: float, duration_s: float, rng: Random, *, is_bursty: bool) -> list[float]:
    """Poisson; if bursty, three times as many in every other half minute or so, and few in between."""
    times: list[float] = []
    at_s, is_burst, switch_at_s = 0.0, False, 0.0
    while True:
        rate = per_s * (1.0 if not is_bursty else BURST_FACTOR / 2 if is_burst else 0.5)
        at_s += rng.expovariate(rate)
        if at_s >= switch_at_s:
            is_burst, switch_at_s = not is_burst, at_s + rng.expovariate(2 / BURST_PERIOD_S)
        if at_s >= duration_s:
            return times
        times.append(at_s)


def _log_normal(mean: float, sigma: float, rng: Random) -> float:
    return mean * math.exp(rng.gauss(-sigma * sigma / 2, sigma))


def _prompt_tokens(world: World, rng: Random) -> int:
    mean = PROMPT_TOKENS_MEAN
    if world.has_prompt_mix:
        mean = SHORT_PROMPT_TOKENS if rng.random() < 0.5 else LONG_PROMPT_TOKENS
    return int(min(PROMPT_TOKENS_MAX, max(1.0, _log_normal(mean, PROMPT_SIGMA, rng))))


def _output_tokens(rng: Random) -> int:
    return int(min(OUTPUT_TOKENS_MAX, max(OUTPUT_TOKENS_MIN, _log_normal(OUTPUT_TOKENS_MEAN, OUTPUT_SIGMA, rng))))


def _noise(tail: str, rng: Random) -> float:
    if tail == "pareto":
        # The mean of a Pareto of this shape is three times its least: scaled to a mean near 1, cut at 50.
        return min(50.0, rng.paretovariate(PARETO_SHAPE)) / 2.6
    noise = math.exp(rng.gauss(0, NOISE_SIGMA))
    return noise * (TAIL_FACTOR if tail == "five" and rng.random() < TAIL_SHARE else 1.0)
