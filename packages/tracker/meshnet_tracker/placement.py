"""Which layers a new node should hold: the ones the mesh runs slowest.

A layer is as strong as the nodes that hold it are fast together: each node gives every layer of its shard what
it measured, layer-tokens per second over the layers it holds. A chain is as fast as its weakest layer, so the
window that covers the weakest layers is suggested, layers that nobody holds before all others. How much memory
a node has only limits how many layers it may be given; a slow machine with much memory gets fewer, so that it
does not become the next weakest part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet_protocol.layers import LayerRange


@dataclass(frozen=True, slots=True)
class HeldShard:
    """What a ready node contributes."""

    shard: LayerRange
    layer_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    layers: LayerRange
    reason: str
    """For a person."""


def suggest_layers(
    held: Sequence[HeldShard], *, layer_count: int, layers_max: int, layer_tokens_per_s: float | None = None
) -> Suggestion:
    """At most ``layers_max`` consecutive layers. ``layer_tokens_per_s``: what the new node measured, if it did."""
    assert layers_max >= 1
    strengths = layer_strengths(held, layer_count)
    weakest = min(strengths)
    width = min(layers_max, layer_count)
    slowed = False
    if layer_tokens_per_s is not None and weakest > 0:
        bearable = max(1, int(layer_tokens_per_s / weakest))
        slowed, width = bearable < width, min(width, bearable)
    starts = {0} | {shard.shard.next_layer for shard in held}
    first = min(
        range(layer_count - width + 1),
        # Equally weak windows: rather where another shard ends, which spares its successors a cut.
        key=lambda start: (sorted(strengths[start : start + width]), start not in starts, start),
    )
    layers = _gap_in(strengths, LayerRange(first, first + width - 1))
    return Suggestion(layers, _reason(strengths, layers, is_narrowed=slowed))


def _gap_in(strengths: Sequence[float], layers: LayerRange) -> LayerRange:
    """Only the part that nobody holds, if there is one: what is held already would slow the node down."""
    missing = [layer for layer in range(layers.first, layers.next_layer) if strengths[layer] == 0]
    return LayerRange(missing[0], missing[-1]) if missing else layers


def layer_strengths(held: Sequence[HeldShard], layer_count: int) -> list[float]:
    """Tokens per second that the mesh could run through each layer, all its holders together."""
    strengths = [0.0] * layer_count
    for node in held:
        for layer in range(node.shard.first, min(node.shard.next_layer, layer_count)):
            strengths[layer] += node.layer_tokens_per_s / node.shard.layer_count
    return strengths


def _reason(strengths: Sequence[float], layers: LayerRange, *, is_narrowed: bool) -> str:
    inside = strengths[layers.first : layers.next_layer]
    if missing := sum(1 for strength in strengths if strength == 0):
        covered = sum(1 for strength in inside if strength == 0)
        share = "all" if covered == missing else covered
        return f"{missing} layers are held by nobody, and {layers} covers {share} of them"
    reason = (
        f"{layers} has the weakest layers: {min(inside):.1f} tokens/s, where the strongest layer of the model has "
        f"{max(strengths):.1f}"
    )
    return f"{reason}; with more layers this node would be slower than they are" if is_narrowed else reason
