"""Dividing a finished request's seconds among its hops.

The seconds that the tracker measured from dispatch to the last byte are the ground truth, and the parts always
add up to them. What each hop says of itself decides the proportions; what nobody's report explains is booked to
the head, because the head's report covers everything behind it: a node further down that makes itself look fast
only makes the link to it look slow. Where there are no reports, what was believed before decides.
"""

from math import exp
from typing import TYPE_CHECKING

from meshnet_protocol.routes import Hop
from meshnet_tracker.policies.node_beliefs import ACCESS_GAIN, NodeBelief
from meshnet_tracker.route_policy import Completion

if TYPE_CHECKING:
    from meshnet_tracker.policies.adaptive import FlightNote

PROMPT_TOKENS_TO_LEARN = 16
OUTPUT_TOKENS_TO_LEARN = 8
LINK_S_PER_STEP_MAX = 30.0


def credit_hops(note: "FlightNote", completion: Completion, now: float, half_life_s: float) -> None:
    hops = note.flight.route.hops
    crowds = _crowds(note, now)
    spent_s, link_s = _parts(note, completion, crowds, now, half_life_s)
    _learn_prompt_shares(note.beliefs, completion)
    for hop, belief, seconds, crowd in zip(hops, note.beliefs, spent_s, crowds, strict=True):
        work = completion.completion_tokens + belief.prompt_share * completion.prompt_tokens
        belief.observe(seconds / crowd / (hop.layers.layer_count * work), now, half_life_s)
    _learn_access(note.beliefs, link_s, completion.completion_tokens + 1)


def _crowds(note: "FlightNote", now: float) -> list[float]:
    """How crowded each node was on average while the request ran."""
    ran_s = now - note.flight.taken_at
    if ran_s <= 0:
        return [belief.crowd() for belief in note.beliefs]
    return [
        max(1.0, (belief.crowd_clock - before) / ran_s)
        for belief, before in zip(note.beliefs, note.crowd_clocks, strict=True)
    ]


def _parts(
    note: "FlightNote", completion: Completion, crowds: list[float], now: float, half_life_s: float
) -> tuple[list[float], list[float]]:
    hops = note.flight.route.hops
    told = {timing.node_id: timing for timing in completion.timings}
    if len(told) < len(hops):
        return _by_belief(hops, note.beliefs, completion.seconds, now, half_life_s), [0.0] * len(hops)
    spent_s = [max(0.0, told[hop.node_id].queue_s) + max(0.0, told[hop.node_id].compute_s) for hop in hops]
    link_s = [max(0.0, told[hop.node_id].link_s) for hop in hops]
    reported_s = sum(spent_s) + sum(link_s)
    if not 0 < reported_s < float("inf"):
        return _by_belief(hops, note.beliefs, completion.seconds, now, half_life_s), [0.0] * len(hops)
    if reported_s > completion.seconds:
        scale = completion.seconds / reported_s
        return [seconds * scale for seconds in spent_s], [seconds * scale for seconds in link_s]
    spent_s[0] += completion.seconds - reported_s
    return spent_s, link_s


def _by_belief(
    hops: tuple[Hop, ...], beliefs: tuple[NodeBelief, ...], seconds: float, now: float, half_life_s: float
) -> list[float]:
    weights = [
        hop.layers.layer_count * exp(belief.log_pace(now, half_life_s))
        for hop, belief in zip(hops, beliefs, strict=True)
    ]
    return [seconds * weight / sum(weights) for weight in weights]


def _learn_prompt_shares(beliefs: tuple[NodeBelief, ...], completion: Completion) -> None:
    """Time to the first token tells of the prompt, the rest of the output; told apart only for the whole route."""
    ttft_s = completion.ttft_s
    if ttft_s is None or completion.prompt_tokens < PROMPT_TOKENS_TO_LEARN:
        return
    if completion.completion_tokens < OUTPUT_TOKENS_TO_LEARN or not 0 < ttft_s < completion.seconds:
        return
    step_s = (completion.seconds - ttft_s) / completion.completion_tokens
    for belief in beliefs:
        belief.learn_prompt_share(ttft_s / completion.prompt_tokens / step_s)


def _learn_access(beliefs: tuple[NodeBelief, ...], link_s: list[float], steps: int) -> None:
    """A link's delay is the sum of what its two ends add to it; each takes half of what they did not foresee."""
    for here, there, seconds in zip(beliefs, beliefs[1:], link_s, strict=False):
        per_step_s = min(LINK_S_PER_STEP_MAX, seconds / steps)
        miss = per_step_s - here.access_s - there.access_s
        here.access_s = max(0.0, here.access_s + ACCESS_GAIN * miss)
        there.access_s = max(0.0, there.access_s + ACCESS_GAIN * miss)
