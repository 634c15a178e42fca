"""The mesh's pulse, for people: tokens/s over the last ten minutes, each node's rate, who went lately.

Nothing is ever decided by these figures; what routing believes lives in ``routing_stats.py``.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from meshnet_protocol.ids import NodeId

SAMPLE_PERIOD_S = 2.0
SAMPLES_MAX = 300
RATE_HALF_LIFE_S = 20.0
RATE_MIN = 1e-3
DEPARTED_SHOWN_S = 300.0
DEPARTED_SHOWN_MAX = 50

Json = Mapping[str, Any]


class Pulse:
    """``take`` the events, ``sample`` the counters now and then, and read. Times are of one monotonic clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, int]] = deque(maxlen=SAMPLES_MAX)
        self._sampled: tuple[float, int] | None = None
        self._rates: dict[NodeId, tuple[float, float]] = {}
        self._departed: deque[tuple[float, Json]] = deque(maxlen=DEPARTED_SHOWN_MAX)
        self.finished_tokens = 0

    def take(self, event: Json, now: float) -> None:
        match event["event"]:
            case "chat finished":
                self.finished_tokens += event["completion_tokens"]
                for hop in event["hops"]:
                    self._credit(hop["node_id"], event["completion_tokens"], now)
            case "node left" | "node lost" as name:
                gone = {"node_id": event["node_id"], "model": event["model"], "state": name.removeprefix("node ")}
                self._departed.append((now, gone))
            case "node joined":
                self._departed = deque(
                    ((at, gone) for at, gone in self._departed if gone["node_id"] != event["node_id"]),
                    maxlen=DEPARTED_SHOWN_MAX,
                )

    def sample(self, *, tokens_total: int, in_flight: int, now: float) -> None:
        """``tokens_total`` counts every token ever drawn, those of running chats included."""
        if self._sampled is not None:
            sampled_at, before = self._sampled
            elapsed_s = max(now - sampled_at, 1e-6)
            self._samples.append((now, max(0, tokens_total - before) / elapsed_s, in_flight))
        self._sampled = (now, tokens_total)
        for node_id in [n for n, rate in self._rates.items() if self._faded(rate, now) < RATE_MIN]:
            del self._rates[node_id]

    def history(self, now: float) -> list[tuple[float, float, int]]:
        """``(age_s, tokens_per_s, in_flight)``, oldest first."""
        return [(now - at, tokens_per_s, in_flight) for at, tokens_per_s, in_flight in self._samples]

    def node_tokens_per_s(self, node_id: NodeId, now: float) -> float:
        rate = self._rates.get(node_id)
        return self._faded(rate, now) if rate else 0.0

    def departed(self, now: float) -> list[dict[str, Any]]:
        """Nodes that left or were lost in the last minutes, the latest first."""
        recent = [{**gone, "age_s": now - at} for at, gone in self._departed if now - at <= DEPARTED_SHOWN_S]
        return recent[::-1]

    def _credit(self, node_id: NodeId, tokens: int, now: float) -> None:
        # A steady n tokens/s adds up to exactly n under this weight.
        news = tokens * math.log(2) / RATE_HALF_LIFE_S
        before = self._rates.get(node_id)
        self._rates[node_id] = ((self._faded(before, now) if before else 0.0) + news, now)

    def _faded(self, rate: tuple[float, float], now: float) -> float:
        value, at = rate
        return value * math.exp2(-max(0.0, now - at) / RATE_HALF_LIFE_S)
