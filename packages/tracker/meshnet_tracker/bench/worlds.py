"""The worlds of the bench: which nodes there are, how fast they truly are, and what befalls them.

A node's truth is ``layer_s``, the seconds it takes for one layer of one token while it is not crowded. With
more than ``cap`` requests on it, every one of them slows down by active / cap. What a node *advertises* is its
truth times a log-normal error, as benchmarks of strangers' machines are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

LAYER_COUNT = 40
ADVERTISED_ERROR = 0.5
CAP = 4
PROMPT_SHARE_MIN, PROMPT_SHARE_MAX = 0.04, 0.25
ACCESS_S_MEDIAN = 0.001
BEST_SLOWER = 5.0
JOINER_FASTER = 1.5
SLOW_JOINER_SLOWER = 4.0
FLAP_S = 20.0
DRIFT_STEP_S = 20.0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    name: str
    first: int
    last: int
    layer_s: float
    advertised_layer_tps: float
    access_s: float
    """Its part of the delay of each of its links, per step."""
    prompt_share: float
    """What a prompt token costs it, in tokens drawn."""
    cap: int = CAP
    entry_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """At ``at_s``: ``slow`` (factor), ``join``, ``leave``, ``down``, ``up``, ``fail-fast``, ``truncate``, ``clock``."""

    at_s: float
    kind: str
    node: str = ""
    factor: float = 1.0
    spec: NodeSpec | None = None


@dataclass(frozen=True, slots=True)
class World:
    topology: str
    scenario: str
    nodes: tuple[NodeSpec, ...]
    changes: tuple[Change, ...] = ()
    load: float = 0.3
    requests_per_s: float | None = None
    """Instead of ``load``."""
    is_bursty: bool = False
    tail: str = "none"
    """``five``: 5 % of hops take five times as long; ``pareto``: Pareto noise of shape 1.5."""
    has_prompt_mix: bool = False
    burst_at_start: int = 0
    event_at_s: float | None = None
    """When the thing happens from which recovery is measured."""
    marked: frozenset[str] = frozenset()
    """Nodes whose share of requests is the point of the scenario."""


def _node(name: str, first: int, last: int, tps: float, rng: Random, *, cap: int = CAP) -> NodeSpec:
    """``tps``: tokens/s over all the layers it holds, alone."""
    layer_tps = tps * (last - first + 1)
    return NodeSpec(
        name=name,
        first=first,
        last=last,
        layer_s=1 / layer_tps,
        advertised_layer_tps=layer_tps * math.exp(rng.gauss(0, ADVERTISED_ERROR)),
        access_s=ACCESS_S_MEDIAN * math.exp(rng.gauss(0, 0.8)),
        prompt_share=rng.uniform(PROMPT_SHARE_MIN, PROMPT_SHARE_MAX),
        cap=cap,
    )


def _stages(sizes: tuple[int, ...], spread: float, rng: Random) -> tuple[NodeSpec, ...]:
    """Consecutive stages of equal length; the speeds within a stage lie ``spread`` apart, evenly in logarithm."""
    cuts = [round(LAYER_COUNT * stage / len(sizes)) for stage in range(len(sizes) + 1)]
    nodes: list[NodeSpec] = []
    for stage, size in enumerate(sizes):
        for place in range(size):
            tps = 120.0 * spread ** (-place / max(1, size - 1)) * math.exp(rng.gauss(0, 0.1))
            nodes.append(_node(f"s{stage}n{place}", cuts[stage], cuts[stage + 1] - 1, tps, rng))
    return tuple(nodes)


def _whole(count: int, spread: float, rng: Random) -> tuple[NodeSpec, ...]:
    return tuple(
        _node(
            f"w{place}", 0, LAYER_COUNT - 1, 40 * spread ** (-place / (count - 1)) * math.exp(rng.gauss(0, 0.05)), rng
        )
        for place in range(count)
    )


def _gpu_and_cpu(rng: Random) -> tuple[NodeSpec, ...]:
    gpu = _node("gpu", 0, 21, 100 * math.exp(rng.gauss(0, 0.2)), rng, cap=8)
    cpu = _node("cpu", 0, 39, 12 * math.exp(rng.gauss(0, 0.2)), rng)
    return (gpu, replace(cpu, entry_layers=(22,)))


def _one_head(rng: Random) -> tuple[NodeSpec, ...]:
    tails = [replace(_node(f"t{place}", 10, 39, 30.0, rng), prompt_share=0.1) for place in range(10)]
    return (_node("head", 0, 9, 400, rng, cap=64), *tails)


TOPOLOGIES: dict[str, Callable[[Random], tuple[NodeSpec, ...]]] = {
    "A": lambda rng: _whole(6, 6.7, rng),
    "B": lambda rng: _stages((4, 3, 4), 5.0, rng),
    "C": lambda rng: _stages((2, 6, 7, 9), 5.0, rng),
    "D": lambda rng: _whole(8, 60.0, rng),
    "E": _gpu_and_cpu,
    "F": _one_head,
    "G": lambda rng: _stages((7, 8, 9, 10), 5.0, rng),
}


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a scenario is built from."""

    nodes: tuple[NodeSpec, ...]
    duration_s: float
    rng: Random
    best: NodeSpec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "best", _best_replaceable(self.nodes))


def _best_replaceable(nodes: tuple[NodeSpec, ...]) -> NodeSpec:
    """The fastest node without which the model can still be served."""
    spared = [n for n in nodes if _covers([other for other in nodes if other is not n])]
    return min(spared or nodes, key=lambda node: node.layer_s)


def _covers(nodes: list[NodeSpec]) -> bool:
    ends = {0}
    for layer in range(LAYER_COUNT):
        if layer in ends:
            ends |= {n.last + 1 for n in nodes if layer == n.first or layer in n.entry_layers}
    return LAYER_COUNT in ends


def _slow_down(s: _Setting) -> dict[str, object]:
    third = s.duration_s / 3
    changes = (Change(third, "slow", s.best.name, BEST_SLOWER), Change(2 * third, "slow", s.best.name, 1.0))
    return {"changes": changes, "event_at_s": third, "marked": frozenset({s.best.name})}


def _join(s: _Setting) -> dict[str, object]:
    third = s.duration_s / 3
    faster = replace(
        s.best,
        name="joiner",
        layer_s=s.best.layer_s / JOINER_FASTER,
        advertised_layer_tps=JOINER_FASTER / s.best.layer_s * math.exp(s.rng.gauss(0, ADVERTISED_ERROR)),
    )
    changes = (Change(third, "join", "joiner", spec=faster), Change(2 * third, "leave", s.best.name))
    return {"changes": changes, "event_at_s": third, "marked": frozenset({"joiner"})}


def _join_slow(s: _Setting) -> dict[str, object]:
    slower = replace(
        s.best,
        name="joiner",
        layer_s=s.best.layer_s * SLOW_JOINER_SLOWER,
        advertised_layer_tps=1 / s.best.layer_s * math.exp(s.rng.gauss(0, ADVERTISED_ERROR)),
    )
    third = s.duration_s / 3
    return {"changes": (Change(third, "join", "joiner", spec=slower),), "event_at_s": third, "marked": {"joiner"}}


def _drift(s: _Setting) -> dict[str, object]:
    """A slow sinusoid of a factor of 2 both ways, another phase for each node, and a random walk on top."""
    changes: list[Change] = []
    for node in s.nodes:
        phase, walk = s.rng.uniform(0, 2 * math.pi), 0.0
        for step in range(int(s.duration_s / DRIFT_STEP_S)):
            walk = 0.97 * walk + s.rng.gauss(0, 0.06)
            at_s = step * DRIFT_STEP_S
            factor = math.exp(0.7 * math.sin(2 * math.pi * at_s / 1800 + phase) + walk)
            changes.append(Change(at_s, "slow", node.name, factor))
    return {"changes": tuple(sorted(changes, key=lambda change: change.at_s))}


def _flap(s: _Setting) -> dict[str, object]:
    switches = range(int(s.duration_s / FLAP_S))
    changes = (Change(FLAP_S * n, "down" if n % 2 else "up", s.best.name) for n in switches if n)
    return {"changes": tuple(changes), "marked": frozenset({s.best.name})}


def _from_a_quarter(kind: str, s: _Setting) -> dict[str, object]:
    quarter = s.duration_s / 4
    marked = frozenset({s.best.name})
    return {"changes": (Change(quarter, kind, s.best.name),), "event_at_s": quarter, "marked": marked}


SCENARIOS: dict[str, Callable[[_Setting], dict[str, object]]] = {
    "stationary": lambda _: {},
    "slow-down": _slow_down,
    "join": _join,
    "join-slow": _join_slow,
    "drift": _drift,
    "load-0.6": lambda _: {"load": 0.6},
    "load-0.85": lambda _: {"load": 0.85},
    "bursty": lambda _: {"is_bursty": True, "load": 0.4},
    "heavy-tail": lambda _: {"tail": "five"},
    "pareto": lambda _: {"tail": "pareto"},
    "sparse": lambda _: {"requests_per_s": 0.02},
    "flap": _flap,
    "fail-fast": lambda s: _from_a_quarter("fail-fast", s),
    "truncate": lambda s: _from_a_quarter("truncate", s),
    "prompt-mix": lambda _: {"has_prompt_mix": True},
    "burst-60": lambda _: {"burst_at_start": 60},
    "clock-step": lambda s: {"changes": (Change(s.duration_s / 2, "clock", factor=3600.0),)},
}


def make_world(topology: str, scenario: str, *, seed: int, duration_s: float) -> World:
    """The same for every policy. Each cause has dice of its own, so that one more draw here moves nothing there."""
    nodes = TOPOLOGIES[topology](Random(f"{seed} nodes {topology}"))
    setting = _Setting(nodes, duration_s, Random(f"{seed} changes {topology} {scenario}"))
    return World(topology=topology, scenario=scenario, nodes=nodes, **SCENARIOS[scenario](setting))  # type: ignore[arg-type]
