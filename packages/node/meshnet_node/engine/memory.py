"""How much memory layers need, reckoned before anything is loaded, and how much the machine has.

    weights   the tensors' bytes; mapped from the file, so they are the system's cache, but a decode touches all
    KV cache  slots x context x layers with attention: what the segment reserves at once, in its cache's type
    states    slots x recurrent layers: of fixed size, whatever the context
    buffers   one decode's intermediate values; the logits of a full chunk are most of it, and llama.cpp reserves
              them in every segment that has a vocabulary, heads included

The figures for caches are exact (they are llama.cpp's own arithmetic); that for buffers is a close guess.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from meshnet_node.engine.architectures import check_architecture, recurrent_layers
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import plan_slice
from meshnet_node.engine.shard import EngineOptions
from meshnet_node.errors import MemoryShortageError
from meshnet_protocol.layers import LayerRange

FLOAT_BYTES = 4
CONTEXT_GRANULE = 256
"""llama.cpp rounds contexts up to this."""
PROCESS_BYTES = 150_000_000
"""Python, llama.cpp's code and a vocabulary: what a node weighs without layers."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that one way of cutting a shard needs."""

    weights: int
    cache: int
    """KV cache and recurrent states."""
    buffers: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.buffers + PROCESS_BYTES

    def __str__(self) -> str:
        return (
            f"{megabytes(self.total)} ({megabytes(self.weights)} weights, {megabytes(self.cache)} KV cache, "
            f"{megabytes(self.buffers)} buffers, {megabytes(PROCESS_BYTES)} the node itself)"
        )


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def memory_need(model: ModelFile, pieces: Iterable[LayerRange], options: EngineOptions) -> MemoryNeed:
    """Raises what ``plan_slice`` raises: a piece that cannot be cut."""
    options = options.fitted_to(model)
    weights = cache = buffers = 0
    for piece in pieces:
        weights += plan_slice(model, piece).copied_bytes
        cache += _cache_bytes(model, piece, options)
        buffers += _buffer_bytes(model, piece, options)
    return MemoryNeed(weights, cache, buffers)


def check_memory(model: ModelFile, shard: LayerRange, options: EngineOptions, *, available: int | None) -> None:
    """Raises MemoryShortageError, with numbers and advice. Unknown free memory (None) refuses nothing."""
    need = memory_need(model, [shard], options)
    if available is None or need.total <= available:
        return
    raise MemoryShortageError(
        f"layers {shard} of {model.name} need {need}, and this machine has {megabytes(available)} to spare; hold fewer "
        f"--layers, or lower --context-tokens ({options.context_tokens}) or --slots ({options.slots})"
    )


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be had without swapping, a container's limit respected; None where the system does not say."""
    limits = [limit for limit in (_system_available(root), _container_available(root)) if limit is not None]
    return min(limits, default=None)


def _system_available(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _container_available(root: Path) -> int | None:
    group = root / "sys/fs/cgroup"
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such files, or "max": no limit
        return None


def _cache_bytes(model: ModelFile, piece: LayerRange, options: EngineOptions) -> int:
    context = -(-options.context_tokens // CONTEXT_GRANULE) * CONTEXT_GRANULE
    is_hybrid = check_architecture(model).is_hybrid
    recurrent = recurrent_layers(model) if is_hybrid else [False] * model.layer_count
    types = options.cache_types(model)
    head_bytes = (
        model.head_size("key") * types.key.bytes_per_item + model.head_size("value") * types.value.bytes_per_item
    )
    heads = states = 0
    for layer in range(piece.first, piece.next_layer):
        if recurrent[layer]:
            states += _state_items(model)
        else:
            heads += model.per_layer("attention.head_count_kv", layer) or model.head_count(layer)
    return int(options.slots * (context * heads * head_bytes + states * FLOAT_BYTES))


def _state_items(model: ModelFile) -> int:
    """Of the convolution and the state matrix of one linear-attention layer, for one sequence."""
    inner, state = model.integer("ssm.inner_size") or 0, model.integer("ssm.state_size") or 0
    groups, kernel = model.integer("ssm.group_count") or 0, model.integer("ssm.conv_kernel") or 1
    return (kernel - 1) * (inner + 2 * groups * state) + state * inner


def _buffer_bytes(model: ModelFile, piece: LayerRange, options: EngineOptions) -> int:
    rows = options.rows_max
    has_vocabulary = piece.first == 0 or piece.next_layer == model.layer_count
    vocabulary = int(model.tensors["token_embd.weight"].shape[1]) if has_vocabulary else 0
    feed_forward = max(
        model.per_layer("feed_forward_length", piece.first),
        (model.integer("expert_feed_forward_length") or 0) * (model.integer("expert_used_count") or 0),
    )
    layer = 4 * model.hidden_size + 2 * feed_forward
    mask = rows * options.context_tokens * 2
    logits = options.slots * vocabulary * FLOAT_BYTES
    return rows * (max(vocabulary, layer) + 2 * model.hidden_size) * FLOAT_BYTES + mask + logits
