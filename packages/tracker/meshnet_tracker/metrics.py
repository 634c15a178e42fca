"""What Prometheus reads at ``/metrics``.

Counters move with the events; gauges are read off the tracker when somebody asks. Labels are bounded: model,
mode, outcome, node state, arm status, part of a hop's time. Never a request, a node or a client. Beside the mesh's own
there are the conventional ``process_*`` figures of the tracker.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

MODEL_LABELS_MAX = 64
MODEL_LABEL = "model"
OTHER_MODEL = "other"
NO_LABEL = "none"
TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
CALL_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TPS_BUCKETS = (1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 400)

Json = Mapping[str, Any]
Gauge = tuple[str, str, tuple[str, ...], Mapping[tuple[str, ...], float]]
"""Name, help, label names (the model's first, if there is one), and value per label values."""


class Metrics:
    """One registry per tracker. ``read_gauges`` is asked at every scrape."""

    def __init__(self, read_gauges: Callable[[], Iterator[Gauge]]) -> None:
        self._models: set[str] = set()
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(read_gauges, self._model_label))
        registry = self._registry
        ProcessCollector(registry=registry)
        self._calls = Counter(
            "meshnet_calls", "Chats that ended, one per request.", ["model", "mode", "outcome"], registry=registry
        )
        self._tokens = Counter("meshnet_tokens", "Tokens of ended chats.", ["model", "kind"], registry=registry)
        self._failures = Counter(
            "meshnet_route_failures", "Attempts on a route that failed.", ["outcome"], registry=registry
        )
        self._taken_over = Counter(
            "meshnet_tokens_taken_over", "Tokens that another route had drawn when one took over.", registry=registry
        )
        self._topology = Counter("meshnet_node_events", "What happened to nodes.", ["event"], registry=registry)
        self._hop_time = Counter(
            "meshnet_hop_time_seconds", "Where hops spent their time, summed.", ["model", "part"], registry=registry
        )
        self._duration = Histogram(
            "meshnet_call_duration_seconds",
            "From request to end.",
            ["model"],
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        self._ttft = Histogram(
            "meshnet_time_to_first_token_seconds",
            "From request to first text.",
            ["model"],
            buckets=TTFT_BUCKETS_S,
            registry=registry,
        )
        self._speed = Histogram(
            "meshnet_call_tokens_per_second",
            "Completion tokens per second of a chat, end to end.",
            ["model"],
            buckets=TPS_BUCKETS,
            registry=registry,
        )

    def take(self, event: Json) -> None:
        match event["event"]:
            case "chat finished":
                self._count_chat(event)
            case "route failed":
                self._failures.labels(event["outcome"]).inc()
            case "proxy route selected":
                self._taken_over.inc(event["resumed_tokens"])
            case str(name) if name.startswith("node "):
                self._topology.labels(name.removeprefix("node ")).inc()

    def page(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, in the exposition format that the reader prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _count_chat(self, event: Json) -> None:
        model = self._model_label(event["model"])
        self._calls.labels(model, event["mode"] or NO_LABEL, event["outcome"]).inc()
        self._tokens.labels(model, "prompt").inc(event["prompt_tokens"])
        self._tokens.labels(model, "completion").inc(event["completion_tokens"])
        self._duration.labels(model).observe(event["seconds"])
        if event["ttft_s"] is not None:
            self._ttft.labels(model).observe(event["ttft_s"])
        if event["is_sampled"]:
            self._speed.labels(model).observe(event["tps"])
        for hop in event["hops"]:
            for part in ("queue", "compute", "link") if hop["timing"] else ():
                self._hop_time.labels(model, part).inc(max(0.0, hop["timing"][f"{part}_s"]))

    def _model_label(self, model: str | None) -> str:
        """Models come from nodes; the first ``MODEL_LABELS_MAX`` get a label of their own."""
        if model is None:
            return NO_LABEL
        if model not in self._models and len(self._models) >= MODEL_LABELS_MAX:
            return OTHER_MODEL
        self._models.add(model)
        return model


class _Gauges(Collector):
    """Models beyond those that have a label of their own are summed."""

    def __init__(self, read: Callable[[], Iterator[Gauge]], model_label: Callable[[str], str]) -> None:
        self._read = read
        self._model_label = model_label

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, text, label_names, values in self._read():
            family = GaugeMetricFamily(name, text, labels=label_names)
            sums: dict[tuple[str, ...], float] = {}
            for labels, value in values.items():
                bounded = (self._model_label(labels[0]), *labels[1:]) if MODEL_LABEL in label_names[:1] else labels
                sums[bounded] = sums.get(bounded, 0.0) + value
            for labels, value in sums.items():
                family.add_metric(labels, value)
            yield family
