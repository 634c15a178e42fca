"""A memory with two limits: how long and how many."""

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class BoundedMemory(Generic[T]):
    """Remembers values for ``keep_s`` seconds, and never more than the ``count_max`` latest."""

    def __init__(self, *, keep_s: float, count_max: int) -> None:
        self._keep_s = keep_s
        self._count_max = count_max
        self._added_at: dict[T, float] = {}

    def add(self, value: T, now: float) -> None:
        self._added_at.pop(value, None)
        self._added_at[value] = now
        if len(self._added_at) > self._count_max:
            del self._added_at[next(iter(self._added_at))]

    def discard(self, value: T) -> None:
        self._added_at.pop(value, None)

    def forget_old(self, now: float) -> None:
        """Costs as much as there is to forget: values lie in the order they were added."""
        while self._added_at:
            oldest, added_at = next(iter(self._added_at.items()))
            if now - added_at <= self._keep_s:
                return
            del self._added_at[oldest]

    def __contains__(self, value: T) -> bool:
        return value in self._added_at
