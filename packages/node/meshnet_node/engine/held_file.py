"""The part of a model's file that a node holds, addressed as the whole file is.

A node with the file itself holds everything. One that fetched its layers holds the header and, inside its
slices, its tensors; the few bytes of padding between tensors are zeros in every file.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import plan_slice, slice_path
from meshnet_node.sources.source import LocalSource
from meshnet_protocol.layers import LayerRange


@dataclass(frozen=True, slots=True, order=True)
class HeldRange:
    """Bytes of the whole file, and where they lie here."""

    start: int
    end: int
    path: Path | None
    """None: zeros."""
    offset: int


@dataclass(frozen=True, slots=True)
class HeldFile:
    file_name: str
    byte_count: int
    ranges: Sequence[HeldRange]
    """Rising, without overlap."""

    @property
    def is_whole(self) -> bool:
        return self.end_of(0) == self.byte_count

    def end_of(self, start: int) -> int:
        """How far the bytes from ``start`` on are held without a gap; ``start`` itself if they are not."""
        index = bisect_right(self.ranges, start, key=lambda held: held.start) - 1
        end = start
        for held in self.ranges[max(index, 0) :]:
            if not held.start <= end < held.end:
                break
            end = held.end
        return end

    def read(self, start: int, end: int) -> bytes:
        """Bytes that ``end_of`` promised. Raises SourceError if their file has gone."""
        data = bytearray()
        for held in self.ranges:
            first, last = max(held.start, start), min(held.end, end)
            if first < last:
                at = held.offset + first - held.start
                data += bytes(last - first) if held.path is None else LocalSource(held.path).read(at, at + last - first)
        assert len(data) == end - start
        return bytes(data)


def held_file(model: ModelFile, pieces: Iterable[LayerRange], cache_dir: Path) -> HeldFile:
    """What is here of the model's file, if these pieces of it are loaded."""
    byte_count = model.path.stat().st_size
    if model.origin is None:
        return HeldFile(model.path.name, byte_count, [HeldRange(0, byte_count, model.path, 0)])
    starts = {int(tensor.data_offset): tensor for tensor in model.tensors.values()}
    found = {HeldRange(0, min(starts), model.path, 0).start: HeldRange(0, min(starts), model.path, 0)}
    for piece in pieces:
        path = slice_path(model, piece, cache_dir)
        for copy in plan_slice(model, piece).copies:
            found[copy.start] = HeldRange(copy.start, copy.end, path, copy.target)
    return HeldFile(model.origin.file_name, byte_count, _with_padding(sorted(found.values()), model, byte_count))


def _with_padding(ranges: list[HeldRange], model: ModelFile, byte_count: int) -> list[HeldRange]:
    filled: list[HeldRange] = []
    ends = [held.start for held in ranges[1:]] + [byte_count]
    for held, following in zip(ranges, ends, strict=True):
        filled.append(held)
        if 0 < following - held.end < model.alignment:
            filled.append(HeldRange(held.end, following, None, 0))
    return filled
