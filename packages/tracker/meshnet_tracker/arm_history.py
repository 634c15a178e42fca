"""What each arm did lately, for people: its last samples, and where a step's time went on each hop.

A *step* is rows sent down a route together: a chunk of the prompt, or one token.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshnet_protocol.ids import Signature

SAMPLES_SHOWN_MAX = 60
ARMS_MAX = 512
TIMING_NEWS_SHARE = 0.2
"""How much the latest call moves a hop's means."""

Json = Mapping[str, Any]
PARTS = ("queue", "compute", "link")


@dataclass(slots=True)
class _Arm:
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_SHOWN_MAX))
    hops: dict[str, dict[str, float]] = field(default_factory=dict)


class ArmHistory:
    """Bounded; the arm that was silent for longest is forgotten first."""

    def __init__(self) -> None:
        self._arms: dict[Signature, _Arm] = {}

    def take(self, event: Json) -> None:
        """Learn from a ``chat finished`` event that was taken as a sample."""
        if event["event"] != "chat finished" or not event["is_sampled"]:
            return
        arm = self._arms.pop(event["signature"], None) or _Arm()
        self._arms[event["signature"]] = arm
        arm.samples.append((event["at"], event["tps"]))
        for hop in event["hops"]:
            if hop["timing"] and hop["timing"]["steps"]:
                arm.hops[hop["node_id"]] = _moved(arm.hops.get(hop["node_id"]), _per_step_ms(hop["timing"]))
        if len(self._arms) > ARMS_MAX:
            del self._arms[next(iter(self._arms))]

    def arm(self, signature: Signature) -> dict[str, Any]:
        """``samples`` as ``(Unix time, tokens/s)``; per hop, milliseconds of a mean step, empty where unknown."""
        arm = self._arms.get(signature) or _Arm()
        hops = [{"node_id": node_id} | timing for node_id, timing in arm.hops.items()]
        return {"samples": list(arm.samples), "hops": hops}


def _per_step_ms(timing: Json) -> dict[str, float]:
    return {f"{part}_ms": 1000 * timing[f"{part}_s"] / timing["steps"] for part in PARTS}


def _moved(before: dict[str, float] | None, news: dict[str, float]) -> dict[str, float]:
    if before is None:
        return news
    return {name: value + TIMING_NEWS_SHARE * (news[name] - value) for name, value in before.items()}
