"""What must be known of each kind of model to cut it anywhere, and which kinds are refused.

llama.cpp loads a slice as if it were a small whole model. Wherever it derives something from a layer's number
or from the number of layers, a cut would change what it means. Per architecture this table says how that is
spelled out in a slice, or why it cannot be. Each row was written with llama.cpp's ``src/models/*.cpp`` of the
pinned version beside it, and each has a test that shows "split == whole, bit for bit".

Things that look dangerous and are not: model *types* (7B, 13B) chosen by layer count, which are only names
everywhere but in the models refused below; rope factors, which are global tensors that every layer shares.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.errors import LayerKindsError, SettingsError, UnsupportedArchitectureError
from meshnet_protocol.layers import LayerRange


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """Something llama.cpp would derive from a layer's number, spelled out."""

    key: str
    flags: Sequence[bool]
    """One for each layer of the whole model."""
    setting_key: str | None = None
    """Metadata that turns the feature on. Layers that make no use of it are cut without it, because
    llama.cpp aborts the process if the feature is on and no layer has it."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What must be known of a kind of model to cut it anywhere."""

    patterns: Callable[[ModelFile], Sequence[LayerPattern]] = lambda _: ()
    why_not: Callable[[ModelFile], str] = lambda _: ""
    """A reason to refuse this very model; empty if there is none."""
    head_only_keys: frozenset[str] = frozenset()
    """Metadata that acts on whatever enters the first layer, so that later slices must not have it."""
    needs_output: bool = False
    """llama.cpp insists on ``output.weight`` and does not fall back to the token embedding."""
    is_hybrid: bool = False
    """Some layers are recurrent. Their state cannot be rolled back, and a segment needs a layer of each kind."""


GEMMA3_27B_LAYERS = 62


def _windows(period_default: int) -> Callable[[ModelFile], Sequence[LayerPattern]]:
    """Sliding windows in all but the last layer of each period; the default is llama.cpp's own."""

    def patterns(model: ModelFile) -> Sequence[LayerPattern]:
        if not model.integer("attention.sliding_window"):
            return ()
        key = "attention.sliding_window_pattern"
        flags = model.flags(key)
        if flags is None:
            period = model.integer(key)
            period = period_default if period is None else period
            # The period 0 means a window in every layer.
            flags = [period == 0 or layer % period < period - 1 for layer in range(model.layer_count)]
        prefix = model.architecture
        return (LayerPattern(f"{prefix}.{key}", flags, f"{prefix}.attention.sliding_window"),)

    return patterns


RECURRENT_INTERVAL_DEFAULT = 4


def recurrent_layers(model: ModelFile) -> Sequence[bool]:
    """Which layers of a hybrid model are recurrent; of these models, all but every fourth."""
    flags = model.flags("attention.recurrent_layers")
    if flags is not None:
        return flags
    interval = model.integer("full_attention_interval") or RECURRENT_INTERVAL_DEFAULT
    return [(layer + 1) % interval != 0 for layer in range(model.layer_count)]


def _recurrent_pattern(model: ModelFile) -> Sequence[LayerPattern]:
    return (LayerPattern(f"{model.architecture}.attention.recurrent_layers", recurrent_layers(model)),)


def _why_not_gemma3(model: ModelFile) -> str:
    # llama.cpp knows the 27B model, whose attention is scaled differently, by its number of layers.
    is_27b = model.layer_count == GEMMA3_27B_LAYERS
    return "the 27B model's attention scale depends on its layer count" if is_27b else ""


def _why_not_granite(model: ModelFile) -> str:
    return "images are fed into its middle layers" if model.has("deepstack_mapping") else ""


_HYBRID = Architecture(patterns=_recurrent_pattern, is_hybrid=True)
_GRANITE = Architecture(why_not=_why_not_granite, head_only_keys=frozenset({"embedding_scale"}))

VERIFIED_ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral3": Architecture(),
    "qwen2": Architecture(),
    "qwen2moe": Architecture(needs_output=True),
    "qwen3": Architecture(),
    "qwen3moe": Architecture(),
    "qwen35": _HYBRID,
    "qwen35moe": _HYBRID,
    "gemma3": Architecture(patterns=_windows(6), why_not=_why_not_gemma3),
    "phi3": Architecture(),
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "olmo2": Architecture(patterns=_windows(4), needs_output=True),
}

REFUSED_ARCHITECTURES: dict[str, str] = {
    "gemma": "llama.cpp scales whatever enters its first layer, hidden states of another node included",
    "gemma2": "llama.cpp scales whatever enters its first layer, hidden states of another node included",
    "smollm3": "every fourth layer, counted from the first, has no positions, and no metadata can say which",
    "llama4": "which layers have experts and positions follows from a layer's number",
    "deepseek2": "llama.cpp tells its variants apart by their number of layers",
}
"""Kinds whose meaning a cut would change, and why. They can be served by a node that holds all layers elsewhere."""


def check_architecture(model: ModelFile) -> Architecture:
    """Raises UnsupportedArchitectureError unless splitting this kind of model is known to be exact."""
    architecture = VERIFIED_ARCHITECTURES.get(model.architecture)
    if architecture is None:
        reason = REFUSED_ARCHITECTURES.get(model.architecture, "")
        raise UnsupportedArchitectureError(model.architecture, VERIFIED_ARCHITECTURES, reason=reason)
    if reason := architecture.why_not(model):
        raise UnsupportedArchitectureError(model.architecture, VERIFIED_ARCHITECTURES, reason=reason)
    return architecture


def check_cut(model: ModelFile, layers: LayerRange) -> Architecture:
    """Whether these layers can be a segment. Raises UnsupportedArchitectureError, LayersError, LayerKindsError."""
    architecture = check_architecture(model)
    model.check_range(layers)
    if architecture.is_hybrid:
        kinds = recurrent_layers(model)
        if not _has_both(kinds, layers):
            raise LayerKindsError(layers, nearest=_widened(kinds, layers))
    return architecture


def enterable_at(model: ModelFile, shard: LayerRange, entry_layers: frozenset[int]) -> frozenset[int]:
    """The entry layers, first come first served from the front, that leave only pieces llama.cpp can run."""
    if not check_architecture(model).is_hybrid:
        return entry_layers
    kinds = recurrent_layers(model)
    kept: set[int] = set()
    start = shard.first
    for entry in sorted(layer for layer in entry_layers if shard.first < layer <= shard.last):
        if _has_both(kinds, LayerRange(start, entry - 1)) and _has_both(kinds, LayerRange(entry, shard.last)):
            kept.add(entry)
            start = entry
    return frozenset(kept)


def _has_both(kinds: Sequence[bool], layers: LayerRange) -> bool:
    return len(set(kinds[layers.first : layers.next_layer])) == 2


def _widened(kinds: Sequence[bool], layers: LayerRange) -> LayerRange | None:
    """The smallest wider range with both kinds; None if the model has one kind only."""
    first, last = layers.first, layers.last
    while not _has_both(kinds, LayerRange(first, last)):
        if first == 0 and last == len(kinds) - 1:
            return None
        if last < len(kinds) - 1:
            last += 1
        else:
            first -= 1
    return LayerRange(first, last)


def check_context(model: ModelFile, context_tokens: int) -> None:
    """Raises SettingsError if this context would make llama.cpp compute something else than other nodes do.

    Models with two sets of rope factors use the long one if the *context*, not the chat, is longer than the
    original. Nodes of one route that differ in their context would then disagree about every position.
    """
    original = model.integer("rope.scaling.original_context_length") or model.context_tokens
    if "rope_factors_long.weight" in model.tensors and context_tokens > original:
        raise SettingsError(
            f"--context-tokens {context_tokens}: beyond {original} this model computes positions differently, and all "
            f"nodes of a route must agree; use --context-tokens {original} or less"
        )
