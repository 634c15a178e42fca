"""A node's shard as consecutive segments.

One way of cutting the shard is a *generation*. When other nodes want to enter elsewhere, a new generation is
loaded beside the old one; sessions stay on the generation they began on, and a generation is freed when it is
retired and its last session has gone. Segments that both generations share are mapped from the same file, so
the system keeps their weights once even meanwhile.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshnet_node.engine.architectures import check_context, check_cut
from meshnet_node.engine.cache_types import CacheTypes, cache_types
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import cached_slice
from meshnet_node.engine.huge_pages import settle_in_huge_pages
from meshnet_node.engine.segment import Segment, SegmentSettings, SegmentShape
from meshnet_node.errors import EntryLayerError
from meshnet_protocol.layers import LayerRange

log = logging.getLogger("meshnet.engine")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    cache_dir: Path
    """For slices and fingerprints; several nodes of a machine may share it."""
    threads: int = 1
    slots: int = 4
    """Sessions at a time."""
    context_tokens: int = 4096
    """Positions of each session."""
    chunk_tokens: int = 128
    """Most rows in one decode."""
    exact: str = "auto"
    """``auto``: test and tell; ``on``: refuse to load if the test fails; ``off``: no test, and an F16 KV cache."""
    gpu_layers: int = 0
    layer_delay_s: float = 0.0
    """An honest slow-down: the engine sleeps this long per layer in every decode."""

    @property
    def is_exact(self) -> bool:
        """False: exactness was given up for an F16 cache."""
        return self.exact != "off"

    @property
    def rows_max(self) -> int:
        return max(self.chunk_tokens, self.slots)

    def fitted_to(self, model: ModelFile) -> "EngineOptions":
        """Beyond the context it was trained on a model only talks nonsense."""
        return replace(self, context_tokens=min(self.context_tokens, model.context_tokens))

    def cache_types(self, model: ModelFile) -> CacheTypes:
        return cache_types(model, is_exact=self.is_exact, on_gpu=self.gpu_layers > 0)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Generation:
    """The segments of one cut. Only the engine thread calls the segments, and closes them."""

    number: int
    """Counts up with every cut."""
    shard: LayerRange
    pieces: tuple[LayerRange, ...]
    segments: tuple[Segment, ...]
    session_count: int = field(default=0)
    """Guarded by the engine's lock."""

    @property
    def can_rewind(self) -> bool:
        return all(segment.can_rewind for segment in self.segments)

    @property
    def entry_layers(self) -> tuple[int, ...]:
        return tuple(piece.first for piece in self.pieces)

    def segment_at(self, layers: LayerRange) -> int:
        """Index of the segment where these layers begin.

        Raises EntryLayerError if no segment begins there, or they do not go to the shard's end.
        """
        if layers.last != self.shard.last or layers.first not in self.entry_layers:
            raise EntryLayerError(layers, shard=self.shard, entry_layers=self.entry_layers)
        return self.entry_layers.index(layers.first)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


def load_generation(
    model: ModelFile, shard: LayerRange, pieces: Iterable[LayerRange], options: EngineOptions, *, number: int
) -> Generation:
    """Slice and load. Blocks for as long as copying the layers takes; raises ModelFileError, LayersError,
    LayerKindsError, SettingsError."""
    pieces = tuple(pieces)
    check_context(model, options.context_tokens)
    for piece in pieces:  # before any of them costs time
        check_cut(model, piece)
    segments: list[Segment] = []
    try:
        segments.extend(_load_segment(model, piece, options) for piece in pieces)
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    return Generation(number, shard, pieces, tuple(segments))


def _load_segment(model: ModelFile, piece: LayerRange, options: EngineOptions) -> Segment:
    shape = SegmentShape(
        layer_count=piece.layer_count,
        hidden_size=model.hidden_size,
        takes_tokens=piece.first == 0,
        gives_logits=piece.next_layer == model.layer_count,
    )
    settings = SegmentSettings(
        slots=options.slots,
        context_tokens=options.context_tokens,
        rows_max=options.rows_max,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        cache=options.cache_types(model),
    )
    path = cached_slice(model, piece, options.cache_dir)
    if not options.gpu_layers:
        huge_bytes = settle_in_huge_pages(path)
        log.info("%s: %.0f MB in huge pages", path.name, huge_bytes / 1e6)
    return Segment(path, shape, settings)
