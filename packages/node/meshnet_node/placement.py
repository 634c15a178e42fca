"""``--layers auto``: how many layers this machine could hold, how fast it is, and where the tracker wants them.

Memory only says how many layers are possible. What decides is speed: the node measures itself on a few layers
and tells the tracker, which knows how fast every layer of the mesh is.
"""

import dataclasses

import httpx
import msgspec
import structlog

from meshnet_node.engine.api import (
    Engine,
    EngineOptions,
    ModelFile,
    available_memory,
    check_cut,
    check_memory,
    memory_need,
)
from meshnet_node.errors import LayerKindsError, SettingsError
from meshnet_node.tracker_reads import TrackerReads
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import LayersSuggestion

PROBE_LAYERS = 4
MEMORY_SHARE = 0.8
"""Of the free memory: the machine has other things to do."""

log = structlog.get_logger()


def layers_that_help(model: ModelFile, tracker: TrackerReads, options: EngineOptions) -> LayerRange:
    """Blocks while a few layers are measured and the tracker is asked. Raises NodeError."""
    layers_max = layers_that_fit(model, options, available_memory())
    speed = measured_speed(model, options) if model.is_local else None
    suggestion = _ask(tracker, model.card(options.cache_dir).model_key, layers_max, speed)
    if suggestion is None:
        layers, reason = LayerRange(0, layers_max - 1), "no other node serves this model yet"
    else:
        layers, reason = suggestion.layers.to_range(), suggestion.reason
    layers = _possible(model, layers)
    log.info("layers chosen", layers=str(layers), reason=reason, at_most=layers_max)
    return layers


def layers_that_fit(model: ModelFile, options: EngineOptions, available: int | None) -> int:
    """How many layers, head or tail at worst, fit into most of the free memory. Raises MemoryShortageError."""
    count = model.layer_count
    if available is None:
        return count
    budget = int(available * MEMORY_SHARE)
    while count > 1 and _worst_need(model, count, options) > budget:
        count -= 1
    if _worst_need(model, count, options) > budget:
        check_memory(model, _possible(model, LayerRange(0, count - 1)), options, available=budget)
    return count


def measured_speed(model: ModelFile, options: EngineOptions) -> float:
    """Layer-tokens per second of this machine, from the first few layers."""
    layers = _possible(model, LayerRange(0, min(PROBE_LAYERS, model.layer_count) - 1))
    small = dataclasses.replace(options, slots=1, context_tokens=min(options.context_tokens, 1024))
    engine = Engine.load(model, layers, small)
    try:
        return engine.measure_layer_tokens_per_s()
    finally:
        engine.close()


def _worst_need(model: ModelFile, count: int, options: EngineOptions) -> int:
    ends = (LayerRange(0, count - 1), LayerRange(model.layer_count - count, model.layer_count - 1))
    return max(memory_need(model, [_possible(model, layers)], options).total for layers in ends)


def _possible(model: ModelFile, layers: LayerRange) -> LayerRange:
    try:
        check_cut(model, layers)
    except LayerKindsError as error:
        if error.nearest is None:
            raise
        return error.nearest
    return layers


def _ask(tracker: TrackerReads, model_key: str, layers_max: int, speed: float | None) -> LayersSuggestion | None:
    """None if the tracker knows no such model. Raises NodeError."""
    query: dict[str, str | float] = {"model": model_key, "layers": layers_max}
    if speed is not None:
        query["layer_tokens_per_s"] = speed
    try:
        response = tracker.get("/v1/nodes/suggest", query)
        if response.status_code == 404:
            return None
        response.raise_for_status()
        return msgspec.json.decode(response.content, type=LayersSuggestion)
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        raise SettingsError(
            f"--layers auto: the tracker at {tracker.url} cannot suggest layers ({error}); start it, or give --layers"
        ) from error
