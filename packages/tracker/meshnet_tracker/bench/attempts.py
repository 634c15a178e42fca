"""One attempt at a request: on which machines it runs, how it will end if nothing comes between, what it brought.

A chat that breaks off goes on elsewhere, as the proxy has it: the next route computes the prompt and the tokens drawn
so far in one go, and draws the rest. So an attempt knows how much of it is prompt, and how many tokens it has drawn.
"""

from dataclasses import dataclass
from itertools import pairwise

from meshnet_protocol.messages import HopTiming
from meshnet_tracker.bench.contender import Asked
from meshnet_tracker.bench.machines import Machine, Run
from meshnet_tracker.errors import AttemptFailedError
from meshnet_tracker.outcomes import Outcome
from meshnet_tracker.router import RouteDecision

TRUNCATED_SHARE = 0.2
SESSIONS_MAX = 48
"""A machine with so many refuses more."""
ROUNDING = 1e-6


@dataclass(slots=True)
class Attempt:
    asked: Asked
    decision: RouteDecision
    run: Run
    prompt_tokens: int
    output_tokens: int
    """What was left to draw when it began."""
    prompt_part: float
    """Of its work, what comes before the first token."""
    plain_s: float = 0.0
    """What it would take with nobody coming or going."""
    leaves: bool = False
    """The client leaves before the end."""
    failure: AttemptFailedError | None = None
    """How it breaks off, as far as the tracker is told."""

    @property
    def is_refused(self) -> bool:
        """Nothing runs at all."""
        return self.failure is not None and self.run.goal == 0.0

    @property
    def drawn_tokens(self) -> int:
        share = (self.run.done - self.prompt_part) / max(1e-9, 1 - self.prompt_part)
        return int(self.output_tokens * min(1.0, max(0.0, share)) + ROUNDING)

    @property
    def prompt_part_seen(self) -> float:
        """Of the seconds it took, those before the first token, as its speeds have been."""
        works = [
            (machine.spec.prompt_share * self.prompt_tokens, spent_s)
            for machine, spent_s in zip(self.run.machines, self.run.spent_s, strict=True)
        ]
        whole = sum((prompt + self.output_tokens) * spent_s for prompt, spent_s in works)
        return sum(prompt * spent_s for prompt, spent_s in works) / whole if whole else 0.0

    def timings(self) -> list[HopTiming]:
        """As the head would report them."""
        run, steps = self.run, self.output_tokens + 1
        return [
            HopTiming(node_id=machine.node_id, steps=steps, compute_s=spent_s, link_s=link_s)
            for machine, spent_s, link_s in zip(run.machines, run.spent_s, run.links_s, strict=True)
        ]

    def stop_at(self, share: float) -> None:
        """It ends when it has drawn this share of what was left."""
        self.run.goal = self.prompt_part + (1 - self.prompt_part) * share


def begin(asked: Asked, decision: RouteDecision, machines: tuple[Machine, ...], now: float) -> Attempt:
    """What is left of the request, on these machines. Nothing is booked on them yet."""
    request = asked.request
    prompt_tokens, output_tokens = request.prompt_tokens + asked.drawn, request.output_tokens - asked.drawn
    layers = [hop.layers.layer_count for hop in decision.route.hops]
    amounts = tuple(
        count
        * (output_tokens + machine.spec.prompt_share * prompt_tokens)
        * request.noises[place % len(request.noises)]
        for place, (count, machine) in enumerate(zip(layers, machines, strict=True))
    )
    joints_s = [here.spec.access_s + there.spec.access_s for here, there in pairwise(machines)]
    links_s = (*(joint_s * (output_tokens + 1) for joint_s in joints_s), 0.0)
    run = Run(machines, amounts, links_s, goal=1.0, started_at=now, timed_at=now, spent_s=[0.0] * len(machines))
    plain_s = sum(m.work_s(count, prompt_tokens, output_tokens) for count, m in zip(layers, machines, strict=True))
    prompt_s = sum(m.work_s(count, prompt_tokens, 0) for count, m in zip(layers, machines, strict=True))
    total_s = plain_s + sum(links_s)
    attempt = Attempt(asked, decision, run, prompt_tokens, output_tokens, prompt_s / total_s, total_s)
    _foresee(attempt)
    return attempt


def _foresee(attempt: Attempt) -> None:
    """How it ends if nothing comes between: by a full or faulty machine, by the client, or else properly."""
    run, asked = attempt.run, attempt.asked
    absent = next((machine for machine in run.machines if not machine.is_up), None)
    if absent is not None:
        run.goal = 0.0
        attempt.failure = AttemptFailedError("not there", culprit=absent.node_id, wants_probe=True)
        return
    if any(len(machine.runs) >= SESSIONS_MAX for machine in run.machines):
        run.goal, attempt.failure = 0.0, AttemptFailedError("full", outcome=Outcome.OVERLOAD)
        return
    refuser = next((machine for machine in run.machines if machine.fails_fast), None)
    if refuser is not None:
        run.goal, attempt.failure = 0.0, AttemptFailedError("refused", culprit=refuser.node_id)
        return
    request, draw = asked.request, asked.request.fault_draws[(asked.attempts - 1) % len(asked.request.fault_draws)]
    cutter = next((m for m in run.machines if m.truncates), None) if draw < TRUNCATED_SHARE else None
    leaves_at = None if request.aborts_at is None else _share_left(request.aborts_at * request.output_tokens, attempt)
    if leaves_at is not None and (cutter is None or leaves_at <= request.cut_at):
        attempt.leaves = True
        attempt.stop_at(leaves_at)
    elif cutter is not None:
        attempt.stop_at(request.cut_at)
        attempt.failure = _cut_off(run.machines, cutter)


def _share_left(token: float, attempt: Attempt) -> float:
    return max(0.0, token - attempt.asked.drawn) / attempt.output_tokens


def _cut_off(machines: tuple[Machine, ...], cutter: Machine) -> AttemptFailedError:
    """A head that ends its stream too early is named. A hop further down does so by its link, and it is the hop before
    it that says so: it may as well have done it."""
    place = machines.index(cutter)
    reporter = machines[place - 1].node_id if place else None
    return AttemptFailedError("cut off", outcome=Outcome.DEGENERATE, culprit=cutter.node_id, reporter=reporter)
