"""The storm: clients chat all the time while nodes are killed, frozen and brought back, at moments that a seed sets.

What must hold whatever happens: every chat has one ending, and every word and count it would have had in calm weather;
no slot stays taken; every token is some run's, once. ``make chaos`` runs it for long; ``STORM_SEED`` repeats a course
of faults (when they hit is up to the machine).
"""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .chats import WAYS, Seen, ask
from .storm import SHARDS, TOKEN_TIMEOUT_S, Storm, wait_until

CHATS = int(os.environ.get("STORM_CHATS", "14"))
SEED = int(os.environ.get("STORM_SEED", "1"))
CLIENTS = 3
CALM_S_MAX = 1.0
FROZEN_S_MAX = 5.0
AT_ONCE = {"tool"}
"""What comes as one piece at its end has no pauses to speak of."""
PAUSE_S_MAX = 3 * TOKEN_TIMEOUT_S
"""Three faults can hit one chat in a row on a machine as busy as this."""


@dataclass(slots=True)
class Weather:
    """One fault after the other, each healed before the next, so that there always is a way."""

    mesh: Storm
    rng: Random
    has_ended: threading.Event = field(default_factory=threading.Event)
    struck: list[str] = field(default_factory=list)

    def rage(self) -> None:
        while not self.has_ended.wait(self.rng.uniform(0.0, CALM_S_MAX)):
            name = self.rng.choice(list(SHARDS))
            if self.rng.random() < 0.5:
                self.struck.append(f"{name} killed")
                self.mesh.kill(name)
                self.mesh.start(name)
            else:
                self.struck.append(f"{name} frozen")
                self.mesh.freeze(name)
                time.sleep(self.rng.uniform(0.2, FROZEN_S_MAX))
                self.mesh.thaw(name)
            self.mesh.wait(name)


def test_no_chat_is_lost_and_no_word_is_wrong(mesh: Storm, undisturbed: dict[str, Any]) -> None:
    rng = Random(SEED)
    orders = [(rng.choice(list(WAYS)), rng.random() < 0.7) for _ in range(CHATS)]
    weather = Weather(mesh, Random(SEED))
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        raging = pool.submit(weather.rage)
        try:
            chats = [pool.submit(ask, mesh.url, way, is_stream=is_stream) for way, is_stream in orders]
            seen = [chat.result() for chat in chats]
        finally:
            weather.has_ended.set()
            raging.result()
    wait_until(lambda: mesh.sessions() == 0 == mesh.in_flight())
    finished = {event["request_id"]: event for event in mesh.events("chat finished")}
    report(weather, seen, finished)
    check(orders, seen, undisturbed, finished)


def check(
    orders: list[tuple[str, bool]], seen: list[Seen], expected: dict[str, Any], finished: dict[str, dict[str, Any]]
) -> None:
    for (way, _), chat in zip(orders, seen, strict=True):
        event = finished[chat.request_id]
        assert chat.errors == [], (way, event)
        assert chat.endings == 1, (way, event)
        assert chat.words == expected[way], (way, event)
        assert event["outcome"] == "completed"
        assert (event["prompt_tokens"], event["completion_tokens"]) == expected[way][1]
        for kind in ("prompt_tokens", "completion_tokens"):
            assert sum(run[kind] for run in event["runs"]) == event[kind], event
        assert event["is_sampled"] <= (sum(run["completion_tokens"] > 0 for run in event["runs"]) == 1)
        assert way in AT_ONCE or chat.pause_s_max < PAUSE_S_MAX, event
    assert len({chat.request_id for chat in seen}) == len(seen)


def report(weather: Weather, seen: list[Seen], finished: dict[str, dict[str, Any]]) -> None:
    """What happened, for people; recovery is what a client had to wait for its next word."""
    taken_over = [chat for chat in seen if finished[chat.request_id]["attempts"] > 1]
    pauses = sorted(chat.pause_s_max for chat in taken_over if chat.pause_s_max and chat.calls == 0) or [0.0]
    attempts = sum(finished[chat.request_id]["attempts"] for chat in seen)
    lines = (
        f"\nseed {SEED}: {len(seen)} chats, {attempts} attempts, {len(weather.struck)} faults",
        f"taken over: {len(taken_over)}; recovery median {pauses[len(pauses) // 2]:.2f} s, longest {pauses[-1]:.2f} s",
        f"faults: {', '.join(weather.struck)}",
    )
    print("\n".join(lines))  # noqa: T201 - read by whoever runs make chaos
