"""The call wall's memory: every chat as one record, put together from the events it left behind.

``CallBook.take`` is the one way in. Each change gives a call the next *revision* and moves it to the end, so
a reader with a cursor asks for what changed since and gets each call at most once, in its latest form. That
is what bounds a live stream: a slow reader skips versions, nothing queues up for it.

A record is strict JSON and holds no word of a prompt or an answer.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

CALLS_KEPT_MAX = 1000
CALLS_PER_READ_MAX = 500

Json = Mapping[str, Any]
CallRecord = dict[str, Any]

# What ``chat finished`` adds to a record, under the same names.
_FINISHED_FIELDS = (
    "outcome",
    "culprit",
    "error",
    "choice_count",
    "seed",
    "finish_reason",
    "is_sampled",
    "prompt_tokens",
    "completion_tokens",
    "tps",
    "seconds",
    "ttft_s",
    "hops",
)


# What ``route failed`` adds to an attempt.
_FAILED_FIELDS = ("error", "outcome", "culprit", "reporter", "drawn_tokens", "suspects")


class CallBook:
    """The latest calls, running and finished. ``on_finished`` is given each call that has ended."""

    def __init__(
        self, *, on_finished: Callable[[CallRecord], None] = lambda _: None, count_max: int = CALLS_KEPT_MAX
    ) -> None:
        self._calls: dict[str, CallRecord] = {}
        self._on_finished = on_finished
        self._count_max = count_max
        self._revision = 0

    @property
    def revision(self) -> int:
        return self._revision

    def take(self, event: Json) -> None:
        """Note what an event says about its call; events about anything else are ignored."""
        match event["event"]:
            case "proxy route selected":
                self._begin_attempt(event)
            case "route failed":
                self._fail_attempt(event)
            case "chat finished":
                self._finish(event)

    def restore(self, calls: Iterable[CallRecord]) -> None:
        """Calls of an earlier process, oldest first."""
        for call in calls:
            self._put(_EMPTY | call)

    def call(self, call_id: str) -> CallRecord | None:
        return self._calls.get(call_id)

    def latest(self, count: int = CALLS_PER_READ_MAX) -> list[CallRecord]:
        """Newest change first."""
        return list(islice(reversed(self._calls.values()), count))

    def changed_since(self, revision: int, count: int = CALLS_PER_READ_MAX) -> list[CallRecord]:
        """Calls changed after ``revision``, oldest change first; of too many, the latest ``count``."""
        changed: list[CallRecord] = []
        for call in islice(reversed(self._calls.values()), count):
            if call["revision"] <= revision:
                break
            changed.append(call)
        return changed[::-1]

    def _begin_attempt(self, event: Json) -> None:
        call = self._known(event)
        attempt = {name: event[name] for name in ("at", "mode", "reason", "signature", "resumed_tokens")}
        unknown = dict.fromkeys(_FAILED_FIELDS) | {"suspects": [], "seconds": None}
        call["attempts"] = [*call["attempts"], attempt | unknown]
        chosen = {name: event[name] for name in ("model", "mode", "reason", "signature", "hops")}
        self._put(call | chosen | {"candidates": event.get("candidates", [])})

    def _fail_attempt(self, event: Json) -> None:
        call = self._known(event)
        _end_attempt(call, event["at"], {name: event[name] for name in _FAILED_FIELDS})
        self._put(call)

    def _finish(self, event: Json) -> None:
        call = self._known(event)
        call.update({name: event[name] for name in _FINISHED_FIELDS})
        call.update(state="finished", model=event["model"] or call["model"], at=event["at"] - event["seconds"])
        for run in event["runs"][-1:]:
            _end_attempt(call, event["at"], {"outcome": run["outcome"], "drawn_tokens": run["completion_tokens"]})
        self._put(call)
        self._on_finished(call)

    def _known(self, event: Json) -> CallRecord:
        """A copy: records that were handed out never change under their reader."""
        known = self._calls.get(event["request_id"])
        return dict(known) if known else _new_call(event)

    def _put(self, call: CallRecord) -> None:
        self._revision += 1
        call["revision"] = self._revision
        self._calls.pop(call["id"], None)
        self._calls[call["id"]] = call
        if len(self._calls) > self._count_max:
            del self._calls[next(iter(self._calls))]


_EMPTY: CallRecord = {
    "state": "running",
    "model": None,
    "mode": None,
    "reason": None,
    "signature": None,
    "candidates": [],
    "attempts": [],
    **dict.fromkeys(_FINISHED_FIELDS),
    "hops": [],
}


def _new_call(event: Json) -> CallRecord:
    return {"id": event["request_id"], "at": event["at"], **_EMPTY}


def _end_attempt(call: CallRecord, at: float, news: CallRecord) -> None:
    """Tell what became of the latest attempt, unless that is known: a chat may end after its last one failed."""
    if not call["attempts"] or call["attempts"][-1]["seconds"] is not None:
        return
    attempt = call["attempts"][-1]
    call["attempts"] = [*call["attempts"][:-1], attempt | news | {"seconds": max(0.0, at - attempt["at"])}]
