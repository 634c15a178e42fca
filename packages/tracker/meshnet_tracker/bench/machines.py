"""What the nodes of a world truly do: how fast each one is now, with how much on it, and the best way through.

Only the simulator and the oracles look in here; a policy sees what a tracker would see.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshnet_protocol.ids import NodeId
from meshnet_tracker.bench.worlds import LAYER_COUNT, NodeSpec


@dataclass(slots=True, eq=False)
class Run:
    """One attempt of one request, on its way over some machines at once, as steps of a pipeline are."""

    machines: tuple["Machine", ...]
    amounts: tuple[float, ...]
    """Per machine: layers x tokens, in drawn tokens, times this request's luck there."""
    links_s: tuple[float, ...]
    """Per machine: what its link to the next one costs the whole request."""
    goal: float
    """The share of its work at which it ends."""
    started_at: float
    parts_s: list[float] = field(default_factory=list)
    """What each machine would take for the whole request at the present speed."""
    total_s: float = 0.0
    done: float = 0.0
    timed_at: float = 0.0
    spent_s: list[float] = field(default_factory=list)
    version: int = 0

    def advance(self, now: float) -> None:
        elapsed_s = now - self.timed_at
        if elapsed_s > 0 and self.total_s > 0:
            share = elapsed_s / self.total_s
            self.done += share
            for place, part_s in enumerate(self.parts_s):
                self.spent_s[place] += share * part_s
        self.timed_at = now

    def price(self) -> None:
        self.parts_s = [
            amount * machine.layer_s * machine.crowding
            for amount, machine in zip(self.amounts, self.machines, strict=True)
        ]
        self.total_s = sum(self.parts_s) + sum(self.links_s)
        self.version += 1

    @property
    def ends_at(self) -> float:
        return self.timed_at + max(0.0, self.goal - self.done) * self.total_s


@dataclass(slots=True, eq=False)
class Machine:
    spec: NodeSpec
    node_id: NodeId
    layer_s: float
    crowding: float = 1.0
    is_up: bool = True
    fails_fast: bool = False
    truncates: bool = False
    runs: dict[int, Run] = field(default_factory=dict)
    """By id; a dict, because it keeps its order and a set of objects would not."""
    starts: int = 0

    @property
    def is_faulty(self) -> bool:
        return not self.is_up or self.fails_fast or self.truncates

    def recrowd(self) -> bool:
        """Whether a change of the number of runs changed their speed."""
        crowding = max(1.0, len(self.runs) / self.spec.cap)
        has_changed = crowding != self.crowding
        self.crowding = crowding
        return has_changed

    def work_s(self, layers: int, prompt_tokens: int, output_tokens: int) -> float:
        """For one more request, with those that are here now."""
        crowding = max(1.0, (len(self.runs) + 1) / self.spec.cap)
        return layers * self.layer_s * crowding * (output_tokens + self.spec.prompt_share * prompt_tokens)


def best_route(
    machines: Iterable[Machine],
    *,
    prompt_tokens: int,
    output_tokens: int,
    burdens: dict[NodeId, float] | None = None,
    may_cut: bool = False,
) -> tuple[float, tuple[NodeId, ...]]:
    """Seconds and nodes of the way that is quickest as things stand; infinity if there is none.

    ``burdens`` are seconds per layer added to a node, for oracles that look further than one request. ``may_cut``: over
    nodes too that cut streams off, as if they did not.
    """
    by_start: dict[int, list[Machine]] = {}
    for machine in machines:
        if not machine.is_faulty or (may_cut and machine.is_up and not machine.fails_fast):
            by_start.setdefault(machine.spec.first, []).append(machine)
            for layer in machine.spec.entry_layers:
                by_start.setdefault(layer, []).append(machine)
    best: dict[int, tuple[float, tuple[NodeId, ...]]] = {LAYER_COUNT: (0.0, ())}
    steps = output_tokens + 1
    for layer in sorted(by_start, reverse=True):
        for machine in by_start[layer]:
            end = machine.spec.last + 1
            if end not in best:
                continue
            ends = (layer > 0) + (end < LAYER_COUNT)
            seconds = machine.work_s(end - layer, prompt_tokens, output_tokens) + ends * machine.spec.access_s * steps
            if burdens:
                seconds += burdens.get(machine.node_id, 0.0) * (end - layer)
            seconds += best[end][0]
            if layer not in best or seconds < best[layer][0]:
                best[layer] = (seconds, (machine.node_id, *best[end][1]))
    return best.get(0, (float("inf"), ()))
