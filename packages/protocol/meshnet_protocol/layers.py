"""Layer ranges: the one place that does arithmetic on layer numbers."""

import re
from dataclasses import dataclass
from typing import Self

_TEXT = re.compile(r"(\d{1,5})-(\d{1,5})")


@dataclass(frozen=True, slots=True, order=True)
class LayerRange:
    """Consecutive layers, first and last both included, counted from 0."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"layers {self.first}-{self.last}: need 0 <= first <= last")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"0-16"``. Raises ValueError with a message fit for a user."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"layers {text!r}: write first and last layer, both included, as in 0-16")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def layer_count(self) -> int:
        return self.last - self.first + 1

    @property
    def next_layer(self) -> int:
        """The layer a following hop starts at."""
        return self.last + 1

    def contains(self, other: "LayerRange") -> bool:
        return self.first <= other.first and other.last <= self.last

    def starting_at(self, layer: int) -> "LayerRange":
        """What is left of this range from ``layer`` on. Raises ValueError if ``layer`` lies outside."""
        if not self.first <= layer <= self.last:
            raise ValueError(f"layer {layer} is not in {self}")
        return LayerRange(layer, self.last)

    def cut_at(self, entry_layers: "frozenset[int] | set[int]") -> "tuple[LayerRange, ...]":
        """Consecutive pieces that start at this range's first layer and at each entry layer inside it."""
        starts = sorted({self.first} | {e for e in entry_layers if self.first < e <= self.last})
        ends = [start - 1 for start in starts[1:]] + [self.last]
        return tuple(LayerRange(a, b) for a, b in zip(starts, ends, strict=True))
