"""A new node is sent where the mesh is weakest, by speed and not by memory."""

import aiohttp
import pytest

from meshnet_protocol.layers import LayerRange
from meshnet_tracker.placement import HeldShard, layer_strengths, suggest_layers
from meshnet_tracker.testing import running_tracker


def held(*shards: tuple[str, float]) -> list[HeldShard]:
    return [HeldShard(LayerRange.parse(layers), speed) for layers, speed in shards]


def suggested(shards: list[HeldShard], layers_max: int, speed: float | None = None) -> str:
    return str(suggest_layers(shards, layer_count=40, layers_max=layers_max, layer_tokens_per_s=speed).layers)


def test_a_layer_is_as_strong_as_its_holders_together() -> None:
    assert layer_strengths(held(("0-1", 100.0), ("1-2", 40.0)), 4) == [50.0, 70.0, 20.0, 0.0]


@pytest.mark.parametrize(
    ("shards", "layers_max", "expected"),
    [
        ([], 10, "0-9"),
        ([("0-21", 900.0)], 18, "22-39"),
        ([("0-21", 900.0)], 40, "22-39"),
        ([("0-9", 900.0), ("20-39", 10.0)], 10, "10-19"),
        ([("0-19", 100.0), ("20-39", 900.0)], 20, "0-19"),
        ([("0-19", 900.0), ("20-39", 100.0)], 5, "20-24"),
    ],
    ids=["nobody", "rest", "gap-first", "hole", "weak-head", "weak-tail"],
)
def test_gaps_come_first_and_then_the_weakest_layers(
    shards: list[tuple[str, float]], layers_max: int, expected: str
) -> None:
    assert suggested(held(*shards), layers_max) == expected


def test_a_slow_machine_with_much_memory_gets_few_layers() -> None:
    shards = held(("0-19", 900.0), ("20-39", 400.0))

    assert suggested(shards, 40, speed=100.0) == "20-24"
    assert suggested(shards, 40, speed=10_000.0) == "0-39"


def test_a_gap_is_filled_even_by_a_slow_machine() -> None:
    assert suggested(held(("0-19", 900.0)), 20, speed=1.0) == "20-39"


def test_a_suggestion_says_why() -> None:
    gap = suggest_layers(held(("0-21", 900.0)), layer_count=40, layers_max=10)
    filled = suggest_layers(held(("0-21", 900.0)), layer_count=40, layers_max=40)
    weak = suggest_layers(
        held(("0-19", 900.0), ("20-39", 400.0)), layer_count=40, layers_max=40, layer_tokens_per_s=60.0
    )

    assert gap.reason == "18 layers are held by nobody, and 22-31 covers 10 of them"
    assert filled.reason == "18 layers are held by nobody, and 22-39 covers all of them"
    assert "20.0 tokens/s, where the strongest layer of the model has 45.0" in weak.reason
    assert "slower than they are" in weak.reason


async def test_the_tracker_suggests_layers_over_http() -> None:
    async with running_tracker() as tracker, aiohttp.ClientSession() as http:
        tracker.register("fast", "0-21")
        async with http.get(f"{tracker.url}/v1/nodes/suggest?model=tiny&layers=30") as response:
            answer = await response.json()
        async with http.get(f"{tracker.url}/v1/nodes/suggest?model=absent&layers=3") as response:
            unknown = response.status
        async with http.get(f"{tracker.url}/v1/nodes/suggest?model=tiny&layers=0") as response:
            wrong = response.status

    assert answer["layers"] == {"first": 22, "last": 39}
    assert answer["model_key"].startswith("tiny@")
    assert (unknown, wrong) == (404, 400)
