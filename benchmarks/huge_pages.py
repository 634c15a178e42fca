"""A segment with its weights in huge pages of the page cache, against the same segment in pages of 4 KiB.

Decoding one row reads every weight once, so the ceiling is what address translation and the processor's read-ahead,
which ends at each page, cost in small pages. Both copies are loaded in one process and decode in turn. Where the file
system or the kernel has no huge pages for files the two are alike, and the figures say so.

    uv run python benchmarks/huge_pages.py [--layers 0-16] [--turns 40]
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from meshnet_node.engine.cache_types import cache_types
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import cached_slice
from meshnet_node.engine.huge_pages import settle_in_huge_pages
from meshnet_node.engine.segment import Segment, SegmentSettings, SegmentShape, SequenceRows
from meshnet_node.model_source import resolve_model
from meshnet_protocol.layers import LayerRange

SLOTS = 4
PROMPT_ROWS = 40
SMALL_PAGE_BYTES = 4096
STEPS_IN_A_ROW = 10
"""So that each side finds the caches as it left them itself."""


def copy_in_small_pages(source: Path, target: Path) -> None:
    """Written page by page, which is how the page cache then keeps it."""
    with source.open("rb") as data, target.open("wb", buffering=0) as copy:
        while page := data.read(SMALL_PAGE_BYTES):
            copy.write(page)
        os.fsync(copy.fileno())


class Side:
    """One copy of the segment, with a short prompt in every slot."""

    def __init__(self, path: Path, shape: SegmentShape, settings: SegmentSettings) -> None:
        self._segment = Segment(path, shape, settings)
        self._shape = shape
        self._position = 0
        for slot in range(SLOTS):
            self._segment.decode([self._rows(slot, PROMPT_ROWS)])
        self.ms: dict[int, list[float]] = {1: [], SLOTS: []}

    def run(self, slots: int) -> None:
        for slot in range(SLOTS):
            self._segment.rewind(slot, PROMPT_ROWS)
        for step in range(STEPS_IN_A_ROW):
            self._position = PROMPT_ROWS + step
            rows = [self._rows(slot, 1) for slot in range(slots)]
            began_s = perf_counter()
            self._segment.decode(rows)
            self.ms[slots].append(1000 * (perf_counter() - began_s))
        self._position = 0

    def _rows(self, slot: int, count: int) -> SequenceRows:
        tokens = np.arange(count, dtype=np.int32) + 100 if self._shape.takes_tokens else None
        hidden = None if self._shape.takes_tokens else np.full((count, self._shape.hidden_size), 0.1, np.float32)
        return SequenceRows(slot, self._position, count, tokens, hidden, wants_logits=self._shape.gives_logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--layers", default="0-16")
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    first, last = (int(layer) for layer in options.layers.split("-"))
    model, layers = ModelFile.open(resolve_model(options.model)), LayerRange(first, last)
    shape = SegmentShape(layers.layer_count, model.hidden_size, first == 0, layers.next_layer == model.layer_count)
    cache = cache_types(model, is_exact=True, on_gpu=False)
    settings = SegmentSettings(slots=SLOTS, context_tokens=256, rows_max=64, threads=1, gpu_layers=0, cache=cache)
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:  # not on a RAM disk, which has pages of its own
        source, plain, settled = cached_slice(model, layers, Path(folder)), Path(folder) / "a", Path(folder) / "b"
        copy_in_small_pages(source, plain)
        copy_in_small_pages(source, settled)
        huge_bytes = settle_in_huge_pages(settled)
        sides = {"small": Side(plain, shape, settings), "huge": Side(settled, shape, settings)}
        for _ in range(options.turns):
            for slots in (1, SLOTS):
                for side in sides.values():
                    side.run(slots)
    figures = {
        f"{name}_{slots}_rows_ms": round(statistics.median(side.ms[slots]), 2)
        for name, side in sides.items()
        for slots in (1, SLOTS)
    }
    ratios = {f"ratio_{n}": round(figures[f"huge_{n}_rows_ms"] / figures[f"small_{n}_rows_ms"], 3) for n in (1, SLOTS)}
    print(json.dumps({"benchmark": "huge_pages", "huge_mb": round(huge_bytes / 1e6, 1), **figures, **ratios}))


if __name__ == "__main__":
    main()
