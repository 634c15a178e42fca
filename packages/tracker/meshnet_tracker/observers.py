"""Everybody who watches the tracker work: one listener on the event log, and the readers' pages behind it.

Call wall, pulse, arm history and metrics each take every event and keep their own small picture. Nothing here
decides anything, and nothing the chat path waits for happens here.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog

from meshnet_tracker.arm_history import ArmHistory
from meshnet_tracker.calls import CallBook, CallRecord
from meshnet_tracker.events import EventLog
from meshnet_tracker.fleet import Fleet
from meshnet_tracker.metrics import Gauge, Metrics
from meshnet_tracker.overview import node_state
from meshnet_tracker.pulse import Pulse
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore
from meshnet_tracker.watchers import Watchers

_log = structlog.get_logger("meshnet.tracker")

Values = Mapping[tuple[str, ...], float]
CALL_EVENTS = {"proxy route selected", "route failed", "chat finished"}


class Observers:
    """``running_tokens`` counts the tokens that running chats have drawn so far."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        router: Router,
        stats: RouteStatsStore,
        events: EventLog,
        running_tokens: Callable[[], int],
        on_call_finished: Callable[[CallRecord], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._stats = stats
        self._running_tokens = running_tokens
        self._clock = clock
        self.calls = CallBook(on_finished=on_call_finished)
        self.watchers = Watchers(self.calls, process=time.time_ns() // 1_000_000)
        self.pulse = Pulse()
        self.arms = ArmHistory()
        self.metrics = Metrics(self._gauges)
        events.listen(self._take)

    def sample(self) -> None:
        """Call this every ``SAMPLE_PERIOD_S``."""
        self.pulse.sample(
            tokens_total=self.pulse.finished_tokens + self._running_tokens(),
            in_flight=self._router.in_flight_total,
            now=self._clock(),
        )

    def _take(self, event: dict[str, Any]) -> None:
        try:
            self._tell_all(event)
        except Exception:  # A wrong picture is a bug; a chat lost over it would be a worse one.
            _log.exception("an observer failed", of=event["event"])

    def _tell_all(self, event: dict[str, Any]) -> None:
        self.pulse.take(event, self._clock())
        self.arms.take(event)
        self.metrics.take(event)
        if event["event"] in CALL_EVENTS:
            self.calls.take(event)
            self.watchers.notify()

    def _gauges(self) -> Iterator[Gauge]:
        now = self._clock()
        models = [model for model in self._fleet.models() if model.nodes]
        nodes: Counter[tuple[str, ...]] = Counter((node.model_key, node_state(node)) for node in self._fleet.nodes())
        arms: Counter[tuple[str, ...]] = Counter(
            (arm.model_key, self._stats.view(arm.model_key, arm.signature, now).status.value)
            for model in models
            for arm in self._router.candidates(model)
        )
        epochs: Values = {(model.model_key,): self._stats.epoch(model.model_key) for model in models}
        queues: Values = {
            (model.model_key,): sum(node.queue_depth for node in model.nodes.values()) for model in models
        }
        yield "meshnet_nodes", "Live nodes.", ("model", "state"), nodes
        yield "meshnet_routes", "Candidate routes.", ("model", "status"), arms
        yield "meshnet_topology_epoch", "Moves with every join, leave and shard change.", ("model",), epochs
        yield "meshnet_node_queue_requests", "Requests that nodes hold, summed.", ("model",), queues
        yield "meshnet_calls_in_flight", "Chats running now.", (), {(): self._router.in_flight_total}
        yield "meshnet_call_streams", "Pages that watch the call wall.", (), {(): self.watchers.count}
